// Requests wait in one queue, in order, for room in the shared memory; those that were sent wait in
// a table for their answers. When the fetcher was started again, all of the table goes back to the
// front of the queue. So there is one way to send, and no state beside the two that could go wrong.

#include "fetch/fetch_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/start_thread.h"
#include "base/stop.h"
#include "base/text.h"

namespace ckfs {
namespace {

using QueueClock = std::chrono::steady_clock;

/// The fetcher holds reads to the time itself; this much longer it may say nothing at all.
constexpr std::chrono::seconds kGrace{30};

Error gone() {
  return {ErrorCode::Io, "ckfs-fetcher has ended (open the source again)"};
}

/// An error that a fetcher has sent: of a code that one may send.
Error error_of(const FetchMessage& answer, std::string_view text) {
  const auto code = static_cast<unsigned>(answer.code) - 1;
  const bool is_known = code <= static_cast<unsigned>(ErrorCode::Stopped);
  return {is_known ? static_cast<ErrorCode>(code) : ErrorCode::Io, one_line(text)};
}

}  // namespace

Result<std::unique_ptr<FetchQueue>> FetchQueue::make(UniqueFd socket, SharedMemory memory,
                                                     std::chrono::milliseconds timeout,
                                                     UniqueFd log) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return system_failure(errno, "fetcher", "eventfd");
  return std::unique_ptr<FetchQueue>(new FetchQueue(std::move(socket), std::move(memory),
                                                    std::move(wake), timeout, std::move(log)));
}

FetchQueue::FetchQueue(UniqueFd socket, SharedMemory memory, UniqueFd wake,
                       std::chrono::milliseconds timeout, UniqueFd log)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      wake_(std::move(wake)),
      timeout_(timeout),
      log_(std::move(log)),
      places_(memory_.bytes().size()) {}

FetchQueue::~FetchQueue() {
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
  }
  wake();
  if (thread_) thread_->join();
  // A child that was forked since holds the socket, too: closing it here would not end it.
  ::shutdown(socket_.get(), SHUT_RDWR);
}

std::uint64_t FetchQueue::ask(FetchMessage message, std::string input, std::size_t capacity,
                              FetchAnswered answered) {
  MutexLock lock(mutex_);
  message.id = next_id_++;
  message.capacity = static_cast<std::uint32_t>(capacity);
  message.input = static_cast<std::uint32_t>(input.size());
  if (queue_.empty() && sent_.empty()) heard_ = QueueClock::now();
  queue_.push_back({message, std::move(input), std::move(answered)});
  if (!start_thread_of_answers()) {
    const Request request = std::move(queue_.back());
    queue_.pop_back();
    lock.unlock();
    request.answered(fail(ErrorCode::OutOfMemory, "fetcher: no thread for its answers"), {});
    return message.id;
  }
  wake();
  return message.id;
}

std::uint64_t FetchQueue::refuse(FetchAnswered answered, Error error) {
  MutexLock lock(mutex_);
  const std::uint64_t id = next_id_++;
  if (!start_thread_of_answers()) {
    lock.unlock();
    answered(Failure(std::move(error)), {});
    return id;
  }
  refused_.emplace_back(
      [answered = std::move(answered), error = std::move(error)] { answered(Failure(error), {}); });
  wake();
  return id;
}

Result<std::string> FetchQueue::ask_now(FetchMessage message, std::string input,
                                        std::size_t capacity, FetchMessage& answer) {
  struct Waiting {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<std::string>> result CKFS_GUARDED_BY(mutex);
    FetchMessage answer CKFS_GUARDED_BY(mutex);
  };
  const auto waiting = std::make_shared<Waiting>();
  const WakeOnStop wake_on_stop(waiting->mutex, waiting->changed);
  const std::uint64_t id = ask(message, std::move(input), capacity,
                               [waiting](Result<FetchedBytes> bytes, const FetchMessage& said) {
                                 const MutexLock lock(waiting->mutex);
                                 waiting->answer = said;
                                 if (bytes) {
                                   const std::span<const std::byte> text = bytes->span();
                                   waiting->result.emplace(std::string(
                                       reinterpret_cast<const char*>(text.data()), text.size()));
                                 } else {
                                   waiting->result.emplace(Failure(std::move(bytes).error()));
                                 }
                                 waiting->changed.notify_all();
                               });
  MutexLock lock(waiting->mutex);
  while (!waiting->result && !stop_asked()) waiting->changed.wait(lock);
  if (!waiting->result) {
    lock.unlock();
    cancel(id);
    return stopped("fetcher");
  }
  answer = waiting->answer;
  return *std::move(waiting->result);
}

