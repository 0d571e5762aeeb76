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

TEST(Access, SaysWhichSignaturesItTakes) {
  const AwsKeys key{.id = "me", .secret = "not much of a secret", .session_token = {}};
  ServeRequest presigned;
  presigned.method = "GET";
  presigned.path = "/model/source/config.json";
  presigned.query = {{"AWSAccessKeyId", "me"}, {"Signature", "c2ln"}, {"Expires", "2000000000"}};
  ServeRequest signed_by_2 = presigned;
  signed_by_2.query = {};
  signed_by_2.headers = {{"authorization", "AWS me:c2ln"}};
  for (const ServeRequest& request : {presigned, signed_by_2}) {
    const auto refusal = check_key(request, key, 1'700'000'000);
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->status, 400);
    EXPECT_EQ(refusal->code, "InvalidRequest");
    EXPECT_NE(refusal->text.find("s3v4"), std::string::npos) << refusal->text;
  }
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
