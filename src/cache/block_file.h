// A file of the disk cache: a block of one object in one version, cell by cell. Internal to
// src/cache.
//
// The first page says which block it is, and of each cell whether it is there and its CRC-32C; the
// cells follow, each at its own place. A cell is there if its slot says so and the sum is right,
// and for no other reason: holes of a file, its size and its age mean nothing. Bytes are written
// before their slot. A cell that is there is never written again, so readers need no lock.
//
//   0     magic
//   8     u32 CRC-32C of the bytes 12 to 64 and of the text
//   12    u32 bytes of the text
//   16    u64 size of the object
//   24    u64 number of the block
//   64    a slot of 8 bytes for each of 64 cells: u32 CRC-32C, which continues the CRC above and
//   the
//         number of the cell, u32 mark
//   576   the text: what the object and its version are
//   4088  u64, written when the block is used, so that the time of the file says when
//   4096  the cells
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/byte_range.h"
#include "base/unique_fd.h"
#include "cache/cache_directory.h"

namespace ckfs {

/// Bytes of an object that one file has.
inline constexpr std::uint64_t kCacheBlock = std::uint64_t{4} << 20;
/// Bytes of a block that are there or not there together.
inline constexpr std::uint64_t kCacheCell = std::uint64_t{64} << 10;
inline constexpr std::size_t kCellsOfBlock = kCacheBlock / kCacheCell;
/// Where the cells begin.
inline constexpr std::uint64_t kCellsBegin = 4096;
/// The longest text that says what a block is of.
inline constexpr std::size_t kLongestBlockText = 3512;

/// Which block it is.
struct BlockName {
  std::string text;
  std::uint64_t size = 0;  // of the object
  std::uint64_t number = 0;

  std::string file_name() const;
  /// The range of the object that the block has.
  ByteRange range() const;
  std::size_t cells() const { return (range().size() + kCacheCell - 1) / kCacheCell; }
  /// Within the block.
  ByteRange cell(std::size_t number) const;
};

class BlockFile {
 public:
  /// An existing file. An empty descriptor: there is none.
  static UniqueFd open(const CacheDirectory::Source& source, const BlockName& name);

  enum class State : std::uint8_t {
    Valid,
    Broken,  // no such file; a file that is not whole, of a writer that was killed
    Other,   // of another object
  };
  BlockFile(UniqueFd file, const BlockName& name);
  /// A new file, which has no cell yet. An empty descriptor: it cannot be made.
  static BlockFile create(const CacheDirectory& directory, const CacheDirectory::Source& source,
                          const BlockName& name);

  State state() const { return state_; }
  /// Whether a slot says that the cell is there.
  bool has(std::size_t cell) const { return slots_[cell].mark == kMark; }
  /// Whether `bytes` are those that the slot was written for.
  bool is_right(std::size_t cell, std::span<const std::byte> bytes) const;

  bool read(ByteRange range, std::span<std::byte> out) const;
  /// Takes room on the disk for a range. Returns 0 or the errno.
  int reserve(const CacheDirectory& directory, ByteRange range) const;
  /// Gives it back.
  void release(const CacheDirectory& directory, ByteRange range) const;
  /// Writes a cell, then its slot. Returns 0 or the errno.
  int write(const CacheDirectory& directory, std::size_t cell, std::span<const std::byte> bytes);
  /// The cell is not there any more.
  void forget(const CacheDirectory& directory, std::size_t cell);
  /// Marks the block as used now, if its last use is longer ago than the options say.
  void touch(const CacheDirectory& directory) const;

 private:
  struct Slot {
    std::uint32_t sum = 0;
    std::uint32_t mark = 0;
  };
  struct Head {
    std::uint64_t magic = 0;
    std::uint32_t sum = 0;
    std::uint32_t text_size = 0;
    std::uint64_t size = 0;
    std::uint64_t number = 0;
    std::array<std::uint64_t, 4> unused{};
  };
  static_assert(sizeof(Head) == 64);
  static constexpr std::uint32_t kMark = 0x4C4C4543;  // "CELL"

  static Head head_of(const BlockName& name);
  std::uint32_t sum_of(std::size_t cell, std::span<const std::byte> bytes) const;

  UniqueFd file_;
  State state_ = State::Broken;
  std::uint32_t head_sum_ = 0;
  std::array<Slot, kCellsOfBlock> slots_{};
};

}  // namespace ckfs
