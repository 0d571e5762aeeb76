// Memory of the budget, as recycled buffers, and the one order in which work may wait for it.
//
// A pool never holds more than its limit, buffers in use and kept ones together. Buffers of 256 KiB
// and more are mapped, rounded up to MiB and recycled last-in first-out: touching fresh pages costs
// as much as decoding into them (2 to 10 us a page), and the last one is in the CPU's cache. Those
// of 1 MiB are mapped several together, so that they lie in huge pages; what goes back to the
// system of such a page while the rest is in use, the kernel frees when it needs memory. And they
// have a margin of a page behind them, which is not counted: what begins a little behind the
// buffer's begin, for a disk's sake (ReadRequest::padded), would else take another MiB. Smaller
// ones come from the heap, and each counts kRemembered bytes more than it has.
//
// Why nothing can wait in a circle. Every buffer belongs to a Tier. Work that holds a buffer of a
// tier waits for later tiers only, and takes all that it needs of one tier in one call; a thread
// says what it holds with a TierScope, and acquire() checks it. Each tier has a share that the
// others cannot take (but for a sixteenth of the limit, for as long as tiles that were lent live
// on, below), and nobody waits for more than the share of a later tier: so the last one always gets
// its memory without waiting for anybody but itself, ends, and gives it back; then so does the one
// before. (That a request would fit into what others hold at present is not enough: all of them may
// hold replies, and wait for the very tile that it is for.) What waits for a reader is to be
// counted before him: try_lend().
//
// Safe for concurrent use by several threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"

namespace ckfs {

class BufferPool;

/// What a buffer is for; in the order in which one piece of work may wait for them.
enum class Tier : std::uint8_t {
  Reply,   // bytes on their way to a reader
  Tile,    // computed bytes that requests share, and scratch to compute with
  Source,  // what a ByteSource needs to read (a compressed chunk, a remote block)
};
inline constexpr std::size_t kTiers = 3;

/// What the owner of a small buffer keeps beside its bytes: an entry of TileCache, with its place
/// in map and list, is the most. Millions of small texts would otherwise cost several times the
/// budget.
inline constexpr std::size_t kRemembered = 384;

/// This thread holds buffers of `tier` while the scope lasts, and so waits for later tiers only.
class TierScope {
 public:
  explicit TierScope(Tier tier);
  ~TierScope();
  TierScope(const TierScope&) = delete;
  TierScope& operator=(const TierScope&) = delete;

 private:
  const int before_;
};

/// `size()` bytes of a pool, given back on destruction. Contents are unspecified. A buffer keeps
/// its pool alive: bytes lent to a reader may outlive the engine.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  /// They change places: what was here is given back when `other` goes.
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// What it takes of the pool: size(), rounded up; of a small one kRemembered more.
  std::size_t counted() const { return capacity_; }
  std::span<std::byte> span() const { return {data_, size_}; }
  /// What may be written behind the last byte of a buffer that is mapped, and so begins at a
  /// multiple of kMargin: that at least where it takes 1 MiB; 0 of others that are full, or small.
  std::size_t margin() const;

  static constexpr std::size_t kMargin = 4096;

