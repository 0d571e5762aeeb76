#include "base/stop.h"

#include <atomic>
#include <future>
#include <gtest/gtest.h>
#include <thread>

#include "base/parallel.h"

namespace ckfs {
namespace {

TEST(Stop, IsAskedOfTheInnermostScope) {
  std::stop_source outer, inner;
  outer.request_stop();
  EXPECT_FALSE(stop_asked());
  const StopScope first(outer.get_token());
  EXPECT_TRUE(stop_asked());
  {
    const StopScope second(inner.get_token());
    EXPECT_FALSE(stop_asked());
    inner.request_stop();
    EXPECT_TRUE(stop_asked());
    const StopScope never({});
    EXPECT_FALSE(stop_asked());
  }
  EXPECT_TRUE(stop_asked());
  EXPECT_FALSE(std::async(std::launch::async, [] { return stop_asked(); }).get());
}

TEST(Stop, NamesWhatWasStopped) {
  const Error error = stopped("model.safetensors").value();
  EXPECT_EQ(error.code(), ErrorCode::Stopped);
  EXPECT_EQ(error.message(), "model.safetensors: stopped");
}

TEST(Stop, WakesWhoWaits) {
  std::stop_source stop;
  Mutex mutex;
  CondVar changed;
  std::thread waiter([&] {
    const StopScope scope(stop.get_token());
    const WakeOnStop wake(mutex, changed);
    MutexLock lock(mutex);
    while (!stop_asked()) changed.wait(lock);
  });
  stop.request_stop();
  waiter.join();
}

TEST(Stop, IsAskedOfThreadsThatHelp) {
  std::stop_source stop;
  const StopScope scope(stop.get_token());
  std::promise<void> all;
  std::atomic<int> begun = 0;
  const auto done = run_parallel(4,
                                 [&](std::size_t) -> Result<void> {
                                   if (begun.fetch_add(1) == 3) all.set_value();
                                   if (begun.load() == 4) stop.request_stop();
                                   while (!stop_asked()) std::this_thread::yield();
                                   return stopped("a task");
                                 },
                                 {.few = 4, .most = 4});
  all.get_future().wait();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::Stopped);
}

}  // namespace
}  // namespace ckfs
