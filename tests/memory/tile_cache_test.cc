#include "memory/tile_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <latch>
#include <new>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/stop.h"
#include "base/units.h"
#include "support/failing_heap.h"
#include "support/heap_meter.h"
#include "support/memory_tile_store.h"

namespace ckfs {
namespace {

class TileCacheTest : public testing::Test {
 protected:
  TileCache::Compute tile_of(std::size_t size, char byte) {
    return [this, size, byte]() -> Result<Tile> {
      CKFS_TRY(Buffer buffer, pool_->acquire(Tier::Tile, size));
      std::fill(buffer.span().begin(), buffer.span().end(), std::byte(byte));
      return Tile{std::move(buffer), size, {}};
    };
  }
  static TileKey key(std::uint64_t index) { return {7, TileKey::Kind::Tile, 0, index}; }

  // Of which tiles can have 4 MiB and a bit.
  std::shared_ptr<BufferPool> pool_ = BufferPool::create(5_MiB + 512_KiB);
  TileCache cache_{*pool_};
};

TEST_F(TileCacheTest, ComputesOnceHoweverManyAsk) {
  std::atomic<int> computed = 0;
  std::latch begin(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      const auto tile = cache_.get(key(1), [&]() -> Result<Tile> {
        ++computed;
        return tile_of(100, 'x')();
      });
      ASSERT_TRUE(tile);
      EXPECT_EQ((*tile)->span()[99], std::byte{'x'});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(computed, 1);
  EXPECT_EQ(cache_.computed(), 1U);
  EXPECT_EQ(cache_.hits(), 7U);
}

TEST_F(TileCacheTest, DoesNotKeepAnError) {
  const auto failed =
      cache_.get(key(1), []() -> Result<Tile> { return fail(ErrorCode::Io, "disk: gone"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Io);
  EXPECT_TRUE(cache_.get(key(1), tile_of(10, 'a')));
}

TEST_F(TileCacheTest, AnErrorIsNobodyElses) {
  std::latch waiting(1);
  std::thread other;
  const auto failed = cache_.get(key(1), [&]() -> Result<Tile> {
    other = std::thread([&] {
      waiting.count_down();
      EXPECT_TRUE(cache_.get(key(1), tile_of(10, 'o')));
    });
    waiting.wait();
    return fail(ErrorCode::Io, "disk: gone");
  });
  other.join();
  EXPECT_FALSE(failed);
  EXPECT_TRUE(cache_.find(key(1)));
}

TEST_F(TileCacheTest, ReadersOfAComputationThatThrowsGetAnError) {
  std::latch begin(8);
  std::atomic<int> out_of_memory = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      const auto tile = cache_.get(key(1), []() -> Result<Tile> { throw std::bad_alloc(); });
      if (!tile && tile.error().code() == ErrorCode::OutOfMemory) ++out_of_memory;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(out_of_memory, 8);
  const auto other =
      cache_.get(key(1), []() -> Result<Tile> { throw std::runtime_error("surprise"); });
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code(), ErrorCode::Internal);
  EXPECT_TRUE(cache_.get(key(1), tile_of(10, 'a')));
}

TEST_F(TileCacheTest, ComputesSeveralTogetherButNoneTwice) {
  ASSERT_TRUE(cache_.get(key(2), tile_of(10, 'b')));
  const std::vector<TileKey> keys{key(1), key(2), key(3), key(4)};
  const auto done = cache_.compute(
      keys,
      [&](std::span<const std::size_t> numbers, const TileCache::Ready& ready) -> Result<void> {
        EXPECT_EQ(std::vector(numbers.begin(), numbers.end()), (std::vector<std::size_t>{0, 2, 3}));
        CKFS_TRY(Tile first, tile_of(10, 'a')());
        EXPECT_EQ(ready(0, std::move(first))->span()[9], std::byte{'a'});
        EXPECT_TRUE(cache_.find(key(1)));  // there, though the others are not
        return fail(ErrorCode::Io, "disk: gone");
      });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::Io);
  // What was left out can be computed by whoever wants it.
  EXPECT_FALSE(cache_.find(key(3)));
  EXPECT_TRUE(cache_.get(key(3), tile_of(10, 'c')));
  EXPECT_TRUE(cache_.compute({}, [](auto, const auto&) -> Result<void> { return {}; }));
}

TEST_F(TileCacheTest, WhoIsAskedToStopDoesNotWaitForOthers) {
  std::latch begun(1), asked(1);
  std::thread computes([&] {
    EXPECT_TRUE(cache_.get(key(1), [&] {
      begun.count_down();
      asked.wait();
      return tile_of(100, 'x')();
    }));
  });
  begun.wait();
  std::stop_source stop;
  std::thread waits([&] {
    const StopScope scope(stop.get_token());
    const auto tile = cache_.get(key(1), tile_of(100, 'y'));
    ASSERT_FALSE(tile);
    EXPECT_EQ(tile.error().code(), ErrorCode::Stopped);
    EXPECT_EQ(cache_.find(key(1)), nullptr);
  });
  stop.request_stop();
  waits.join();
  asked.count_down();
  computes.join();
  EXPECT_EQ(cache_.find(key(1))->span()[0], std::byte{'x'});
}

TEST_F(TileCacheTest, WhoWaitsForWhatIsLeftOutComputesItHimself) {
  std::latch begun(1);
  std::thread reader;
  const std::vector<TileKey> keys{key(1)};
  EXPECT_FALSE(cache_.compute(
      keys, [&](std::span<const std::size_t>, const TileCache::Ready&) -> Result<void> {
        reader = std::thread([&] {
          begun.count_down();
          EXPECT_TRUE(cache_.get(key(1), tile_of(10, 'r')));
        });
        begun.wait();
        throw std::bad_alloc();
      }));
  reader.join();
  EXPECT_EQ(cache_.computed(), 1U);
}

TEST_F(TileCacheTest, CountsWhatNobodyHadAskedForWhenItWasForgotten) {
  const std::vector<TileKey> keys{key(1), key(2), key(3), key(4)};
  ASSERT_TRUE(cache_.compute(
      keys,
      [&](std::span<const std::size_t> numbers, const TileCache::Ready& ready) -> Result<void> {
        for (const std::size_t number : numbers) {
          CKFS_TRY(Tile tile, tile_of(10, 'a')());
          ready(number, std::move(tile));
        }
        return {};
      }));
  ASSERT_TRUE(cache_.get(key(5), tile_of(10, 'b')));  // by its reader
  ASSERT_TRUE(cache_.find(key(1)));
  cache_.given(key(2));
  cache_.drop(key(3));
  EXPECT_EQ(cache_.unread(), 1U);
  cache_.clear();
  EXPECT_EQ(cache_.unread(), 2U);
  EXPECT_EQ(cache_.computed(), 5U);
}

TEST_F(TileCacheTest, EvictsTheLeastRecentlyUsed) {
  for (std::uint64_t k = 0; k < 4; ++k) ASSERT_TRUE(cache_.get(key(k), tile_of(1_MiB, 'a')));
  ASSERT_TRUE(cache_.find(key(0)));  // now key 1 is the oldest
  ASSERT_TRUE(cache_.get(key(9), tile_of(1_MiB, 'b')));
  EXPECT_TRUE(cache_.find(key(0)));
  EXPECT_FALSE(cache_.find(key(1)));
  EXPECT_LE(pool_->peak(), 5_MiB + 512_KiB);
}

TEST_F(TileCacheTest, EvictsMaximaAfterAllOthers) {
  const TileKey maximum{7, TileKey::Kind::Maximum, 0, 0};
  int computed = 0;
  const auto ask = [&] {
    const auto made = cache_.get(maximum, [&] {
      ++computed;
      return tile_of(4, 'm')();
    });
    return made.has_value() && (*made)->span()[3] == std::byte{'m'};
  };
  EXPECT_TRUE(ask());
  for (std::uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(cache_.get(key(i), tile_of(1_MiB, 'x')));
  EXPECT_TRUE(ask());
  EXPECT_EQ(1, computed);
  // Where nothing else is left they stay for work that can do without memory, and go for a thread
  // that waits.
  std::vector<Buffer> all;
  while (auto buffer = pool_->try_acquire(Tier::Tile, 64)) all.push_back(*std::move(buffer));
  EXPECT_TRUE(ask());
  EXPECT_EQ(1, computed);
  EXPECT_TRUE(pool_->acquire(Tier::Tile, 64));
  all.clear();
  EXPECT_TRUE(ask());
  EXPECT_EQ(2, computed);
  cache_.clear();
  EXPECT_TRUE(ask());
  EXPECT_EQ(3, computed);
}

TEST_F(TileCacheTest, EvictsNoMoreThanThePoolNeeds) {
  // Each takes a MiB of the pool.
  for (std::uint64_t k = 0; k < 4; ++k) ASSERT_TRUE(cache_.get(key(k), tile_of(300_KiB, 'a')));
  ASSERT_TRUE(cache_.get(key(9), tile_of(1_MiB, 'b')));
  EXPECT_FALSE(cache_.find(key(0)));
  for (const std::uint64_t k : {1, 2, 3}) EXPECT_TRUE(cache_.find(key(k))) << k;
}

TEST_F(TileCacheTest, EvictsFirstWhatItsReaderIsPast) {
  for (std::uint64_t k = 0; k < 4; ++k) ASSERT_TRUE(cache_.get(key(k), tile_of(1_MiB, 'a')));
  cache_.retire(key(3));
  cache_.retire(key(77));  // there is none
  EXPECT_TRUE(cache_.find(key(0)));
  ASSERT_TRUE(cache_.get(key(9), tile_of(1_MiB, 'b')));
  EXPECT_FALSE(cache_.find(key(3)));
  for (std::uint64_t k = 0; k < 3; ++k) EXPECT_TRUE(cache_.find(key(k))) << k;
}

TEST_F(TileCacheTest, MakesNoRoomAheadByWhatWasComputedAhead) {
  const std::array keys{key(0), key(1), key(2), key(3)};
  const auto ahead = [&](std::span<const TileKey> wanted) {
    return cache_.compute(
        wanted,
        [&](std::span<const std::size_t> numbers, const TileCache::Ready& ready) -> Result<void> {
          for (const std::size_t number : numbers) {
            auto buffer = pool_->try_acquire(Tier::Tile, 1_MiB);
            if (!buffer) return fail(ErrorCode::OutOfMemory, "none");
            ready(number, {*std::move(buffer), 1_MiB, {}});
          }
          return {};
        });
  };
  ASSERT_TRUE(ahead(keys));
  const TileKey next = key(9);
  EXPECT_FALSE(ahead(std::span(&next, 1)));
  ASSERT_TRUE(cache_.find(key(1)));  // its reader has come
  EXPECT_TRUE(ahead(std::span(&next, 1)));
  EXPECT_FALSE(cache_.find(key(1)));
  ASSERT_TRUE(cache_.get(key(10), tile_of(1_MiB, 'b')));  // somebody waits for it
  EXPECT_FALSE(cache_.find(key(0)));
  for (const std::uint64_t k : {2, 3, 9}) EXPECT_TRUE(cache_.find(key(k))) << k;
}

TEST_F(TileCacheTest, KeepsWhatIsBeingRead) {
  const auto reading = cache_.get(key(0), tile_of(2_MiB, 'a'));
  ASSERT_TRUE(reading);
  ASSERT_TRUE(cache_.get(key(1), tile_of(1_MiB, 'b')));
  ASSERT_TRUE(cache_.get(key(2), tile_of(2_MiB, 'c')));  // takes the place of 1, not of 0
  EXPECT_TRUE(cache_.find(key(0)));
  EXPECT_FALSE(cache_.find(key(1)));
  EXPECT_EQ((*reading)->span()[0], std::byte{'a'});
}

TEST_F(TileCacheTest, CountsWhatItRemembersOfSmallTilesToo) {
  const heap_meter::Span heap;
  for (std::uint64_t k = 0; k < 50'000; ++k) ASSERT_TRUE(cache_.get(key(k), tile_of(10, 'a')));
  EXPECT_TRUE(cache_.find(key(49'999)));
  EXPECT_FALSE(cache_.find(key(0)));
  // Entries: the bytes of tiles come from malloc, which is not metered.
  EXPECT_LE(heap.most(), pool_->held());
}

TEST_F(TileCacheTest, ForgetsWhatIsDroppedOrCleared) {
  ASSERT_TRUE(cache_.get(key(0), tile_of(10, 'a')));
  ASSERT_TRUE(cache_.get(key(1), tile_of(10, 'a')));
  cache_.drop(key(0));
  EXPECT_FALSE(cache_.find(key(0)));
  EXPECT_TRUE(cache_.find(key(1)));
  cache_.clear();
  EXPECT_FALSE(cache_.find(key(1)));
}

class StoredTilesTest : public TileCacheTest {
 protected:
  /// A tile of 1 MiB that took longer to compute than a disk takes for it.
  TileCache::Compute dear(char byte) {
    return [this, byte]() -> Result<Tile> {
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
      while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
      CKFS_TRY(Tile tile, tile_of(1_MiB, byte)());
      tile.files = {3, 4};
      return tile;
    };
  }
  /// One that took no time, but where another process had the CPU.
  TileCache::Compute cheap() {
    return [this]() -> Result<Tile> {
      CKFS_TRY(Buffer buffer, pool_->acquire(Tier::Tile, 1_MiB));
      return Tile{std::move(buffer), 1_MiB, {}};
    };
  }
  /// What is stored by `work`, at least, in some attempts.
  int least_puts(const std::function<void()>& work) {
    int least = 1000;
    for (int attempt = 0; attempt < 20 && least > 0; ++attempt) {
      stored_.clear();
      store_->puts = 0;
      work();
      least = std::min(least, store_->puts.load());
    }
    return least;
  }
  /// Computes so many others that no room is left.
  void push_out(const TileCache::Compute& compute, std::uint64_t count = 6) {
    for (std::uint64_t k = 0; k < count; ++k) ASSERT_TRUE(stored_.get(key(100 + k), compute));
  }
  static Result<Tile> never() { return fail(ErrorCode::Io, "computed again"); }

  const std::shared_ptr<MemoryTileStore> store_ = std::make_shared<MemoryTileStore>();
  TileCache stored_{*pool_, store_};
};

TEST_F(StoredTilesTest, DearOnesComeBack) {
  ASSERT_TRUE(stored_.get(key(1), dear('a')));
  push_out(cheap());
  EXPECT_GE(store_->puts, 1);
  const std::uint64_t computed = stored_.computed();
  const auto tile = stored_.get(key(1), never);
  ASSERT_TRUE(tile) << tile.error().message();
  EXPECT_EQ((*tile)->span().size(), 1_MiB);
  EXPECT_EQ((*tile)->span()[1_MiB - 1], std::byte{'a'});
  EXPECT_EQ((*tile)->files, (std::vector<FileId>{3, 4}));
  EXPECT_EQ(stored_.computed(), computed);
}

TEST_F(StoredTilesTest, AheadOfTheirReadersToo) {
  ASSERT_TRUE(stored_.get(key(1), dear('a')));
  push_out(tile_of(1_MiB, 'x'));
  stored_.clear();
  const TileKey keys[] = {key(1), key(2)};
  std::vector<std::size_t> mine;
  ASSERT_TRUE(stored_.compute(
      keys, [&](std::span<const std::size_t> numbers, const TileCache::Ready&) -> Result<void> {
        mine.assign(numbers.begin(), numbers.end());
        return {};
      }));
  EXPECT_EQ(mine, std::vector<std::size_t>{1});
  ASSERT_TRUE(stored_.find(key(1)));
  EXPECT_EQ(stored_.find(key(1))->span()[7], std::byte{'a'});
}

TEST_F(StoredTilesTest, NotThoseThatAreCheapOrPassed) {
  EXPECT_EQ(least_puts([&] { push_out(cheap(), 12); }), 0);
  EXPECT_EQ(least_puts([&] {
              ASSERT_TRUE(stored_.get(key(2), dear('b')));
              stored_.retire(key(2));
              push_out(cheap());
            }),
            0);
  EXPECT_EQ(least_puts([&] {
              TileKey piece = key(3);
              piece.kind = TileKey::Kind::Piece;
              ASSERT_TRUE(stored_.get(piece, dear('c')));
              push_out(cheap());
            }),
            0);
}

TEST_F(StoredTilesTest, AStoreThatFailsOnlyMeansThatTheyAreComputedAgain) {
  for (std::atomic<bool>* const fault : {&store_->full, &store_->throws, &store_->loses}) {
    *fault = true;
    stored_.clear();
    ASSERT_TRUE(stored_.get(key(1), dear('a')));
    push_out(tile_of(1_MiB, 'x'));
    const auto tile = stored_.get(key(1), tile_of(1_MiB, 'b'));
    ASSERT_TRUE(tile);
    EXPECT_EQ((*tile)->span()[0], std::byte{'b'});
    *fault = false;
  }
}

TEST_F(StoredTilesTest, MemoryThatEndsLeavesNoTileHalfMade) {
  CKFS_NEEDS_FAILING_HEAP();
  // More than there is room for: some push others out, into the store.
  std::uint64_t base = 0;
  const auto all = [&](const auto& get) {
    for (std::uint64_t k = 0; k < 7; ++k) {
      get(key(base + k), tile_of(1_MiB, static_cast<char>('a' + k)), k);
    }
  };
  const long allocations = failing_heap::fail_each(
      [&] {
        all([&](TileKey of, const TileCache::Compute& compute, std::uint64_t) {
          const auto tile = stored_.get(of, compute);
          if (!tile) {
            EXPECT_EQ(tile.error().code(), ErrorCode::OutOfMemory) << tile.error().message();
          }
        });
      },
      [&] {
        all([&](TileKey of, const TileCache::Compute& compute, std::uint64_t k) {
          const auto tile = stored_.get(of, compute);
          ASSERT_TRUE(tile) << tile.error().message();
          EXPECT_EQ((*tile)->span()[1_MiB - 1], std::byte(static_cast<char>('a' + k)));
        });
        base += 10;
      });
  EXPECT_GT(allocations, 20);
}

TEST_F(StoredTilesTest, ManyThreadsThatPushEachOthersTilesOut) {
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t k = 0; k < 60; ++k) {
        const std::uint64_t number = (k * 7 + t * 3) % 9;
        const auto tile = stored_.get(key(number), dear(static_cast<char>('a' + number)));
        ASSERT_TRUE(tile);
        EXPECT_EQ((*tile)->span()[5], std::byte(static_cast<char>('a' + number)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Each may be computed anew before it was stored, by whoever came first.
  EXPECT_LE(stored_.computed(), 60U);
}

}  // namespace
}  // namespace ckfs