 private:
  friend class BufferPool;
  std::shared_ptr<BufferPool> pool_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;      // as asked for
  std::size_t capacity_ = 0;  // as counted
  Tier tier_ = Tier::Reply;
};

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  static std::shared_ptr<BufferPool> create(std::uint64_t limit);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// Who asks for memory: somebody who waits for it (acquire), or who can do without (try_acquire).
  enum class Demand : std::uint8_t { Waits, Spare };
  /// What to call, without locks held, when memory is short: gives back buffers of `tier` that
  /// nobody needs at once, `bytes` of them if it can; for a spare demand none that somebody is
  /// about to need. The tier that is short is asked first; then the others, of which only what is
  /// above their shares helps. Set before the first acquire, and taken back ({}) behind the last.
  using Reclaim = std::function<void(std::uint64_t bytes, Demand demand)>;
  void set_reclaim(Tier tier, Reclaim reclaim) {
    reclaims_[static_cast<std::size_t>(tier)] = std::move(reclaim);
  }

  /// Buffers of these sizes, all or none; waits until others give theirs back, first come, first
  /// served within a tier. Errors: OutOfMemory, at once, where they are more than most(tier), and
  /// where the machine has no such memory. This and try_acquire() may throw std::bad_alloc, for
  /// what they allocate themselves. Requires: this thread holds no TierScope of `tier` or a later
  /// one.
  Result<std::vector<Buffer>> acquire(Tier tier, std::span<const std::size_t> sizes);
  Result<Buffer> acquire(Tier tier, std::size_t size);

  /// The same without waiting: nullopt where others wait for the tier already, or there is not
  /// enough, of the budget or of the machine. Whatever TierScopes this thread holds.
  std::optional<std::vector<Buffer>> try_acquire(Tier tier, std::span<const std::size_t> sizes);
  std::optional<Buffer> try_acquire(Tier tier, std::size_t size);

  /// Bytes in use of Tier::Tile that count as Tier::Reply while the object lives: what is on its
  /// way to a reader who may be waiting for memory of Tier::Tile.
  class Lent {
   public:
    Lent(Lent&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), bytes_(other.bytes_) {}
    Lent& operator=(Lent&&) = delete;
    ~Lent();

   private:
    friend class BufferPool;
    Lent(BufferPool& pool, std::size_t bytes) : pool_(&pool), bytes_(bytes) {}
    BufferPool* pool_;
    std::size_t bytes_;
  };
  /// Requires: buffers of Tier::Tile that count so many bytes (Buffer::counted()), and are not lent
  /// yet, live as long as the result, and the pool. nullopt: replies have no room for it, or more
  /// than a sixteenth of the limit would be lent: a reply of at most most(Tier::Reply) less that
  /// never waits for what is.
  std::optional<Lent> try_lend(std::size_t counted);

  std::uint64_t limit() const { return limit_; }
  /// The most bytes that one acquire() of a tier can have: of the first tier the limit less the
  /// shares of the others, of a later one its share.
  std::uint64_t most(Tier tier) const;

  /// Returns buffers that are kept for reuse to the system.
  void trim();

  /// Bytes in use and kept for reuse, now and at most.
  std::uint64_t held() const;
  std::uint64_t peak() const;

 private:
  friend class Buffer;
  explicit BufferPool(std::uint64_t limit);
  static std::size_t capacity_for(std::size_t size);
  static std::uint64_t capacity_for(std::span<const std::size_t> sizes);
  void give_back(Tier tier, std::byte* data, std::size_t capacity);
  std::uint64_t shortage(Tier tier, std::uint64_t capacity) const CKFS_REQUIRES(mutex_);
  void reclaim(Tier tier, std::uint64_t capacity, Demand demand) CKFS_EXCLUDES(mutex_);
  void take(Tier tier, std::span<const std::size_t> sizes, std::span<Buffer> buffers)
      CKFS_REQUIRES(mutex_);
  std::byte* allocate(std::size_t capacity) CKFS_EXCLUDES(mutex_);
  std::byte* carve_unit() CKFS_EXCLUDES(mutex_);
  void drop_uncarved() CKFS_REQUIRES(mutex_);
  bool allocate_missing(std::span<Buffer> buffers) CKFS_EXCLUDES(mutex_);
  bool allocate_or_trim(std::span<Buffer> buffers) CKFS_EXCLUDES(mutex_);
  void trim_to(std::uint64_t allowed) CKFS_REQUIRES(mutex_);

  const std::uint64_t limit_;
  std::array<std::uint64_t, kTiers> shares_{};  // what only that tier can take
  std::array<Reclaim, kTiers> reclaims_;
  mutable Mutex mutex_;
  CondVar returned_;
  std::map<std::size_t, std::vector<std::byte*>> kept_ CKFS_GUARDED_BY(mutex_);  // by capacity
  std::uint64_t kept_bytes_ CKFS_GUARDED_BY(mutex_) = 0;
  std::byte* uncarved_ CKFS_GUARDED_BY(mutex_) = nullptr;  // of a mapping, the rest
  std::size_t uncarved_units_ CKFS_GUARDED_BY(mutex_) = 0;
  std::array<std::uint64_t, kTiers> used_ CKFS_GUARDED_BY(mutex_){};
  std::uint64_t lent_ CKFS_GUARDED_BY(mutex_) = 0;  // of what is used of Tier::Reply
  std::uint64_t peak_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_ticket_ CKFS_GUARDED_BY(mutex_) = 0;
  std::array<std::deque<std::uint64_t>, kTiers> waiting_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
