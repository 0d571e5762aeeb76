// What the engine asks of its source, and how often: of disks, of servers, of what streams.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "base/units.h"
#include "engine/engine.h"
#include "engine/fp8_matrix.h"
#include "support/delayed_source.h"
#include "support/gather_all.h"
#include "support/memory_source.h"
#include "support/memory_tile_store.h"
#include "support/naive_view.h"

namespace ckfs {
namespace {

/// A source that itself needs memory of the budget for each read.
class AllocatingSource final : public ByteSource {
 public:
  AllocatingSource(ByteSource& source, std::shared_ptr<BufferPool> pool)
      : source_(source), pool_(std::move(pool)) {}
  Result<void> read(std::span<const ReadRequest> batch) override {
    CKFS_TRY(const Buffer block, pool_->acquire(Tier::Source, 4_MiB));
    const TierScope holding(Tier::Source);
    return source_.read(batch);
  }
  std::uint64_t size(FileId file) const override { return source_.size(file); }
  const std::string& name(FileId file) const override { return source_.name(file); }

 private:
  ByteSource& source_;
  const std::shared_ptr<BufferPool> pool_;
};

/// A slow source that counts who reads it at once; a disk that heeds hints, or a server.
class CrowdedSource final : public ByteSource {
 public:
  CrowdedSource(ByteSource& source, bool heeds)
      : slow_(source, {.delay = std::chrono::milliseconds(5)}), heeds_(heeds) {}
  Result<void> read(std::span<const ReadRequest> batch) override {
    const int now = ++inside_;
    int most = most_.load();
    while (most < now && !most_.compare_exchange_weak(most, now)) {
    }
    auto done = slow_.read(batch);
    --inside_;
    return done;
  }
  SourceTraits traits(FileId /*file*/) const override { return {.heeds_hints = heeds_}; }
  std::uint64_t size(FileId file) const override { return slow_.size(file); }
  const std::string& name(FileId file) const override { return slow_.name(file); }
  int most() const { return most_; }

 private:
  DelayedSource slow_;
  const bool heeds_;
  std::atomic<int> inside_{0};
  std::atomic<int> most_{0};
};

TEST(Engine, WaitsForASourceWithManyThreadsOnlyWhereHintsDoNotHelp) {
  Fp8Matrix matrix(4096, 8192, false);  // 64 MiB of bf16
  for (const bool heeds : {true, false}) {
    CrowdedSource source(matrix.source, heeds);
    Engine engine(matrix.catalog, source, BufferPool::create(256_MiB), {.threads = 2});
    const auto stream = engine.open_stream(matrix.file, {.whole = true});
    for (std::uint64_t at = 0; at < matrix.file->size; at += 1_MiB) {
      ASSERT_TRUE(engine.read(*stream, {at, std::min(matrix.file->size, at + 1_MiB)}));
    }
    if (heeds) {
      EXPECT_LE(source.most(), 3);  // two workers and the reader
    } else {
      EXPECT_GT(source.most(), 3);
    }
  }
}

/// Counts what is wanted once, and what is not.
class OnceSource final : public ByteSource {
 public:
  explicit OnceSource(MemorySource& source) : source_(source) { source_.allow_mapping(); }
  Result<void> read(std::span<const ReadRequest> batch) override {
    kept_ += batch.size();
    return source_.read(batch);
  }
  Result<void> read_once(std::span<const ReadRequest> batch) override {
    once_ += batch.size();
    return source_.read(batch);
  }
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override {
    ++kept_;
    return source_.map(range, used);
  }
  std::optional<MappedBytes> map_once(const FileRange& range, std::uint64_t used) override {
    ++once_;
    return source_.map(range, used);
  }
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override {
    return source_.check_mapped(mapped);
  }
  std::uint64_t size(FileId file) const override { return source_.size(file); }
  const std::string& name(FileId file) const override { return source_.name(file); }
  SourceTraits traits(FileId /*file*/) const override { return {.knows_page_cache = knows}; }
  std::uint64_t once() const { return once_; }
  std::uint64_t kept() const { return kept_; }

  std::atomic<bool> knows = true;

