#include "export/record_keeper.h"

#include <future>
#include <gtest/gtest.h>
#include <new>
#include <thread>
#include <vector>

#include "export/export_record.h"

namespace ckfs {
namespace {

using namespace std::chrono_literals;

ExportRecord record_of(const std::string& path) {
  return {.origin = {.fingerprint = 1, .view = "v", .layout_version = 1},
          .files = {{path, {.size = 9}}}};
}

TEST(RecordKeeper, WritesWhatItHolds) {
  std::vector<ExportRecord> written;
  RecordKeeper<ExportRecord> keeper(record_of("a"),
                                    [&](const ExportRecord& record) -> Result<void> {
                                      written.push_back(record);
                                      return {};
                                    });
  ASSERT_TRUE(keeper.store().has_value());
  keeper.change([](ExportRecord& now) { now.files["a"] = {.size = 9, .synced = 5}; });
  EXPECT_EQ(keeper.copy().files.at("a").synced, 5U);
  ASSERT_TRUE(keeper.store().has_value());
  ASSERT_EQ(written.size(), 2U);
  EXPECT_EQ(written[0], record_of("a"));
  EXPECT_EQ(written[1], keeper.copy());
}

TEST(RecordKeeper, WritesNotOftenerThanTheInterval) {
  int written = 0;
  RecordKeeper<ExportRecord> keeper(record_of("a"), [&](const ExportRecord&) -> Result<void> {
    ++written;
    return {};
  });
  ASSERT_TRUE(keeper.store().has_value());
  ASSERT_TRUE(keeper.store_at_times(1h).has_value());
  EXPECT_EQ(written, 1);
  ASSERT_TRUE(keeper.store_at_times(0ms).has_value());
  EXPECT_EQ(written, 2);
}

TEST(RecordKeeper, HoldsNobodyUpWhileItWrites) {
  std::promise<void> begun, go_on;
  std::vector<ExportRecord> written;
  RecordKeeper<ExportRecord> keeper(
      record_of("a"), [&](const ExportRecord& record) -> Result<void> {
        written.push_back(record);
        if (written.size() == 1) {
          begun.set_value();
          EXPECT_EQ(go_on.get_future().wait_for(60s), std::future_status::ready);
        }
        return {};
      });
  std::jthread writer([&] { EXPECT_TRUE(keeper.store().has_value()); });
  begun.get_future().wait();
  // The disk is busy with the first record. All of these return nevertheless.
  keeper.change([](ExportRecord& now) { now.files["a"] = {.size = 9, .finished = true}; });
  EXPECT_TRUE(keeper.copy().files.at("a").finished);
  EXPECT_TRUE(keeper.store().has_value());
  EXPECT_TRUE(keeper.store().has_value());
  go_on.set_value();
  writer.join();
  // And what was changed meanwhile has been written, once.
  ASSERT_EQ(written.size(), 2U);
  EXPECT_FALSE(written[0].files.at("a").finished);
  EXPECT_TRUE(written[1].files.at("a").finished);
}

TEST(RecordKeeper, WritesOnceInEachIntervalWhereThatIsAsked) {
  using Keeper = RecordKeeper<ExportRecord>;
  int written = 0;
  Keeper::Clock::time_point now{std::chrono::hours(1)};
  Keeper keeper(
      record_of("a"),
      [&](const ExportRecord&) -> Result<void> {
        ++written;
        return {};
      },
      [&] { return now; });
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(keeper.store_at_times(kRecordInterval));
    now += kRecordInterval / 4;
  }
  EXPECT_EQ(written, 3);
  EXPECT_TRUE(keeper.store());
  EXPECT_EQ(written, 4);
}

TEST(RecordKeeper, ReportsAFailureAndTriesAgainNextTime) {
  bool fails = true;
  RecordKeeper<ExportRecord> keeper(record_of("a"), [&](const ExportRecord&) -> Result<void> {
    if (fails) return fail(ErrorCode::Io, "disk: full");
    return {};
  });
  EXPECT_FALSE(keeper.store().has_value());
  fails = false;
  EXPECT_TRUE(keeper.store().has_value());
}

TEST(RecordKeeper, WritesAgainAfterMemoryHasEnded) {
  int written = 0;
  RecordKeeper<ExportRecord> keeper(record_of("a"), [&](const ExportRecord&) -> Result<void> {
    if (++written == 1) throw std::bad_alloc();
    return {};
  });
  const Result<void> first = keeper.store();
  ASSERT_FALSE(first.has_value());
  EXPECT_EQ(first.error().code(), ErrorCode::OutOfMemory);
  EXPECT_TRUE(keeper.store().has_value());
  EXPECT_EQ(written, 2);
}

}  // namespace
}  // namespace ckfs
