// Coalescing changes how many accesses there are, never which bytes land where.
#include "io/coalesce.h"

#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <rapidcheck/gtest.h>
#include <set>
#include <vector>

namespace ckfs {
namespace {

/// Requests with buffers of their own.
class Batch {
 public:
  void add(FileId file, std::uint64_t offset, std::size_t size) {
    buffers_.push_back(std::make_unique<std::vector<std::byte>>(size));
    requests_.push_back({file, offset, *buffers_.back()});
  }
  std::span<const ReadRequest> requests() const { return requests_; }

 private:
  std::vector<std::unique_ptr<std::vector<std::byte>>> buffers_;
  std::vector<ReadRequest> requests_;
};

std::byte content(FileId file, std::uint64_t offset) {
  return static_cast<std::byte>((offset * 131 + file * 17 + (offset >> 8) * 7) & 0xFF);
}

/// Plays the reader; also checks what a reader relies on.
void carry_out(const AccessPlan& plan, const CoalesceOptions& options) {
  for (const PlannedAccess& access : plan.accesses) {
    ASSERT_GT(access.size, 0u);
    ASSERT_LE(access.size, options.max_access);
    ASSERT_LE(access.part_count, options.max_parts);
    std::uint64_t at = access.offset;
    for (const iovec& part : plan.parts_of(access)) {
      for (std::size_t i = 0; i < part.iov_len; ++i) {
        static_cast<std::byte*>(part.iov_base)[i] = content(access.file, at++);
      }
    }
    ASSERT_EQ(at, access.offset + access.size);
  }
}

void expect_filled(const Batch& batch) {
  for (const ReadRequest& request : batch.requests()) {
    for (std::size_t i = 0; i < request.out.size(); ++i) {
      ASSERT_EQ(request.out[i], content(request.file, request.offset + i));
    }
  }
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> places(const AccessPlan& plan) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> result;
  for (const PlannedAccess& access : plan.accesses) result.emplace_back(access.offset, access.size);
  return result;
}

using Places = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

TEST(Coalesce, JoinsNearRequestsOfOneFile) {
  Batch batch;
  batch.add(0, 100, 10);
  batch.add(0, 110, 10);  // touches
  batch.add(0, 125, 10);  // 5 bytes further
  const CoalesceOptions options{.gap = 5, .max_access = 1000};
  const AccessPlan plan = coalesce(batch.requests(), options);
  EXPECT_EQ(places(plan), (Places{{100, 35}}));
  EXPECT_EQ(plan.accesses[0].part_count, 4u);  // three requests and the sink
  carry_out(plan, options);
  expect_filled(batch);
}

TEST(Coalesce, KeepsDistantRangesApart) {
  Batch batch;
  batch.add(0, 100, 10);
  batch.add(0, 116, 10);
  const AccessPlan plan = coalesce(batch.requests(), {.gap = 5});
  EXPECT_EQ(places(plan), (Places{{100, 10}, {116, 10}}));
  EXPECT_EQ(plan.sink, nullptr);
}

TEST(Coalesce, ReadsGapsOnlyBesideWhatIsLargeOrSmall) {
  EXPECT_TRUE(share_access(1 << 20, 4096, 100'000));
  EXPECT_TRUE(share_access(1 << 20, 4096, 100));  // a scale behind its weight
  EXPECT_TRUE(share_access(64, 4000, 64));        // as cheap as two accesses
  EXPECT_FALSE(share_access(64, 4097, 64));
  EXPECT_TRUE(share_access(16'000, 1000, 16'000));
  EXPECT_FALSE(share_access(2048, 2048, 2048));  // half a row of each: twice the bytes
  EXPECT_FALSE(share_access(1 << 20, 2048, 2048));
}

TEST(Coalesce, KeepsFilesApart) {
  Batch batch;
  batch.add(1, 10, 10);
  batch.add(0, 0, 10);
  const AccessPlan plan = coalesce(batch.requests(), {});
  ASSERT_EQ(plan.accesses.size(), 2u);
  EXPECT_EQ(plan.accesses[0].file, 0u);
  EXPECT_EQ(plan.accesses[1].file, 1u);
}

TEST(Coalesce, SortsByOffset) {
  Batch batch;
  batch.add(0, 20, 10);
  batch.add(0, 0, 10);
  batch.add(0, 10, 10);
  const AccessPlan plan = coalesce(batch.requests(), {});
  EXPECT_EQ(places(plan), (Places{{0, 30}}));
  carry_out(plan, {});
  expect_filled(batch);
}

TEST(Coalesce, CutsLongRequestsAtPages) {
  Batch batch;
  batch.add(0, 100, 20'000);
  const CoalesceOptions options{.max_access = 8192};
  const AccessPlan plan = coalesce(batch.requests(), options);
  EXPECT_EQ(places(plan), (Places{{100, 8092}, {8192, 8192}, {16384, 3716}}));
  carry_out(plan, options);
  expect_filled(batch);
}

TEST(Coalesce, ReadsOverlappingRequestsApart) {
  Batch batch;
  batch.add(0, 0, 10);
  batch.add(0, 5, 10);
  batch.add(0, 5, 10);
  const AccessPlan plan = coalesce(batch.requests(), {});
  EXPECT_EQ(plan.accesses.size(), 3u);
  carry_out(plan, {});
  expect_filled(batch);
}

TEST(Coalesce, NeedsNoAccessForNothing) {
  Batch batch;
  batch.add(0, 7, 0);
  EXPECT_TRUE(coalesce(batch.requests(), {}).accesses.empty());
  EXPECT_TRUE(coalesce({}, {}).accesses.empty());
}

TEST(Coalesce, NearTheEndOfTheOffsetsNothingWraps) {
  Batch batch;
  const std::uint64_t last = std::numeric_limits<std::int64_t>::max();
  batch.add(0, last - 20, 10);
  batch.add(0, last - 10, 10);
  EXPECT_EQ(places(coalesce(batch.requests(), {.gap = 0})), (Places{{last - 20, 20}}));
}

RC_GTEST_PROP(Coalesce, ChangesCountsNeverBytes, ()) {
  const CoalesceOptions options{.gap = *rc::gen::inRange<std::uint64_t>(0, 60),
                                .max_access = *rc::gen::inRange<std::uint64_t>(1, 300),
                                .max_parts = *rc::gen::inRange<std::size_t>(1, 8)};
  Batch batch;
  const auto count = *rc::gen::inRange<int>(0, 30);
  for (int i = 0; i < count; ++i) {
    batch.add(*rc::gen::inRange<FileId>(0, 3), *rc::gen::inRange<std::uint64_t>(0, 9000),
              *rc::gen::inRange<std::size_t>(0, 400));
  }
  const AccessPlan plan = coalesce(batch.requests(), options);
  carry_out(plan, options);
  expect_filled(batch);
  // Not needed bytes are read between two needed ones of one access only.
  for (const PlannedAccess& access : plan.accesses) {
    const auto parts = plan.parts_of(access);
    const auto is_sink = [&](const iovec& part) {
      return plan.sink && part.iov_base == plan.sink.get();
    };
    RC_ASSERT(!is_sink(parts.front()));
    RC_ASSERT(!is_sink(parts.back()));
    for (const iovec& part : parts) RC_ASSERT(!is_sink(part) || part.iov_len <= options.gap);
  }
}

}  // namespace
}  // namespace ckfs
