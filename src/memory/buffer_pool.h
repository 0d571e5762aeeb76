// Memory of the budget, as recycled buffers, and the one order in which work may wait for it.
//
// A pool never holds more than its limit, buffers in use and kept ones together. Buffers of 256 KiB
// and more are mapped, rounded up to MiB and recycled last-in first-out: touching fresh pages costs
// as much as decoding into them (2 to 10 us a page), and the last one is in the CPU's cache. Those
// of 1 MiB are mapped several together, so that they lie in huge pages. If a part of such a page
// goes back to the system while the rest is in use, the kernel frees it when it needs memory. They
// also have a margin of a page behind them, which is not counted: a padded read
// (ReadRequest::padded) begins a little behind the buffer's first byte, and would otherwise take
// another MiB. Smaller ones come from the heap, and each counts kRemembered bytes more than it has.
//
// Why nothing can wait in a circle. Every buffer belongs to a Tier. Work that holds a buffer of a
// tier waits for later tiers only, and takes all that it needs of one tier in one call. A thread
// declares what it holds with a TierScope, and acquire() checks it. Each tier has a share that the
// others cannot take (except a sixteenth of the limit while tiles are lent, below), and no request
// for a later tier may exceed that tier's share. So work of the last tier waits for its own tier
// only, ends, and gives its memory back; then the tier before it does the same. (It is not enough
// that a request fits into what others hold: all of them may hold replies, and wait for the very
// tile that the request is for.) Tiles that wait for a reader must count as that reader's tier:
// try_lend().
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
  /// Swaps: the buffer that was here is given back when `other` is destroyed.
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  /// Bytes that it takes of the pool: size(), rounded up; for a small one kRemembered more.
  std::size_t counted() const { return capacity_; }
  std::span<std::byte> span() const { return {data_, size_}; }
  /// Bytes that may be written behind the last one. At least kMargin for a buffer that takes 1 MiB;
  /// 0 for a small one and for any other full one. A mapped buffer begins at a multiple of kMargin.
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

  /// Which kind of call asks for memory: one that waits for it (acquire), or one that can do
  /// without (try_acquire).
  enum class Demand : std::uint8_t { Waits, Spare };
  /// Called without locks held when memory is short. Gives back buffers of `tier` that are not in
  /// use, `bytes` of them if it can; for a spare demand none that will be needed soon. The short
  /// tier is asked first, then the others for what they hold above their shares. Where several
  /// functions of a tier are registered (several engines share the pool), they are asked one after
  /// another, each time beginning with another one, until enough is given back. A function may be
  /// called by several threads at once.
  using Reclaim = std::function<void(std::uint64_t bytes, Demand demand)>;
  class Registered;
  /// Keeps a function registered. Its destructor waits for calls that are under way. Requires: the
  /// function does not destroy it; the pool outlives it.
  class [[nodiscard]] Reclaimer {
   public:
    Reclaimer() = default;
    Reclaimer(Reclaimer&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), function_(std::move(other.function_)) {}
    Reclaimer& operator=(Reclaimer&&) = delete;
    ~Reclaimer();

   private:
    friend class BufferPool;
    Reclaimer(BufferPool& pool, std::shared_ptr<Registered> function)
        : pool_(&pool), function_(std::move(function)) {}
    BufferPool* pool_ = nullptr;
    std::shared_ptr<Registered> function_;
  };
  Reclaimer on_shortage(Tier tier, Reclaim reclaim);

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

  /// Bytes of Tier::Tile that count as Tier::Reply while the object lives: they are on their way to
  /// a reader that may itself wait for memory of Tier::Tile.
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
  /// Lends `counted` bytes. Requires: the pool, and buffers of Tier::Tile that count so many bytes
  /// (Buffer::counted()) and are not lent yet, live as long as the result. nullopt: replies have no
  /// room for it, or more than a sixteenth of the limit would be lent. So a reply of at most
  /// most(Tier::Reply) less a sixteenth of the limit never waits for lent bytes.
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
  mutable Mutex mutex_;
  std::array<std::vector<std::shared_ptr<Registered>>, kTiers> reclaims_ CKFS_GUARDED_BY(mutex_);
  std::array<std::size_t, kTiers> next_reclaim_ CKFS_GUARDED_BY(mutex_){};  // that is asked first
  CondVar returned_;
  std::map<std::size_t, std::vector<std::byte*>> kept_ CKFS_GUARDED_BY(mutex_);  // by capacity
  std::uint64_t kept_bytes_ CKFS_GUARDED_BY(mutex_) = 0;
  std::byte* uncarved_ CKFS_GUARDED_BY(mutex_) = nullptr;  // of a mapping, the rest
  std::size_t uncarved_units_ CKFS_GUARDED_BY(mutex_) = 0;
  std::array<std::uint64_t, kTiers> used_ CKFS_GUARDED_BY(mutex_){};
  std::uint64_t lent_ CKFS_GUARDED_BY(mutex_) = 0;  // part of used_ of Tier::Reply
  std::uint64_t peak_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_ticket_ CKFS_GUARDED_BY(mutex_) = 0;
  std::array<std::deque<std::uint64_t>, kTiers> waiting_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
