#include "cache/cached_listing.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

#include "support/temporary_directory.h"

namespace ckfs {
namespace {

std::optional<std::string> name_of(std::string_view location, std::string_view endpoint = "") {
  return cache_name(*parse_location(location), endpoint);
}

TEST(CacheName, IsTheSameForAllVersions) {
  EXPECT_EQ(name_of("hf://o/r"), "hf://o/r");
  EXPECT_EQ(name_of("hf://o/r@abc"), "hf://o/r");
  EXPECT_EQ(name_of("hf://o/r@abc/sub/folder"), "hf://o/r/sub/folder");
  EXPECT_EQ(name_of("s3://bucket/a/b"), "s3://bucket/a/b");
  EXPECT_EQ(name_of("https://host/a"), "https://host/a");
}

TEST(CacheName, TellsServicesApart) {
  EXPECT_EQ(name_of("s3://b/p", "http://127.0.0.1:9000"), "s3://b/p at http://127.0.0.1:9000");
  EXPECT_NE(name_of("s3://b/p"), name_of("gs://b/p"));
}

TEST(CacheName, IsNotGivenToLocationsWithSecrets) {
  EXPECT_EQ(name_of("https://host/a?signature=x"), std::nullopt);
  EXPECT_EQ(name_of("https://user:password@host/a"), std::nullopt);
}

TEST(CacheEndpoint, IsTheOptionsOrTheEnvironments) {
  const auto s3 = *parse_location("s3://b/p");
  const auto hub = *parse_location("hf://o/r");
  const auto gcs = *parse_location("gs://b/p");
  for (const char* name : {"HF_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL",
                           "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "STORAGE_EMULATOR_HOST"}) {
    ::unsetenv(name);
  }
  EXPECT_EQ(cache_endpoint(s3, ""), "");
  EXPECT_EQ(cache_endpoint(s3, "http://h:1/"), "http://h:1/");
  ::setenv("AWS_ENDPOINT_URL", "http://all:1", 1);
  EXPECT_EQ(cache_endpoint(s3, ""), "http://all:1/");
  ::setenv("AWS_ENDPOINT_URL_S3", "http://s3:1", 1);
  EXPECT_EQ(cache_endpoint(s3, ""), "http://s3:1/");
  EXPECT_EQ(cache_endpoint(s3, "http://h:1"), "http://h:1/");
  ::setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
  EXPECT_EQ(cache_endpoint(s3, ""), "");
  EXPECT_EQ(cache_endpoint(s3, "http://h:1"), "http://h:1/");
  ::setenv("HF_ENDPOINT", "https://mirror", 1);
  EXPECT_EQ(cache_endpoint(hub, ""), "https://mirror/");
  ::setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443", 1);
  EXPECT_EQ(cache_endpoint(gcs, ""), "127.0.0.1:4443");
  EXPECT_EQ(cache_endpoint(*parse_location("https://host/a"), ""), "");
  EXPECT_EQ(cache_endpoint(s3, "http://u:secret@h:1"), "http://***@h:1/");
}

class CachedListingTest : public testing::Test {
 protected:
  void SetUp() override {
    cache_ = *BlockCache::open(parent_ / "cache", {.keep_free = 0});
    place_ = *cache_->source("hf://o/r");
  }

  TemporaryDirectory parent_;
  std::unique_ptr<BlockCache> cache_;
  BlockCache::Source place_;
};

TEST_F(CachedListingTest, IsFoundByWhatWasAskedAndByTheCommit) {
  const auto asked = *parse_location("hf://o/r@main");
  RemoteSource source{.pinned = *parse_location("hf://o/r@0123456789abcdef"), .time = 1234};
  for (int i = 0; i < 300; ++i) {
    source.objects.push_back({fmt::format("dir/{:04}", i), std::uint64_t{1} << (i % 40),
                              fmt::format("oid{}", i), "sha256:00", 7});
  }
  source.refused = {"a//b: an empty segment"};
  EXPECT_FALSE(get_listing(*cache_, place_, asked));
  put_listing(*cache_, place_, asked, source);
  for (const auto& location : {asked, source.pinned}) {
    const auto found = get_listing(*cache_, place_, location);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->pinned, source.pinned);
    EXPECT_EQ(found->objects, source.objects);
    EXPECT_EQ(found->refused, source.refused);
    EXPECT_EQ(found->time, 1234);
    EXPECT_TRUE(found->is_pinned);
    EXPECT_FALSE(found->is_file);
  }
  EXPECT_FALSE(get_listing(*cache_, place_, *parse_location("hf://o/r@other")));
  // Newer than the other.
  source.pinned.revision = "fedc";
  put_listing(*cache_, place_, asked, source);
  EXPECT_EQ(get_listing(*cache_, place_, asked)->pinned.revision, "fedc");
  EXPECT_EQ(
      get_listing(*cache_, place_, *parse_location("hf://o/r@0123456789abcdef"))->pinned.revision,
      "0123456789abcdef");
}

TEST_F(CachedListingTest, WithASecretIsNotKept) {
  const auto asked = *parse_location("https://host/a?signature=x");
  put_listing(*cache_, place_, asked, {.pinned = asked, .objects = {{"a", 1, "v"}}});
  EXPECT_FALSE(get_listing(*cache_, place_, asked));
}

TEST_F(CachedListingTest, ThatIsNoneIsNotBelieved) {
  const auto asked = *parse_location("hf://o/r@main");
  for (const std::string& text :
       {std::string(), std::string(7, '\0'), std::string(8, '\xff'), std::string(64, '\0')}) {
    cache_->put_text(place_, asked.text(), text);
    EXPECT_FALSE(get_listing(*cache_, place_, asked));
  }
}

}  // namespace
}  // namespace ckfs