void FetchQueue::cancel(std::uint64_t id) noexcept {
  const MutexLock lock(mutex_);
  const auto sent = sent_.find(id);
  const auto waits =
      sent != sent_.end()
          ? queue_.end()
          : std::ranges::lower_bound(queue_, id, {}, [](const auto& r) { return r.message.id; });
  if (sent == sent_.end() && (waits == queue_.end() || waits->message.id != id)) {
    return;  // it is answered
  }
  (sent == sent_.end() ? *waits : sent->second).is_cancelled = true;
  has_cancelled_ = true;
  wake();
}

void FetchQueue::set_source(std::uint32_t source, std::string attach, std::uint32_t known_to) {
  const MutexLock lock(mutex_);
  sources_[source] = {std::move(attach), known_to};
}

FetchedBytes::~FetchedBytes() {
  if (queue_ != nullptr) queue_->give_back(place_);
}

void FetchQueue::give_back(std::span<const std::byte> place) {
  const MutexLock lock(mutex_);
  places_.give_back(static_cast<std::uint64_t>(place.data() - memory_.bytes().data()),
                    place.size());
  if (!queue_.empty()) wake();
}

std::uint32_t FetchQueue::generation() const {
  const MutexLock lock(mutex_);
  return generation_;
}

std::size_t FetchQueue::free_memory() const {
  const MutexLock lock(mutex_);
  return places_.free();
}

bool FetchQueue::start_thread_of_answers() {
  if (!thread_) thread_ = start_thread([this] { run(); });
  return thread_.has_value();
}

void FetchQueue::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void FetchQueue::relay_log() {
  constexpr std::size_t kLongestLine = 4096;
  std::array<char, kLongestLine> piece{};
  const ssize_t got = ::read(log_.get(), piece.data(), piece.size());
  if (got == 0) log_.reset();
  if (got <= 0) return;
  log_line_.append(piece.data(), static_cast<std::size_t>(got));
  for (std::size_t end = log_line_.find('\n'); end != std::string::npos;
       end = log_line_.find('\n')) {
    std::string_view line = std::string_view(log_line_).substr(0, end);
    // Its time and level, which the line gets anew.
    while (line.starts_with('[') && line.find("] ") != std::string_view::npos) {
      line.remove_prefix(line.find("] ") + 2);
    }
    spdlog::warn("{}", one_line(line));
    log_line_.erase(0, end + 1);
  }
  if (log_line_.size() > kLongestLine) log_line_.clear();
}

