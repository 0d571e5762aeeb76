#include "export/fleet.h"

#include <gtest/gtest.h>
#include <utility>

namespace ckfs {
namespace {

RankRecord record_on(std::string host) {
  return {.fleet = {.origin = {.fingerprint = 0xff, .view = "v@a=1", .layout_version = 1},
                    .world = 8,
                    .split = Split::Files},
          .rank = 3,
          .host = std::move(host),
          .complete = false,
          .ranges = {{.step = {0, {0, 10}}, .synced = 5}, {.step = {7, {3, 4}}, .synced = 4}}};
}

TEST(RankRecord, IsReadAsItWasWritten) {
  for (const char* host : {"", "node-7.example", "N\xc3\xb6rdlich \"7\"\\\n"}) {
    const RankRecord record = record_on(host);
    const Result<RankRecord> read = parse_rank_record(to_json(record));
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(*read, record);
  }
}

TEST(RankRecord, KeepsBytesOfSharedPages) {
  RankRecord record = record_on("node");
  record.fleet.split = Split::Weights;
  record.order = ~std::uint64_t{0};
  record.steps = 7;
  record.left = 1234;
  record.kept = {{{0, 4096}, std::string("\0\x7f\xff", 3)}, {{2, 5}, ""}};
  const Result<RankRecord> read = parse_rank_record(to_json(record));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, record);
}

TEST(RankRecord, RefusesBytesThatAreNoPairsOfDigits) {
  RankRecord record = record_on("node");
  record.fleet.split = Split::Weights;
  record.kept = {{{0, 4096}, "\xab\xcd"}};
  const std::string text = to_json(record);
  for (const char* wrong : {"abc", "ab-d", "abgd", "ab d", " bcd", "+bcd"}) {
    std::string changed = text;
    changed.replace(changed.find("abcd"), 4, wrong);
    EXPECT_FALSE(parse_rank_record(changed)) << wrong;
  }
}

TEST(RankRecord, ItsHostMayHaveAnyName) {
  const Result<RankRecord> read = parse_rank_record(to_json(record_on("a\xff-\xc3")));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->host, "a\xef\xbf\xbd-\xef\xbf\xbd");
  EXPECT_EQ(read->ranges, record_on("").ranges);
}

}  // namespace
}  // namespace ckfs
