// Reads ranges of objects, many at a time, until they are right or time is up: the machine between
// a service (how it is asked for) and the client (what is sent). It tries again what passes, from
// the byte that was reached, on another connection where the one before was dead; it asks less of a
// host that has too much to do; and it holds all to one budget of time.
//
// One thread: start(), cancel() and step() are called by the loop that owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "fetcher/http.h"
#include "fetcher/patience.h"
#include "fetcher/service.h"

namespace ckfs {

struct ReadCounts {
  std::uint64_t reads = 0;
  std::uint64_t bytes = 0;    // that were wanted, and came
  std::uint64_t retries = 0;  // requests that were sent again
};

class Reads {
 public:
  using Done = std::function<void(Result<void>)>;

  /// `most` requests at once; eight at first. `http` outlives it.
  Reads(HttpClient& http, std::size_t most, std::uint64_t seed);

  /// Reads `range` of `object` to `place`; `done` is called by a later step(), once. Errors: Stale,
  /// Io (time is up since it was sent first, with the last failure's words; the service refuses),
  /// those of Service::ask(). Requires: an id that is not in use, and a range within the object
  /// that is not empty.
  void start(std::uint64_t id, std::shared_ptr<Service> service, const RemoteObject& object,
             ByteRange range, std::byte* place, Done done);

  /// Ends it at once, with Stopped; nothing is written to its place afterwards. One that has ended
  /// already is left alone.
  void cancel(std::uint64_t id);

  /// Sends what may be sent now. Returns how long to wait at most until the next call; the waiting
  /// is done by HttpClient::step(), and its `done`s come back here.
  std::chrono::milliseconds step();

  std::size_t size() const { return reads_.size(); }
  std::size_t window() const { return window_.size(); }
  const ReadCounts& counts() const { return counts_; }

 private:
  struct Read {
    std::shared_ptr<Service> service;  // a client may attach another by its number
    const RemoteObject* object = nullptr;
    ByteRange range;  // the missing part
    std::byte* place = nullptr;
    Done done;
    std::optional<FetchTime> deadline = {};  // from when it is sent first
    unsigned attempts = 0;                   // since a byte came
    std::uint64_t sent = 0;                  // the request that is under way; 0: none
    HttpRequest request = {};                // as it was sent, for heed()
    std::string why = {};                    // of the last failure
  };

  void send(std::uint64_t id, FetchTime now);
  void answered(std::uint64_t id, HttpAnswer answer);
  void try_later(std::uint64_t id, Read& read, const AnswerVerdict& verdict, FetchTime now);
  void finish(std::uint64_t id, Result<void> result);
  void wake(const Service* service);

  HttpClient& http_;
  Window window_;
  Backoff backoff_;
  RetryTokens tokens_;
  std::unordered_map<std::uint64_t, Read> reads_;  // by id
  // Where those are that are not under way. Ids of reads that have ended may be in the latter two.
  std::set<std::uint64_t> ready_;                                           // the oldest go first
  std::multimap<FetchTime, std::uint64_t> later_;                           // not before that time
  std::unordered_map<const Service*, std::vector<std::uint64_t>> waiting_;  // for what it learns
  std::size_t in_flight_ = 0;
  ReadCounts counts_;
};

}  // namespace ckfs
