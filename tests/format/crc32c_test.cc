#include "format/crc32c.h"

#include <gtest/gtest.h>
#include <string>

namespace ckfs {
namespace {

std::string ascending(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(i);
  return text;
}

// RFC 3720, appendix B.4, and the check value of the polynomial.
TEST(Crc32c, IsThatOfThePublishedVectors) {
  for (const auto both : {crc32c, crc32c_plain}) {
    const auto sum = [both](std::string_view text) { return both(text, 0); };
    EXPECT_EQ(sum(""), 0U);
    EXPECT_EQ(sum("123456789"), 0xE3069283U);
    EXPECT_EQ(sum(std::string(32, '\0')), 0x8A9136AAU);
    EXPECT_EQ(sum(std::string(32, '\xff')), 0x62A8AB43U);
    EXPECT_EQ(sum(ascending(32)), 0x46DD794EU);
    const std::string up = ascending(32);
    EXPECT_EQ(sum(std::string(up.rbegin(), up.rend())), 0x113FDB5CU);
  }
}

TEST(Crc32c, GoesOnFromWhatCameBefore) {
  const std::string text = ascending(200);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string_view head = std::string_view(text).substr(0, cut);
    const std::string_view tail = std::string_view(text).substr(cut);
    EXPECT_EQ(crc32c(tail, crc32c(head)), crc32c(text)) << cut;
    EXPECT_EQ(crc32c_plain(tail, crc32c_plain(head)), crc32c(text)) << cut;
  }
}

TEST(Crc32c, IsTheSameByInstructionAndByTable) {
  const std::string text = ascending(256) + ascending(77);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t size = 0; size + begin <= text.size(); size += 7) {
      const std::string_view part = std::string_view(text).substr(begin, size);
      EXPECT_EQ(crc32c(part), crc32c_plain(part)) << begin << " " << size;
    }
  }
}

}  // namespace
}  // namespace ckfs
