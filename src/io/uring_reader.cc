// A ring for each thread, made when the thread first reads. One ring for all threads would need a
// lock around every submission and rule out DEFER_TASKRUN, which spares an interruption of the
// thread for each completion.
//
// Rings die with the first of two owners: the reader (all of them) or the thread (its own). The
// reader's registry owns them; a thread keeps a plain pointer beside a weak one to the registry.
// Since a weak pointer also keeps the registry's address from being used again, comparing
// addresses shows whether an entry is this reader's.
#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "io/reader.h"
#include "io/uring.h"

namespace ckfs {
namespace {

class Registry {
 public:
  Uring* keep(std::unique_ptr<Uring> ring) {
    const MutexLock lock(mutex_);
    Uring* const key = ring.get();
    rings_.emplace(key, std::move(ring));
    return key;
  }

  void remove(Uring* ring) {
    std::unique_ptr<Uring> removed;  // freed after the lock
    const MutexLock lock(mutex_);
    const auto found = rings_.find(ring);
    if (found == rings_.end()) return;
    removed = std::move(found->second);
    rings_.erase(found);
  }

 private:
  Mutex mutex_;
  std::unordered_map<Uring*, std::unique_ptr<Uring>> rings_ CKFS_GUARDED_BY(mutex_);
};

/// The rings of one thread, for all readers it has used.
class ThreadRings {
 public:
  ThreadRings() = default;
  ThreadRings(const ThreadRings&) = delete;
  ThreadRings& operator=(const ThreadRings&) = delete;

  ~ThreadRings() {
    for (const Entry& entry : entries_) {
      if (const auto registry = entry.registry.lock()) registry->remove(entry.ring);
    }
  }

  Uring* find(const Registry* registry) const {
    for (const Entry& entry : entries_) {
      if (entry.key == registry) return entry.ring;
    }
    return nullptr;
  }

  void add(const std::shared_ptr<Registry>& registry, Uring* ring) {
    std::erase_if(entries_, [](const Entry& entry) { return entry.registry.expired(); });
    entries_.push_back({registry.get(), registry, ring});
  }

  void remove(const std::shared_ptr<Registry>& registry) {
    std::erase_if(entries_, [&](const Entry& entry) {
      if (entry.key != registry.get()) return false;
      registry->remove(entry.ring);
      return true;
    });
  }

 private:
  struct Entry {
    const Registry* key;
    std::weak_ptr<Registry> registry;
    Uring* ring;
  };
  std::vector<Entry> entries_;
};

thread_local ThreadRings thread_rings;

class UringReader final : public Reader {
 public:
  UringReader(unsigned depth, ResultFilter filter) : depth_(depth), filter_(std::move(filter)) {}

  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    // Alone, an access gains nothing from the ring, and preadv is the shorter way.
    if (accesses.size() == 1) return pread_access(accesses[0], 0, filter_);
    if (accesses.empty()) return {};
    Uring* ring = thread_rings.find(registry_.get());
    if (ring == nullptr) {
      auto created = Uring::create(depth_);
      // This thread came too late (locked memory or descriptors have run out): the bytes are the
      // same the slow way.
      if (!created) return one_by_one(accesses);
      ring = registry_->keep(*std::move(created));
      thread_rings.add(registry_, ring);
    }
    auto done = ring->read(accesses, filter_);
    if (!ring->usable()) {
      thread_rings.remove(registry_);
      return one_by_one(accesses);
    }
    return done;
  }

 private:
  tl::expected<void, AccessFailure> one_by_one(std::span<const Access> accesses) const {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      if (auto done = pread_access(accesses[i], i, filter_); !done) return done;
    }
    return {};
  }

  const unsigned depth_;
  const ResultFilter filter_;
  const std::shared_ptr<Registry> registry_ = std::make_shared<Registry>();
};

}  // namespace

Result<std::unique_ptr<Reader>> make_uring_reader(unsigned queue_depth, ResultFilter filter) {
  auto probe = Uring::create(queue_depth);
  if (!probe) {
    const bool forbidden = probe.error() == EPERM || probe.error() == EACCES;
    return fail(ErrorCode::Unsupported, "io_uring: not available: {}{}",
                std::strerror(probe.error()),
                forbidden ? " (a seccomp profile or kernel.io_uring_disabled forbids it)" : "");
  }
  if (!(*probe)->can_read()) {
    return fail(ErrorCode::Unsupported,
                "io_uring: not available: no read operation (kernel older than 5.6)");
  }
  return std::make_unique<UringReader>(queue_depth, std::move(filter));
}

}  // namespace ckfs
