#include "check/digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

namespace ckfs {
namespace {

const std::string kSha(64, 'a');
const std::string kXxh(32, 'b');

TEST(Digests, CheckFilesComeBack) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::map<std::string, FileDigest> digests;
    for (unsigned left = 1 + static_cast<unsigned>(random() % 5); left > 0; --left) {
      std::string path = "a";
      for (unsigned n = static_cast<unsigned>(random() % 8); n > 0; --n) {
        path += "b \\\n\r()=*/"[random() % 10];
      }
      digests[path] = {path, {{Algorithm::Sha256, kSha}}};
      if (random() % 2 == 0) digests[path].sums[Algorithm::Crc32c] = "4waSgw==";
      if (random() % 2 == 0) digests[path].sums[Algorithm::Xxh128] = kXxh;
    }
    for (const bool tagged : {false, true}) {
      std::string text = "# a comment\n";
      std::vector<FileDigest> want;
      for (const auto& [path, digest] : digests) {
        text += check_lines(digest, tagged);
        want.push_back(digest);
      }
      const auto parsed = parse_digests(text);
      ASSERT_TRUE(parsed.has_value()) << parsed.error().message() << "\n" << text;
      EXPECT_EQ(*parsed, want);
    }
  }
}

TEST(Digests, ALineMayComeTwice) {
  const auto parsed = parse_digests(kSha + "  a\n" + kSha + "  a\n");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  EXPECT_EQ(parsed->size(), 1U);
}

TEST(Digests, WhatIsNoneIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("hello\n"), kSha + "\n", kSha + "  \n",
        std::string("{}"), std::string(R"({"version":1,"files":[]})"),
        std::string(R"({"version":2,"files":[{"path":"a","sha256":"b"}]})"),
        std::string(R"({"version":1,"files":[{"path":"a"}]})"),
        std::string(R"({"version":1,"files":[{"path":"a\ufffd","sha256":"b"}]})"),
        std::string(
            R"({"version":1,"files":[{"path":"a","sha256":"b"},{"path":"a","sha256":"b"}]})"),
        "x" + kSha.substr(1) + "  a\n",
        kSha + "  a\n" + (kSha[0] == '0' ? '1' : '0') + kSha.substr(1) + "  a\n"}) {
    EXPECT_FALSE(parse_digests(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace ckfs
