// Threads take pieces in order, whatever step they belong to, so no thread waits for the end of a
// step; of a step whose pieces come in turn, they take all. The thread that writes the last piece
// of a step drops its chunks. When enough is written, one thread syncs the files while the others
// write. The record counts steps from the first one, so a step that ends before an earlier one
// counts when that has ended, too.
#include "export/ordered_writer.h"

#include <algorithm>
#include <set>
#include <vector>

#include "api/inside.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/units.h"
#include "chunks/chunk_source.h"
#include "container/view_files.h"
#include "engine/engine.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kBudgetOfPiece = 256_MiB;

class OrderedWriter {
 public:
  OrderedWriter(const View& view, const SourceOrder& order, const OrderHooks& hooks)
      : view_(view), order_(order), hooks_(hooks), left_(order.steps.size()) {
    for (std::size_t step = 0; step < order.steps.size(); ++step) {
      for (const ExportStep& piece : order.steps[step].pieces) {
        if (!hooks.wanted(step, piece)) continue;
        pieces_.push_back(&piece);
        if (left_[step] == 0 || !order.steps[step].in_turn) {
          tasks_.push_back({step, pieces_.size() - 1, pieces_.size() - 1});
          ++left_[step];
        }
        tasks_.back().end = pieces_.size();
      }
    }
    while (done_ < left_.size() && left_[done_] == 0) ++done_;
    synced_ = done_;
  }

  Result<void> write() {
    const Result<void> written = run_parallel(
        tasks_.size(), [this](std::size_t number) { return write_one(tasks_[number]); },
        {.few = hooks_.jobs, .most = hooks_.jobs});
    const Result<void> synced = sync(0);
    CKFS_TRY_VOID(written);
    return synced;
  }

 private:
  /// Pieces that one thread writes.
  struct Task {
    std::size_t step = 0;
    std::size_t begin = 0, end = 0;  // in pieces_
  };

  Result<void> write_one(const Task& task) {
    const std::size_t step = task.step;
    std::uint64_t bytes = 0;
    for (std::size_t i = task.begin; i < task.end; ++i) {
      const ExportStep& what = *pieces_[i];
      CKFS_TRY(OutFile target, hooks_.open(what.file));
      CKFS_TRY_VOID(write_part(view_, what, what.range.begin, target,
                               {.ends = hooks_.ends,
                                .advance = hooks_.advance,
                                .synced = [](std::uint64_t) { return Result<void>(); },
                                .sync_step = ~std::uint64_t{0}}));
      bytes += what.range.size();
    }
    bool ended = false;
    {
      const MutexLock lock(mutex_);
      unsynced_ += bytes;
      ended = --left_[step] == 0;
      while (done_ < left_.size() && left_[done_] == 0) ++done_;
    }
    if (!ended) return {};
    if (ChunkSource* const chunks = chunk_source_of(view_)) {
      chunks->forget(order_.steps[step].chunks);
    }
    return sync(hooks_.sync_step);
  }

  /// Syncs, unless less than `least` bytes were written since the last time, or another thread does
  /// so already.
  Result<void> sync(std::uint64_t least) {
    std::size_t from = 0, to = 0;
    std::uint64_t bytes = 0;
    {
      const MutexLock lock(mutex_);
      if (sync_failed_ || syncing_ || done_ == synced_ || unsynced_ < least) return {};
      syncing_ = true;
      from = synced_;
      to = done_;
      bytes = unsynced_;
    }
    const Result<void> result = or_out_of_memory([&] { return sync_steps(from, to); });
    const MutexLock lock(mutex_);
    syncing_ = false;
    // Do not sync again: the kernel reports a failed write once. A second sync, of files opened
    // after that, would succeed though the bytes on disk may be old or zero.
    sync_failed_ = !result;
    if (!result) return result;
    synced_ = to;
    unsynced_ -= bytes;
    return {};
  }

  Result<void> sync_steps(std::size_t from, std::size_t to) {
    std::set<std::size_t> files;
    for (std::size_t step = from; step < to; ++step) {
      for (const ExportStep& piece : order_.steps[step].pieces) {
        if (hooks_.wanted(step, piece)) files.insert(piece.file);
      }
    }
    for (const std::size_t file : files) {
      CKFS_TRY(OutFile target, hooks_.open(file));
      CKFS_TRY_VOID(target.sync());
    }
    return hooks_.synced(to);
  }

  const View& view_;
  const SourceOrder& order_;
  const OrderHooks& hooks_;
  std::vector<const ExportStep*> pieces_;
  std::vector<Task> tasks_;
  Mutex mutex_;
  std::vector<std::size_t> left_ CKFS_GUARDED_BY(mutex_);  // tasks of each step
  std::size_t done_ CKFS_GUARDED_BY(mutex_) = 0;           // all steps before are written
  std::size_t synced_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t unsynced_ CKFS_GUARDED_BY(mutex_) = 0;  // bytes
  bool syncing_ CKFS_GUARDED_BY(mutex_) = false;
  bool sync_failed_ CKFS_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::size_t jobs_in_order(const View& view, std::size_t jobs) {
  const std::uint64_t pieces = budget_of(view) / kBudgetOfPiece;
  return std::clamp<std::size_t>(pieces, 1, jobs);
}

Result<void> write_in_order(const View& view, const SourceOrder& order, const OrderHooks& hooks) {
  return OrderedWriter(view, order, hooks).write();
}

Result<ReadBytes> read_part(const View& view, const ExportStep& part) {
  CKFS_TRY(const auto layout, part_of(*view_files_of(view).layout(part.file), part.range));
  Engine& engine = engine_of(view);
  const auto stream = engine.open_stream(layout, {.whole = true, .once = true});
  return ReadBytes([stream, &engine](ByteRange range) { return engine.read(*stream, range); });
}

Result<void> write_part(const View& view, const ExportStep& part, std::uint64_t from,
                        OutFile& target, const WriteHooks& hooks) {
  CKFS_TRY(const ReadBytes read, read_part(view, part));
  return write_range(read, {from - part.range.begin, part.range.size()}, target, from, hooks);
}

}  // namespace ckfs
