// One io_uring with its table of registered files, used by one thread at a time.
//
// A ring is a way around a filter of system calls: the kernel does not ask the filter for what a
// ring carries out. So each ring reads and does nothing else, for good, before it is used first.
#pragma once

#include <cstdint>
#include <liburing.h>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "io/reader.h"

namespace ckfs {

class Uring {
 public:
  /// The error is an errno: EPERM (seccomp, io_uring_disabled), ENOSYS, ENOMEM, EMFILE, EINVAL (a
  /// kernel before 5.10, which restricts no ring) ...
  static tl::expected<std::unique_ptr<Uring>, int> create(unsigned depth);
  ~Uring();
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  /// Reader::read with at most `depth` accesses in flight.
  tl::expected<void, AccessFailure> read(std::span<const Access> accesses,
                                         const ResultFilter& filter);
  /// False after the ring itself failed: it must be made anew.
  bool usable() const { return usable_; }

 private:
  struct Slot {
    std::uint64_t serial = 0;  // 0: free
    std::uint64_t last_batch = 0;
  };
  /// One access on its way.
  struct Flight {
    std::size_t access = 0;
    std::uint64_t done = 0;
    int retries = 0;
    std::vector<iovec> rest;  // only after a short read; the kernel may look at it until completion
  };

  Uring() = default;
  int set_up(unsigned depth);
  std::optional<unsigned> slot_for(const Access& access);
  void prepare(const Access& access, std::size_t flight);
  int submit_and_wait();
  /// Takes back what is in flight after the ring failed, so that buffers are free again.
  void drain();

  io_uring ring_{};
  bool usable_ = true;
  unsigned in_flight_ = 0;  // prepared and not yet completed
  std::vector<Flight> flights_;
  std::vector<std::size_t> idle_;   // of flights_, between and during calls of read()
  std::vector<std::size_t> again_;  // of flights_, to go on with
  std::vector<Slot> slots_;         // empty: the kernel has no sparse tables
  std::unordered_map<std::uint64_t, unsigned> slot_of_;
  std::uint64_t batch_ = 0;
};

}  // namespace ckfs
