#include "memory/buffer_pool.h"

#include <gtest/gtest.h>
#include <thread>

#include "base/units.h"

namespace ckfs {
namespace {

TEST(BufferPool, RecyclesTheLastBufferFirst) {
  const auto pool = BufferPool::create(64_MiB);
  std::byte* first = nullptr;
  {
    const Buffer buffer = *pool->try_acquire(1_MiB);
    first = buffer.data();
  }
  EXPECT_EQ(pool->try_acquire(1_MiB)->data(), first);
  EXPECT_EQ(pool->peak(), 1_MiB);
}

TEST(BufferPool, NeverHoldsMoreThanItsLimit) {
  const auto pool = BufferPool::create(4_MiB);
  const auto a = pool->try_acquire(3_MiB);
  ASSERT_TRUE(a);
  EXPECT_FALSE(pool->try_acquire(2_MiB));
  EXPECT_TRUE(pool->try_acquire(1_MiB));
  EXPECT_EQ(pool->held(), 4_MiB);
}

TEST(BufferPool, GivesUpKeptBuffersOfAnotherSize) {
  const auto pool = BufferPool::create(4_MiB);
  pool->try_acquire(3_MiB).reset();
  EXPECT_EQ(pool->held(), 3_MiB);
  EXPECT_TRUE(pool->try_acquire(2_MiB));
  EXPECT_LE(pool->peak(), 4_MiB);
}

TEST(BufferPool, SaysWhatItCanNeverGive) {
  const auto pool = BufferPool::create(4_MiB);
  const auto buffer = pool->acquire(5_MiB);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), ErrorCode::OutOfMemory);
}

TEST(BufferPool, WaitsUntilAnotherThreadGivesBack) {
  const auto pool = BufferPool::create(1_MiB);
  auto held = pool->try_acquire(1_MiB);
  std::thread waiter([&] { EXPECT_TRUE(pool->acquire(1_MiB)); });
  held.reset();
  waiter.join();
}

TEST(BufferPool, AsksForMemoryBackWhenItIsShort) {
  const auto pool = BufferPool::create(2_MiB);
  auto spare = pool->try_acquire(2_MiB);
  std::uint64_t asked = 0;
  pool->set_reclaim([&](std::uint64_t bytes) {
    asked = bytes;
    spare.reset();
  });
  EXPECT_TRUE(pool->acquire(1_MiB));
  EXPECT_EQ(asked, 1_MiB);
}

TEST(BufferPool, OutlivesItsOwnerWhileABufferIsLent) {
  auto pool = BufferPool::create(2_MiB);
  const Buffer buffer = *pool->try_acquire(1_MiB);
  pool.reset();
  buffer.span()[0] = std::byte{1};
  EXPECT_EQ(buffer.span()[0], std::byte{1});
}

}  // namespace
}  // namespace ckfs
