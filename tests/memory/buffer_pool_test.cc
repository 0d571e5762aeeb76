#include "memory/buffer_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <latch>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stop_token>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/stop.h"
#include "base/units.h"
#include "support/sanitized.h"

namespace ckfs {
namespace {

TEST(BufferPool, RecyclesTheLastBufferFirst) {
  const auto pool = BufferPool::create(64_MiB);
  std::byte* first = nullptr;
  {
    const Buffer buffer = *pool->try_acquire(Tier::Reply, 1_MiB);
    first = buffer.data();
  }
  EXPECT_EQ(pool->try_acquire(Tier::Tile, 1_MiB)->data(), first);
  EXPECT_EQ(pool->peak(), 1_MiB);
}

TEST(BufferPool, NeverHoldsMoreThanItsLimit) {
  const auto pool = BufferPool::create(8_MiB);
  const auto a = pool->try_acquire(Tier::Tile, 5_MiB);
  ASSERT_TRUE(a);
  EXPECT_FALSE(pool->try_acquire(Tier::Tile, 2_MiB));
  EXPECT_TRUE(pool->try_acquire(Tier::Tile, 1_MiB));
  EXPECT_EQ(pool->held(), 6_MiB);
}

TEST(BufferPool, WhoIsAskedToStopLeavesTheQueue) {
  const auto pool = BufferPool::create(64_MiB);
  std::optional<Buffer> held = *pool->acquire(Tier::Reply, 24_MiB);
  std::stop_source stop;
  Result<Buffer> stops = Failure(Error(ErrorCode::Internal, ""));
  std::thread first([&] {
    const StopScope scope(stop.get_token());
    stops = pool->acquire(Tier::Reply, 24_MiB);
  });
  std::thread second([&] { EXPECT_TRUE(pool->acquire(Tier::Reply, 16_MiB)); });
  stop.request_stop();
  first.join();
  ASSERT_FALSE(stops);
  EXPECT_EQ(stops.error().code(), ErrorCode::Stopped);
  held.reset();
  second.join();
}

TEST(BufferPool, KeepsAShareOfEachTierFromTheOthers) {
  const auto pool = BufferPool::create(64_MiB);
  const auto reply = pool->try_acquire(Tier::Reply, pool->most(Tier::Reply));
  ASSERT_TRUE(reply);
  EXPECT_FALSE(pool->try_acquire(Tier::Reply, 1_MiB));
  const auto tile = pool->try_acquire(Tier::Tile, 32_MiB);
  EXPECT_TRUE(tile);
  EXPECT_FALSE(pool->try_acquire(Tier::Tile, 1_MiB));
  EXPECT_TRUE(pool->try_acquire(Tier::Source, 8_MiB));
}

// Readers with replies may all wait for one tile, whose computation waits for the source: the
// largest of each must be had whatever is held of the tiers before.
TEST(BufferPool, GivesTheMostOfATierWhateverIsHeldOfEarlierOnes) {
  for (const std::uint64_t limit : {64_MiB, 100_MiB, 1_GiB}) {
    const auto pool = BufferPool::create(limit);
    std::vector<Buffer> held;
    while (auto reply = pool->try_acquire(Tier::Reply, 1_MiB)) held.push_back(*std::move(reply));
    auto tile = pool->try_acquire(Tier::Tile, pool->most(Tier::Tile));
    ASSERT_TRUE(tile);
    EXPECT_TRUE(pool->try_acquire(Tier::Source, pool->most(Tier::Source)));
    EXPECT_FALSE(pool->acquire(Tier::Tile, pool->most(Tier::Tile) + 1));
  }
}

TEST(BufferPool, GivesUpKeptBuffersOfAnotherSize) {
  const auto pool = BufferPool::create(8_MiB);
  pool->try_acquire(Tier::Tile, 5_MiB).reset();
  EXPECT_EQ(pool->held(), 5_MiB);
  EXPECT_TRUE(pool->try_acquire(Tier::Tile, 4_MiB));
  EXPECT_LE(pool->peak(), 8_MiB);
}

TEST(BufferPool, ReturnsKeptBuffersToTheSystemWhenAsked) {
  const auto pool = BufferPool::create(8_MiB);
  pool->try_acquire(Tier::Tile, 2_MiB).reset();
  pool->trim();
  EXPECT_EQ(pool->held(), 0U);
}

TEST(BufferPool, RefusesAtOnceWhatItCanNeverGive) {
  const auto pool = BufferPool::create(64_MiB);
  const Buffer other = *pool->try_acquire(Tier::Reply, 1_MiB);
  const auto buffer = pool->acquire(Tier::Reply, pool->most(Tier::Reply) + 1);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), ErrorCode::OutOfMemory);
}

