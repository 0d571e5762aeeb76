// Numbers are handed out in order, so when a task fails all tasks before it have been started, and
// waiting for them finds the first failure: a message does not depend on who was faster.
#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <vector>

namespace ckfs {
namespace {

constexpr std::size_t kThreads = 4;

Result<void> run_one(const std::function<Result<void>(std::size_t)>& task, std::size_t index) {
  try {
    return task(index);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::OutOfMemory, "no memory for the headers of the checkpoint");
  }
}

}  // namespace

Result<void> run_parallel(std::size_t count, const std::function<Result<void>(std::size_t)>& task) {
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> end{count};  // tasks from here on are not started
  std::mutex mutex;                     // guards failure
  std::optional<Failure> failure;

  const auto work = [&] {
    for (std::size_t index = next++; index < end; index = next++) {
      Result<void> result = run_one(task, index);
      if (result) continue;
      const std::lock_guard lock(mutex);
      if (failure && index >= end) continue;
      end = index;
      failure.emplace(std::move(result).error());
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(kThreads, count); ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) return *failure;
  return {};
}

}  // namespace ckfs