 private:
  MemorySource& source_;
  std::atomic<std::uint64_t> once_{0};
  std::atomic<std::uint64_t> kept_{0};
};

TEST(Engine, LeavesInTheSourcesPageCacheOnlyWhatIsNotInTheViews) {
  Fp8Matrix matrix(2048, 8192, false);  // 32 MiB of bf16
  const auto deliver = [](std::uint64_t, std::span<const std::byte>) { return true; };
  const auto read = [&](OnceSource& source, const StreamOptions& options, std::uint64_t begin,
                        std::uint64_t step) {
    Engine engine(matrix.catalog, source, BufferPool::create(256_MiB), {.threads = 2});
    const auto stream = engine.open_stream(matrix.file, options);
    for (std::uint64_t at = begin; at + 1_MiB <= matrix.file->size; at += step) {
      ASSERT_TRUE(engine.read(*stream, {at, at + 1_MiB}));
    }
  };
  OnceSource in_order(matrix.source), in_jumps(matrix.source), past_the_cache(matrix.source);
  read(in_order, {.deliver = deliver}, 0, 1_MiB);
  EXPECT_GT(in_order.once(), 8 * in_order.kept());  // all but the first ones
  read(in_jumps, {.deliver = deliver}, 3_MiB, 9_MiB);
  EXPECT_EQ(in_jumps.once(), 0U);
  EXPECT_GT(in_jumps.kept(), 0U);
  OnceSource unknown(matrix.source);
  unknown.knows = false;
  read(unknown, {.deliver = deliver}, 0, 1_MiB);
  EXPECT_EQ(unknown.once(), 0U);
  read(past_the_cache, {}, 0, 1_MiB);
  EXPECT_EQ(past_the_cache.once(), 0U);
  EXPECT_GT(past_the_cache.kept(), 0U);
}

/// A disk that may be read past the page cache: it writes over all that a padded request lets it.
class BlockSource final : public ByteSource {
 public:
  explicit BlockSource(MemorySource& source)
      : slow_(source, {.delay = std::chrono::milliseconds(3)}) {}
  Result<void> read(std::span<const ReadRequest> batch) override { return slow_.read(batch); }
  Result<void> read_once(std::span<const ReadRequest> batch) override {
    for (const ReadRequest& request : batch) {
      if (!request.padded) continue;
      const std::uint64_t before = request.offset % kDiskBlock;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(request.out.data()) % kDiskBlock, before);
      const std::uint64_t used = before + request.out.size();
      std::memset(request.out.data() - before, 0xEE,
                  (used + kDiskBlock - 1) / kDiskBlock * kDiskBlock);
      padded_ += request.out.size();
    }
    return slow_.read(batch);
  }
  void will_need(std::span<const FileRange> ranges) override {
    for (const FileRange& range : ranges) hinted_ += range.size;
  }
  SourceTraits traits(FileId /*file*/) const override {
    return {.heeds_hints = true, .reads_past_cache = true};
  }
  std::uint64_t size(FileId file) const override { return slow_.size(file); }
  const std::string& name(FileId file) const override { return slow_.name(file); }
  std::uint64_t padded() const { return padded_; }
  std::uint64_t hinted() const { return hinted_; }

