// Knows where readers are, and has the next bytes computed before they ask.
//
// A ReadStream is one reader of one file. Once it reads sequentially, the chunks after its position
// are handed to worker threads; each worker computes one chunk into the TileCache. A reader that
// comes to a chunk before any worker does computes it itself, so nobody ever waits for a queue.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "base/byte_range.h"
#include "container/file_layout.h"

namespace ckfs {

/// A chunk is as large as the largest request of FUSE (fuse-perf.md B: 1 MiB).
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{1} << 20;

/// Tells sequential readers from others. Pure but for its memory; not for concurrent use.
///
/// Sequential is a request of more than 128 KiB, or the third in a row that begins within 2 MiB of
/// the end of the one before (fuse-perf.md H: the kernel's readahead reorders requests, and a rule
/// that is easier to meet makes random reads compute whole chunks).
class SequentialRule {
 public:
  /// Takes the next request into account: is its reader sequential?
  bool saw(ByteRange request);

 private:
  std::uint64_t last_end_ = 0;
  int in_a_row_ = 0;
};

/// One reader of one file. Safe for concurrent use: a mount may send several of its requests at
/// once.
class ReadStream : public std::enable_shared_from_this<ReadStream> {
 public:
  explicit ReadStream(std::shared_ptr<const FileLayout> file) : file_(std::move(file)) {}

  const FileLayout& file() const { return *file_; }

  /// What a request means for the chunks of the file.
  struct Advice {
    bool sequential = false;
    std::vector<std::uint64_t> ahead;   // chunks to compute now, nearest first
    std::vector<std::uint64_t> passed;  // chunks that nobody asks for after this request
    std::vector<std::uint64_t> whole;   // chunks of the request that are worth computing as wholes:
                                        // it reads a part, and all else of them is still to come
  };
  Advice advise(ByteRange request);

  /// The request, which was advised, has been answered: chunks that have now been read to their
  /// end. Not earlier: another request for the same chunk may be under way.
  std::vector<std::uint64_t> answered(ByteRange request);

  /// Whether a chunk that was advised has still to be read: its reader may have come first.
  bool wants(std::uint64_t chunk);

  /// The chunks that were advised and not passed: what is left when the reader goes.
  std::vector<std::uint64_t> abandon();

 private:
  ByteRange range_of(std::uint64_t chunk) const;

  const std::shared_ptr<const FileLayout> file_;
  std::mutex mutex_;  // guards all below
  SequentialRule rule_;
  std::uint64_t next_ahead_ = 0;  // chunks below were advised or passed by
  struct Pending {
    std::uint64_t chunk;
    std::uint64_t served;  // bytes
    bool whole;            // advised, or entered at its begin: no part was read without the rest
  };
  std::deque<Pending> pending_;
};

/// Worker threads that compute chunks ahead of readers.
class DecodeAhead {
 public:
  /// `compute` makes one chunk of a stream's file; it is called by worker threads.
  using Compute = std::function<void(ReadStream&, std::uint64_t chunk)>;
  DecodeAhead(unsigned threads, Compute compute);
  /// Finishes the chunks at hand and drops the rest.
  ~DecodeAhead();

  /// A stream that has gone by the time its turn comes is passed over.
  void add(std::weak_ptr<ReadStream> stream, std::uint64_t chunk);

 private:
  struct Task {
    std::weak_ptr<ReadStream> stream;
    std::uint64_t chunk;
  };
  void work();

  const Compute compute_;
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ckfs
