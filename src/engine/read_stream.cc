// The alternatives not taken: a fixed depth (too much for a reader of parts, too little for a disk
// that is far away), and asking the kernel (a mapping's faults look the same whatever their reader
// is about to do).
#include "engine/read_stream.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/units.h"

namespace ckfs {
namespace {

/// How far from the end of a run a request of that run may begin, before it or after: the kernel
/// sends the pages of its read-ahead from several threads, in no order. A
/// large request may be one of several that are under way at once, each as large.
constexpr std::uint64_t kNear = 256_KiB;
/// How far behind the end of an established run a late request may begin: many threads take turns,
/// and a reader that finds delivered bytes does not wait for them.
constexpr std::uint64_t kLate = 4_MiB;
/// A second request makes a run where both are large, else the third does.
constexpr std::uint64_t kLargeRun = 256_KiB;
/// A reader that asks for so much from a tensor's first byte on wants more of it.
constexpr std::uint64_t kLargeRequest = 128_KiB;
/// By itself the kernel asks for 128 KiB of a mount at most. Where it asks for more, its read-ahead
/// was raised, and to answer such early and large requests costs less than to deliver: each
/// delivered page is found, locked and made active alone, which takes a third more CPU time for all
/// of a view (docs/NOTES.md).
constexpr std::uint64_t kMuchAtOnce = 256_KiB;
/// How many first bytes of a tensor may be missing in a run that has read it whole; and how far
/// beyond an end the kernel's own read-ahead goes.
constexpr std::uint64_t kSlack = 1_MiB;
constexpr std::uint64_t kOvershoot = 512_KiB;
/// The most that is computed ahead of a run, in bytes of the file, where the source answers soon.
constexpr std::uint64_t kMostAhead = 8_MiB;
/// The same where it streams: one request is under way, one is decoded, and one is read.
constexpr std::uint64_t kMostInOrder = 16_MiB;
/// In how many steps what is wanted ahead of a far source is added, until these are as large as it
/// likes: enough that some wait for a connection while others are on the way. The engine asks for
/// neighbours that are added together at once.
constexpr std::uint64_t kSteps = 16;
/// And no smaller than this for a reader that has come far.
constexpr std::uint64_t kLeastStep = 8_MiB;
/// The least that is computed ahead without being earned where the source is far away.
constexpr std::uint64_t kFarStake = 4_MiB;

/// How many bytes ahead each byte earns that was read in order, where the source is far away. Many
/// where it likes large steps: two MiB keep eight connections busy, and a reader that earns its
/// depth in four answers has lost the time of four. What that risks ends with the tensor, and
/// readers that have left tensors before risk little.
std::uint64_t growth_of(const SourceWish& wish, const ReaderHabit& habit) {
  return wish.step > 0 && !habit.reads_parts() ? 16 : 1;
}

std::uint64_t distance(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : b - a;
}

}  // namespace

void ReaderHabit::ended(bool whole) {
  // Two threads at once may lose one step; the habit is then learned later.
  const int score = score_.load(std::memory_order_relaxed);
  score_.store(whole ? std::min(score + 1, kMost) : std::max(score - 2, -kMost),
               std::memory_order_relaxed);
}

ReadStream::ReadStream(std::shared_ptr<const FileLayout> file, StreamOptions options,
                       UnitAt unit_at, std::shared_ptr<ReaderHabit> habit)
    : file_(std::move(file)),
      options_(std::move(options)),
      unit_at_(std::move(unit_at)),
      habit_(std::move(habit)) {}

ReadStream::RequestRun& ReadStream::run_of(ByteRange request, std::vector<std::uint64_t>& passed) {
  RequestRun* oldest = runs_.data();
  for (RequestRun& run : runs_) {
    const std::uint64_t near = std::max(kNear, 2 * request.size());
    if (!run.range.empty() && distance(request.begin, run.range.end) <= near) return run;
    // A late request: the reader has found the bytes of the next ones already.
    if (run.requests >= 3 && run.range.contains(request) &&
        run.range.end - request.begin <= kLate) {
      return run;
    }
    // A reader finds delivered bytes without asking, and asks again behind them.
    const std::uint64_t reach = std::min(run.queued, run.range.end + kMostAhead);
    if (options_.deliver && !run.range.empty() && run.range.end <= request.begin &&
        request.begin <= reach) {
      return run;
    }
    if (run.last_used < oldest->last_used) oldest = &run;
  }
  end(*oldest, passed);
  *oldest = RequestRun{};
  oldest->range = {request.begin, request.begin};
  return *oldest;
}

/// Learns from a run that is over, and forgets its units.
void ReadStream::end(RequestRun& run, std::vector<std::uint64_t>& passed) {
  for (const Unit& unit : run.units) passed.push_back(unit.range.begin);
  run.units.clear();
  if (run.requests < 3 || run.range.size() < kLargeTensor) return;
  const ByteRange tensor = file_->tensor_at(run.range.begin + run.range.size() / 2);
  if (tensor.size() < kLargeTensor || run.range.begin > tensor.begin + kLargeTensor) return;
  habit_->ended(run.range.end >= tensor.end);
}

bool ReadStream::is_sequential(const RequestRun& run, ByteRange request) const {
  if (options_.whole || run.requests >= 3) return true;
  if (run.requests == 2 && run.range.size() >= kLargeRun) return true;
  const bool begins_tensor = request.begin <= run.tensor.begin && run.tensor.begin < request.end;
  return begins_tensor && (habit_->reads_whole() || request.size() >= kLargeRequest);
}

/// The bytes behind the run that may be computed for it.
ByteRange ReadStream::earned(const RequestRun& run, SourceWish wish) const {
  const std::uint64_t from = run.range.end;
  std::uint64_t until = std::max(from, run.tensor.end);
  if (options_.whole || (run.border != 0 && from >= run.border + 4 * kOvershoot)) {
    until = file_->size;
  } else if (wish.far) {
    const std::uint64_t grown =
        habit_->reads_whole() ? until
                              : std::min(until, from + growth_of(wish, *habit_) * run.range.size());
    until = std::min(file_->size, std::max(grown, from + kFarStake));
  } else if (run.range.begin < run.tensor.begin && from < run.tensor.begin + kOvershoot) {
    until = from;  // perhaps it is only the kernel that has come so far
  } else if (!habit_->reads_whole() || run.range.begin > run.tensor.begin + kSlack) {
    until = std::min(until, from + run.range.size() / 4);
  }
  return {from, until};
}

ReadStream::Advice ReadStream::advise(ByteRange request, SourceWish wish) {
  const MutexLock lock(mutex_);
  Advice advice;
  RequestRun& run = run_of(request, advice.passed);
  run.last_used = ++clock_;
  ++run.requests;
  asks_much_ = asks_much_ || request.size() >= kMuchAtOnce;
  run.range.begin = std::min(run.range.begin, request.begin);
  run.range.end = std::max(run.range.end, request.end);
  // The tensor of the middle: both ends of a request may lie in a neighbour, where the kernel's
  // read-ahead put them.
  const ByteRange tensor = file_->tensor_at(request.begin + request.size() / 2);
  if (tensor.begin >= run.tensor.end && run.border == 0 && run.tensor.size() >= kLargeTensor &&
      run.range.begin <= run.tensor.begin) {
    run.border = run.tensor.end;
  }
  run.tensor = tensor;

  // A unit that one request reads whole is that request's own, from now on; one far behind the
  // reader is not asked for again.
  std::erase_if(run.units, [&](const Unit& unit) {
    const bool covered = request.contains(unit.range);
    const bool behind = unit.range.end + 4_MiB <= request.begin;
    if (covered || behind) advice.passed.push_back(unit.range.begin);
    return covered || behind;
  });

  advice.sequential = is_sequential(run, request);
  if (!advice.sequential) return advice;
  const ByteRange earned_bytes = earned(run, wish);
  advice.whole_until = earned_bytes.end;

  // A slow source has to be asked early.
  const std::uint64_t late = wish.far ? wish.ahead : wish.ahead / 2;
  // Several readers share the room: work ahead of one must not evict that of another.
  const std::uint64_t most = std::min(wish.in_order ? kMostInOrder : std::max(kMostAhead, late),
                                      std::max<std::uint64_t>(wish.share, kFarStake));
  // A run has to earn its depth, unless it will almost certainly continue and each step would take
  // the time of an answer.
  const bool certain = wish.far && (earned_bytes.end > run.tensor.end || habit_->reads_whole());
  const std::uint64_t depth =
      certain    ? most
      : wish.far ? std::clamp(growth_of(wish, *habit_) * run.range.size(), kFarStake, most)
                 : std::clamp(run.range.size(), 1_MiB, most);
  run.queued = std::max(run.queued, request.begin);
  // A source that streams, or is far away, is asked in large steps.
  std::uint64_t end = run.range.end + depth;
  bool due = true;
  if (wish.in_order) {
    due = run.queued + depth / 2 < end;
  } else if (wish.step > 0) {
    // Whole ones: a rest would be a request of its own, unless no more is earned behind it.
    end = std::min(end, earned_bytes.end);
    const bool grows = end < earned_bytes.end || end < run.tensor.end;
    const std::uint64_t ahead = end - run.range.end;
    // Small ones bring a new reader's first bytes soon, and cost an answer's delay each.
    const std::uint64_t least =
        std::clamp(run.range.size() / 4, kPieceBytes, std::min(kLeastStep, wish.step));
    const std::uint64_t step = std::clamp(ahead / kSteps, least, wish.step);
    if (grows) end = run.queued + (end - std::min(end, run.queued)) / step * step;
    due = end > run.queued;
  }
  while (due && run.queued < file_->size && run.units.size() < kMostUnits) {
    const ByteRange unit = unit_at_(run.queued);
    const bool is_tile = unit.size() > kPieceBytes;
    // One large tile is computed ahead, at the latest when half of the one before is read: bytes do
    // not measure how far away it is.
    const std::uint64_t until = is_tile ? run.range.end + std::max(depth, unit.size() / 2) : end;
    const bool near =
        unit.begin < until && (!is_tile || unit.end - unit_at_(request.begin).begin <= wish.room);
    const bool allowed = unit.end <= earned_bytes.end ||
                         (is_tile && unit.end <= run.tensor.end && run.range.size() > kMostAhead);
    if (!near || !allowed) break;
    run.queued = unit.end;
    // The request's own units: its thread computes them. A unit that the request enters at its
    // start and does not finish will be asked for again. A unit that it enters further in is read
    // alone to its end, unless the source is far and little of the unit lies before: the rest would
    // take a few answers one after another, the whole takes one, and little is read twice.
    const bool begun = unit.begin < request.begin;
    const bool worth = wish.far && !is_tile && request.begin - unit.begin <= unit.size() / 4;
    if (request.contains(unit) || (begun && !worth)) continue;
    run.units.push_back({unit, 0});
    if (unit.begin >= request.end) advice.start.push_back(unit);
  }

  if (wish.in_order) return advice;
  run.hinted = std::max(run.hinted, run.range.end);
  const std::uint64_t hint_end = std::min(earned_bytes.end, run.range.end + wish.ahead);
  // In steps, because each costs a plan and a system call.
  if (hint_end > run.hinted &&
      (hint_end - run.hinted >= wish.ahead / 4 || hint_end == earned_bytes.end)) {
    advice.hint = {run.hinted, hint_end};
    run.hinted = hint_end;
  }
  return advice;
}

std::vector<std::uint64_t> ReadStream::answered(ByteRange request) {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> passed;
  for (RequestRun& run : runs_) {
    std::erase_if(run.units, [&](Unit& unit) {
      unit.served += unit.range.intersect(request).size();
      if (unit.served < unit.range.size()) return false;
      passed.push_back(unit.range.begin);
      return true;
    });
  }
  return passed;
}

void ReadStream::delivered(std::uint64_t unit, std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  for (RequestRun& run : runs_) {
    for (Unit& each : run.units) {
      if (each.range.begin == unit) each.served += bytes;
    }
  }
}

bool ReadStream::takes_deliveries() const {
  if (!options_.deliver) return false;
  const MutexLock lock(mutex_);
  return !asks_much_;
}

bool ReadStream::wants(std::uint64_t unit) const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(runs_, [&](const RequestRun& run) {
    return std::ranges::any_of(run.units,
                               [&](const Unit& each) { return each.range.begin == unit; });
  });
}

std::stop_token ReadStream::ahead() const {
  const MutexLock lock(mutex_);
  return ahead_.get_token();
}

void ReadStream::stop_ahead() noexcept {
  std::stop_source stopped(std::nostopstate);
  {
    const MutexLock lock(mutex_);
    stopped = ahead_;
    try {
      ahead_ = std::stop_source();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // The old source stays, so nothing more is computed ahead of this reader.
    }
  }
  stopped.request_stop();  // which takes the locks of those that wait
}

std::vector<std::uint64_t> ReadStream::abandon() {
  const MutexLock lock(mutex_);
  std::vector<std::uint64_t> units;
  for (RequestRun& run : runs_) {
    end(run, units);
    run = RequestRun{};
  }
  return units;
}

std::size_t ReadStream::remembered() const {
  const MutexLock lock(mutex_);
  std::size_t units = 0;
  for (const RequestRun& run : runs_) units += run.units.size();
  return units;
}

}  // namespace ckfs
