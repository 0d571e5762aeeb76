// What is computed ahead is put before its reader, and that may take as long as a request takes
// whose page it is: nothing that the request needs may be held meanwhile.
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <gtest/gtest.h>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/units.h"
#include "engine/engine.h"
#include "engine/fp8_matrix.h"
#include "support/memory_source.h"

namespace ckfs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kTileRows = 3584,
                       kTileColumns = 4096;  // 28 MiB of BF16: one tile of a budget of 64

/// A checkpoint of one BF16 matrix, as it is in F32, and transposed.
class TwoForms {
 public:
  TwoForms() {
    source.add("w", std::vector<std::byte>(kTileRows * kTileColumns * 2, std::byte{0x3f}));
    CatalogBuilder builder("test");
    const Extent extent{0, 0, kTileRows * kTileColumns * 2};
    const StorageId storage =
        builder.add_storage(DType::BF16, kTileRows * kTileColumns, std::span(&extent, 1));
    const std::int64_t shape[] = {kTileRows, kTileColumns};
    builder.add_tensor("w", shape, storage);
    catalog = std::move(builder).build();
    const TensorExpr stored = TensorExpr::stored(*catalog, *catalog->find("w"));
    const std::int64_t order[] = {1, 0};
    wide = file_of(stored.cast(DType::F32).value());
    transposed = file_of(stored.transpose(order).value());
  }

  MemorySource source;
  std::shared_ptr<const Catalog> catalog;
  std::shared_ptr<const FileLayout> wide, transposed;

 private:
  std::shared_ptr<const FileLayout> file_of(TensorExpr expr) const {
    auto definition = std::make_shared<Definition>();
    definition->catalog = catalog;
    FileLayout file;
    file.path = "test.bin";
    file.segments.push_back({0, 0, 0, Segment::Kind::Tensor});
    file.size = expr.nbytes();
    definition->tensors.push_back({"w", std::move(expr), Exactness::BitExact});
    file.definition = std::move(definition);
    file.finish();
    return std::make_shared<FileLayout>(std::move(file));
  }
};

/// What waits until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    waiting_ += 1;
    opened_.wait(lock, [&] { return open_; });
    waiting_ -= 1;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  unsigned waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  unsigned waiting_ = 0;
};

TEST(Deliver, HoldsNothingThatARequestWaitsFor) {
  TwoForms forms;
  Gate gate;
  const auto pool = BufferPool::create(64_MiB);
  Engine engine(forms.catalog, forms.source, pool, {.threads = 8});
  {
    // The engine's threads are about to put pieces where the kernel has locked a page for the
    // request below, and more wait for their turn.
    const auto stream =
        engine.open_stream(forms.wide, {.deliver = [&](std::uint64_t, std::span<const std::byte>) {
                             gate.pass();
                             return true;
                           }});
    const auto soon = Clock::now() + std::chrono::seconds(20);
    for (std::uint64_t at = 0; gate.waiting() < 2 && Clock::now() < soon;
         at = (at + 64_KiB) % forms.wide->size) {
      ASSERT_TRUE(engine.read(*stream, {at, at + 64_KiB}));
      std::this_thread::yield();
    }
    EXPECT_GE(gate.waiting(), 2U);
    // Others have replies, and the request needs a tile of nearly all that is left for tiles.
    auto replies = pool->acquire(Tier::Reply, 19_MiB);
    std::atomic<bool> answered = false;
    std::thread request([&] {
      const auto other = engine.open_stream(forms.transposed, {.whole = true});
      for (std::uint64_t at = 0; at < 4_MiB; at += 1_MiB) {
        EXPECT_TRUE(engine.read(*other, {at, at + 1_MiB}));
      }
      answered = true;
    });
    const auto late = Clock::now() + std::chrono::seconds(20);
    while (!answered && Clock::now() < late) std::this_thread::yield();
    EXPECT_TRUE(answered);
    gate.open();
    *replies = Buffer();
    request.join();
  }
}

TEST(Deliver, OneOfSeveralReadersDeliversATile) {
  Fp8Matrix matrix(1024, 1024, false);  // two pieces of BF16
  // That one asks for a piece between another's look for it and his begin is rare.
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> at_once = 0;
    std::atomic<bool> delivered = false;
    Engine engine(matrix.catalog, matrix.source, BufferPool::create(64_MiB), {.threads = 2});
    std::vector<std::shared_ptr<ReadStream>> streams;
    for (int i = 0; i < 4; ++i) {
      streams.push_back(engine.open_stream(
          matrix.file, {.whole = true, .deliver = [&](std::uint64_t offset, auto) {
                          if (offset >= kPieceBytes) return true;  // of the first piece alone
                          EXPECT_EQ(++at_once, 1);
                          // As long as the kernel may take, so that two would meet.
                          const auto end = Clock::now() + std::chrono::microseconds(500);
                          while (Clock::now() < end) std::this_thread::yield();
                          --at_once;
                          delivered = true;
                          return true;
                        }}));
    }
    std::barrier together(4);
    std::vector<std::thread> readers;
    for (const auto& stream : streams) {
      readers.emplace_back([&] {
        together.arrive_and_wait();
        EXPECT_TRUE(engine.read(*stream, {0, 128_KiB}));
      });
    }
    for (std::thread& reader : readers) reader.join();
    const auto late = Clock::now() + std::chrono::seconds(20);
    while (!delivered && Clock::now() < late) std::this_thread::yield();
    ASSERT_TRUE(delivered);
    ASSERT_FALSE(HasFailure()) << round;
  }
}

TEST(Deliver, NothingToWhoAsksForMuchAtOnce) {
  Fp8Matrix matrix(8192, 2048, false);  // 32 MiB of BF16
  const auto read = [&](std::uint64_t size, bool whole) {
    std::atomic<std::uint64_t> delivered = 0;
    {
      Engine engine(matrix.catalog, matrix.source, BufferPool::create(64_MiB), {.threads = 2});
      const auto stream = engine.open_stream(
          matrix.file, {.whole = whole, .deliver = [&](auto, std::span<const std::byte> bytes) {
                          delivered += bytes.size();
                          return true;
                        }});
      const auto late = Clock::now() + std::chrono::seconds(20);
      do {
        for (std::uint64_t at = 0; at < matrix.file->size; at += size) {
          EXPECT_TRUE(engine.read(*stream, {at, std::min(at + size, matrix.file->size)}));
          std::this_thread::yield();
        }
        // A machine may be too busy for its workers to come before the reader.
      } while (size < 256_KiB && delivered == 0 && Clock::now() < late);
    }
    return delivered.load();
  };
  for (const bool whole : {false, true}) {
    EXPECT_GT(read(128_KiB, whole), 0U);
    EXPECT_EQ(read(256_KiB, whole), 0U);
    EXPECT_EQ(read(1_MiB, whole), 0U);
    EXPECT_EQ(read(3_MiB / 2, whole), 0U);
  }
}

}  // namespace
}  // namespace ckfs
