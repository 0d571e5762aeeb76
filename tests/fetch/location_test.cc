#include "fetch/location.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SourceLocation, OfTheHubIsARepositoryARevisionAndAFolder) {
  const auto plain = parse_location("hf://Qwen/Qwen3-8B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->container, "Qwen/Qwen3-8B");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->path, "");
  EXPECT_EQ(plain->text(), "hf://Qwen/Qwen3-8B@main");
  const auto full = parse_location("hf://black-forest/FLUX.1@v1.0/a b/te@xt_encoder/");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->container, "black-forest/FLUX.1");
  EXPECT_EQ(full->revision, "v1.0");
  EXPECT_EQ(full->path, "a b/te@xt_encoder");
}

TEST(SourceLocation, HasRevisionsWithSlashesEncodedOrOfTheHubsOwnKind) {
  EXPECT_EQ(parse_location("hf://a/b@feature%2Fx/sub")->revision, "feature/x");
  EXPECT_EQ(parse_location("hf://a/b@feature%2Fx/sub")->path, "sub");
  EXPECT_EQ(parse_location("hf://a/b@refs/pr/12/sub")->revision, "refs/pr/12");
  EXPECT_EQ(parse_location("hf://a/b@refs/pr/12/sub")->path, "sub");
  EXPECT_EQ(parse_location("hf://a/b@refs%2Fpr%2F12")->revision, "refs/pr/12");
}

TEST(SourceLocation, OfABucketIsItsNameAndWhatKeysBeginWith) {
  const auto s3 = parse_location("s3://models/llama-70b/step=1/a b+c?d#e/");
  ASSERT_TRUE(s3);
  EXPECT_EQ(s3->service, RemoteService::S3);
  EXPECT_EQ(s3->container, "models");
  EXPECT_EQ(s3->path, "llama-70b/step=1/a b+c?d#e");
  EXPECT_EQ(parse_location("s3://models")->path, "");
  EXPECT_EQ(parse_location("gs://b_1/run/checkpoints")->service, RemoteService::Gcs);
}

TEST(SourceLocation, IsTheSameWhenItIsPrintedAndParsedAgain) {
  for (const std::string_view text :
       {"hf://a/b", "hf://a/b@refs%2Fpr%2F1/x", "hf://a/b@x%2Fy/z%20", "s3://b/k%20 +", "gs://b",
        "https://u:p%40@Host.example:8443/a%20b/c?X-Amz-Signature=12&x", "http://[::1]:80/"}) {
    const auto once = parse_location(text);
    ASSERT_TRUE(once) << text << ": " << once.error().message();
    EXPECT_EQ(parse_location(once->text()).value(), *once) << text;
  }
}

TEST(SourceLocation, PrintsNoSecret) {
  const auto signed_url = parse_location(
      "https://user:hunter2@h.example/m.safetensors?Expires=9&Signature=abcdef&token");
  ASSERT_TRUE(signed_url);
  EXPECT_EQ(signed_url->masked(),
            "https://***@h.example/m.safetensors?Expires=***&Signature=***&***");
}

