// Why not malloc alone: its high-water mark is not ours to bound (arenas, fragments), and it
// returns large blocks to the kernel, so that every request would fault its pages in again.
//
// Why not a pool for each tier: memory that one does not use would lie idle. Here only a small
// share of each is kept from the others, and any tier gets the rest.
#include "memory/buffer_pool.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <numeric>
#include <shared_mutex>
#include <sys/mman.h>
#include <utility>

#include "base/rounding.h"
#include "base/stop.h"
#include "base/units.h"

namespace ckfs {
namespace {

constexpr std::size_t kMapped = 256_KiB;
constexpr std::size_t kUnit = 1_MiB;  // of a mapping
constexpr std::size_t kHugePage = 2_MiB;
/// Maps so many single units at once, one behind another, so that a huge page holds two of them.
/// Each is unmapped alone.
constexpr std::size_t kUnitsTogether = 8;
constexpr std::size_t kUnitStride = kUnit + Buffer::kMargin;

/// Of a capacity: smaller ones are counted, not mapped.
constexpr bool is_mapped(std::size_t capacity) {
  return capacity >= kUnit;
}

/// Not of larger ones: the kernel gives huge pages to mappings of whole 2 MiB, and those are not
/// mapped together.
constexpr std::size_t margin_of(std::size_t capacity) {
  return capacity == kUnit ? Buffer::kMargin : 0;
}

/// The deepest tier that this thread holds; -1: none.
thread_local int held_tier = -1;

/// An aligned block, with a pointer before it to the block of malloc(). Not aligned_alloc():
/// glibc's does not find its freed blocks again (before 2.38), and the heap grows by a megabyte a
/// second while the bytes in use stay the same.
std::byte* allocate_small(std::size_t size) {
  auto* const given = static_cast<std::byte*>(std::malloc(size + kBufferAlignment));
  if (given == nullptr) return nullptr;
  static_assert(alignof(std::max_align_t) >= sizeof(given));  // so it has room before the block
  const auto before = kBufferAlignment - reinterpret_cast<std::uintptr_t>(given) % kBufferAlignment;
  std::memcpy(given + before - sizeof(given), static_cast<const void*>(&given), sizeof(given));
  return given + before;
}

void release_small(std::byte* data) {
  if (data == nullptr) return;
  std::byte* given = nullptr;
  std::memcpy(static_cast<void*>(&given), data - sizeof(given), sizeof(given));
  std::free(given);
}

std::byte* map(std::size_t size) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Huge pages are faster to fill, and to send from: the kernel looks up each page that it copies.
  // A kernel without them refuses, and that changes nothing else.
  if (size >= kHugePage) ::madvise(memory, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

void release(std::byte* data, std::size_t capacity) {
  if (is_mapped(capacity)) {
    ::munmap(data, capacity + margin_of(capacity));
  } else {
    release_small(data);
  }
}

std::size_t index(Tier tier) {
  return static_cast<std::size_t>(tier);
}

}  // namespace

/// A function, and whether it may still be called.
class BufferPool::Registered {
 public:
  explicit Registered(Reclaim function) : function_(std::move(function)) {}

  void run(std::uint64_t bytes, Demand demand) {
    const std::shared_lock lock(running_);
    if (function_) function_(bytes, demand);
  }
  void end() {
    const std::unique_lock lock(running_);
    function_ = {};
  }

 private:
  std::shared_mutex running_;
  Reclaim function_;
};

BufferPool::Reclaimer::~Reclaimer() {
  if (pool_ == nullptr) return;
  {
    const MutexLock lock(pool_->mutex_);
    for (auto& functions : pool_->reclaims_) std::erase(functions, function_);
  }
  function_->end();
}

BufferPool::Reclaimer BufferPool::on_shortage(Tier tier, Reclaim reclaim) {
  auto function = std::make_shared<Registered>(std::move(reclaim));
  const MutexLock lock(mutex_);
  reclaims_[index(tier)].push_back(function);
  return {*this, std::move(function)};
}

TierScope::TierScope(Tier tier) : before_(held_tier) {
  held_tier = std::max(held_tier, static_cast<int>(tier));
}

TierScope::~TierScope() {
  held_tier = before_;
}

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)),
      tier_(other.tier_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(tier_, other.tier_);
  return *this;
}

