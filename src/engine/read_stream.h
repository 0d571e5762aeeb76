// Follows the readers' positions, and decides what to compute before they ask.
//
// A ReadStream is one open file. Its requests fall into runs. A request continues a run that ended
// about where it begins (the kernel's read-ahead reorders some); a far jump begins another run.
// Only a run that has shown itself to be sequential gets anything computed ahead, and no more than
// it has earned:
//
//   - a quarter of what the run has read, while nothing else is known: a reader that stops within a
//     tensor has then cost at most a quarter more;
//   - where the source is far away (SourceWish::far), as much as the run has read, and 4 MiB at
//     least: it delivers more than that while its reader waits for one answer;
//   - all up to the end of the tensor, where the readers of this engine have read tensors to their
//     end (ReaderHabit);
//   - bytes behind the tensor, once the run has continued past one.
//
// A gathered tensor is computed a tile at a time, whatever its reader has earned: the tile that the
// reader is in; once the run has read 8 MiB and half of that tile, also the next; from a slow
// source, the tiles that begin within the range that it is asked for ahead.
//
// The advice is a pure function of the file's layout and units, the options, and the history:
// requests, answers and deliveries, with the source's wish and the habit at each. The state is
// bounded whatever the requests. Safe for concurrent use: a mount may send several requests of one
// file at once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include <ckfs/types.h>

#include "base/byte_range.h"
#include "base/mutex.h"
#include "container/file_layout.h"

namespace ckfs {

/// Whether readers read the tensors that they begin to their ends, or leave them. Learned from runs
/// that ended; shared by all streams of an engine, because some loaders open the file anew for each
/// tensor.
class ReaderHabit {
 public:
  void ended(bool whole);
  bool reads_whole() const { return score_.load(std::memory_order_relaxed) >= kCertain; }
  bool reads_parts() const { return score_.load(std::memory_order_relaxed) <= -kCertain; }

 private:
  static constexpr int kCertain = 2;
  static constexpr int kMost = 4;
  std::atomic<int> score_{0};
};

/// How a source likes to be asked for bytes ahead of readers.
struct SourceWish {
  /// How far ahead it wants to know, in bytes (SourcePace); 0: it answers at once.
  std::uint64_t ahead = 0;
  /// It answers every request late, and hints do not help.
  bool far = false;
  /// It streams (SourceTraits::streams): it wants no hints, and few large requests.
  bool in_order = false;
  /// It is asked for so many bytes at once, as far as a reader's depth allows it, because an answer
  /// for less takes about as long; kPieceBytes at least, or 0: that does not matter.
  std::uint64_t step = 0;
  /// Bytes that tiles may take, the one that is read and those ahead together.
  std::uint64_t room = ~std::uint64_t{0};
  /// Of it, what pieces ahead of one reader may take. More would evict bytes that are wanted
  /// sooner.
  std::uint64_t share = ~std::uint64_t{0};
};

/// How a stream is read: ReadOptions, and what only a mount has.
struct StreamOptions {
  bool whole = false;
  bool once = false;
  /// Delivers bytes that were computed ahead of the reader to a place where the reader finds them
  /// without asking, such as the kernel's page cache. Gives false if it could not. `offset` and the
  /// end are multiples of 4096, except the file's own end. Other threads call it, perhaps during
  /// and after the close of the file: it owns what it uses, and must not read this file. Delivery
  /// stops once the reader asks for 256 KiB or more at once, because an answer is cheaper then.
  /// Sequential source reads for deliveries count as `once`, unless other readers use those pages.
  std::function<bool(std::uint64_t offset, std::span<const std::byte> bytes)> deliver = {};
  std::stop_token stop = {};
};

class ReadStream : public std::enable_shared_from_this<ReadStream> {
 public:
  /// The range of the file that is computed at once with the byte at an offset: a piece, or a tile.
  using UnitAt = std::function<ByteRange(std::uint64_t offset)>;

