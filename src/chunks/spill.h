// Decoded blocks and expensive tiles on disk, in a file without a name, when memory has no room for
// them. Bounded; the least recently used ones are overwritten first. A full disk means fewer
// blocks, never an error; once a minute one more block tries whether the disk has room again.
//
// Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "io/spill_file.h"

namespace ckfs {

struct SpillStatistics {
  std::uint64_t written = 0;  // bytes
  std::uint64_t read = 0;
};

class Spill {
 public:
  /// A block of a chunk (its FileId), or of a tile (a lower number), and the block's own number.
  using Key = std::pair<std::uint32_t, std::uint64_t>;
  using Clock = std::chrono::steady_clock;

  /// After a write for which the disk had no room, how long new places are not tried.
  static constexpr std::chrono::minutes kUntilNextTry{1};

  /// Blocks of at most `block` bytes, `limit` bytes in all; 0: as many as the disk takes. A test
  /// gives its own time.
  Spill(std::unique_ptr<SpillFile> file, std::uint64_t block, std::uint64_t limit,
        std::function<Clock::time_point()> now = &Clock::now);

  /// Keeps a block of at most block() bytes. If the key has a block already, or another thread is
  /// writing one, that one stays instead (and if that write fails, neither). False: it cannot keep
  /// it.
  bool put(const Key& key, std::span<const std::byte> bytes);

  bool has(const Key& key) const;

  /// Reads bytes of a block from `offset` on. False: it is not there (any more), or the disk has
  /// lost it. Requires: the block was put with so many bytes.
  bool get(const Key& key, std::uint64_t offset, std::span<std::byte> out);

  /// Frees the places of a file's blocks. Blocks that are being read or written become the oldest
  /// instead.
  void forget(std::uint32_t file);

  /// The most bytes of a block.
  std::uint64_t block() const { return block_; }

  /// Bytes that it may take (fewer while the disk is full), and how many of them are free.
  std::uint64_t limit() const;
  std::uint64_t room() const;

  SpillStatistics statistics() const;

 private:
  struct Slot {
    std::uint64_t place = 0;  // in blocks
    std::uint64_t readers = 0;
    bool ready = false;  // written
    std::list<Key>::iterator age = {};
  };
  using Slots = std::map<Key, Slot>;

  bool take_place(std::uint64_t& place) CKFS_REQUIRES(mutex_);
  Slots::iterator remove(Slots::iterator slot) CKFS_REQUIRES(mutex_);

  const std::unique_ptr<SpillFile> file_;
  const std::uint64_t block_;
  const std::uint64_t limit_;  // places
  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_;
  Slots slots_ CKFS_GUARDED_BY(mutex_);
  std::list<Key> ages_ CKFS_GUARDED_BY(mutex_);  // least recently used first
  std::uint64_t most_ CKFS_GUARDED_BY(mutex_);   // places; fewer than limit_ while the disk is full
  Clock::time_point next_try_ CKFS_GUARDED_BY(mutex_);         // where it is full
  std::vector<std::uint64_t> failed_ CKFS_GUARDED_BY(mutex_);  // places that the full disk refused
  std::uint64_t used_ CKFS_GUARDED_BY(mutex_) = 0;
  std::list<std::uint64_t> free_ CKFS_GUARDED_BY(mutex_);
  SpillStatistics statistics_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