void FetchQueue::run() {
  for (;;) {
    Calls calls;
    auto next = QueueClock::now();
    {
      const MutexLock lock(mutex_);
      if (!is_gone_ && !take_messages(calls)) is_gone_ = true;
      take_cancelled(calls);
      next = give_up_late(calls);
      if (is_gone_) fail_all(gone(), calls);
      if (is_ending_) fail_all(stopped("fetcher").value(), calls);
      send_queue();
      std::ranges::move(refused_, std::back_inserter(calls));
      refused_.clear();
      if (is_ending_ && calls.empty()) return;
    }
    for (const auto& call : calls) call();
    if (!calls.empty()) continue;
    // poll(2) passes over what has no descriptor.
    std::array<pollfd, 3> waits = {pollfd{wake_.get(), POLLIN, 0},
                                   pollfd{log_ ? log_.get() : -1, POLLIN, 0},
                                   pollfd{socket_.get(), POLLIN, 0}};
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - QueueClock::now());
    const bool is_gone = [&] {
      const MutexLock lock(mutex_);
      if (is_full_) waits[2].events |= POLLOUT;
      return is_gone_;
    }();
    ::poll(waits.data(), is_gone ? 2 : 3,
           static_cast<int>(std::clamp<std::int64_t>(wait.count(), 0, 60'000)));
    if (waits[1].revents != 0) relay_log();
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof count);
  }
}

bool FetchQueue::take_messages(Calls& calls) {
  constexpr std::size_t kAtOnce = 64;  // then what they bring is given out
  for (std::size_t i = 0; i < kAtOnce; ++i) {
    pollfd readable{socket_.get(), POLLIN, 0};
    if (::poll(&readable, 1, 0) <= 0) return true;
    const auto message = receive_message(socket_.get());
    if (!message) return false;
    heard_ = QueueClock::now();
    if (message->kind == FetchMessageKind::Hello) {
      begin_generation(message->generation);
    } else if (message->kind == FetchMessageKind::Answer) {
      take_answer(*message, calls);
    }
  }
  return true;
}

void FetchQueue::begin_generation(std::uint32_t generation) {
  if (generation == 0 || generation == generation_) return;
  generation_ = generation;
  // The one before is dead, and writes to no place any more. Those that are given up end here.
  std::vector<Request> again;
  for (auto& [id, request] : sent_) {
    if (request.answered) {
      again.push_back(std::move(request));
    } else {
      release(request);
    }
  }
  sent_.clear();
  queue_.insert(queue_.begin(), std::make_move_iterator(again.begin()),
                std::make_move_iterator(again.end()));
}

void FetchQueue::take_answer(const FetchMessage& answer, Calls& calls) {
  const auto found = sent_.find(answer.id);
  if (found == sent_.end() || answer.generation != generation_) return;
  Request request = std::move(found->second);
  sent_.erase(found);
  if (!request.answered) return release(request);
  const auto size =
      static_cast<std::size_t>(std::min<std::uint64_t>(answer.size, request.message.capacity));
  calls.emplace_back(
      [this, place = place_of(request), size, answer, answered = std::move(request.answered)] {
        FetchedBytes bytes(*this, place, size);
        if (answer.code == 0) return answered(std::move(bytes), answer);
        const std::string text(reinterpret_cast<const char*>(place.data()), size);
        answered(Failure(error_of(answer, text)), answer);
      });
}

void FetchQueue::send_queue() {
  is_full_ = false;
  if (generation_ == 0 || is_gone_) return;
  while (!queue_.empty()) {
    Request& request = queue_.front();
    const bool needs_source = request.message.kind == FetchMessageKind::Read;
    if (needs_source && !attach(request.message.source)) return;
    if (!send(request)) return;
    queue_.pop_front();
  }
}

bool FetchQueue::attach(std::uint32_t source) {
  Source& its = sources_[source];
  if (its.known_to == generation_) return true;
  Request request;
  request.input = its.attach;
  request.message.kind = FetchMessageKind::Attach;
  request.message.id = next_id_++;
  request.message.source = source;
  request.message.capacity = static_cast<std::uint32_t>(std::max(its.attach.size(), kLeastPlace));
  request.message.input = static_cast<std::uint32_t>(its.attach.size());
  if (!send(request)) {
    release(request);
    return false;
  }
  its.known_to = generation_;
  return true;
}

/// False: there is no room for it now, in the memory or in the socket.
bool FetchQueue::send(Request& request) {
  if (!request.has_place) {
    const auto place = places_.take(request.message.capacity);
    if (!place) return false;
    request.message.place = *place;
    request.has_place = true;
  }
  CKFS_CHECK(request.input.size() <= request.message.capacity);
  std::memcpy(place_of(request).data(), request.input.data(), request.input.size());
  request.message.generation = generation_;
  request.sent = QueueClock::now();
  // A fetcher that has died takes none; its successor gets all again.
  is_full_ = !try_send_message(socket_.get(), request.message);
  if (is_full_) return false;
  sent_.insert_or_assign(request.message.id, std::move(request));
  return true;
}

void FetchQueue::take_cancelled(Calls& calls) {
  if (!std::exchange(has_cancelled_, false)) return;
  for (Request& request : queue_) {
    if (!request.is_cancelled) continue;
    answer_with(request, stopped("fetcher").value(), calls);
    release(request);
  }
  std::erase_if(queue_, [](const Request& request) { return request.is_cancelled; });
  for (auto& [id, request] : sent_) {
    if (!std::exchange(request.is_cancelled, false) || !request.answered) continue;
    // The place is the fetcher's until it answers.
    answer_with(request, stopped("fetcher").value(), calls);
    FetchMessage message;
    message.kind = FetchMessageKind::Cancel;
    message.id = id;
    message.generation = generation_;
    // One that is not taken costs the fetcher some work, and nothing else.
    try_send_message(socket_.get(), message);
  }
}

QueueClock::time_point FetchQueue::give_up_late(Calls& calls) {
  const auto now = QueueClock::now();
  const auto limit = timeout_ + kGrace;
  const Error late(ErrorCode::Io, "ckfs-fetcher does not answer (--timeout)");
  if (queue_.empty() && sent_.empty()) return now + limit;
  if (now - heard_ >= limit) {
    fail_all(late, calls);
    return now + limit;
  }
  // It answers others: the oldest are looked at, which were sent first.
  for (auto& [id, request] : sent_) {
    if (now - request.sent < 4 * limit) break;
    answer_with(request, late, calls);
  }
  return heard_ + limit;
}

void FetchQueue::fail_all(const Error& error, Calls& calls) {
  for (Request& request : queue_) answer_with(request, error, calls);
  for (auto& [id, request] : sent_) answer_with(request, error, calls);
  for (const Request& request : queue_) release(request);
  queue_.clear();
}

void FetchQueue::answer_with(Request& request, const Error& error, Calls& calls) {
  if (!request.answered) return;
  calls.emplace_back([answered = std::exchange(request.answered, nullptr), error,
                      message = request.message] { answered(Failure(error), message); });
}

void FetchQueue::release(const Request& request) {
  if (request.has_place) places_.give_back(request.message.place, request.message.capacity);
}

std::span<std::byte> FetchQueue::place_of(const Request& request) const {
  return memory_.bytes().subspan(request.message.place, request.message.capacity);
}

}  // namespace ckfs