  ReadStream(std::shared_ptr<const FileLayout> file, StreamOptions options, UnitAt unit_at,
             std::shared_ptr<ReaderHabit> habit);

  const FileLayout& file() const { return *file_; }
  const StreamOptions& options() const { return options_; }

  /// What to do for a request.
  struct Advice {
    /// The reader is sequential: units that are computed as wholes will be used.
    bool sequential = false;
    /// Units that end up to here are worth computing as wholes; the others byte by byte.
    std::uint64_t whole_until = 0;
    /// Units to compute ahead, nearest first.
    std::vector<ByteRange> start;
    /// Bytes of the file whose source bytes will be read soon, beyond those that were given before.
    ByteRange hint;
    /// Units (by their first byte) that this reader will not ask for.
    std::vector<std::uint64_t> passed;
  };
  /// Requires: the request is not empty and lies in the file.
  Advice advise(ByteRange request, SourceWish wish);

  /// The request, which was advised, has been answered. Gives the units whose bytes have now all
  /// been asked for or delivered, by count: they are read to their end, unless some bytes were
  /// asked for twice. Call it only after the answer: another request for the same unit may be under
  /// way.
  std::vector<std::uint64_t> answered(ByteRange request);

  /// So many bytes of the unit are where the reader finds them without asking. The reader asks for
  /// the rest, page by page: the signpost, and pages that the unit shares with its neighbours.
  void delivered(std::uint64_t unit, std::uint64_t bytes);

  /// Whether to put bytes where the reader finds them without asking (ReadOptions::deliver). False
  /// once a request was for 256 KiB or more.
  bool takes_deliveries() const;

  /// Whether an advised unit is still to be read: the reader may have reached it first.
  bool wants(std::uint64_t unit) const;

  /// For work ahead of this reader: stops when the stream is closed, or a request is given up.
  std::stop_token ahead() const;
  /// Stops all work ahead that is under way. Work begun from now on has a new token.
  void stop_ahead() noexcept;

  /// The units that were advised and not passed: to be dropped when the reader closes.
  std::vector<std::uint64_t> abandon();

  /// Units that are remembered now: at most kRuns * kMostUnits.
  std::size_t remembered() const;

  /// Threads that read different places of one file at once (loaders map a shard and read its
  /// tensors in parallel) are told apart up to so many.
  static constexpr std::size_t kRuns = 4;
  static constexpr std::size_t kMostUnits = 288;

 private:
  struct Unit {
    ByteRange range;
    std::uint64_t served = 0;  // bytes, asked for or delivered
  };
  struct RequestRun {
    ByteRange range;   // already read; empty: no run
    ByteRange tensor;  // the last one that it has reached
    std::uint64_t requests = 0;
    std::uint64_t border = 0;  // the end of the first large tensor that it has read whole
    std::uint64_t queued = 0;  // units that begin below are queued, or read by their reader
    std::uint64_t hinted = 0;  // bytes below are hinted or read
    std::uint64_t last_used = 0;
    std::deque<Unit> units;  // ascending
  };

  RequestRun& run_of(ByteRange request, std::vector<std::uint64_t>& passed) CKFS_REQUIRES(mutex_);
  void end(RequestRun& run, std::vector<std::uint64_t>& passed) CKFS_REQUIRES(mutex_);
  bool is_sequential(const RequestRun& run, ByteRange request) const;
  ByteRange earned(const RequestRun& run, SourceWish wish) const;

  const std::shared_ptr<const FileLayout> file_;
  const StreamOptions options_;
  const UnitAt unit_at_;
  const std::shared_ptr<ReaderHabit> habit_;
  mutable Mutex mutex_;
  std::array<RequestRun, kRuns> runs_ CKFS_GUARDED_BY(mutex_);
  bool asks_much_ CKFS_GUARDED_BY(mutex_) = false;  // in one request
  std::uint64_t clock_ CKFS_GUARDED_BY(mutex_) = 0;
  std::stop_source ahead_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