 private:
  DelayedSource slow_;
  std::atomic<std::uint64_t> padded_{0};
  std::atomic<std::uint64_t> hinted_{0};
};

/// Readers of all of a file that take turns, each once.
void read_by(int readers, Engine& engine, const std::shared_ptr<const FileLayout>& file,
             const std::vector<std::byte>& expected) {
  std::vector<std::shared_ptr<ReadStream>> streams;
  for (int r = 0; r < readers; ++r) {
    streams.push_back(engine.open_stream(file, {.whole = true, .once = true}));
  }
  std::vector<std::byte> got(file->size);
  for (int turn = 0; turn < 20; ++turn) {  // that they take turns has to be seen first
    for (const auto& stream : streams) {
      ASSERT_TRUE(engine.read(*stream, {0, 1}, std::span(got).first(1)));
    }
  }
  for (std::uint64_t at = 0; at < got.size(); at += 1_MiB) {
    const ByteRange range{at, std::min(file->size, at + 1_MiB)};
    for (const auto& stream : streams) {
      const auto out = std::span(got).subspan(at, range.size());
      ASSERT_TRUE(engine.read(*stream, range, out));
      EXPECT_TRUE(
          std::equal(out.begin(), out.end(), expected.begin() + static_cast<std::ptrdiff_t>(at)));
    }
  }
}

// Moved tensors of all sizes at odd places, some beside decoded ones: what a disk writes beside the
// bytes that are wanted is seen by nobody, and large tensors are not hinted at.
TEST(Engine, HasADiskWriteItsBlocksWhereTheyBelong) {
  std::mt19937_64 random(11);
  CatalogBuilder builder("test");
  MemorySource source;
  std::vector<std::byte> bytes(31);
  std::vector<std::uint64_t> sizes;
  for (int k = 0; k < 40; ++k) sizes.push_back((random() % (k % 4 == 0 ? 5'000'000 : 9'000)) * 2);
  std::uint64_t large = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const Extent extent{0, bytes.size(), sizes[k]};
    const auto elements = static_cast<std::int64_t>(sizes[k] / 2);
    const StorageId storage = builder.add_storage(DType::BF16, elements, std::span(&extent, 1));
    builder.add_tensor(fmt::format("t{:02}", k), std::span(&elements, 1), storage);
    bytes.resize(bytes.size() + sizes[k] + k % 3);
    if (sizes[k] >= 2_MiB && k % 5 != 0) large += sizes[k];
  }
  for (std::byte& byte : bytes) byte = std::byte(random());
  source.add("weights", bytes);
  auto definition = std::make_shared<Definition>();
  definition->catalog = std::move(builder).build();
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    TensorExpr expr = TensorExpr::stored(*definition->catalog,
                                         *definition->catalog->find(fmt::format("t{:02}", k)));
    if (k % 5 == 0) expr = expr.cast(DType::F32).value();
    definition->tensors.push_back({"t", std::move(expr), Exactness::BitExact});
  }
  const auto file = std::make_shared<const FileLayout>(layout_of(definition));
  const std::vector<std::byte> expected = naive_file(*file, source).value();

  BlockSource disk(source);
  Engine engine(definition->catalog, disk, BufferPool::create(64_MiB), {.threads = 2});
  read_by(2, engine, file, expected);
  EXPECT_GT(disk.padded(), large / 2);
  EXPECT_GT(disk.hinted(), 0U);
  EXPECT_LE(disk.hinted(), 2 * bytes.size() - large);
}

TEST(Engine, HasADiskWriteBlocksThatAreDecodedThen) {
  Fp8Matrix matrix(4096, 4096, false);  // 16 MiB of codes
  const std::vector<std::byte> expected = naive_file(*matrix.file, matrix.source).value();
  for (const int readers : {1, 2}) {
    BlockSource disk(matrix.source);
    Engine engine(matrix.catalog, disk, BufferPool::create(64_MiB), {.threads = 2});
    read_by(readers, engine, matrix.file, expected);
    if (readers == 1) {
      // Who waits alone is better served by hints.
      EXPECT_EQ(disk.padded(), 0U);
      EXPECT_GT(disk.hinted(), 8_MiB);
    } else {
      EXPECT_GT(disk.padded(), 8_MiB);
      EXPECT_LT(disk.hinted(), 8_MiB);
    }
  }
}

// Readers in turns of files that show a matrix transposed, more than memory has room for: tiles
// that were slow to make come back from the store instead of being made again.
TEST(Engine, GathersWhatMemoryHasNoRoomForOnceWhereThereIsAStore) {
  constexpr std::size_t kReaders = 5;
  Fp8Matrix matrix(2048, 4096, true);  // 16 MiB of bf16
  const std::vector<std::byte> expected = naive_file(*matrix.file, matrix.source).value();
  const std::uint64_t needed = matrix.source.size(0) + matrix.source.size(1);
  for (const bool stored : {false, true}) {
    DelayedSource slow(matrix.source, {.delay = std::chrono::milliseconds(20)});
    matrix.source.reset_counts();
    Engine engine(
        matrix.catalog, slow, BufferPool::create(64_MiB),
        {.threads = 2, .tile_store = stored ? std::make_shared<MemoryTileStore>() : nullptr});
    std::vector<std::shared_ptr<ReadStream>> streams;
    for (std::size_t k = 0; k < kReaders; ++k) {
      auto file = std::make_shared<FileLayout>(*matrix.file);
      file->serial = new_serials(1);
      streams.push_back(engine.open_stream(file, {.whole = true}));
    }
    std::vector<std::byte> got(1_MiB);
    for (std::uint64_t at = 0; at + 1_MiB <= expected.size(); at += 1_MiB) {
      for (const auto& stream : streams) {
        ASSERT_TRUE(engine.read(*stream, {at, at + 1_MiB}, got));
        EXPECT_TRUE(
            std::equal(got.begin(), got.end(), expected.begin() + static_cast<std::ptrdiff_t>(at)));
      }
    }
    const double ratio =
        static_cast<double>(matrix.source.bytes_read()) / static_cast<double>(needed * kReaders);
    if (stored) {
      EXPECT_LE(ratio, 1.5);
    } else {
      EXPECT_GE(ratio, 2.0) << "this shows nothing";
    }
  }
}

/// A source that streams, slowly.
class StreamingSource final : public ByteSource {
 public:
  explicit StreamingSource(ByteSource& source)
      : slow_(source, {.delay = std::chrono::milliseconds(3)}) {}
  Result<void> read(std::span<const ReadRequest> batch) override {
    batches_.fetch_add(1, std::memory_order_relaxed);
    return slow_.read(batch);
  }
  SourceTraits traits(FileId /*file*/) const override { return {.streams = true}; }
  std::uint64_t size(FileId file) const override { return slow_.size(file); }
  const std::string& name(FileId file) const override { return slow_.name(file); }
  std::uint64_t batches() const { return batches_.load(std::memory_order_relaxed); }

 private:
  DelayedSource slow_;
  std::atomic<std::uint64_t> batches_{0};
};

TEST(Engine, ReadsPiecesOfASourceThatStreamsTogether) {
  Fp8Matrix matrix(4096, 8192, false);  // 64 MiB of bf16
  std::vector<std::byte> expected(matrix.file->size);
  {
    Engine engine(matrix.catalog, matrix.source, BufferPool::create(256_MiB), {});
    ASSERT_TRUE(engine.read(*engine.open_stream(matrix.file), {0, expected.size()}, expected));
  }
  matrix.source.reset_counts();
  for (const std::uint64_t budget : {256_MiB, 64_MiB}) {
    StreamingSource source(matrix.source);
    Engine engine(matrix.catalog, source, BufferPool::create(budget), {});
    const auto stream = engine.open_stream(matrix.file);
    std::vector<std::byte> read;
    while (read.size() < matrix.file->size) {
      const std::uint64_t end = std::min<std::uint64_t>(matrix.file->size, read.size() + 128_KiB);
      const auto bytes = engine.read(*stream, {read.size(), end});
      ASSERT_TRUE(bytes) << bytes.error().message();
      read.insert(read.end(), bytes->span().begin(), bytes->span().end());
    }
    EXPECT_TRUE(read == expected);
    EXPECT_LE(source.batches(), 40U) << budget;  // of 65 pieces
  }
  EXPECT_LE(matrix.source.bytes_read(0), 2 * matrix.source.size(0) * 102 / 100);
}

TEST(Engine, ServesSixtyFourReadersOfASourceThatAllocates) {
  for (const bool transposed : {false, true}) {
    Fp8Matrix matrix(2048, 4096, transposed);
    const auto pool = BufferPool::create(64_MiB);
    AllocatingSource source(matrix.source, pool);
    Engine engine(matrix.catalog, source, pool, {.threads = 4});
    std::vector<std::byte> expected(matrix.file->size);
    ASSERT_TRUE(engine.read(*engine.open_stream(matrix.file), {0, expected.size()}, expected));
    std::vector<std::thread> readers;
    for (std::uint64_t r = 0; r < 64; ++r) {
      readers.emplace_back([&, r] {
        const auto stream = engine.open_stream(matrix.file);
        std::uint64_t at = r % 8 * 1_MiB;  // some in step, some not
        for (; at < matrix.file->size; at += 1_MiB) {
          const auto bytes = engine.read(*stream, {at, std::min(matrix.file->size, at + 1_MiB)});
          ASSERT_TRUE(bytes) << bytes.error().message();
          ASSERT_TRUE(std::equal(bytes->span().begin(), bytes->span().end(),
                                 expected.begin() + static_cast<long>(at)));
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_LE(engine.statistics().memory_peak, 64_MiB);
  }
}

/// Remembers how many ranges the longest hint had.
class HintedSource final : public ByteSource {
 public:
  explicit HintedSource(ByteSource& source) : source_(source) {}
  Result<void> read(std::span<const ReadRequest> batch) override { return source_.read(batch); }
  void will_need(std::span<const FileRange> ranges) override {
    std::size_t seen = longest.load();
    while (seen < ranges.size() && !longest.compare_exchange_weak(seen, ranges.size())) {
    }
  }
  std::uint64_t size(FileId file) const override { return source_.size(file); }
  const std::string& name(FileId file) const override { return source_.name(file); }

  std::atomic<std::size_t> longest = 0;

 private:
  ByteSource& source_;
};

// Panels of a matrix with short pieces of 6,000 rows each: all of them in a hint would be hundreds
// of thousands of ranges, outside of the budget.
TEST(Engine, HintsAtAFewThousandRangesAtMost) {
  Fp8Matrix matrix(6000, 8192, true);
  HintedSource source(matrix.source);
  {
    Engine engine(matrix.catalog, source, BufferPool::create(64_MiB), {.tile_bytes = 1_MiB});
    const auto stream = engine.open_stream(matrix.file, {.whole = true});
    for (std::uint64_t at = 0; at < 8_MiB; at += 1_MiB) {
      ASSERT_TRUE(engine.read(*stream, {at, at + 1_MiB}));
    }
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (source.longest == 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  }
  EXPECT_GT(source.longest, 100U);
  EXPECT_LE(source.longest, 3 * 4096U);
}

}  // namespace
}  // namespace ckfs