std::size_t Buffer::margin() const {
  return is_mapped(capacity_) ? capacity_ + margin_of(capacity_) - size_ : 0;
}

Buffer::~Buffer() {
  if (pool_ != nullptr && capacity_ != 0) pool_->give_back(tier_, data_, capacity_);
}

std::shared_ptr<BufferPool> BufferPool::create(std::uint64_t limit) {
  return std::shared_ptr<BufferPool>(new BufferPool(limit));
}

BufferPool::BufferPool(std::uint64_t limit)
    : limit_(limit), shares_{limit / 8, limit / 2, limit / 8} {}

BufferPool::~BufferPool() {
  CKFS_CHECK(std::accumulate(used_.begin(), used_.end(), std::uint64_t{0}) == 0);
  trim();
}

std::size_t BufferPool::capacity_for(std::size_t size) {
  if (size == 0) return 0;
  return size < kMapped ? aligned(size) + kRemembered : round_up<std::size_t>(size, kUnit);
}

std::uint64_t BufferPool::capacity_for(std::span<const std::size_t> sizes) {
  std::uint64_t sum = 0;
  for (const std::size_t size : sizes) sum += capacity_for(size);
  return sum;
}

std::uint64_t BufferPool::most(Tier tier) const {
  if (tier != Tier::Reply) return shares_[index(tier)];
  std::uint64_t most = limit_;
  for (std::size_t other = 0; other < kTiers; ++other) {
    if (other != index(tier)) most -= shares_[other];
  }
  return most;
}

/// How many bytes must be given back before `capacity` more fit.
std::uint64_t BufferPool::shortage(Tier tier, std::uint64_t capacity) const {
  std::uint64_t taken = capacity;
  for (std::size_t each = 0; each < kTiers; ++each) {
    taken += each == index(tier) ? used_[each] : std::max(used_[each], shares_[each]);
  }
  return taken - std::min(taken, limit_);
}

void BufferPool::reclaim(Tier tier, std::uint64_t capacity, Demand demand) {
  const auto missing = [&](std::size_t of) CKFS_REQUIRES(mutex_) {
    const std::uint64_t bytes = shortage(tier, capacity);
    // Memory within a share is never available to the other tiers.
    return of == index(tier) ? bytes
                             : std::min(bytes, used_[of] - std::min(used_[of], shares_[of]));
  };
  // Memory may be short because the system has none, so this allocates nothing.
  const auto ask = [&](std::size_t of) {
    std::size_t first = 0;
    for (std::size_t asked = 0;; ++asked) {
      std::shared_ptr<Registered> function;
      std::uint64_t bytes = 0;
      {
        const MutexLock lock(mutex_);
        const auto& functions = reclaims_[of];  // others may come and go
        if (asked >= functions.size()) return;
        bytes = missing(of);
        if (bytes == 0) return;
        if (asked == 0 && functions.size() > 1) first = next_reclaim_[of]++;
        function = functions[(first + asked) % functions.size()];
      }
      function->run(bytes, demand);
    }
  };
  ask(index(tier));
  for (std::size_t of = 0; of < kTiers; ++of) {
    if (of != index(tier)) ask(of);
  }
}

/// Counts the buffers as used, and gives them kept memory where there is some; the others get
/// theirs from allocate_missing(), without the lock. Requires: they fit.
void BufferPool::take(Tier tier, std::span<const std::size_t> sizes, std::span<Buffer> buffers) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    Buffer& buffer = buffers[i];
    buffer.size_ = sizes[i];
    buffer.tier_ = tier;
    if (sizes[i] == 0) continue;
    const std::size_t capacity = capacity_for(sizes[i]);
    const std::uint64_t used = std::accumulate(used_.begin(), used_.end(), std::uint64_t{0});
    if (const auto kept = kept_.find(capacity); kept != kept_.end() && !kept->second.empty()) {
      buffer.data_ = kept->second.back();
      kept->second.pop_back();
      kept_bytes_ -= capacity;
    } else {
      trim_to(limit_ - capacity - used);
    }
    buffer.pool_ = shared_from_this();
    buffer.capacity_ = capacity;
    used_[index(tier)] += capacity;
    peak_ = std::max(peak_, used + capacity + kept_bytes_);
  }
}

