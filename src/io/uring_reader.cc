// A set of rings. Each ring is lent to one thread for the length of a batch. There are as many as
// were needed at once, or were made in advance. The alternative was a ring for each thread
// (DEFER_TASKRUN, which spares an interruption for each completion, wants that). But threads come
// and go, and in a sandbox no ring can be made any more.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "io/reader.h"
#include "io/uring.h"

namespace ckfs {
namespace {

class UringReader final : public Reader {
 public:
  UringReader(unsigned depth, ResultFilter filter) : depth_(depth), filter_(std::move(filter)) {}

  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    // Alone, an access gains nothing from the ring, and preadv is the shorter way.
    if (accesses.size() == 1) return pread_access(accesses[0], 0, filter_);
    if (accesses.empty()) return {};
    std::unique_ptr<Uring> ring = take();
    // None is idle, and none can be made (locked memory or descriptors have run out, the sandbox
    // forbids it): the bytes are the same the slow way.
    if (!ring) return one_by_one(accesses);
    auto done = ring->read(accesses, filter_);
    if (!ring->usable()) return one_by_one(accesses);
    give_back(std::move(ring));
    return done;
  }

  /// Makes rings in advance. Errors: an errno, where not even the first can be made.
  tl::expected<void, int> make(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      auto made = Uring::create(depth_);
      if (!made && i == 0) return tl::unexpected(made.error());
      if (!made) break;
      give_back(*std::move(made));
    }
    return {};
  }

 private:
  /// The one that was used last: it knows the files. nullptr: there is none.
  std::unique_ptr<Uring> take() {
    {
      const MutexLock lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Uring> ring = std::move(idle_.back());
        idle_.pop_back();
        return ring;
      }
    }
    auto made = Uring::create(depth_);
    return made ? *std::move(made) : nullptr;
  }

  void give_back(std::unique_ptr<Uring> ring) {
    const MutexLock lock(mutex_);
    idle_.push_back(std::move(ring));
  }

  tl::expected<void, AccessFailure> one_by_one(std::span<const Access> accesses) const {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      if (auto done = pread_access(accesses[i], i, filter_); !done) return done;
    }
    return {};
  }

  const unsigned depth_;
  const ResultFilter filter_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Uring>> idle_ CKFS_GUARDED_BY(mutex_);
};

std::string_view remedy(int error) {
  if (error == EPERM || error == EACCES) {
    return " (a seccomp profile or kernel.io_uring_disabled forbids it)";
  }
  return error == EINVAL ? " (kernel older than 5.10)" : "";
}

}  // namespace

Result<std::unique_ptr<Reader>> make_uring_reader(unsigned queue_depth, ResultFilter filter,
                                                  unsigned rings) {
  auto reader = std::make_unique<UringReader>(queue_depth, std::move(filter));
  if (const auto made = reader->make(std::max(rings, 1u)); !made) {
    return fail(ErrorCode::Unsupported, "io_uring: not available: {}{}",
                std::strerror(made.error()), remedy(made.error()));
  }
  return reader;
}

}  // namespace ckfs
