#include "check/checksum.h"

#include <gtest/gtest.h>

namespace ckfs {
namespace {

std::string sum(Algorithm algorithm, std::string_view text, std::size_t piece) {
  auto checksum = Checksum::create(algorithm);
  EXPECT_TRUE(checksum.has_value());
  while (!text.empty()) {
    const std::string_view part = text.substr(0, piece);
    (*checksum)->add(std::as_bytes(std::span(part)));
    text.remove_prefix(part.size());
  }
  return (*checksum)->finish();
}

TEST(Checksum, IsWhatTheProgramsPrint) {
  // sha256sum, `gsutil hash`, `xxhsum -H2`.
  EXPECT_EQ(sum(Algorithm::Sha256, "123456789", 100),
            "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225");
  EXPECT_EQ(sum(Algorithm::Crc32c, "123456789", 100), "4waSgw==");
  EXPECT_EQ(sum(Algorithm::Xxh128, "", 100), "99aa06d3014798d86001c324468d497f");
}

TEST(Checksum, DoesNotDependOnPieces) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += static_cast<char>(i * 7919 >> 4);
  for (const Algorithm algorithm : kAlgorithms) {
    const std::string whole = sum(algorithm, text, text.size());
    for (const std::size_t piece : {1U, 7U, 4096U, 65'537U}) {
      EXPECT_EQ(sum(algorithm, text, piece), whole) << name(algorithm) << " " << piece;
    }
  }
}

TEST(Checksum, HasNames) {
  for (const Algorithm algorithm : kAlgorithms) {
    EXPECT_EQ(parse_algorithm(name(algorithm)), algorithm);
  }
  EXPECT_EQ(parse_algorithm("md5"), std::nullopt);
}

}  // namespace
}  // namespace ckfs
