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

TEST(RankRecord, ItsHostMayHaveAnyName) {
  const Result<RankRecord> read = parse_rank_record(to_json(record_on("a\xff-\xc3")));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->host, "a\xef\xbf\xbd-\xef\xbf\xbd");
  EXPECT_EQ(read->ranges, record_on("").ranges);
}

}  // namespace
}  // namespace ckfs
