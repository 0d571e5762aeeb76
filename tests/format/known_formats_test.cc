// Files by their first bytes, as the tools of each format begin them.
#include "format/known_formats.h"

#include <gtest/gtest.h>
#include <string>

namespace ckfs {
namespace {

using namespace std::string_literals;

std::string name_of(const std::string& first) {
  return what_it_is(std::as_bytes(std::span(first.data(), first.size())));
}

TEST(KnownFormats, AreCalledByTheirNames) {
  const std::string unread = ", which ckfs does not read";
  const std::string other = ", not a safetensors file";
  EXPECT_EQ(name_of("GGUF\3\0\0\0"s), "a GGUF file" + unread);
  EXPECT_EQ(name_of("lmgg\1\0\0\0"s), "a GGML file" + unread);
  EXPECT_EQ(name_of("\x89HDF\r\n\x1a\n\0"s), "an HDF5 file" + unread);
  EXPECT_EQ(name_of("\x93NUMPY\1\0v\0{'descr'"s), "a numpy file (.npy)" + unread);
  EXPECT_EQ(name_of("PK\3\4"s + std::string(22, '\0') + "\x0a\0\0\0"s + "arr_00.npy..."),
            "a zip archive of numpy arrays (.npz)" + unread);
  EXPECT_EQ(name_of("\x08\x07\x12\x07pytorch\x1a"s), "an ONNX file" + unread);
  EXPECT_EQ(name_of("\x1c\0\0\0TFL3"s), "a TensorFlow Lite file" + unread);
  EXPECT_EQ(name_of("\x1f\x8b\x08\0"s), "a file compressed by gzip" + unread);
  EXPECT_EQ(name_of("\x7f"
                    "ELF\2\1"s),
            "a program" + unread);
  EXPECT_EQ(name_of(std::string(257, '\0') + "ustar"), "a tar archive" + unread);
  EXPECT_EQ(name_of("PK\3\4\x14\0"s), "a zip archive (a file of torch?)" + other);
  EXPECT_EQ(name_of("\x80\2}q\0"s), "a pickle (a file of torch?)" + other);
  EXPECT_EQ(name_of("\x80\4\x95\x10\0"s), "a pickle (a file of torch?)" + other);
  EXPECT_EQ(name_of("\n <!DOCTYPE HTML>\n"s),
            "an HTML page (an error page that was saved?)" + other);
  EXPECT_EQ(name_of("<html lang=\"en\">"s), "an HTML page (an error page that was saved?)" + other);
  EXPECT_EQ(name_of("<?xml version=\"1.0\"?><Error>"s),
            "an XML text (an error message that was saved?)" + other);
  EXPECT_EQ(name_of("{\"error\":\"Invalid credentials\"}"s),
            "a JSON text (an error message that was saved?)" + other);
  EXPECT_EQ(name_of("Entry not found"s), "a text (an error message that was saved?)" + other);
}

TEST(KnownFormats, AreNoneOfWhatNothingSays) {
  EXPECT_EQ(name_of(""), "");
  EXPECT_EQ(name_of("PK"s), "");
  EXPECT_EQ(name_of("\x10\0\0\0\0\0\0\0{\"a\":{}}"s), "");
  EXPECT_EQ(name_of("{\0\0\0\0\0\0\0{\"a\":{}}"s), "") << "a header of 123 bytes";
  EXPECT_EQ(name_of(std::string(8, '\xff') + "{}"), "") << "a length of 2^64 - 1";
  EXPECT_EQ(name_of("weights"s), "");
  EXPECT_EQ(name_of("\x08\x07\x12\x07py\0orch"s), "") << "no producer's name";
  EXPECT_EQ(name_of("\x08\x07\x12\x40py"s), "");
}

}  // namespace
}  // namespace ckfs
