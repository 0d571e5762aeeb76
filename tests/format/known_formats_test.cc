// Files by their first bytes, as the tools of each format begin them.
#include "format/known_formats.h"

#include <gtest/gtest.h>
#include <string>

namespace ckfs {
namespace {

using namespace std::string_literals;

std::string_view name_of(const std::string& first) {
  return name_of_format(std::as_bytes(std::span(first.data(), first.size())));
}

TEST(KnownFormats, AreCalledByTheirNames) {
  EXPECT_EQ(name_of("GGUF\3\0\0\0"s), "a GGUF file");
  EXPECT_EQ(name_of("PK\3\4\x14\0"s), "a zip archive (a file of torch?)");
  EXPECT_EQ(name_of("\x80\2}q\0"s), "a pickle (a file of torch?)");
  EXPECT_EQ(name_of("\x80\4\x95\x10\0"s), "a pickle (a file of torch?)");
  EXPECT_EQ(name_of("\x89HDF\r\n\x1a\n\0"s), "an HDF5 file");
  EXPECT_EQ(name_of("\n <!DOCTYPE HTML>\n"s), "an HTML page (an error page that was saved?)");
  EXPECT_EQ(name_of("<html lang=\"en\">"s), "an HTML page (an error page that was saved?)");
  EXPECT_EQ(name_of("<?xml version=\"1.0\"?><Error>"s),
            "an XML text (an error message that was saved?)");
  EXPECT_EQ(name_of("{\"error\":\"Invalid credentials\"}"s),
            "a JSON text (an error message that was saved?)");
  EXPECT_EQ(name_of(std::string(257, '\0') + "ustar"), "a tar archive");
}

TEST(KnownFormats, AreNoneOfWhatNothingSays) {
  EXPECT_EQ(name_of(""), "");
  EXPECT_EQ(name_of("PK"s), "");
  EXPECT_EQ(name_of("\x10\0\0\0\0\0\0\0{\"a\":{}}"s), "");
  EXPECT_EQ(name_of("{\0\0\0\0\0\0\0{\"a\":{}}"s), "") << "a header of 123 bytes";
  EXPECT_EQ(name_of("weights"s), "");
}

}  // namespace
}  // namespace ckfs
