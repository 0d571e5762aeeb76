// How bytes get from open files into memory: one interface, and two ways (pread, io_uring) with
// identical results. Readers know descriptors and buffers; names, staleness and the choice of
// accesses belong to source_files.h.
//
// Readers are safe for concurrent use by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <sys/uio.h>
#include <vector>

#include "base/error.h"

namespace ckfs {

/// One access: the bytes of a file from `offset`, scattered over `parts` in order. The parts are
/// the callers' own buffers, so that coalesced requests need no copy; that is why coalescing is
/// done here and not further out.
struct Access {
  int fd = -1;
  /// Never used for two open files in the life of a reader, unlike the number `fd`.
  std::uint64_t serial = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  // the sum over parts; more than 0
  std::span<const iovec> parts;
  /// Bytes that come from the disk for this access do not stay in the page cache (RWF_DONTCACHE).
  /// Where kernel or file system cannot do that, the access fails with EOPNOTSUPP or EINVAL.
  bool uncached = false;
  /// Its file may be closed when the read has returned, and is then closed: it is not kept among a
  /// ring's registered files.
  bool passing = false;
};

/// Why an access failed.
struct AccessFailure {
  std::size_t access = 0;    // its index
  std::uint64_t offset = 0;  // in the file, of the first byte that was not read
  int error = 0;             // errno; 0: the file ends here
};

/// Lets a test play the kernel: gets what a system call reported (bytes, or a negative errno) and
/// gives what the reader shall believe.
using ResultFilter = std::function<std::int64_t(std::int64_t)>;

class Reader {
 public:
  virtual ~Reader() = default;

  /// Carries out all accesses, in any order and possibly at once. Short reads are continued, EINTR
  /// and EAGAIN retried. When it returns, also with a failure, nothing writes into a part any more.
  [[nodiscard]] virtual tl::expected<void, AccessFailure> read(
      std::span<const Access> accesses) = 0;
};

std::unique_ptr<Reader> make_pread_reader(ResultFilter filter = {});

/// `queue_depth` accesses at most are in flight for each thread, by a ring that can only read.
/// `rings` are made now, others when more threads read at once; where no more can be made, threads
/// that find none read one access after the other. Not to be used on both sides of a fork().
/// Errors: Unsupported where no ring can be made (not in the kernel, or not to be restricted there,
/// forbidden by a seccomp filter or a sysctl, no descriptor or memory left); the message says why.
Result<std::unique_ptr<Reader>> make_uring_reader(unsigned queue_depth, ResultFilter filter = {},
                                                  unsigned rings = 1);

/// Makes one access by preadv. A failure names it by `index`.
[[nodiscard]] tl::expected<void, AccessFailure> pread_access(const Access& access,
                                                             std::size_t index,
                                                             const ResultFilter& filter);

/// The rest of `parts` after `done` bytes. Requires: done is less than their sum.
std::vector<iovec> remaining_parts(std::span<const iovec> parts, std::uint64_t done);

/// The flags of `access` for preadv2 and io_uring.
int read_flags(const Access& access);

/// How often EINTR and EAGAIN in a row are retried before they count as an error.
inline constexpr int kRetryLimit = 10'000;

}  // namespace ckfs