std::byte* BufferPool::allocate(std::size_t capacity) {
  if (!is_mapped(capacity)) return allocate_small(capacity - kRemembered);
  if (capacity == kUnit) {
    if (std::byte* unit = carve_unit(); unit != nullptr) return unit;
  }
  return map(capacity + margin_of(capacity));
}

/// nullptr: the system gives no mapping of several.
std::byte* BufferPool::carve_unit() {
  const MutexLock lock(mutex_);
  if (uncarved_units_ == 0) {
    constexpr std::size_t kUsed = kUnitsTogether * kUnitStride;
    // The kernel aligns mappings of whole huge pages (Linux 6.7) and no others.
    constexpr std::size_t kAsked = round_up(kUsed, kHugePage);
    uncarved_ = map(kAsked);
    if (uncarved_ == nullptr) return nullptr;
    ::munmap(uncarved_ + kUsed, kAsked - kUsed);
    uncarved_units_ = kUnitsTogether;
  }
  --uncarved_units_;
  return std::exchange(uncarved_, uncarved_ + kUnitStride);
}

/// Uncarved units hold no memory of their own, but may share a huge page.
void BufferPool::drop_uncarved() {
  if (uncarved_units_ > 0) ::munmap(uncarved_, uncarved_units_ * kUnitStride);
  uncarved_units_ = 0;
}

/// False: the machine has less memory than the budget allows.
bool BufferPool::allocate_missing(std::span<Buffer> buffers) {
  return std::ranges::all_of(buffers, [this](Buffer& buffer) {
    if (buffer.data_ == nullptr && buffer.capacity_ != 0) buffer.data_ = allocate(buffer.capacity_);
    return buffer.data_ != nullptr || buffer.capacity_ == 0;
  });
}

/// The same; if that fails, again after kept buffers have returned their address space and commit
/// charge.
bool BufferPool::allocate_or_trim(std::span<Buffer> buffers) {
  if (allocate_missing(buffers)) return true;
  trim();
  return allocate_missing(buffers);
}

/// Unmaps kept buffers until at most `allowed` bytes of them remain.
void BufferPool::trim_to(std::uint64_t allowed) {
  for (auto& [capacity, buffers] : kept_) {
    while (kept_bytes_ > allowed && !buffers.empty()) {
      release(buffers.back(), capacity);
      buffers.pop_back();
      kept_bytes_ -= capacity;
    }
  }
}

std::optional<std::vector<Buffer>> BufferPool::try_acquire(Tier tier,
                                                           std::span<const std::size_t> sizes) {
  const std::uint64_t capacity = capacity_for(sizes);
  std::vector<Buffer> buffers(sizes.size());
  if (capacity == 0) return buffers;
  for (const bool reclaimed : {false, true}) {
    if (reclaimed) reclaim(tier, capacity, Demand::Spare);
    MutexLock lock(mutex_);
    if (!waiting_[index(tier)].empty()) return std::nullopt;
    if (shortage(tier, capacity) > 0) continue;
    take(tier, sizes, buffers);
    lock.unlock();
    if (!allocate_or_trim(buffers)) return std::nullopt;
    return buffers;
  }
  return std::nullopt;
}

std::optional<Buffer> BufferPool::try_acquire(Tier tier, std::size_t size) {
  auto buffers = try_acquire(tier, std::span(&size, 1));
  if (!buffers) return std::nullopt;
  return std::move(buffers->front());
}

