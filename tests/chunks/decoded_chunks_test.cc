#include "chunks/decoded_chunks.h"

#include <array>
#include <atomic>
#include <blosc.h>
#include <chrono>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <stop_token>
#include <sys/resource.h>
#include <thread>
#include <zstd.h>

#include "base/load_le.h"
#include "base/stop.h"
#include "base/units.h"
#include "chunks/chunk_source.h"
#include "chunks/encoded.h"
#include "support/memory_source.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

std::vector<std::byte> noise(std::size_t size, std::uint32_t seed) {
  std::vector<std::byte> bytes(size);
  std::mt19937 random(seed);
  for (std::size_t i = 0; i < size; i += 4) {
    const std::uint32_t word = random() & 0x0fff7f0f;
    for (std::size_t k = 0; k < 4 && i + k < size; ++k) {
      bytes[i + k] = static_cast<std::byte>(word >> (8 * k));
    }
  }
  return bytes;
}

/// `count` zstd chunks of one array, and what they hold.
struct Chunks {
  explicit Chunks(std::size_t count, std::size_t size, std::uint64_t memory,
                  std::shared_ptr<Spill> spill = nullptr)
      : pool(BufferPool::create(memory)) {
    const ChunkArrayId array =
        table.add_array({.name = "w",
                         .nbytes = size,
                         .codecs = std::make_shared<const CodecChain>(std::vector{Codec::Zstd}),
                         .grid = {count}});
    for (std::size_t i = 0; i < count; ++i) {
      bytes.push_back(noise(size, static_cast<std::uint32_t>(i)));
      const auto stored = zstd_frame(bytes.back(), 1);
      const FileId file = files.add("c/" + std::to_string(i), stored);
      ids.push_back(table.add_stored(array, i, {file, 0, stored.size()}).value());
    }
    source = std::make_unique<ChunkSource>(files, table, pool, std::move(spill));
  }

  std::uint64_t total() const { return bytes.size() * bytes.front().size(); }
  std::uint64_t decoded() const { return source->statistics().decoded; }

  /// Whether chunk `i` has the right bytes there.
  bool right(std::size_t i, std::uint64_t offset, std::size_t size) {
    std::vector<std::byte> out(size);
    const auto read = source->read_at(ids[i], offset, out);
    EXPECT_TRUE(read) << read.error().message();
    return read && std::ranges::equal(out, std::span(bytes[i]).subspan(offset, size));
  }

  MemorySource files;
  ChunkTable table;
  std::shared_ptr<BufferPool> pool;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<FileId> ids;
  std::unique_ptr<ChunkSource> source;
};

std::shared_ptr<Spill> spill_in(const TemporaryDirectory& directory, std::uint64_t limit) {
  auto file = SpillFile::create(directory.path());
  EXPECT_TRUE(file);
  return std::make_shared<Spill>(*std::move(file), DecodedChunks::kBlock, limit);
}

