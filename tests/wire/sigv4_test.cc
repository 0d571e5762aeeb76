#include "wire/sigv4.h"

#include <gtest/gtest.h>

#include "wire/crypto.h"

namespace ckfs {
namespace {

// 2015-08-30T12:36:00Z, of AWS's test suite; 2013-05-24T00:00:00Z, of the examples in S3's manual.
constexpr std::int64_t kSuiteTime = 1440938160;
constexpr std::int64_t kManualTime = 1369353600;
const AwsKeys kSuiteKeys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
const AwsKeys kManualKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};

std::string signature(const UnsignedRequest& request, const AwsKeys& keys, const AwsScope& scope,
                      std::int64_t time, HttpHeaders headers = {}) {
  sign_aws(request, keys, scope, time, headers);
  const std::string_view value = find_header(headers, "authorization");
  return std::string(value.substr(value.find("Signature=") + 10));
}

std::string suite(std::string_view query, HttpHeaders headers = {}) {
  return signature({.host = "example.amazonaws.com", .path = "/", .query = query}, kSuiteKeys,
                   {"us-east-1", "service"}, kSuiteTime, std::move(headers));
}

// AWS's "Signature Version 4 test suite", by the names of its directories.
TEST(SigV4, HasThePublishedSignaturesOfTheTestSuite) {
  EXPECT_EQ(suite(""), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
  // get-vanilla-query-order-key-case
  EXPECT_EQ(suite("Param2=value2&Param1=value1"),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
  // get-vanilla-query-unreserved
  constexpr std::string_view kUnreserved =
      "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  EXPECT_EQ(suite(fmt::format("{0}={0}", kUnreserved)),
            "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197");
}

// "Signature Calculations for the Authorization Header" in the API reference of S3.
TEST(SigV4, HasThePublishedSignaturesOfTheManualOfS3) {
  const AwsScope scope{"us-east-1", "s3"};
  constexpr std::string_view kHost = "examplebucket.s3.amazonaws.com";
  EXPECT_EQ(signature({.host = kHost, .path = "/test.txt", .query = ""}, kManualKeys, scope,
                      kManualTime, {{"range", "bytes=0-9"}}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(signature({.host = kHost, .path = "/", .query = "lifecycle"}, kManualKeys, scope,
                      kManualTime),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(signature({.host = kHost, .path = "/", .query = "max-keys=2&prefix=J"}, kManualKeys,
                      scope, kManualTime),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// By botocore 1.x: S3SigV4Auth and SigV4Auth with the keys and the time of the test suite.
TEST(SigV4, AgreesWithBotocore) {
  const AwsScope scope{"eu-central-1", "s3"};
  constexpr std::string_view kHost = "bucket.s3.eu-central-1.amazonaws.com";
  EXPECT_EQ(suite("", {{"my-header1", " a   b   c "}}),
            "6ff6bc3cebca8811504dc903f3a072c310d9f48f8ee5c0b08115052209439e1b");
  EXPECT_EQ(signature({.host = kHost, .path = "/step%3D1/a%20b%2Bc.txt", .query = ""}, kSuiteKeys,
                      scope, kSuiteTime, {{"range", "bytes=0-9"}, {"if-match", "\"abc\""}}),
            "ee4014b7b413ae47cd598c1ceef141c21759039bc986866092e00bd8a91d12fd");
  EXPECT_EQ(signature({.host = kHost,
                       .path = "/",
                       .query = "list-type=2&prefix=a%2Fb%3D&encoding-type=url&"
                                "continuation-token=x%2By%3D"},
                      kSuiteKeys, scope, kSuiteTime),
            "409ba2fd52efb3fa309fa214f9f2bdba76d61a56cfe0fb66c8a101f915367f24");
  AwsKeys lent = kSuiteKeys;
  lent.session_token = "TOKEN/+=";
  EXPECT_EQ(signature({.host = kHost, .path = "/k", .query = ""}, lent, scope, kSuiteTime),
            "abb66371c6173327af2a6913f835f4a6a9f021c74c78ed443e6e09ad5a24b3ea");
  EXPECT_EQ(signature({.method = "POST",
                       .host = "sts.amazonaws.com",
                       .path = "/",
                       .query = "",
                       .body = "Action=AssumeRole&Version=2011-06-15"},
                      kSuiteKeys, {"us-east-1", "sts"}, kSuiteTime,
                      {{"content-type", "application/x-www-form-urlencoded"}}),
            "bae8f7e62a6bbb1a58a70fbd964f3528a36d673a3efc2c7397bc25a9ecd67cd5");
}

TEST(SigV4, TakesValuesOfOneNameAsOneAndNamesThemOnce) {
  EXPECT_EQ(canonical_request({.host = "h", .path = "/", .query = "b&a=1"},
                              {{"x-b", "1"}, {"host", "h"}, {"x-b", " 2 "}}, "HASH"),
            "GET\n/\na=1&b=\nhost:h\nx-b:1,2\n\nhost;x-b\nHASH");
}

// RFC 4231, test case 2; FIPS 180-4's example.
TEST(Crypto, HasPublishedValues) {
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  // A key that is longer than a block: test case 6.
  EXPECT_EQ(to_hex(hmac_sha256(std::string(131, '\xaa'),
                               "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace ckfs