Result<std::vector<Buffer>> BufferPool::acquire(Tier tier, std::span<const std::size_t> sizes) {
  CKFS_CHECK(held_tier < static_cast<int>(tier));
  const std::uint64_t capacity = capacity_for(sizes);
  if (capacity > most(tier)) {
    return fail(ErrorCode::OutOfMemory, "memory budget: {} bytes are needed at once (limit {})",
                capacity, most(tier));
  }
  std::vector<Buffer> buffers(sizes.size());
  if (capacity == 0) return buffers;  // a request for zero bytes never queues
  {
    MutexLock lock(mutex_);
    const std::uint64_t ticket = next_ticket_++;
    waiting_[index(tier)].push_back(ticket);
    while (waiting_[index(tier)].front() != ticket || shortage(tier, capacity) > 0) {
      if (stop_asked()) {
        std::erase(waiting_[index(tier)], ticket);
        lock.unlock();
        returned_.notify_all();  // the next in the queue may fit
        return stopped("memory");
      }
      if (waiting_[index(tier)].front() == ticket) {
        lock.unlock();
        try {
          reclaim(tier, capacity, Demand::Waits);
        } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
          // Tried again below. To leave here would keep this ticket at the front, and block all
          // others.
        }
        lock.lock();
        if (shortage(tier, capacity) == 0) break;
      }
      // Waits with a bound, because memory in use during reclaim() may have become reclaimable
      // since (a tile does not give its memory back when its last reader leaves).
      (void)returned_.wait_until(lock,
                                 std::chrono::steady_clock::now() + std::chrono::milliseconds(5));
    }
    waiting_[index(tier)].pop_front();
    take(tier, sizes, buffers);
  }
  returned_.notify_all();  // the next in the queue may fit as well
  if (!allocate_or_trim(buffers)) {
    return fail(ErrorCode::OutOfMemory, "memory: the system refuses {} more bytes", capacity);
  }
  return buffers;
}

Result<Buffer> BufferPool::acquire(Tier tier, std::size_t size) {
  CKFS_TRY(std::vector<Buffer> buffers, acquire(tier, std::span(&size, 1)));
  return std::move(buffers.front());
}

std::optional<BufferPool::Lent> BufferPool::try_lend(std::size_t counted) {
  const MutexLock lock(mutex_);
  std::uint64_t& tiles = used_[index(Tier::Tile)];
  CKFS_CHECK(counted <= tiles);
  if (lent_ + counted > limit_ / 16) return std::nullopt;
  tiles -= counted;
  if (shortage(Tier::Reply, counted) > 0) {
    tiles += counted;
    return std::nullopt;
  }
  used_[index(Tier::Reply)] += counted;
  lent_ += counted;
  return Lent(*this, counted);
}

BufferPool::Lent::~Lent() {
  if (pool_ == nullptr) return;
  {
    const MutexLock lock(pool_->mutex_);
    pool_->used_[index(Tier::Reply)] -= bytes_;
    pool_->used_[index(Tier::Tile)] += bytes_;
    pool_->lent_ -= bytes_;
  }
  pool_->returned_.notify_all();
}

void BufferPool::give_back(Tier tier, std::byte* data, std::size_t capacity) {
  bool keep = data != nullptr && is_mapped(capacity);
  {
    const MutexLock lock(mutex_);
    used_[index(tier)] -= capacity;
    if (keep) {
      try {
        kept_[capacity].push_back(data);
        kept_bytes_ += capacity;
      } catch (const std::bad_alloc&) {
        keep = false;  // no room to remember it: a destructor must not throw
      }
    }
  }
  if (!keep && data != nullptr) release(data, capacity);
  returned_.notify_all();
}

void BufferPool::trim() {
  const MutexLock lock(mutex_);
  trim_to(0);
  drop_uncarved();
}

std::uint64_t BufferPool::held() const {
  const MutexLock lock(mutex_);
  return std::accumulate(used_.begin(), used_.end(), kept_bytes_);
}

std::uint64_t BufferPool::peak() const {
  const MutexLock lock(mutex_);
  return peak_;
}

}  // namespace ckfs
