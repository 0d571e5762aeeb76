// One access after the other by preadv: what every kernel and every container allows.
//
// Several accesses at a time would need a pool of threads per reader; the engine above already
// reads from several threads, and page-cached files are as fast this way as any other,
// so the plain loop stays plain.
#include <algorithm>
#include <cerrno>
#include <climits>
#include <sys/uio.h>
#include <thread>

#include "io/reader.h"

namespace ckfs {
namespace {

class PreadReader final : public Reader {
 public:
  explicit PreadReader(ResultFilter filter) : filter_(std::move(filter)) {}

  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      if (auto done = pread_access(accesses[i], i, filter_); !done) return done;
    }
    return {};
  }

 private:
  const ResultFilter filter_;
};

}  // namespace

std::vector<iovec> remaining_parts(std::span<const iovec> parts, std::uint64_t done) {
  std::vector<iovec> rest;
  for (const iovec& part : parts) {
    if (done >= part.iov_len) {
      done -= part.iov_len;
      continue;
    }
    rest.push_back({static_cast<std::byte*>(part.iov_base) + done, part.iov_len - done});
    done = 0;
  }
  return rest;
}

int read_flags(const Access& access) {
  constexpr int kDontCache = 0x80;  // RWF_DONTCACHE; Debian 12's headers do not know it
  return access.uncached ? kDontCache : 0;
}

tl::expected<void, AccessFailure> pread_access(const Access& access, std::size_t index,
                                               const ResultFilter& filter) {
  std::uint64_t done = 0;
  int retries = 0;
  std::vector<iovec> rest;  // only after a short read
  std::span<const iovec> parts = access.parts;
  while (true) {
    const auto offset = access.offset + done;
    const auto count = static_cast<int>(std::min<std::size_t>(parts.size(), IOV_MAX));
    std::int64_t result =
        ::preadv2(access.fd, parts.data(), count, static_cast<off_t>(offset), read_flags(access));
    if (result < 0) result = -errno;
    if (filter) result = filter(result);
    if (result == -EINTR || result == -EAGAIN) {
      if (++retries < kRetryLimit) {
        std::this_thread::yield();
        continue;
      }
    }
    if (result <= 0) {
      return tl::unexpected(AccessFailure{index, offset, static_cast<int>(-result)});
    }
    retries = 0;
    done += static_cast<std::uint64_t>(result);
    if (done >= access.size) return {};
    rest = remaining_parts(access.parts, done);
    parts = rest;
  }
}

std::unique_ptr<Reader> make_pread_reader(ResultFilter filter) {
  return std::make_unique<PreadReader>(std::move(filter));
}

}  // namespace ckfs