TEST(DecodedChunks, AForwardReaderDecodesAChunkOnce) {
  Chunks chunks(1, 10'000'001, 64_MiB);
  for (std::size_t at = 0; at < 10'000'001; at += 65'536) {
    EXPECT_TRUE(chunks.right(0, at, std::min<std::size_t>(65'536, 10'000'001 - at)));
  }
  EXPECT_EQ(chunks.decoded(), chunks.total());
}

TEST(DecodedChunks, WhatTheBudgetHasRoomForIsDecodedOnceInAnyOrder) {
  Chunks chunks(4, 3'000'000, 128_MiB);
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const std::size_t size = random() % 100'000 + 1;
    EXPECT_TRUE(chunks.right(random() % 4, random() % (3'000'000 - size), size));
  }
  EXPECT_EQ(chunks.decoded(), chunks.total());
}

TEST(DecodedChunks, RowsOfManyChunksAreReadInOneBatchEach) {
  Chunks chunks(8, 2'000'000, 128_MiB);
  std::vector<std::vector<std::byte>> rows(8 * 100, std::vector<std::byte>(1000));
  std::vector<ReadRequest> batch;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    batch.push_back({chunks.ids[i % 8], (i / 8) * 20'000 + 7, rows[i]});
  }
  ASSERT_TRUE(chunks.source->read(batch));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(
        rows[i], std::span(chunks.bytes[i % 8]).subspan((i / 8) * 20'000 + 7, 1000)));
  }
  EXPECT_LE(chunks.decoded(), chunks.total());
}

TEST(DecodedChunks, AChunkOf2GibIsServedWithin64Mib) {
  // A run of zeros with a mark at its end, as several frames.
  const std::vector<std::byte> part(64_MiB);
  std::vector<std::byte> frame = zstd_frame(part, 1);
  std::vector<std::byte> stored;
  for (int i = 0; i < 31; ++i) stored.insert(stored.end(), frame.begin(), frame.end());
  std::vector<std::byte> last = part;
  last.back() = std::byte{42};
  frame = zstd_frame(last, 1);
  stored.insert(stored.end(), frame.begin(), frame.end());
  MemorySource files;
  ChunkTable table;
  const ChunkArrayId array =
      table.add_array({.name = "w",
                       .nbytes = 2_GiB,
                       .codecs = std::make_shared<const CodecChain>(std::vector{Codec::Zstd})});
  const FileId chunk =
      table.add_stored(array, 0, {files.add("c", stored), 0, stored.size()}).value();
  const auto pool = BufferPool::create(64_MiB);
  ChunkSource source(files, table, pool);
  std::vector<std::byte> out(1_MiB);
  ASSERT_TRUE(source.read_at(chunk, 2_GiB - 1_MiB, out));
  EXPECT_EQ(out.back(), std::byte{42});
  EXPECT_EQ(source.statistics().decoded, 2_GiB);
  EXPECT_LE(pool->peak(), 64_MiB);
}

TEST(DecodedChunks, ThreadsThatAskForOneChunkShareItsPass) {
  Chunks chunks(1, 20_MiB, 128_MiB);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t at = t * 64_KiB; at < 20_MiB; at += 8 * 64_KiB) {
        EXPECT_TRUE(chunks.right(0, at, 64_KiB));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(chunks.decoded(), chunks.total());
}

TEST(DecodedChunks, SixtyFourReadersGetTheirBytesWithin64Mib) {
  Chunks chunks(16, 1'500'000, 64_MiB);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 64; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<std::uint32_t>(t));
      const TierScope holding(Tier::Tile);  // as readers do
      for (int i = 0; i < 10; ++i) {
        const std::size_t size = random() % 300'000 + 1;
        EXPECT_TRUE(chunks.right(random() % 16, random() % (1'500'000 - size), size));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(chunks.pool->peak(), 64_MiB);
}

TEST(DecodedChunks, MemoryGoesBackToWhoNeedsItMore) {
  Chunks chunks(8, 4_MiB, 64_MiB);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(chunks.right(i, 0, 4_MiB));
  EXPECT_GT(chunks.pool->held(), 8_MiB);
  // All that is not the source's share.
  const auto tile = chunks.pool->acquire(Tier::Tile, 32_MiB);
  const auto reply = chunks.pool->acquire(Tier::Reply, 24_MiB);
  EXPECT_TRUE(tile && reply);
  EXPECT_TRUE(chunks.right(3, 5, 1000));
}

TEST(DecodedChunks, ASpillKeepsWhatMemoryHasNoRoomFor) {
  const TemporaryDirectory directory;
  Chunks chunks(8, 8_MiB, 64_MiB, spill_in(directory, 0));
  for (int pass = 0; pass < 3; ++pass) {
    for (std::size_t at = 0; at < 8_MiB; at += 700'000) {
      for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(chunks.right(i, at, 1000));
    }
  }
  // Not all decoders fit at once: a chunk that is begun again is decoded to its end.
  EXPECT_LE(chunks.decoded(), 2 * chunks.total());
  EXPECT_GT(chunks.source->statistics().spill.written, 0u);
  EXPECT_LT(chunks.source->statistics().spill.written, chunks.total());
}

TEST(DecodedChunks, WhatMemoryHasRoomForIsNotSpilled) {
  const TemporaryDirectory directory;
  Chunks chunks(4, 3'000'000, 128_MiB, spill_in(directory, 0));
  for (int pass = 0; pass < 3; ++pass) {
    for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(chunks.right(i, 0, 3'000'000));
  }
  EXPECT_EQ(chunks.decoded(), chunks.total());
  EXPECT_EQ(chunks.source->statistics().spill.written, 0u);
}

TEST(DecodedChunks, WhatMemoryGivesBackIsInTheSpill) {
  const TemporaryDirectory directory;
  Chunks chunks(4, 3'000'000, 128_MiB, spill_in(directory, 0));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(chunks.right(i, 0, 3'000'000));
  chunks.source->rest([] { return true; });
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(chunks.right(i, 0, 3'000'000));
  EXPECT_EQ(chunks.decoded(), chunks.total());
  EXPECT_EQ(chunks.source->statistics().spill.written, chunks.total());
}

TEST(DecodedChunks, ForgottenChunksLeaveTheirPlaces) {
  const TemporaryDirectory directory;
  const auto spill = spill_in(directory, 16_MiB);
  Chunks chunks(8, 16_MiB, 64_MiB);
  ASSERT_TRUE(chunks.source->add_spill(spill, true));
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t at = 15_MiB; at > 0; at -= 1_MiB) EXPECT_TRUE(chunks.right(i, at, 1000));
    chunks.source->forget({&chunks.ids[i], 1});
    EXPECT_EQ(spill->room(), 16_MiB);
  }
  EXPECT_EQ(chunks.decoded(), chunks.total());
  EXPECT_TRUE(chunks.right(0, 5, 1000));
  EXPECT_GT(chunks.decoded(), chunks.total());
}

TEST(DecodedChunks, ChunksThatAreNeededAsAWholeAreDecodedOnce) {
  const TemporaryDirectory directory;
  Chunks chunks(8, 8_MiB, 64_MiB);
  EXPECT_TRUE(chunks.source->add_spill(spill_in(directory, 0), true));
  EXPECT_FALSE(chunks.source->add_spill(spill_in(directory, 0), true));
  for (std::size_t at = 0; at < 8_MiB; at += 700'000) {
    for (std::size_t i = 0; i < 8; ++i) EXPECT_TRUE(chunks.right(i, at, 1000));
  }
  EXPECT_EQ(chunks.decoded(), chunks.total());
}

TEST(DecodedChunks, ASpillIsBoundedAndDropsWhatWasUsedLongestAgo) {
  const TemporaryDirectory directory;
  Chunks chunks(4, 16_MiB, 64_MiB, spill_in(directory, 5_MiB));
  std::mt19937 random(3);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(chunks.right(random() % 4, random() % (16_MiB - 5000), 5000));
  }
  EXPECT_GT(chunks.decoded(), chunks.total());
}

TEST(DecodedChunks, AFullDiskOnlyMeansLessSpill) {
  const TemporaryDirectory directory;
  Chunks chunks(4, 16_MiB, 64_MiB, spill_in(directory, 0));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{3_MiB + 4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(chunks.right(i, 10_MiB, 1000));
    EXPECT_TRUE(chunks.right(i, 0, 1000));
  }
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_LE(chunks.source->spill_limit(), 3_MiB);
}

TEST(DecodedChunks, AFaultOfTheSourceIsAnErrorForWhoNeedsTheBytesOnly) {
  Chunks chunks(2, 8_MiB, 64_MiB);
  const auto stored = chunks.files.size(0);
  chunks.files.fail(0, {stored / 2, stored / 2 + 1}, EIO, 1);
  std::vector<std::byte> out(8_MiB);
  const auto read = chunks.source->read_at(chunks.ids[0], 0, out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::Io);
  EXPECT_THAT(read.error().message(), HasSubstr("w: chunk 0"));
  EXPECT_TRUE(chunks.right(1, 0, 8_MiB));
  EXPECT_TRUE(chunks.right(0, 0, 8_MiB));  // the disk is well again
}

TEST(DecodedChunks, WhatWasDecodedBeforeItsFileChangedIsStale) {
  Chunks chunks(1, 1_MiB, 64_MiB);
  EXPECT_TRUE(chunks.right(0, 0, 1_MiB));
  chunks.files.make_stale(0);
  std::vector<std::byte> out(100);
  const auto read = chunks.source->read_at(chunks.ids[0], 0, out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::Stale);
}

TEST(DecodedChunks, WhatLiesBeforeABrokenPlaceIsStillRead) {
  Chunks chunks(1, 8_MiB, 64_MiB);
  std::vector<std::byte> broken(chunks.files.bytes(0).begin(), chunks.files.bytes(0).end());
  const std::size_t place = broken.size() / 4 * 3;
  for (std::size_t i = 0; i < 200'000; ++i) broken[place + i] = std::byte{0xff};
  chunks.files.change(0, broken);
  EXPECT_TRUE(chunks.right(0, 0, 4_MiB));
  std::vector<std::byte> out(100);
  const auto read = chunks.source->read_at(chunks.ids[0], 8_MiB - 100, out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::Corrupt);
  EXPECT_THAT(read.error().message(), HasSubstr("w: chunk 0: zstd: "));
}

/// One chunk of zeros, and readers of its last byte.
struct Zeros {
  explicit Zeros(std::uint64_t size) : nbytes(size) {
    const ChunkArrayId array =
        table.add_array({.name = "w",
                         .nbytes = nbytes,
                         .codecs = std::make_shared<const CodecChain>(std::vector{Codec::Zstd})});
    const auto stored = zstd_zeros(nbytes);
    chunk = table.add_stored(array, 0, {files.add("c", stored), 0, stored.size()}).value();
    source = std::make_unique<ChunkSource>(files, table, BufferPool::create(64_MiB));
  }
  std::uint64_t decoded() const { return source->statistics().decoded; }
  void wait_until_decoded(std::uint64_t bytes) const {
    while (decoded() < bytes) std::this_thread::yield();
  }
  Result<std::byte> byte_at(std::uint64_t offset) {
    std::array<std::byte, 1> out{std::byte{42}};
    CKFS_TRY_VOID(source->read_at(chunk, offset, out));
    return out[0];
  }
  std::future<Result<std::byte>> last_byte(std::stop_token stop) {
    return std::async(std::launch::async, [this, stop] {
      const StopScope scope(stop);
      return byte_at(nbytes - 1);
    });
  }

  const std::uint64_t nbytes;
  MemorySource files;
  ChunkTable table;
  FileId chunk = 0;
  std::unique_ptr<ChunkSource> source;
};

TEST(DecodedChunks, AReaderWhoIsAskedToStopDoesSo) {
  Zeros zeros(128_GiB);
  std::stop_source stop;
  auto reader = zeros.last_byte(stop.get_token());
  zeros.wait_until_decoded(4_MiB);
  stop.request_stop();
  const auto read = reader.get();
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::Stopped);
  EXPECT_EQ(read.error().message(), "w: chunk 0: stopped");
}

TEST(DecodedChunks, WhoOnlyWaitsStopsToo) {
  Zeros zeros(128_GiB);
  std::stop_source driver, waiter;
  auto first = zeros.last_byte(driver.get_token());
  zeros.wait_until_decoded(4_MiB);
  auto second = zeros.last_byte(waiter.get_token());
  waiter.request_stop();
  EXPECT_EQ(second.get().error().code(), ErrorCode::Stopped);
  EXPECT_EQ(first.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  driver.request_stop();
  EXPECT_EQ(first.get().error().code(), ErrorCode::Stopped);
}

TEST(DecodedChunks, TheFirstBytesAreNotBehindWhoWantsTheLast) {
  Zeros zeros(128_GiB);
  std::stop_source stop;
  auto reader = zeros.last_byte(stop.get_token());
  zeros.wait_until_decoded(256_MiB);  // no block of the first is kept any more
  for (const std::uint64_t offset : {0_MiB, 1_MiB, 3_MiB, 9_MiB, 8_MiB}) {
    const auto byte = zeros.byte_at(offset);
    ASSERT_TRUE(byte) << byte.error().message();
    EXPECT_EQ(*byte, std::byte{0});
  }
  EXPECT_EQ(reader.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  stop.request_stop();
  EXPECT_EQ(reader.get().error().code(), ErrorCode::Stopped);
}

TEST(DecodedChunks, WhatAStoppedReaderLeavesIsGoneOnWith) {
  Zeros zeros(1_GiB);
  std::stop_source stop;
  auto first = zeros.last_byte(stop.get_token());
  zeros.wait_until_decoded(128_MiB);
  auto second = zeros.last_byte({});
  stop.request_stop();
  EXPECT_EQ(first.get().error().code(), ErrorCode::Stopped);
  const auto read = second.get();
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, std::byte{0});
  EXPECT_EQ(zeros.decoded(), zeros.nbytes);
}

TEST(DecodedChunks, WhoLooksAtTheBeginningLeavesTheOthersDecoderWhereItIs) {
  Zeros zeros(1_GiB);
  ASSERT_TRUE(zeros.byte_at(512_MiB));
  ASSERT_TRUE(zeros.byte_at(0));
  ASSERT_TRUE(zeros.byte_at(1_GiB - 1));
  EXPECT_LE(zeros.decoded(), zeros.nbytes + 1_MiB);
}

TEST(DecodedChunks, WhatMakesNothingIsStoppedToo) {
  // Empty frames, 12 GiB of them, that are themselves packed: one block lasts as long as they do.
  std::vector<std::byte> empty;
  const auto none = zstd_frame({}, 1);
  while (empty.size() < 1_MiB) {
    empty.insert(empty.end(), none.begin(), none.end());
  }
  const auto frame = zstd_frame(empty, 1);
  std::vector<std::byte> packed;
  for (int i = 0; i < 12 << 10; ++i) packed.insert(packed.end(), frame.begin(), frame.end());
  const CodecChain codecs(std::vector{Codec::Zstd, Codec::Zstd});
  std::vector<std::byte> memory(16_MiB), out(1_MiB);
  WorkSpace space(memory);
  auto stream = open_stream({nullptr, {}, packed}, codecs, Stages::All, space, 128_GiB);
  ASSERT_TRUE(stream) << stream.error().message();
  std::stop_source stop;
  stop.request_stop();
  const StopScope scope(stop.get_token());
  const auto read = (*stream)->read(out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::Stopped);
}

/// A source whose reads wait, once, until somebody else had time to come.
class SlowOnce final : public ByteSource {
 public:
  explicit SlowOnce(MemorySource& files) : files_(files) {}
  std::future<void> begun() { return begun_.get_future(); }

  Result<void> read(std::span<const ReadRequest> batch) override {
    if (!slow_.exchange(false)) return files_.read(batch);
    begun_.set_value();
    // A delay in which somebody else comes.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return files_.read(batch);
  }
  Result<void> verify(std::span<const FileId> files) override { return files_.verify(files); }
  std::uint64_t size(FileId file) const override { return files_.size(file); }
  const std::string& name(FileId file) const override { return files_.name(file); }

 private:
  MemorySource& files_;
  std::promise<void> begun_;
  std::atomic<bool> slow_{true};
};

TEST(DecodedChunks, ABrokenBlockOfBloscIsAnErrorForWhoNeedsItOnly) {
  std::vector<std::byte> bytes(8_MiB);  // of noise blosc makes a copy, which nothing can break
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / 999);
  std::vector<std::byte> stored(bytes.size() + 1_MiB);
  stored.resize(static_cast<std::size_t>(blosc_compress_ctx(
      5, 1, 4, bytes.size(), bytes.data(), stored.data(), stored.size(), "lz4", 64_KiB, 1)));
  const std::span<const std::byte> header(stored);
  const auto blocksize = load_le<std::uint32_t>(header.subspan(8));
  const auto place = load_le<std::uint32_t>(header.subspan(16 + 4 * (2_MiB / blocksize)));
  std::fill_n(stored.begin() + place, 4, std::byte{0xff});
  MemorySource files;
  ChunkTable table;
  const ChunkArrayId array =
      table.add_array({.name = "w",
                       .nbytes = bytes.size(),
                       .codecs = std::make_shared<const CodecChain>(std::vector{Codec::Blosc})});
  const FileId chunk =
      table.add_stored(array, 0, {files.add("c", stored), 0, stored.size()}).value();
  SlowOnce slow(files);
  std::future<void> begun = slow.begun();
  ChunkSource source(slow, table, BufferPool::create(64_MiB), nullptr);

  std::vector<std::byte> broken(100), intact(100);
  Result<void> met;
  std::thread first([&] { met = source.read_at(chunk, 2_MiB, broken); });
  begun.wait();
  const Result<void> other = source.read_at(chunk, 5_MiB, intact);
  first.join();
  ASSERT_FALSE(met);
  EXPECT_THAT(met.error().message(), HasSubstr("w: chunk 0: blosc: "));
  ASSERT_TRUE(other) << other.error().message();
  EXPECT_TRUE(std::ranges::equal(intact, std::span(bytes).subspan(5_MiB, 100)));
}

}  // namespace
}  // namespace ckfs
