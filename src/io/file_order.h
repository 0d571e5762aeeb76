// Puts the requests for a remote file in order, also those of several readers: which one is next,
// and through which descriptor.
//
// A server that streams has one stream for each open file. So each file has a few descriptors: two
// for readers that read on and on, and one for small requests that lie elsewhere, so that those do
// not make a stream start over. The first stream begins with the file: the header, then what
// follows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/byte_range.h"
#include "base/mutex.h"

namespace ckfs {

/// A lock that is given in the order in which it was asked for. std::mutex gives it to the quickest
/// thread, and the chunks of two readers would be mixed.
class CKFS_CAPABILITY("mutex") FairMutex {
 public:
  void lock() CKFS_ACQUIRE();
  void unlock() CKFS_RELEASE();
  /// How many wait for it now.
  std::uint64_t waiting() const;

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::uint64_t next_ticket_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t serving_ CKFS_GUARDED_BY(mutex_) = 0;
};

/// Chooses the descriptor of a file for each request. Has no state except its memory of requests,
/// and no effects; not for concurrent use.
class FileOrder {
 public:
  /// Descriptors of a file: streams 0 and 1, and one for jumps.
  static constexpr unsigned kStreams = 2;
  static constexpr unsigned kJumps = 2;

  /// A request of at most this size does not begin a stream.
  static constexpr std::uint64_t kSmall = std::uint64_t{64} << 10;
  /// A request this far ahead of a stream's position, at most, does not jump: the bytes between are
  /// read first, in order, and stay in the page cache, for their reader comes soon. The scale of a
  /// weight lies behind the weight; fetching it alone costs a streaming server more than the weight
  /// (measured with rclone: every jump discards 16 MiB that it has read ahead).
  static constexpr std::uint64_t kThrough = std::uint64_t{64} << 20;
  /// ... if so much of the stream was wanted: then a reader reads it on and on.
  static constexpr std::uint64_t kSettled = std::uint64_t{256} << 10;
  /// Of a younger one a small request may be ahead by as much as a jump would discard, where more
  /// than a small request was wanted of it: the scale of the first weight.
  static constexpr std::uint64_t kDiscarded = std::uint64_t{16} << 20;
  /// A request that is not small may overtake the ones before it by so much.
  static constexpr std::uint64_t kOvertaken = std::uint64_t{4} << 20;
  /// A small request may lie so far ahead of any stream that was ever read: the first bytes of the
  /// first weight, where all scales come first (1 MiB of them in 4 GiB of FP8). Through a
  /// descriptor of its own it would cost two jumps: to a mount that is not told to keep pages, as
  /// rclone's, each open() has the kernel drop those of the file, and the scale is fetched again.
  static constexpr std::uint64_t kNear = std::uint64_t{2} << 20;
  /// What a stream has passed this recently is taken to be in the page cache.
  static constexpr std::uint64_t kBehind = std::uint64_t{64} << 20;

  struct Passed {
    unsigned stream = 0;
    bool recently = false;  // taken to be in the page cache where the kernel does not know
  };
  /// The stream that has read `request`: where it is still in the page cache it comes from there,
  /// out of turn. nullopt: none has.
  std::optional<Passed> passed(ByteRange request) const;

  /// How far stream `k` has come.
  std::uint64_t position(unsigned k) const { return streams_[k].run.end; }

  struct Choice {
    unsigned descriptor = 0;
    ByteRange through;       // to be read before it, and thrown away; empty: nothing
    bool continues = false;  // a stream, at its position
  };

  /// The descriptor for `request`. `keeps_pages`: bytes that are read stay in the page cache. Where
  /// they do not, only bytes that were asked for are read.
  Choice choose(ByteRange request, bool keeps_pages) const;

  /// `request` was read through `choice`.
  void advance(ByteRange request, const Choice& choice);

 private:
  struct Stream {
    ByteRange run;                // read in order, from where it began to its position
    std::uint64_t asked = 0;      // bytes of it that a reader wanted: no more than it has
    std::uint64_t last_used = 0;  // 0: never
  };
  std::array<Stream, kStreams> streams_;
  std::uint64_t uses_ = 0;
};

}  // namespace ckfs
