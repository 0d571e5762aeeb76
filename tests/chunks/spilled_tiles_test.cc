#include "chunks/spilled_tiles.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <random>
#include <vector>

#include "base/units.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kBlock = 64_KiB;

class SpilledTilesTest : public testing::Test {
 protected:
  static TileKey key(std::uint64_t index) { return {7, TileKey::Kind::Tile, 2, index}; }
  static std::vector<std::byte> bytes(std::uint64_t seed, std::size_t size) {
    std::mt19937_64 random(seed);
    std::vector<std::byte> made(size);
    for (std::byte& byte : made) byte = std::byte(random());
    return made;
  }
  std::optional<std::vector<std::byte>> take(SpilledTiles& tiles, std::uint64_t index) const {
    const auto size = tiles.size(key(index));
    if (!size) return std::nullopt;
    std::vector<std::byte> out(*size);
    const auto files = tiles.get(key(index), out);
    if (!files) return std::nullopt;
    EXPECT_EQ(*files, std::vector<FileId>{static_cast<FileId>(index)});
    return out;
  }
  bool put(SpilledTiles& tiles, std::uint64_t index, std::size_t size) const {
    const FileId file = static_cast<FileId>(index);
    return tiles.put(key(index), bytes(index, size), std::span(&file, 1));
  }
  std::shared_ptr<Spill> spill(std::uint64_t limit) const {
    return std::make_shared<Spill>(SpillFile::create(directory_.path()).value(), kBlock, limit);
  }

  const TemporaryDirectory directory_;
};

TEST_F(SpilledTilesTest, GiveBackWhatWasPut) {
  SpilledTiles tiles(spill(0));
  for (const std::size_t size : {1_KiB, kBlock, kBlock + 1, 5 * kBlock - 1}) {
    ASSERT_TRUE(put(tiles, size, size));
  }
  for (const std::size_t size : {1_KiB, kBlock, kBlock + 1, 5 * kBlock - 1}) {
    EXPECT_EQ(take(tiles, size), bytes(size, size));
  }
  EXPECT_EQ(take(tiles, 1), std::nullopt);
}

TEST_F(SpilledTilesTest, AreGoneWhereABlockIsOverwritten) {
  SpilledTiles tiles(spill(10 * kBlock));
  ASSERT_TRUE(put(tiles, 1, 4 * kBlock));
  ASSERT_TRUE(put(tiles, 2, 4 * kBlock));
  ASSERT_TRUE(put(tiles, 3, 4 * kBlock));
  EXPECT_EQ(take(tiles, 1), std::nullopt);
  EXPECT_EQ(tiles.size(key(1)), std::nullopt);
  EXPECT_EQ(take(tiles, 2), bytes(2, 4 * kBlock));
  EXPECT_EQ(take(tiles, 3), bytes(3, 4 * kBlock));
  EXPECT_FALSE(put(tiles, 4, 5 * kBlock + 1)) << "it would push out the others";
  EXPECT_TRUE(take(tiles, 2));
}

TEST_F(SpilledTilesTest, LeaveChunksTheirBlocks) {
  const std::shared_ptr<Spill> shared = spill(0);
  SpilledTiles tiles(shared);
  const std::vector<std::byte> chunk = bytes(9, kBlock);
  ASSERT_TRUE(shared->put({std::uint32_t{1} << 31, 0}, chunk));
  ASSERT_TRUE(put(tiles, 1, 3 * kBlock));
  std::vector<std::byte> out(kBlock);
  EXPECT_TRUE(shared->get({std::uint32_t{1} << 31, 0}, 0, out));
  EXPECT_EQ(out, chunk);
  EXPECT_EQ(take(tiles, 1), bytes(1, 3 * kBlock));
}

TEST_F(SpilledTilesTest, RememberABoundedNumber) {
  SpilledTiles tiles(spill(8 * kBlock));
  for (std::uint64_t k = 0; k < 10'000; ++k) ASSERT_TRUE(put(tiles, k, 100));
  std::size_t known = 0;
  for (std::uint64_t k = 0; k < 10'000; ++k) known += tiles.size(key(k)) ? 1 : 0;
  EXPECT_LE(known, 4096U);
  EXPECT_EQ(take(tiles, 9'999), bytes(9'999, 100));
}

TEST_F(SpilledTilesTest, ForgetTheOlderHalfWhereTheDiskHasRoom) {
  SpilledTiles tiles(spill(0));
  for (std::uint64_t k = 0; k < 4097; ++k) ASSERT_TRUE(put(tiles, k, 100));
  for (std::uint64_t k = 0; k < 4097; ++k) EXPECT_EQ(tiles.size(key(k)).has_value(), k >= 2048);
  EXPECT_EQ(take(tiles, 2048), bytes(2048, 100));
}

}  // namespace
}  // namespace ckfs