TEST(BufferPool, WaitsUntilAnotherThreadGivesBack) {
  const auto pool = BufferPool::create(8_MiB);
  auto held = pool->try_acquire(Tier::Tile, pool->most(Tier::Tile));
  ASSERT_TRUE(held);
  std::thread waiter([&] { EXPECT_TRUE(pool->acquire(Tier::Tile, 1_MiB)); });
  held.reset();
  waiter.join();
}

TEST(BufferPool, ServesALargeRequestBeforeSmallOnesThatCameLater) {
  const auto pool = BufferPool::create(64_MiB);
  // The small one would fit beside what is held (48 MiB are for tiles), but not beside the large
  // one.
  auto held = pool->try_acquire(Tier::Tile, 20_MiB);
  ASSERT_TRUE(held);
  std::atomic<int> order = 0;
  int large = 0;
  std::thread first([&] {
    const auto buffer = pool->acquire(Tier::Tile, 30_MiB);
    large = ++order;
  });
  // A request that finds somebody waiting gets nothing, however small it is.
  while (pool->try_acquire(Tier::Tile, 64)) std::this_thread::yield();
  std::thread second([&] {
    const auto buffer = pool->acquire(Tier::Tile, 20_MiB);
    ++order;
  });
  held.reset();
  first.join();
  second.join();
  EXPECT_EQ(large, 1);
}

TEST(BufferPool, GivesNothingToWhoNeedsNothingWhoeverWaits) {
  const auto pool = BufferPool::create(64_MiB);
  auto held = pool->try_acquire(Tier::Tile, 40_MiB);
  ASSERT_TRUE(held);
  std::thread waiter([&] { EXPECT_TRUE(pool->acquire(Tier::Tile, 30_MiB)); });
  while (pool->try_acquire(Tier::Tile, 64)) std::this_thread::yield();
  const std::array<std::size_t, 2> sizes{0, 0};
  EXPECT_EQ(pool->acquire(Tier::Tile, sizes)->size(), 2U);
  EXPECT_TRUE(pool->try_acquire(Tier::Tile, 0));
  held.reset();
  waiter.join();
}

TEST(BufferPool, GivesAllOfOneCallOrNothing) {
  const auto pool = BufferPool::create(64_MiB);
  const std::array<std::size_t, 3> sizes{20_MiB, 20_MiB, 20_MiB};
  EXPECT_FALSE(pool->try_acquire(Tier::Tile, sizes));
  EXPECT_EQ(pool->held(), 0U);
  const std::array<std::size_t, 3> fitting{16_MiB, 0, 16_MiB};
  const auto buffers = pool->acquire(Tier::Tile, fitting);
  ASSERT_TRUE(buffers);
  EXPECT_EQ((*buffers)[2].size(), 16_MiB);
  EXPECT_EQ((*buffers)[1].size(), 0U);
}

TEST(BufferPool, AsksForMemoryBackWhenItIsShort) {
  const auto pool = BufferPool::create(8_MiB);
  auto spare = pool->try_acquire(Tier::Tile, 6_MiB);
  std::uint64_t asked = 0;
  auto demanded = BufferPool::Demand::Waits;
  const auto reclaimer =
      pool->on_shortage(Tier::Tile, [&](std::uint64_t bytes, BufferPool::Demand demand) {
        asked = bytes;
        demanded = demand;
        if (demand == BufferPool::Demand::Waits) spare.reset();
      });
  EXPECT_FALSE(pool->try_acquire(Tier::Tile, 1_MiB));
  EXPECT_EQ(demanded, BufferPool::Demand::Spare);
  EXPECT_TRUE(pool->acquire(Tier::Tile, 1_MiB));
  EXPECT_EQ(asked, 1_MiB);
}

TEST(BufferPool, AsksAgainWhereThereIsNoMemoryToGiveMemoryBack) {
  const auto pool = BufferPool::create(8_MiB);
  auto spare = pool->try_acquire(Tier::Tile, 6_MiB);
  int asked = 0;
  const auto reclaimer =
      pool->on_shortage(Tier::Tile, [&](std::uint64_t /*bytes*/, BufferPool::Demand /*demand*/) {
        if (asked++ == 0) throw std::bad_alloc();
        spare.reset();
      });
  EXPECT_TRUE(pool->acquire(Tier::Tile, 4_MiB));
  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(pool->acquire(Tier::Tile, 1_MiB));
}

