// The daemon's end of the fetcher: starts it, asks it, and gives its answers to those that wait.
// Links neither libcurl nor TLS. Formats, and which end owns which memory when: protocol.h.
//
// Safe for concurrent use by several threads, except start(). The client has one thread of its
// own, which it starts when it is first asked something: a daemon may confine itself between
// start() and that.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>

#include "base/byte_range.h"
#include "base/error.h"
#include "base/unique_fd.h"
#include "fetch/fetched_bytes.h"
#include "fetch/protocol.h"
#include "fetch/remote_source.h"

namespace ckfs {

struct FetchClientOptions {
  std::string program;                         // path of ckfs-fetcher
  std::size_t memory = std::size_t{64} << 20;  // that both share; reads wait for room in it
  std::size_t connections = 64;                // to servers
  std::chrono::milliseconds timeout{300'000};  // of a read, and of each answer to open()
  /// Lines that the fetcher logs become lines of this process's log: of a daemon, whose stderr has
  /// no reader. Otherwise both have one stderr.
  bool relays_log = false;
};

class FetchClient {
 public:
  using Done = std::function<void(Result<FetchedBytes>)>;

  /// Starts the program. Errors: NotFound (there is none: the package is not installed), Io.
  static Result<std::unique_ptr<FetchClient>> start(const FetchClientOptions& options);
  /// Ends the program, and the requests under way with Stopped. Requires: no FetchedBytes are left.
  ~FetchClient();
  FetchClient(const FetchClient&) = delete;
  FetchClient& operator=(const FetchClient&) = delete;

  /// A source that was listed; reads name it.
  struct Opened {
    std::uint32_t number = 0;
    RemoteSource source;
  };
  /// Resolves and lists a location; waits for it. Errors: those of the service (NotFound,
  /// Unsupported, Corrupt, Io, InvalidArgument: the text says what to do), Stopped.
  ///
  /// `known`: the listing that a cache has of that location; nullptr: none.
  /// Where the source still has that version, the service may be asked for the version alone.
  Result<Opened> open(const SourceLocation& location, const RemoteOptions& options,
                      const RemoteSource* known = nullptr);
  /// A source that was listed before (by a cache, by another rank): `source.pinned`, `is_file` and
  /// `objects` as open() gave them. Asks no server. Errors: as above.
  Result<std::uint32_t> attach(const RemoteSource& source, const RemoteOptions& options);

  /// Reads `range` of an object, and gives its bytes to `done`: called by the client's thread,
  /// once; it must not wait. Errors: Stale (the object is not the one that was listed any more, for
  /// good), Io (time is up, no access, the fetcher is gone for good), Stopped, InvalidArgument (no
  /// such source or object, no such range). Longer ranges than a quarter of the memory are refused:
  /// cut them. Returns a number for cancel().
  std::uint64_t read(std::uint32_t source, std::size_t object, ByteRange range, Done done);
  /// The read is not wanted any more: `done` is called soon, with Stopped if it comes first.
  void cancel(std::uint64_t read);

  /// read() into `to`, and waits. Stops when this thread is asked to (base/stop.h).
  Result<void> read_now(std::uint32_t source, std::size_t object, ByteRange range,
                        std::span<std::byte> to);

  /// What fetchers have done since start(). Where the present one does not say so within
  /// `patience`, the last numbers. Those of a dead fetcher end with the last that it said.
  FetchStats stats(std::chrono::milliseconds patience);
  /// How often it was started.
  std::uint32_t generation() const;
  /// The supervisor's process, for tests and reports.
  pid_t process() const;
  /// The longest range that read() takes.
  std::size_t longest_read() const;

 private:
  class Impl;
  explicit FetchClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
