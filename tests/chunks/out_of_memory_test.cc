// Memory that ends in the middle: nothing points at what is gone, and the next read is right.
#include <algorithm>
#include <csignal>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zstd.h>

#include "base/units.h"
#include "chunks/chunk_source.h"
#include "chunks/spill.h"
#include "chunks/spilled_tiles.h"
#include "support/failing_heap.h"
#include "support/memory_source.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

TEST(OutOfMemory, ASpillKeepsItsPlaces) {
  CKFS_NEEDS_FAILING_HEAP();
  constexpr std::uint64_t kBlock = 4_KiB;
  const TemporaryDirectory directory;
  const std::vector<std::byte> block(kBlock, std::byte{7});
  Spill spill(SpillFile::create(directory.path()).value(), kBlock, 3 * kBlock);
  ASSERT_TRUE(spill.put({1, 0}, block));
  std::uint64_t next = 1;
  const long failed = failing_heap::fail_each([&] { spill.put({1, next}, block); },
                                              [&] {
                                                // All three places are there.
                                                for (int i = 0; i < 3; ++i) {
                                                  EXPECT_TRUE(spill.put({2, next++}, block));
                                                }
                                                for (std::uint64_t i = 1; i <= 3; ++i) {
                                                  EXPECT_TRUE(spill.has({2, next - i}));
                                                }
                                              });
  EXPECT_GE(failed, 2);
}

TEST(OutOfMemory, NothingIsOnItsWayToADiskThatIsFull) {
  CKFS_NEEDS_FAILING_HEAP();
  constexpr std::uint64_t kBlock = 4_KiB;
  const TemporaryDirectory directory;
  const std::vector<std::byte> block(kBlock, std::byte{7});
  const auto full = [&] {
    return std::make_unique<Spill>(SpillFile::create(directory.path()).value(), kBlock, 0);
  };
  auto spill = full();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const long failed = failing_heap::fail_each([&] { EXPECT_FALSE(spill->put({1, 1}, block)); },
                                              [&] {
                                                EXPECT_FALSE(spill->put({1, 1}, block));
                                                spill = full();
                                              });
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_GE(failed, 2);
}

TEST(OutOfMemory, ATileThatIsNotSpilledIsNotSaidToBe) {
  CKFS_NEEDS_FAILING_HEAP();
  const TemporaryDirectory directory;
  const std::vector<std::byte> bytes(10_KiB, std::byte{7});
  const std::vector<FileId> files{1, 2, 3};
  SpilledTiles tiles(
      std::make_shared<Spill>(SpillFile::create(directory.path()).value(), 4_KiB, 0));
  std::uint64_t next = 0;
  bool put = false;
  const auto key = [&] { return TileKey{7, TileKey::Kind::Tile, 2, next}; };
  const long failed = failing_heap::fail_each(
      [&] {
        put = false;
        put = tiles.put(key(), bytes, files);
      },
      [&] {
        EXPECT_EQ(tiles.size(key()).has_value(), put);
        ++next;
      });
  EXPECT_GE(failed, 3);
}

TEST(OutOfMemory, ARequestForChunksIsForgotten) {
  CKFS_NEEDS_FAILING_HEAP();
  const std::vector<std::byte> bytes(3_MiB, std::byte{5});
  std::vector<std::byte> stored(ZSTD_compressBound(bytes.size()));
  stored.resize(ZSTD_compress(stored.data(), stored.size(), bytes.data(), bytes.size(), 1));
  MemorySource files;
  ChunkTable table;
  const ChunkArrayId array =
      table.add_array({.name = "w",
                       .nbytes = bytes.size(),
                       .codecs = std::make_shared<const CodecChain>(std::vector{Codec::Zstd}),
                       .grid = {3}});
  std::vector<FileId> ids;
  for (std::size_t i = 0; i < 3; ++i) {
    const FileId file = files.add("c/" + std::to_string(i), stored);
    ids.push_back(table.add_stored(array, i, {file, 0, stored.size()}).value());
  }
  const auto read = [&](ChunkSource& source) -> Result<void> {
    std::vector<std::byte> out(3 * 1000);
    std::vector<ReadRequest> batch;
    for (std::size_t i = 0; i < 3; ++i) {
      batch.push_back({ids[i], 1_MiB, std::span(out).subspan(i * 1000, 1000)});
    }
    CKFS_TRY_VOID(source.read(batch));
    EXPECT_EQ(std::ranges::count(out, std::byte{5}), 3000);
    return {};
  };
  std::unique_ptr<ChunkSource> source;
  const auto renew = [&] {
    source = std::make_unique<ChunkSource>(files, table, BufferPool::create(64_MiB), nullptr);
  };
  renew();
  const long failed = failing_heap::fail_each(
      [&] {
        if (const auto done = read(*source); !done) {
          EXPECT_EQ(done.error().code(), ErrorCode::OutOfMemory) << done.error().message();
        }
      },
      [&] {
        const auto again = read(*source);
        EXPECT_TRUE(again) << again.error().message();
        renew();
      });
  EXPECT_GE(failed, 10);
}

}  // namespace
}  // namespace ckfs
