#include "fetch/client.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

using ::testing::HasSubstr;

FetchClientOptions program(std::string path) {
  return {.program = std::move(path), .memory = std::size_t{1} << 20};
}

TEST(FetchClient, SaysThatThereIsNoFetcher) {
  const auto client = FetchClient::start(program("/nowhere/ckfs-fetcher"));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), ErrorCode::NotFound);
  EXPECT_THAT(client.error().message(),
              HasSubstr("/nowhere/ckfs-fetcher: not there, and sources that are not on this "
                        "machine need it"));
}

TEST(FetchClient, SaysThatItsFetcherHasEnded) {
  const auto client = FetchClient::start(program("/bin/true"));
  ASSERT_TRUE(client) << client.error().message();
  const auto opened = (*client)->open(parse_location("s3://b/p").value(), {});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::Io);
  EXPECT_THAT(opened.error().message(), HasSubstr("ckfs-fetcher has ended"));
}

TEST(FetchClient, RefusesRangesThatAreNone) {
  const auto client = FetchClient::start(program("/bin/true")).value();
  RemoteSource source;
  source.pinned = parse_location("s3://b/p").value();
  source.objects = {{.name = "o", .size = 10, .version = "\"e\""}};
  const std::uint32_t number = client->attach(source, {}).value();
  std::array<std::byte, 16> bytes{};
  const auto refused = [&](std::uint32_t its, std::size_t object, ByteRange range) {
    const auto result = client->read_now(its, object, range, std::span(bytes).first(range.size()));
    return !result && result.error().code() == ErrorCode::InvalidArgument;
  };
  EXPECT_TRUE(refused(number, 0, {0, 11}));
  EXPECT_TRUE(refused(number, 0, {5, 5}));
  EXPECT_TRUE(refused(number, 1, {0, 1}));
  EXPECT_TRUE(refused(number + 1, 0, {0, 1}));
  EXPECT_FALSE(client->read_now(number, 0, {0, 4}, bytes));  // of another size
}

}  // namespace
}  // namespace ckfs