TEST(BufferPool, AsksAllThatShareItUntilThereIsEnough) {
  const auto pool = BufferPool::create(8_MiB);
  auto one = pool->try_acquire(Tier::Tile, 3_MiB);
  auto two = pool->try_acquire(Tier::Tile, 3_MiB);
  std::vector<int> asked;
  const auto first = pool->on_shortage(Tier::Tile, [&](std::uint64_t, BufferPool::Demand) {
    asked.push_back(1);
    one.reset();
  });
  const auto second = pool->on_shortage(Tier::Tile, [&](std::uint64_t, BufferPool::Demand) {
    asked.push_back(2);
    two.reset();
  });
  // As the chunks of two checkpoints have them.
  const auto nothing = [](std::uint64_t, BufferPool::Demand) {};
  const auto third = pool->on_shortage(Tier::Source, nothing);
  const auto fourth = pool->on_shortage(Tier::Source, nothing);
  EXPECT_TRUE(pool->acquire(Tier::Tile, 4_MiB));
  EXPECT_EQ(asked.size(), 2U);
  // One has enough: the other is left alone, and each comes first in its turn.
  std::set<int> before;
  for (int round = 0; round < 2; ++round) {
    one = pool->try_acquire(Tier::Tile, 3_MiB);
    two = pool->try_acquire(Tier::Tile, 3_MiB);
    ASSERT_TRUE(one && two);
    asked.clear();
    EXPECT_TRUE(pool->acquire(Tier::Tile, 2_MiB));
    ASSERT_EQ(asked.size(), 1U);
    before.insert(asked[0]);
    one.reset();
    two.reset();
  }
  EXPECT_EQ(before.size(), 2U);
}

TEST(BufferPool, AsksNoFunctionThatIsGone) {
  const auto pool = BufferPool::create(8_MiB);
  auto spare = pool->try_acquire(Tier::Tile, 4_MiB);
  int asked = 0;
  {
    const auto gone =
        pool->on_shortage(Tier::Tile, [&](std::uint64_t, BufferPool::Demand) { ++asked; });
    EXPECT_FALSE(pool->try_acquire(Tier::Tile, 3_MiB));
    EXPECT_EQ(asked, 1);
  }
  EXPECT_FALSE(pool->try_acquire(Tier::Tile, 3_MiB));
  EXPECT_EQ(asked, 1);
}

TEST(BufferPool, AFunctionIsNotGoneWhileItIsCalled) {
  const auto pool = BufferPool::create(8_MiB);
  auto spare = pool->try_acquire(Tier::Tile, 4_MiB);
  std::latch entered(1);
  std::atomic<bool> is_done = false;
  auto reclaimer =
      std::make_optional(pool->on_shortage(Tier::Tile, [&](std::uint64_t, BufferPool::Demand) {
        entered.count_down();
        for (int turn = 0; turn < 1000; ++turn) std::this_thread::yield();
        is_done = true;
      }));
  std::thread short_of_memory([&] { (void)pool->try_acquire(Tier::Tile, 3_MiB); });
  entered.wait();
  reclaimer.reset();
  EXPECT_TRUE(is_done);
  short_of_memory.join();
}

TEST(BufferPool, AsksATierForNoMoreThanWhatIsAboveItsShare) {
  const auto pool = BufferPool::create(64_MiB);  // a share of 8 MiB for sources
  auto spare = pool->try_acquire(Tier::Source, 20_MiB);
  ASSERT_TRUE(spare);
  std::uint64_t asked = 0;
  const auto reclaimer =
      pool->on_shortage(Tier::Source, [&](std::uint64_t bytes, BufferPool::Demand /*demand*/) {
        asked = bytes;
        spare.reset();
      });
  // 32 of tiles, 20 of the source and 13 of a reply are too many by 1.
  const auto tile = pool->acquire(Tier::Tile, 32_MiB);
  EXPECT_TRUE(tile);
  EXPECT_EQ(asked, 0U);
  EXPECT_TRUE(pool->try_acquire(Tier::Reply, 13_MiB));
  EXPECT_EQ(asked, 1_MiB);
}

TEST(BufferPool, OutlivesItsOwnerWhileABufferIsLent) {
  auto pool = BufferPool::create(8_MiB);
  const Buffer buffer = *pool->try_acquire(Tier::Reply, 1_MiB);
  pool.reset();
  buffer.span()[0] = std::byte{1};
  EXPECT_EQ(buffer.span()[0], std::byte{1});
}

TEST(BufferPoolDeathTest, AThreadThatHoldsATierDoesNotWaitForItAgain) {
  const auto pool = BufferPool::create(64_MiB);
  const TierScope holding(Tier::Tile);
  EXPECT_TRUE(pool->acquire(Tier::Source, 1_MiB));
  EXPECT_DEATH((void)pool->acquire(Tier::Tile, 1_MiB), "broken invariant");
  EXPECT_DEATH((void)pool->acquire(Tier::Reply, 1_MiB), "broken invariant");
}

