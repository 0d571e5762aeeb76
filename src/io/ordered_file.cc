// An access is done in one of three ways. If its bytes have streamed by and are still in the page
// cache, it does not wait. If it comes next, or soon, it waits for its turn, and the bytes before
// it are read first. If it lies elsewhere, it waits for its turn, and goes through another
// descriptor.
//
// Bytes that are read on the way to an access go into the page cache of the file system and are
// thrown away here: to keep them would take memory from the budget, and the kernel keeps them
// anyway.
#include "io/ordered_file.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <unistd.h>

#include "io/page_cache.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{256} << 10;
/// The longest head of a file that is read again; a link of 100 Mb/s brings so much in 20 ms.
constexpr std::uint64_t kHead = std::uint64_t{256} << 10;
/// Accesses of at least these sizes show what a source can do: that keeps pages; that does not.
constexpr std::uint64_t kShowingCached = std::uint64_t{512} << 10;
constexpr std::uint64_t kShowing = std::uint64_t{96} << 10;
constexpr std::uint64_t kCut = std::uint64_t{128} << 10;
/// So many at once are compared with one alone. Of a source that keeps pages no more: one that
/// streams may start over for each.
constexpr std::size_t kFewBeside = 2;
constexpr std::size_t kMostBeside = 4;
/// A small part of the time that a server needs to start over.
constexpr std::chrono::milliseconds kLate(2);
/// Parts of one access (the kernel's IOV_MAX).
constexpr std::size_t kMostParts = 1024;

using Answer = FileSystem::Answer;

/// Returns how many bytes it got. Ignores errors: the reader that wants these bytes will meet them.
std::uint64_t read_through(int fd, ByteRange range) {
  if (range.empty()) return 0;
  const std::uint64_t begin = range.begin;
  const auto scrap = std::make_unique_for_overwrite<std::byte[]>(kPiece);
  while (!range.empty()) {
    const ssize_t done =
        ::pread(fd, scrap.get(), std::min(range.size(), kPiece), static_cast<off_t>(range.begin));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) break;
    range.begin += static_cast<std::uint64_t>(done);
  }
  return range.begin - begin;
}

/// The bytes to read before an access at `offset`: `through`, and also the head of the file where
/// the file has been opened anew and the open() has dropped those pages. rclone's stream begins
/// with the file, whatever is asked first, and waits 20 ms for a request for the bytes that it
/// passes.
ByteRange with_dropped_head(int fd, ByteRange through, std::uint64_t offset) {
  const std::uint64_t head = through.empty() ? offset : through.begin;
  if (head == 0 || head > kHead || page_cache::cached_pages(fd, {0, head}) != 0) return through;
  return {0, offset};
}

/// Whether an access is large enough to be compared (pace.h).
bool is_showing(const FileAccess& access, Answer keeps_pages) {
  return access.size >= (keeps_pages == Answer::Yes ? kShowingCached : kShowing);
}

/// One request in order, as pace.h counts them, whether or not it succeeds.
class InOrder {
 public:
  /// `pace` nullptr: it is not counted.
  InOrder(Pace* pace, const std::function<Pace::Time()>& now) : pace_(pace), now_(now) {
    if (pace_ != nullptr) pace_->began_in_order(now_());
  }
  ~InOrder() {
    if (pace_ != nullptr) pace_->ended_in_order(bytes_, now_());
  }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

  void came(std::uint64_t bytes) { bytes_ = bytes; }

 private:
  Pace* const pace_;
  const std::function<Pace::Time()>& now_;
  std::uint64_t bytes_ = 0;
};

/// At most one comparison (pace.h), which always ends.
class Comparison {
 public:
  explicit Comparison(Pace& pace) : pace_(pace) {}
  ~Comparison() {
    if (began_) pace_.end_comparison();
  }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  bool begin() { return began_ = pace_.begin_comparison(); }

 private:
  Pace& pace_;
  bool began_ = false;
};

}  // namespace

struct OrderedFile::Caller {
  explicit Caller(std::span<const FileAccess> all) : accesses(all), done(all.size(), false) {}

  bool is_served() const { return error || std::ranges::find(done, false) == done.end(); }

  std::span<const FileAccess> accesses;
  std::vector<bool> done;
  std::optional<Error> error;  // then the rest does not matter any more
};

struct OrderedFile::Pending {
  Caller* caller;
  std::size_t number;

  const FileAccess& access() const { return caller->accesses[number]; }
};

