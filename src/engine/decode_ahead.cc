// Threads are started with the first task: a checkpoint that is only listed starts none. The queue
// is short (a few chunks for each sequential reader), so tasks need no priority; when readers come
// and go faster than workers work, the oldest tasks are dropped, for their readers have moved on.
#include "engine/decode_ahead.h"

#include <algorithm>
#include <exception>
#include <spdlog/spdlog.h>

#include "base/units.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kDepth = 4;  // chunks ahead of a reader (fuse-perf.md F, H)
constexpr std::size_t kMostTasks = 64;

}  // namespace

bool SequentialRule::saw(ByteRange request) {
  const std::uint64_t distance =
      request.begin > last_end_ ? request.begin - last_end_ : last_end_ - request.begin;
  in_a_row_ = distance <= 2_MiB ? in_a_row_ + 1 : 1;
  last_end_ = request.end;
  return request.size() > 128_KiB || in_a_row_ >= 3;
}

ReadStream::Advice ReadStream::advise(ByteRange request) {
  const std::lock_guard lock(mutex_);
  Advice advice;
  advice.sequential = rule_.saw(request);
  // A chunk that one request reads whole is that request's own, from now on.
  std::erase_if(pending_, [&](const Pending& pending) {
    const ByteRange chunk = range_of(pending.chunk);
    const bool covered = request.begin <= chunk.begin && chunk.end <= request.end;
    if (covered) advice.passed.push_back(pending.chunk);
    return covered;
  });
  if (!advice.sequential || request.empty()) return advice;

  const std::uint64_t here = request.begin / kChunkBytes;
  const std::uint64_t last = (request.end - 1) / kChunkBytes;
  const std::uint64_t chunks = (file_->size + kChunkBytes - 1) / kChunkBytes;
  // A jump back or far forward begins anew; what was computed for the old place ages away.
  if (next_ahead_ > last + 1 + 2 * kDepth || next_ahead_ < here) next_ahead_ = here;
  // The chunks of this request are not advised: its own thread is about to compute them. But a
  // chunk that it leaves unfinished will be asked for again.
  next_ahead_ = std::max(next_ahead_, here);
  const std::uint64_t end = std::min(chunks, last + 1 + kDepth);
  for (; next_ahead_ < end; ++next_ahead_) {
    const ByteRange chunk = range_of(next_ahead_);
    if (chunk.intersect(request).size() == chunk.size()) continue;
    pending_.push_back({next_ahead_, 0, request.begin <= chunk.begin});
    if (next_ahead_ > last) advice.ahead.push_back(next_ahead_);
  }
  for (const Pending& pending : pending_) {
    if (pending.whole && here <= pending.chunk && pending.chunk <= last) {
      advice.whole.push_back(pending.chunk);
    }
  }
  return advice;
}

std::vector<std::uint64_t> ReadStream::answered(ByteRange request) {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> passed;
  std::erase_if(pending_, [&](Pending& pending) {
    const ByteRange chunk = range_of(pending.chunk);
    pending.served += chunk.intersect(request).size();
    if (pending.served < chunk.size()) return false;
    passed.push_back(pending.chunk);
    return true;
  });
  return passed;
}

ByteRange ReadStream::range_of(std::uint64_t chunk) const {
  return {chunk * kChunkBytes, std::min((chunk + 1) * kChunkBytes, file_->size)};
}

bool ReadStream::wants(std::uint64_t chunk) {
  const std::lock_guard lock(mutex_);
  return std::any_of(pending_.begin(), pending_.end(),
                     [&](const Pending& pending) { return pending.chunk == chunk; });
}

std::vector<std::uint64_t> ReadStream::abandon() {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> chunks;
  for (const Pending& pending : pending_) chunks.push_back(pending.chunk);
  pending_.clear();
  return chunks;
}

DecodeAhead::DecodeAhead(unsigned threads, Compute compute) : compute_(std::move(compute)) {
  threads_.resize(threads);
}

DecodeAhead::~DecodeAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void DecodeAhead::add(std::weak_ptr<ReadStream> stream, std::uint64_t chunk) {
  {
    const std::lock_guard lock(mutex_);
    for (std::thread& thread : threads_) {
      if (!thread.joinable()) thread = std::thread([this] { work(); });
    }
    tasks_.push_back({std::move(stream), chunk});
    if (tasks_.size() > kMostTasks) tasks_.pop_front();
  }
  changed_.notify_one();
}

void DecodeAhead::work() {
  while (true) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    const std::shared_ptr<ReadStream> stream = task.stream.lock();
    if (!stream || !stream->wants(task.chunk)) continue;
    try {
      compute_(*stream, task.chunk);
    } catch (const std::exception& error) {
      // The reader will meet the same and report it; a worker must not take the daemon along.
      spdlog::debug("{}: ahead of a reader: {}", stream->file().path, error.what());
    }
  }
}

}  // namespace ckfs