TEST(BufferPool, MakesAnErrorOfMemoryThatTheSystemHasNot) {
  // In a child: the limit cannot be taken back.
  const pid_t child = ::fork();
  if (child == 0) {
    const auto pool = BufferPool::create(8_GiB);
    // A sanitizer's shadow counts, too.
    unsigned long long pages = 0;
    if (!(std::ifstream("/proc/self/statm") >> pages)) ::_exit(3);
    const rlim_t most = pages * 4096 + 1_GiB;
    const rlimit limit{most, most};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) ::_exit(2);
    const auto buffer = pool->acquire(Tier::Tile, 4_GiB);
    const bool right = !buffer && buffer.error().code() == ErrorCode::OutOfMemory &&
                       !pool->try_acquire(Tier::Tile, 4_GiB) && pool->held() == 0 &&
                       pool->acquire(Tier::Tile, 1_MiB);
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  // A sanitizer's own memory counts, too.
  EXPECT_TRUE(status == 0 || (kSanitized && (WIFEXITED(status) || WIFSIGNALED(status)))) << status;
}

TEST(BufferPool, LargeBuffersHaveAMarginThatIsNotCounted) {
  const auto pool = BufferPool::create(64_MiB);
  const Buffer small = *pool->try_acquire(Tier::Tile, 1000);
  EXPECT_EQ(small.margin(), 0U);
  const Buffer large = *pool->try_acquire(Tier::Tile, 1_MiB);
  EXPECT_EQ(large.margin(), Buffer::kMargin);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large.data()) % Buffer::kMargin, 0U);
  std::memset(large.data() + large.size(), 1, large.margin());
  const Buffer odd = *pool->try_acquire(Tier::Tile, 1_MiB + 5);
  EXPECT_EQ(odd.margin(), 1_MiB - 5);
  EXPECT_EQ(pool->held(), 3_MiB + 1024 + kRemembered);
  EXPECT_EQ(Buffer().margin(), 0U);
}

TEST(BufferPool, BuffersThatAreMappedTogetherAreApart) {
  const auto pool = BufferPool::create(1_GiB);
  std::vector<Buffer> buffers;
  const auto fill = [](Buffer& buffer, int value) {
    std::memset(buffer.data(), value, buffer.size() + buffer.margin());
  };
  const auto is_filled = [](const Buffer& buffer, int value) {
    return std::ranges::all_of(
        std::span(buffer.data(), buffer.size() + buffer.margin()),
        [&](std::byte each) { return each == static_cast<std::byte>(value); });
  };
  for (int i = 0; i < 20; ++i) {
    buffers.push_back(*pool->try_acquire(Tier::Tile, 1_MiB));
    fill(buffers.back(), i);
  }
  EXPECT_EQ(pool->held(), 20_MiB);
  // Half of them go back to the system, from between the others.
  for (std::size_t i = 0; i < buffers.size(); i += 2) buffers[i] = Buffer();
  pool->trim();
  EXPECT_EQ(pool->held(), 10_MiB);
  for (std::size_t i = 1; i < buffers.size(); i += 2) {
    EXPECT_TRUE(is_filled(buffers[i], static_cast<int>(i))) << i;
  }
  for (std::size_t i = 0; i < buffers.size(); i += 2) {
    buffers[i] = *pool->try_acquire(Tier::Tile, 1_MiB);
    fill(buffers[i], 100);
  }
  for (std::size_t i = 1; i < buffers.size(); i += 2) {
    EXPECT_TRUE(is_filled(buffers[i], static_cast<int>(i))) << i;
  }
  buffers.clear();
  pool->trim();
  EXPECT_EQ(pool->held(), 0U);
}

// Readers that each hold a reply, then wait for a tile, whose computation waits for memory of the
// source: with any order of their steps they all come to an end.
TEST(BufferPool, SixtyFourReadersOfAllTiersComeToAnEnd) {
  const auto pool = BufferPool::create(64_MiB);
  std::vector<std::thread> readers;
  for (std::uint64_t r = 0; r < 64; ++r) {
    readers.emplace_back([&, r] {
      std::mt19937_64 random(r);
      for (int k = 0; k < 40; ++k) {
        const auto reply = pool->acquire(Tier::Reply, random() % 4_MiB + 1);
        ASSERT_TRUE(reply);
        const TierScope holds_reply(Tier::Reply);
        const auto tile = pool->acquire(Tier::Tile, random() % 32_MiB + 1);
        ASSERT_TRUE(tile);
        const TierScope holds_tile(Tier::Tile);
        const auto source = pool->acquire(Tier::Source, random() % 8_MiB + 1);
        ASSERT_TRUE(source);
      }
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_LE(pool->peak(), 64_MiB);
}

}  // namespace
}  // namespace ckfs