TEST(SourceLocation, NamesNoSecretInAnError) {
  for (const std::string_view text :
       {"https://user:hunter2@/x", "https://user:hunter2@h/ x", "https://user:hunter2@h:0/",
        "https://h/x?sig=hunter2 ", "ftp://user:hunter2@h/x", "https://h/x?sig=hunter2#f",
        "https://user:hunter 2@h/"}) {
    const auto refused = parse_location(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_THAT(refused.error().message(), Not(HasSubstr("hunter"))) << text;
  }
}

TEST(SourceLocation, SaysWhatIsWrong) {
  struct Case {
    std::string_view text, says;
  };
  constexpr auto kCases = std::to_array<Case>({
      {"hf://gpt2", "hf://gpt2: a repository has an owner and a name: hf://org/name"},
      {"hf://datasets/a/b",
       "hf://datasets/a/b: datasets of the hub are not models (hf://org/name)"},
      {"hf://spaces/a/b", "hf://spaces/a/b: spaces of the hub are not models (hf://org/name)"},
      {"hf://a/b@", "no name of a revision: \"\""},
      {"hf://a/b@-x", "no name of a revision: \"-x\""},
      {"hf://a/b@refs/heads/x", "a revision of refs is refs/pr/NUMBER or refs/convert/NAME"},
      {"hf://a/b@x%2", "a '%' without two hexadecimal digits"},
      {"hf://a/b--c", "no name of a repository: \"a/b--c\""},
      {"hf://a/../b", "no name of a repository: \"a/..\""},
      {"hf://a/b/../c", "a part of its name is . or .."},
      {"hf://a/b//c", "a part of its name is empty (//)"},
      {"s3://", "no name of a bucket: \"\""},
      {"s3:///x", "no name of a bucket: \"\""},
      {"s3://b\x01/x", "no name of a bucket: \"b\\u0001\""},
      {"s3://b/x\ny", "its name has a control character"},
      {"s3://b/\xff", "its name is not UTF-8"},
      {"s3://arn:aws:s3:us-west-2:1:accesspoint/x", "access points are not supported"},
      {"gs://b/./x", "a part of its name is . or .."},
      {"https:///x", "not a URL: no host: \"\""},
      {"https://h:99999/x", "the port is not a number from 1 to 65535"},
      {"https://h/a\\b", "a character of its path needs %XX"},
      {"https://h/a%zz", "a character of its path needs %XX"},
      {"HF://a/b", "\"HF\": not a location of a source"},
      {"az://a/b", "\"az\": not a location of a source"},
  });
  for (const Case& each : kCases) {
    const auto refused = parse_location(each.text);
    ASSERT_FALSE(refused) << each.text;
    EXPECT_THAT(refused.error().message(), HasSubstr(each.says)) << each.text;
  }
}

TEST(SourceLocation, IsToldFromAPath) {
  EXPECT_TRUE(is_location("hf://a/b"));
  EXPECT_TRUE(is_location("ftp://x"));
  EXPECT_FALSE(is_location("/a/b://c"));
  EXPECT_FALSE(is_location("./hf://a"));
  EXPECT_FALSE(is_location("dir/model"));
  EXPECT_FALSE(is_location("://x"));
  EXPECT_FALSE(is_location(""));
}

TEST(SourceLocation, IsNoPageOfTheHub) {
  const auto says = [](std::string_view text) {
    const auto location = parse_location(text);
    return location ? location->masked() : location.error().message();
  };
  EXPECT_EQ(says("https://huggingface.co/org/name/tree/main"),
            "https://huggingface.co/org/name/tree/main: a page of the hub (name the model itself: "
            "hf://org/name)");
  EXPECT_EQ(says("https://huggingface.co/"),
            "https://huggingface.co/: a page of the hub (name the model itself: hf://ORG/NAME)");
  EXPECT_EQ(says("https://huggingface.co/org/name/resolve/main/a.safetensors"),
            "https://huggingface.co/org/name/resolve/main/a.safetensors");
}

TEST(Url, ResolvesWhatARedirectSays) {
  const Url base = parse_url("https://hub.example:8443/a/b/c?q=1").value();
  const auto says = [&](std::string_view reference) {
    const auto url = resolve_reference(base, reference);
    return url ? url->text() : url.error().message();
  };
  EXPECT_EQ(says("https://cdn.example/x?y=1"), "https://cdn.example/x?y=1");
  EXPECT_EQ(says("//cdn.example/x"), "https://cdn.example/x");
  EXPECT_EQ(says("/api/x"), "https://hub.example:8443/api/x");
  EXPECT_EQ(says("d"), "https://hub.example:8443/a/b/d");
  EXPECT_EQ(says("../d?e:f"), "https://hub.example:8443/a/d?e:f");
  EXPECT_EQ(says("../../../../d/"), "https://hub.example:8443/d/");
  EXPECT_EQ(says("?z"), "https://hub.example:8443/a/b/c?z");
  EXPECT_EQ(says("file:///etc/passwd"), "not a URL: it does not begin with http:// or https://");
}

TEST(Url, KnowsTheHostsThatNoStrangerMayLeadTo) {
  EXPECT_TRUE(is_loopback_host("127.0.0.1"));
  EXPECT_TRUE(is_loopback_host("127.9.9.9"));
  EXPECT_TRUE(is_loopback_host("localhost"));
  EXPECT_TRUE(is_loopback_host("[::1]"));
  EXPECT_FALSE(is_loopback_host("127.0.0.1.example"));
  EXPECT_FALSE(is_loopback_host("128.0.0.1"));
  EXPECT_TRUE(is_link_local_host("169.254.169.254"));
  EXPECT_TRUE(is_link_local_host("[fe80::1]"));
  EXPECT_FALSE(is_link_local_host("169.255.0.1"));
}

TEST(Url, EncodesAllButWhatIsUnreserved) {
  EXPECT_EQ(percent_encode("a b/c~d=+", "/"), "a%20b/c~d%3D%2B");
  EXPECT_EQ(percent_encode("\xc3\xa9/"), "%C3%A9%2F");
  EXPECT_EQ(percent_decode("a%20b%2fc").value(), "a b/c");
  EXPECT_FALSE(percent_decode("a%2"));
}

}  // namespace
}  // namespace ckfs