/// Holds the turn. Other threads may serve the caller while it waits for the turn.
class OrderedFile::Turn {
 public:
  Turn(OrderedFile& file, Caller& caller) : file_(file), caller_(caller) {
    {
      const MutexLock lock(file_.mutex_);
      file_.callers_.push_back(&caller_);
      ++file_.arrivals_;
    }
    file_.arrived_.notify_all();
    file_.turn_.lock();
  }
  ~Turn() {
    {
      const MutexLock lock(file_.mutex_);
      std::erase(file_.callers_, &caller_);
    }
    file_.turn_.unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  OrderedFile& file_;
  Caller& caller_;
};

Result<bool> OrderedFile::read_passed(const FileAccess& access, const Way& way) {
  std::optional<FileOrder::Passed> passed;
  {
    const MutexLock lock(mutex_);
    passed = order_.passed(access.range());
  }
  if (!passed) return false;
  CKFS_TRY(const int fd, way.fd(passed->stream));
  if (!page_cache::is_cached(fd, access.range(), /*if_unknown=*/passed->recently)) {
    // Bytes that are gone from the cache, all or some, have to be fetched again, in turn. If they
    // passed just now, they must also be fetched in order: each page that is still there would be a
    // gap in the requests to the server, and it starts over at each gap. So those pages are
    // dropped.
    if (!passed->recently) return false;
    const MutexLock lock(mutex_);
    const std::uint64_t end = order_.position(passed->stream);
    page_cache::drop(fd, {access.offset, end}, end);
    return false;
  }
  CKFS_TRY_VOID(way.read(passed->stream, std::span(&access, 1)));
  return true;
}

/// Carries out the first of `rest`, and those behind it that go with it. Gives how many.
std::size_t OrderedFile::serve_next(const Caller& me, std::span<const Pending> rest,
                                    std::uint64_t longest, FileSystem& file_system,
                                    const Way& way) {
  // Each caller meets its own errors. An access that failed here for another caller, perhaps
  // because this thread had no descriptor, is tried again by that caller.
  const auto served = [&](const Pending& each, const Result<void>& done) {
    if (done) {
      each.caller->done[each.number] = true;
    } else if (each.caller == &me && !each.caller->error) {
      each.caller->error = done.error();
    }
  };
  const FileAccess& first = rest[0].access();
  // While it waited, another may have streamed over it. Then it is read from the cache, and the
  // stream's position stays.
  if (const auto passed = read_passed(first, way); !passed || *passed) {
    served(rest[0], passed ? Result<void>() : Result<void>(Failure(passed.error())));
    return 1;
  }

  const Answer keeps_pages = file_system.keeps_pages.load(std::memory_order_relaxed);
  FileOrder::Choice choice;
  {
    const MutexLock lock(mutex_);
    choice = order_.choose(first.range(), keeps_pages == Answer::Yes);
  }
  const auto fd = way.fd(choice.descriptor);
  if (!fd) {
    served(rest[0], Failure(fd.error()));
    return 1;
  }
  // After a jump the first requests go out one by one. With read-ahead two would be on their way at
  // once, and a server that takes them in the wrong order starts over again (rclone waits 20 ms for
  // the one before, then takes the one that it has).
  const bool jumps = first.size > FileOrder::kSmall && !choice.continues;
  if (jumps) page_cache::expect_exact_reads(*fd);
  if (choice.continues && choice.descriptor == 0 && keeps_pages == Answer::Yes) {
    choice.through = with_dropped_head(*fd, choice.through, first.offset);
  }
  const std::uint64_t through = read_through(*fd, choice.through);
  if (through > 0 && way.passed) way.passed(through);

  Pace& pace = file_system.pace;
  std::size_t run = 1;     // that lie one behind another
  std::size_t beside = 0;  // of them, how many can be compared with the first
  while (run < rest.size() && rest[run - 1].access().range().end == rest[run].access().offset)
    ++run;
  if (choice.continues && choice.through.empty() && keeps_pages != Answer::Unknown &&
      pace.wants_comparison() && is_showing(first, keeps_pages)) {
    const std::size_t most = keeps_pages == Answer::Yes ? kFewBeside : kMostBeside;
    while (beside < most && beside + 1 < run &&
           is_showing(rest[beside + 1].access(), keeps_pages)) {
      ++beside;
    }
  }
  Comparison comparison(pace);
  // Bytes that the kernel has read ahead, or has asked for, show nothing about a source.
  const bool may_compare = beside >= kFewBeside && comparison.begin();
  const std::uint64_t first_missing = may_compare ? page_cache::missing(*fd, first.range()) : 0;
  const bool compares = first_missing > first.size / 2;
  if (may_compare && !compares) pace.had_nothing_to_compare();

  // Joins the accesses that follow. Joins none where accesses are compared.
  std::size_t count = 1;
  std::vector<iovec> parts(first.parts.begin(), first.parts.end());
  FileAccess whole = first;
  while (!compares && !jumps && count < run) {
    const FileAccess& next = rest[count].access();
    if (whole.size + next.size > longest || parts.size() + next.parts.size() > kMostParts) break;
    parts.insert(parts.end(), next.parts.begin(), next.parts.end());
    whole.size += next.size;
    ++count;
  }
  whole.parts = parts;

  const bool shows = choice.continues && is_showing(whole, keeps_pages);
  const auto begin = now_();
  Result<void> done;
  {
    InOrder counted(shows ? &pace : nullptr, now_);
    done = way.read(choice.descriptor, std::span(&whole, 1));
    if (done) counted.came(whole.size);
  }
  const auto middle = now_();
  if (jumps) page_cache::expect_reads_in_order(*fd);
  for (std::size_t i = 0; i < count; ++i) {
    // If several fail together, the caller's own is tried alone.
    const FileAccess& each = rest[i].access();
    const bool alone = !done && count > 1 && rest[i].caller == &me;
    served(rest[i], alone ? way.read(choice.descriptor, std::span(&each, 1)) : done);
  }
  if (!done) return count;

  ByteRange was_read = whole.range();
  std::vector<FileAccess> others;
  std::uint64_t size = 0, missing = 0;
  for (const Pending& each : rest.subspan(1, compares ? beside : 0)) {
    others.push_back(each.access());
    size += each.access().size;
    missing += page_cache::missing(*fd, each.access().range());
  }
  if (missing > size / 2) {
    const auto begin_others = now_();
    done = way.read(choice.descriptor, others);
    const std::chrono::duration<double> several = now_() - begin_others;
    for (const Pending& each : rest.subspan(1, beside)) {
      const bool alone = !done && each.caller == &me;
      served(each, alone ? way.read(choice.descriptor, std::span(&each.access(), 1)) : done);
    }
    count += beside;
    if (done) {
      was_read.end = others.back().range().end;
      const std::chrono::duration<double> alone = middle - begin;
      pace.compared(several / static_cast<double>(missing),
                    alone / static_cast<double>(first_missing),
                    keeps_pages == Answer::Yes ? Pace::Trust::Little : Pace::Trust::Much);
    }
  } else if (compares) {
    pace.had_nothing_to_compare();
  }
  if (choice.continues) {
    const ByteRange tail{was_read.end - std::min(was_read.size(), FileOrder::kSmall), was_read.end};
    const bool kept = page_cache::cached_pages(*fd, tail).value_or(1) > 0;
    file_system.keeps_pages.store(kept ? Answer::Yes : Answer::No, std::memory_order_relaxed);
  }
  const MutexLock lock(mutex_);
  order_.advance(was_read, choice);
  return count;
}

/// The accesses that callers wait for now, by offset.
std::vector<OrderedFile::Pending> OrderedFile::pending() {
  std::vector<Pending> waiting;
  const MutexLock lock(mutex_);
  for (Caller* caller : callers_) {
    for (std::size_t i = 0; !caller->error && i < caller->accesses.size(); ++i) {
      if (!caller->done[i]) waiting.push_back({caller, i});
    }
  }
  std::ranges::stable_sort(waiting, {}, [](const Pending& each) { return each.access().offset; });
  return waiting;
}

/// Whether the source starts over for `access`, so that later accesses continue from there.
bool OrderedFile::begins_stream(const FileAccess& access) {
  const MutexLock lock(mutex_);
  const auto passed = order_.passed(access.range());
  return access.size > FileOrder::kSmall && !(passed && passed->recently) &&
         !order_.choose(access.range(), true).continues;
}

std::uint64_t OrderedFile::arrivals() {
  const MutexLock lock(mutex_);
  return arrivals_;
}

/// Waits for a caller behind the first `seen`. False: the time is up.
bool OrderedFile::next_arrival(std::uint64_t seen, Clock::time_point until) {
  MutexLock lock(mutex_);
  while (arrivals_ == seen) {
    if (!arrived_.wait_until(lock, until)) return arrivals_ != seen;
  }
  return true;
}

/// Serves all accesses that wait now. Accesses that arrive later have a turn of their own.
void OrderedFile::serve(const Caller& me, std::uint64_t longest, FileSystem& file_system,
                        const Way& way) {
  std::uint64_t seen = arrivals();
  std::vector<Pending> waiting = pending();
  // The threads of one reader come in no order: an access to earlier bytes may be a moment late,
  // and would have the server start over again.
  const auto until = Clock::now() + kLate;
  while (!waiting.empty() && begins_stream(waiting.front().access()) && next_arrival(seen, until)) {
    seen = arrivals();
    waiting = pending();
  }
  for (std::size_t next = 0; next < waiting.size() && !file_system.pace.at_once();) {
    if (waiting[next].caller->error) {
      ++next;
      continue;
    }
    next += serve_next(me, std::span(waiting).subspan(next), longest, file_system, way);
  }
}

std::uint64_t OrderedFile::longest_access(const FileSystem& file_system, std::uint64_t usual) {
  const bool cuts = file_system.pace.wants_comparison() &&
                    file_system.keeps_pages.load(std::memory_order_relaxed) != Answer::Yes;
  return cuts ? std::min(usual, kCut) : usual;
}

Result<void> OrderedFile::read(std::span<const FileAccess> accesses, std::uint64_t longest,
                               FileSystem& file_system, const Way& way) {
  Caller caller(accesses);
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    CKFS_TRY(caller.done[i], read_passed(accesses[i], way));
  }
  if (!caller.is_served()) {
    const Turn turn(*this, caller);
    if (!caller.is_served()) serve(caller, longest, file_system, way);
  }
  if (caller.error) return Failure(*std::move(caller.error));
  // The accesses that are left need not wait for each other.
  std::vector<FileAccess> rest;
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    if (!caller.done[i]) rest.push_back(accesses[i]);
  }
  if (rest.empty()) return {};
  return way.read(0, rest);
}

}  // namespace ckfs
