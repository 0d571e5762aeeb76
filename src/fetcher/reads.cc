// A read is a little machine: ready, not before a time, waiting for what another learns, or under
// way. What each step costs follows from what changes in it, and not from how many there are.

#include "fetcher/reads.h"

#include <algorithm>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::size_t kFirstWindow = 8;
constexpr std::chrono::milliseconds kLongestWait{1000};
constexpr std::uint64_t kLeastCounted = 65536;
/// What must have come for a read to have all its time again.
constexpr std::uint64_t kProgress = 65536;

FetchTime now_of_reads() {
  return std::chrono::steady_clock::now();
}

}  // namespace

Reads::Reads(HttpClient& http, std::size_t most, std::uint64_t seed)
    : http_(http), window_(kFirstWindow, std::max<std::size_t>(most, 1)), backoff_(seed) {}

void Reads::start(std::uint64_t id, std::shared_ptr<Service> service, const RemoteObject& object,
                  ByteRange range, std::byte* place, Done done) {
  ++counts_.reads;
  reads_.emplace(id, Read{.service = std::move(service),
                          .object = &object,
                          .range = range,
                          .place = place,
                          .done = std::move(done)});
  ready_.insert(id);
}

void Reads::cancel(std::uint64_t id) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  Read& read = found->second;
  if (read.sent != 0) {
    http_.cancel(read.sent);
    --in_flight_;
    // It learns nothing for others any more: they are to ask themselves.
    if (!read.request.wanted) {
      read.service->heed(*read.object, read.request,
                         {.fault = HttpFault::Cancelled, .why = "cancelled"});
      wake(read.service.get());
    }
  }
  finish(id, Failure(Error(ErrorCode::Stopped, "read: stopped")));
}

std::chrono::milliseconds Reads::step() {
  const FetchTime now = now_of_reads();
  while (!later_.empty() && later_.begin()->first <= now) {
    const std::uint64_t id = later_.begin()->second;
    later_.erase(later_.begin());
    if (reads_.contains(id)) ready_.insert(id);
  }
  while (!ready_.empty() && in_flight_ < window_.size()) {
    const std::uint64_t id = *ready_.begin();
    ready_.erase(ready_.begin());
    send(id, now);
  }
  if (later_.empty()) return kLongestWait;
  const auto wait =
      std::chrono::ceil<std::chrono::milliseconds>(later_.begin()->first - now_of_reads());
  return std::clamp(wait, std::chrono::milliseconds(0), kLongestWait);
}

void Reads::send(std::uint64_t id, FetchTime now) {
  Read& read = reads_.at(id);
  if (!read.deadline) read.deadline = now + http_.patience().timeout;
  if (*read.deadline <= now) {
    return finish(id, fail(ErrorCode::Io, "{} (no answer within the time, --timeout)", read.why));
  }
  if (read.attempts > 0) {
    if (const auto wait = tokens_.take(now)) {
      later_.emplace(now + *wait, id);
      return;
    }
    ++counts_.retries;
  }
  auto asked = read.service->ask(*read.object, read.range);
  if (!asked) return finish(id, Failure(std::move(asked).error()));
  if (!*asked) {
    waiting_[read.service.get()].push_back(id);
    return;
  }
  read.request = **std::move(asked);
  if (read.request.wanted) read.request.wanted->place = read.place;
  ++in_flight_;
  read.sent =
      http_.start(read.request, [this, id](HttpAnswer answer) { answered(id, std::move(answer)); });
}

void Reads::answered(std::uint64_t id, HttpAnswer answer) {
  Read& read = reads_.at(id);
  const FetchTime now = now_of_reads();
  // Several may have ended in this step, and none was sent since.
  const bool was_full = in_flight_ >= window_.size() || !ready_.empty();
  --in_flight_;
  read.sent = 0;
  // Right as far as they go, whatever came then.
  read.range.begin += answer.placed;
  read.place += answer.placed;
  counts_.bytes += answer.placed;
  // A small answer is as good as a larger one for seeing whether more at once bring more.
  const bool is_answer = answer.fault == HttpFault::None && answer.status < 400;
  window_.done(now, answer.placed + (is_answer ? kLeastCounted : 0), was_full);
  if (answer.placed > 0) read.attempts = 0;
  if (answer.placed >= kProgress) read.deadline = now + http_.patience().timeout;
  if (read.request.wanted && read.range.empty()) {
    tokens_.succeeded();
    return finish(id, {});
  }
  const bool learns = !read.request.wanted;
  const AnswerVerdict verdict = read.service->heed(*read.object, read.request, answer);
  if (learns) wake(read.service.get());
  if (verdict.is_pushback) window_.pushed_back(now);
  switch (verdict.what) {
    case AnswerVerdict::Do::Again: {
      const bool is_step = answer.is_success() || (answer.status >= 300 && answer.status < 400);
      if (!is_step) ++read.attempts;
      read.why = verdict.error.message();
      // A thing is learned once: a service that says so again and again is waited for
      // longer each time, until the read's time is up.
      if (read.attempts > 8) return try_later(id, read, verdict, now);
      ready_.insert(id);
      return;
    }
    case AnswerVerdict::Do::Later:
      return try_later(id, read, verdict, now);
    case AnswerVerdict::Do::Fail:
      return finish(id, Failure(verdict.error));
  }
}

void Reads::try_later(std::uint64_t id, Read& read, const AnswerVerdict& verdict, FetchTime now) {
  read.why = verdict.error.message();
  const FetchTime next = now + backoff_.wait(read.attempts, verdict.wait, http_.patience());
  // One whose time is up before that is told so when it is up.
  later_.emplace(std::min(next, *read.deadline), id);
  ++read.attempts;
}

void Reads::finish(std::uint64_t id, Result<void> result) {
  ready_.erase(id);
  auto taken = reads_.extract(id);
  taken.mapped().done(std::move(result));
}

void Reads::wake(const Service* service) {
  for (const std::uint64_t id : std::exchange(waiting_[service], {})) {
    if (reads_.contains(id)) ready_.insert(id);
  }
}

}  // namespace ckfs
