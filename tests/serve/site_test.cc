#include "serve/site.h"

#include <gtest/gtest.h>

#include "serve/access.h"

namespace ckfs {
namespace {

TEST(BucketName, IsTheLastNameOfASource) {
  EXPECT_EQ(bucket_name("/models/DeepSeek-V3"), "deepseek-v3");
  EXPECT_EQ(bucket_name("/models/DeepSeek-V3//"), "deepseek-v3");
  EXPECT_EQ(bucket_name("hf://org/Name_of.It@main"), "name-of.it");
  EXPECT_EQ(bucket_name("s3://bucket/a/-b- "), "b");
  EXPECT_EQ(bucket_name(std::string(100, 'A')), std::string(63, 'a'));
  EXPECT_EQ(bucket_name("/"), "");
  EXPECT_EQ(bucket_name("/___"), "");
}

TEST(BucketName, IsOneThatS3TakesAndNoRoute) {
  for (const std::string_view good : {"abc", "deepseek-v3", "a.b-c", "123"}) {
    EXPECT_TRUE(check_bucket_name(good)) << good;
  }
  for (const std::string_view bad :
       {"", "ab", "-abc", "abc-", "Abc", "a/b", "ckfs", "api", "storage", "download", ".ckfs"}) {
    EXPECT_FALSE(check_bucket_name(bad)) << bad;
  }
}

TEST(Access, KeepsWhatIsBehindTheFirstColonOfTheFirstLine) {
  const auto key = parse_key(" id:se:cr et/+= \nmore\n", "FILE");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->id, "id");
  EXPECT_EQ(key->secret, "se:cr et/+=");
}

TEST(Access, TakesTheNamesOfThisMachineAlone) {
  for (const std::string_view own : {"", "localhost", "bucket.localhost", "127.0.0.1", "[::1]"}) {
    EXPECT_TRUE(is_own_name(own)) << own;
  }
  for (const std::string_view other : {"localhost.example", "10.0.0.1", "127.0.0.1.example", "x"}) {
    EXPECT_FALSE(is_own_name(other)) << other;
  }
}

}  // namespace
}  // namespace ckfs
