// The client's requests, from when they are asked until they are answered. Internal to src/fetch;
// client.h says the promises to others.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "fetch/fetched_bytes.h"
#include "fetch/protocol.h"
#include "fetch/shared_memory.h"

namespace ckfs {

/// Gets the bytes at a request's place when it is answered, or the error.
using FetchAnswered = std::function<void(Result<FetchedBytes>, const FetchMessage& answer)>;

/// One end of a socket to a fetcher, and the memory that both share. Safe for concurrent use.
class FetchQueue {
 public:
  /// `timeout`: how long a fetcher that has something to do may say nothing before that is an error
  /// of all requests; one that it leaves aside is given four times as long. `log`: a pipe that does
  /// not block, whose lines are logged; empty: none. Errors: Io.
  static Result<std::unique_ptr<FetchQueue>> make(UniqueFd socket, SharedMemory memory,
                                                  std::chrono::milliseconds timeout,
                                                  UniqueFd log = {});
  /// Answers all with Stopped. Requires: no FetchedBytes of it are left.
  ~FetchQueue();
  FetchQueue(const FetchQueue&) = delete;
  FetchQueue& operator=(const FetchQueue&) = delete;

  /// Asks. `answered` is called once, by the queue's thread (or by this one, if the thread cannot
  /// start). `message` has no id, place and generation yet; `input` is put at its place.
  std::uint64_t ask(FetchMessage message, std::string input, std::size_t capacity,
                    FetchAnswered answered) CKFS_EXCLUDES(mutex_);
  /// Answers it with `error`, by the queue's thread.
  std::uint64_t refuse(FetchAnswered answered, Error error) CKFS_EXCLUDES(mutex_);
  /// Asks, and waits until it is answered, or this thread is to stop: then Stopped.
  Result<std::string> ask_now(FetchMessage message, std::string input, std::size_t capacity,
                              FetchMessage& answer) CKFS_EXCLUDES(mutex_);
  /// Takes no memory: a caller whose memory has ended may have buffers to take back.
  void cancel(std::uint64_t id) noexcept CKFS_EXCLUDES(mutex_);

  /// From now on requests of that source need its attaching (`attach`, packed) first, in each
  /// generation but the one that knows it (0: none does).
  void set_source(std::uint32_t source, std::string attach, std::uint32_t known_to)
      CKFS_EXCLUDES(mutex_);

  /// A place that was lent by FetchedBytes is free again.
  void give_back(std::span<const std::byte> place) CKFS_EXCLUDES(mutex_);

  std::uint32_t generation() const CKFS_EXCLUDES(mutex_);
  std::size_t memory() const { return memory_.bytes().size(); }
  /// Of the memory, what is lent to no request.
  std::size_t free_memory() const CKFS_EXCLUDES(mutex_);

 private:
  struct Request {
    FetchMessage message;
    std::string input;
    FetchAnswered answered;  // empty: it was called, or there is none that waits
    std::chrono::steady_clock::time_point sent{};
    bool has_place = false;
    bool is_cancelled = false;  // and its answer is to say so
  };
  struct Source {
    std::string attach;
    std::uint32_t known_to = 0;
  };
  using Calls = std::vector<std::function<void()>>;

  FetchQueue(UniqueFd socket, SharedMemory memory, UniqueFd wake, std::chrono::milliseconds timeout,
             UniqueFd log);

  bool start_thread_of_answers() CKFS_REQUIRES(mutex_);
  void wake() const;
  void run() CKFS_EXCLUDES(mutex_);
  void relay_log();
  /// False: the fetcher is gone for good.
  bool take_messages(Calls& calls) CKFS_REQUIRES(mutex_);
  void take_answer(const FetchMessage& answer, Calls& calls) CKFS_REQUIRES(mutex_);
  void begin_generation(std::uint32_t generation) CKFS_REQUIRES(mutex_);
  void send_queue() CKFS_REQUIRES(mutex_);
  bool send(Request& request) CKFS_REQUIRES(mutex_);
  bool attach(std::uint32_t source) CKFS_REQUIRES(mutex_);
  void take_cancelled(Calls& calls) CKFS_REQUIRES(mutex_);
  std::chrono::steady_clock::time_point give_up_late(Calls& calls) CKFS_REQUIRES(mutex_);
  void fail_all(const Error& error, Calls& calls) CKFS_REQUIRES(mutex_);
  void answer_with(Request& request, const Error& error, Calls& calls) CKFS_REQUIRES(mutex_);
  void release(const Request& request) CKFS_REQUIRES(mutex_);
  std::span<std::byte> place_of(const Request& request) const;

  const UniqueFd socket_;
  const SharedMemory memory_;
  const UniqueFd wake_;  // an eventfd
  const std::chrono::milliseconds timeout_;
  UniqueFd log_;          // of the queue's thread
  std::string log_line_;  // that has no end yet

  mutable Mutex mutex_;
  std::optional<std::thread> thread_;
  Places places_ CKFS_GUARDED_BY(mutex_);
  std::deque<Request> queue_ CKFS_GUARDED_BY(mutex_);              // by id, ascending
  std::map<std::uint64_t, Request> sent_ CKFS_GUARDED_BY(mutex_);  // by id
  bool has_cancelled_ CKFS_GUARDED_BY(mutex_) = false;
  Calls refused_ CKFS_GUARDED_BY(mutex_);
  std::map<std::uint32_t, Source> sources_ CKFS_GUARDED_BY(mutex_);
  std::uint32_t generation_ CKFS_GUARDED_BY(mutex_) = 0;  // 0: no fetcher has said anything yet
  std::uint64_t next_id_ CKFS_GUARDED_BY(mutex_) = 1;
  /// When the fetcher said something last, or had nothing to do.
  std::chrono::steady_clock::time_point heard_ CKFS_GUARDED_BY(mutex_);
  bool is_full_ CKFS_GUARDED_BY(mutex_) = false;  // the socket took no more
  bool is_ending_ CKFS_GUARDED_BY(mutex_) = false;
  bool is_gone_ CKFS_GUARDED_BY(mutex_) = false;
};

}  // namespace ckfs
