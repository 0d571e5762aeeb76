// Readers are recognised by the places that they read, and not by their threads: the requests of
// one reader come from many threads, a little out of order, and no thread knows of the others. Each
// of a file's two streams belongs to the reader that used it last. A third reader of the same file
// takes over the stream that was idle longer.
#include "io/file_order.h"

#include <algorithm>

namespace ckfs {

void FairMutex::lock() {
  MutexLock lock(mutex_);
  const std::uint64_t ticket = next_ticket_++;
  while (serving_ != ticket) changed_.wait(lock);
}

void FairMutex::unlock() {
  {
    const MutexLock lock(mutex_);
    ++serving_;
  }
  changed_.notify_all();
}

std::uint64_t FairMutex::waiting() const {
  const MutexLock lock(mutex_);
  return next_ticket_ - serving_ - (next_ticket_ == serving_ ? 0 : 1);
}

std::optional<FileOrder::Passed> FileOrder::passed(ByteRange request) const {
  std::optional<Passed> long_ago;
  for (unsigned k = 0; k < kStreams; ++k) {
    const ByteRange run = streams_[k].run;
    if (!run.contains(request)) continue;
    if (run.end - request.begin <= kBehind) return Passed{k, true};
    long_ago = Passed{k, false};
  }
  return long_ago;
}

FileOrder::Choice FileOrder::choose(ByteRange request, bool keeps_pages) const {
  for (unsigned k = 0; k < kStreams; ++k) {
    const ByteRange run = streams_[k].run;
    const bool begun = k == 0 || streams_[k].last_used != 0;
    if (!begun || request.begin < run.begin) continue;
    // It has passed, but is no longer in the page cache: its stream goes back.
    if (request.end <= run.end && request.size() > kSmall) return {k, {}, false};
    if (request.end <= run.end) continue;
    if (request.begin <= run.end) return {k, {}, true};
    const std::uint64_t asked = streams_[k].asked;
    const std::uint64_t far = asked >= kSettled         ? kThrough
                              : request.size() > kSmall ? kOvertaken
                              : asked > kSmall          ? kDiscarded
                              : asked > 0               ? kNear
                                                        : 0;
    if (keeps_pages && request.begin - run.end <= far) return {k, {run.end, request.begin}, true};
  }
  if (request.size() <= kSmall) return {kJumps, {}, false};
  const auto* idle = std::ranges::min_element(streams_, {}, &Stream::last_used);
  return {static_cast<unsigned>(idle - streams_.begin()), {}, false};
}

void FileOrder::advance(ByteRange request, const Choice& choice) {
  if (choice.descriptor == kJumps) return;
  Stream& stream = streams_[choice.descriptor];
  stream.last_used = ++uses_;
  // A request may begin before the position.
  stream.asked = choice.continues
                     ? stream.asked + request.end - std::max(request.begin, stream.run.end)
                     : request.size();
  stream.run = choice.continues ? ByteRange{stream.run.begin, request.end} : request;
}

}  // namespace ckfs
