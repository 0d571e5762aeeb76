// Three things are done with an access. Its bytes have just streamed by: they are in the page
// cache, and it waits for nobody. It comes next, or soon: it waits for its turn, and what lies
// before it is read first. It lies elsewhere: it waits for its turn, and goes through another
// descriptor.
//
// What is read on the way to an access goes into the page cache of the file system and is thrown
// away here: to keep it would take memory from the budget, and the kernel keeps it anyway.
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
/// Accesses of at least these sizes show what a source can do: that keeps pages; that does not.
constexpr std::uint64_t kTellingCached = std::uint64_t{512} << 10;
constexpr std::uint64_t kTelling = std::uint64_t{96} << 10;
constexpr std::uint64_t kCut = std::uint64_t{128} << 10;

using Answer = FileSystem::Answer;

ByteRange range_of(const PlannedAccess& access) {
  return {access.offset, access.offset + access.size};
}

/// Errors are ignored: whoever wants these bytes will meet them.
void read_through(int fd, ByteRange range) {
  if (range.empty()) return;
  const auto scrap = std::make_unique_for_overwrite<std::byte[]>(kPiece);
  while (!range.empty()) {
    const ssize_t done =
        ::pread(fd, scrap.get(), std::min(range.size(), kPiece), static_cast<off_t>(range.begin));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    range.begin += static_cast<std::uint64_t>(done);
  }
}

/// Whether three accesses, one behind another, may be used to compare (pace.h).
bool are_telling(std::span<const PlannedAccess> accesses, Answer keeps_pages) {
  if (accesses.size() < 3 || keeps_pages == Answer::Unknown) return false;
  const std::uint64_t least = keeps_pages == Answer::Yes ? kTellingCached : kTelling;
  for (std::size_t i = 0; i < 3; ++i) {
    if (accesses[i].size < least) return false;
    if (i > 0 && range_of(accesses[i - 1]).end != accesses[i].offset) return false;
  }
  return true;
}

}  // namespace

Result<bool> OrderedFile::read_passed(const PlannedAccess& access, std::size_t index,
                                      const Way& way) {
  std::optional<unsigned> descriptor;
  {
    const MutexLock lock(mutex_);
    descriptor = order_.passed(range_of(access));
  }
  if (!descriptor) return false;
  CKFS_TRY(const int fd, way.fd(*descriptor));
  // What is gone from the cache, in part or as a whole, has to be fetched once more, in turn.
  if (!page_cache::is_cached(fd, range_of(access))) return false;
  CKFS_TRY_VOID(way.read(*descriptor, index, 1));
  return true;
}

Result<std::size_t> OrderedFile::read_next(std::span<const PlannedAccess> rest, std::size_t index,
                                           FileSystem& file_system, const Way& way) {
  const Answer keeps_pages = file_system.keeps_pages.load(std::memory_order_relaxed);
  FileOrder::Choice choice;
  {
    const MutexLock lock(mutex_);
    choice = order_.choose(range_of(rest[0]), keeps_pages == Answer::Yes);
  }
  const bool small = rest[0].size <= FileOrder::kSmall;
  CKFS_TRY(const int fd, way.fd(choice.descriptor));
  // After a jump the first requests go out one by one. Read ahead, two would be on their way at
  // once, and a server that takes them in the wrong order starts over again (rclone waits 20 ms for
  // the one before, then takes whichever it has).
  const bool jumps = !small && !choice.continues;
  if (jumps) page_cache::expect_exact_reads(fd);
  read_through(fd, choice.through);
  const bool compares = choice.continues && choice.through.empty() &&
                        are_telling(rest, keeps_pages) && file_system.pace.wants_comparison();
  const auto begin = now_();
  CKFS_TRY_VOID(way.read(choice.descriptor, index, 1));
  if (jumps) page_cache::expect_reads_in_order(fd);
  std::size_t done = 1;
  if (compares) {
    const auto middle = now_();
    CKFS_TRY_VOID(way.read(choice.descriptor, index + 1, 2));
    const std::chrono::duration<double> one = middle - begin, two = now_() - middle;
    file_system.pace.compared(one / static_cast<double>(rest[0].size),
                              two / static_cast<double>(rest[1].size + rest[2].size),
                              keeps_pages == Answer::Yes ? Pace::Trust::Little : Pace::Trust::Much);
    done = 3;
  }
  const ByteRange was_read{rest[0].offset, range_of(rest[done - 1]).end};
  if (choice.continues) {
    const ByteRange tail{was_read.end - std::min(was_read.size(), FileOrder::kSmall), was_read.end};
    const bool kept = page_cache::cached_pages(fd, tail).value_or(1) > 0;
    file_system.keeps_pages.store(kept ? Answer::Yes : Answer::No, std::memory_order_relaxed);
  }
  const MutexLock lock(mutex_);
  order_.advance(was_read, choice);
  return done;
}

std::uint64_t OrderedFile::longest_access(const FileSystem& file_system, std::uint64_t usual) {
  const bool cuts = file_system.pace.wants_comparison() &&
                    file_system.keeps_pages.load(std::memory_order_relaxed) != Answer::Yes;
  return cuts ? std::min(usual, kCut) : usual;
}

Result<void> OrderedFile::read(std::span<const PlannedAccess> accesses, FileSystem& file_system,
                               const Way& way) {
  for (std::size_t next = 0; next < accesses.size();) {
    CKFS_TRY(const bool passed, read_passed(accesses[next], next, way));
    if (passed) {
      ++next;
      continue;
    }
    const std::lock_guard turn(turn_);
    // While it waited, another may have streamed over it; then it is read from the cache all the
    // same, and the stream's position stays.
    CKFS_TRY(const bool passed_now, read_passed(accesses[next], next, way));
    if (passed_now) {
      ++next;
      continue;
    }
    CKFS_TRY(const std::size_t done, read_next(accesses.subspan(next), next, file_system, way));
    next += done;
    // It has just turned out that the rest need not wait, one for another.
    if (next < accesses.size() && file_system.pace.at_once()) {
      return way.read(0, next, accesses.size() - next);
    }
  }
  return {};
}

}  // namespace ckfs
