// A read is a little machine: not before a time, or waiting for what another learns, or under way.
// All of them are looked at in each step: there are a few hundred at most, each of a megabyte.

#include "fetcher/reads.h"

#include <algorithm>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::size_t kFirstWindow = 8;
constexpr std::chrono::milliseconds kLongestWait{1000};
constexpr std::uint64_t kLeastCounted = 65536;

FetchTime now_of_reads() {
  return std::chrono::steady_clock::now();
}

}  // namespace

Reads::Reads(HttpClient& http, std::size_t most, std::uint64_t seed)
    : http_(http), window_(kFirstWindow, std::max<std::size_t>(most, 1)), backoff_(seed) {}

void Reads::start(std::uint64_t id, Service& service, const RemoteObject& object, ByteRange range,
                  std::byte* place, Done done) {
  const FetchTime now = now_of_reads();
  ++counts_.reads;
  reads_.emplace(id, Read{.service = &service,
                          .object = &object,
                          .range = range,
                          .place = place,
                          .done = std::move(done),
                          .deadline = now + http_.patience().timeout,
                          .not_before = now});
}

void Reads::cancel(std::uint64_t id) {
  const auto found = reads_.find(id);
  if (found == reads_.end()) return;
  Read& read = found->second;
  if (read.sent != 0) {
    http_.cancel(read.sent);
    --in_flight_;
    // What it was to learn for others, nobody learns now: they are to ask themselves.
    if (!read.request.wanted) {
      read.service->heed(*read.object, read.request,
                         {.fault = HttpFault::Cancelled, .why = "cancelled"});
      wake(read.service);
    }
  }
  finish(id, Failure(Error(ErrorCode::Stopped, "read: stopped")));
}

std::chrono::milliseconds Reads::step() {
  const FetchTime now = now_of_reads();
  FetchTime next = now + kLongestWait;
  std::vector<std::uint64_t> ids;
  for (const auto& [id, read] : reads_) {
    if (read.sent != 0) continue;
    if (!read.is_waiting && read.not_before <= now) {
      ids.push_back(id);
    } else {
      next = std::min({next, read.deadline, read.is_waiting ? next : read.not_before});
      if (read.deadline <= now) ids.push_back(id);
    }
  }
  for (const std::uint64_t id : ids) {
    const auto found = reads_.find(id);
    if (found == reads_.end()) continue;
    Read& read = found->second;
    if (read.deadline <= now) {
      finish(id, fail(ErrorCode::Io, "{} (no answer within the time, --timeout)",
                      read.why.empty() ? "the server does not answer" : read.why));
      continue;
    }
    if (in_flight_ >= window_.size()) break;
    send(id, read, now);
  }
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(next - now_of_reads()),
                  std::chrono::milliseconds(0));
}

void Reads::send(std::uint64_t id, Read& read, FetchTime now) {
  if (read.attempts > 0) {
    if (const auto wait = tokens_.take(now)) {
      read.not_before = now + *wait;
      return;
    }
    ++counts_.retries;
  }
  auto asked = read.service->ask(*read.object, read.range);
  if (!asked) return finish(id, Failure(std::move(asked).error()));
  if (!*asked) {
    read.is_waiting = true;
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
  const bool was_full = in_flight_ >= window_.size();
  --in_flight_;
  read.sent = 0;
  // Right as far as they go, whatever came then.
  read.range.begin += answer.placed;
  read.place += answer.placed;
  counts_.bytes += answer.placed;
  // A small answer is as good as a larger one for seeing whether more at once bring more.
  window_.done(now, answer.placed + kLeastCounted, was_full);
  if (answer.placed > 0) read.attempts = 0;
  if (read.request.wanted && read.range.empty()) {
    tokens_.succeeded();
    return finish(id, {});
  }
  const bool learns = !read.request.wanted;
  const AnswerVerdict verdict = read.service->heed(*read.object, read.request, answer);
  if (learns) wake(read.service);
  if (verdict.is_pushback) window_.pushed_back(now);
  switch (verdict.what) {
    case AnswerVerdict::Do::Again:
      // What is learned is learned once: a service that says so for ever is waited for longer each
      // time, until the read's time is up.
      if (++read.attempts > 8) return try_later(read, verdict, now);
      if (answer.is_success() || (answer.status >= 300 && answer.status < 400)) --read.attempts;
      return;
    case AnswerVerdict::Do::Later:
      return try_later(read, verdict, now);
    case AnswerVerdict::Do::Fail:
      return finish(id, Failure(verdict.error));
  }
}

void Reads::try_later(Read& read, const AnswerVerdict& verdict, FetchTime now) {
  read.why = verdict.error.message();
  read.not_before = now + backoff_.wait(read.attempts, verdict.wait, http_.patience());
  ++read.attempts;
}

void Reads::finish(std::uint64_t id, Result<void> result) {
  auto taken = reads_.extract(id);
  taken.mapped().done(std::move(result));
}

void Reads::wake(const Service* service) {
  for (auto& [id, read] : reads_) {
    if (read.service == service) read.is_waiting = false;
  }
}

}  // namespace ckfs
