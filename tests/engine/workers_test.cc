#include "engine/workers.h"

#include <atomic>
#include <gtest/gtest.h>
#include <latch>
#include <mutex>
#include <set>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace ckfs {
namespace {

TEST(Workers, RunTasksInTheirOrder) {
  Workers workers(1);
  std::vector<int> order;
  std::latch done(100);
  for (int k = 0; k < 100; ++k) {
    workers.add([&, k] {
      order.push_back(k);
      done.count_down();
    });
  }
  done.wait();
  for (int k = 0; k < 100; ++k) EXPECT_EQ(order[static_cast<std::size_t>(k)], k);
}

TEST(Workers, GoOnAfterATaskThatThrows) {
  Workers workers(1);
  std::latch done(1);
  workers.add([] { throw std::runtime_error("surprise"); });
  workers.add([&] { done.count_down(); });
  done.wait();
}

TEST(Workers, StartMoreForTasksThatWaitAndLetThemGoAgain) {
  Workers workers(2, std::chrono::milliseconds(1));
  for (int round = 0; round < 3; ++round) {
    std::latch all(20);  // each task waits for all
    std::latch done(20);
    for (int k = 0; k < 20; ++k) {
      workers.add(
          [&] {
            all.arrive_and_wait();
            done.count_down();
          },
          Workers::Kind::Waits);
    }
    done.wait();
    while (workers.threads() > 2) std::this_thread::yield();
  }
  std::latch done(1);
  workers.add([&] { done.count_down(); });
  done.wait();
}

TEST(Workers, ShareEveryPartOnce) {
  Workers workers(3);
  for (const std::size_t count : {0, 1, 2, 7, 1000}) {
    std::mutex mutex;
    std::multiset<std::size_t> parts;
    ASSERT_TRUE(workers.share(count, [&](Workers::Claims& claims, bool /*helper*/) {
      while (const auto part = claims.next()) {
        const std::lock_guard lock(mutex);
        parts.insert(*part);
      }
    }));
    EXPECT_EQ(parts.size(), count);
    EXPECT_EQ(std::set<std::size_t>(parts.begin(), parts.end()).size(), count);
  }
}

TEST(Workers, HelpWhoSharesAtOnce) {
  Workers workers(2);
  std::latch all(3);  // a part ends when all three threads have one
  ASSERT_TRUE(workers.share(3, [&](Workers::Claims& claims, bool /*helper*/) {
    if (claims.next()) all.arrive_and_wait();
  }));
}

TEST(Workers, GiveTheFirstErrorAndClaimNoMore) {
  Workers workers(2);
  std::atomic<int> parts = 0;
  std::atomic<bool> failed = false;
  const auto shared = workers.share(1000, [&](Workers::Claims& claims, bool /*helper*/) {
    while (claims.next()) {
      const int part = ++parts;
      if (part == 3) {
        claims.fail(Error(ErrorCode::Io, "disk: gone"));
        failed = true;
      }
      while (part > 3 && !failed) std::this_thread::yield();
    }
  });
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().message(), "disk: gone");
  EXPECT_LT(parts, 1000);
  const auto thrown = workers.share(
      10, [](Workers::Claims& /*claims*/, bool /*helper*/) { throw std::bad_alloc(); });
  ASSERT_FALSE(thrown);
  EXPECT_EQ(thrown.error().code(), ErrorCode::OutOfMemory);
}

TEST(Workers, SharedWorkIsDoneWhereNoThreadCanBeStarted) {
  // In a child: the limit cannot be taken back. It holds for users other than root.
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{1, 1};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0 || ::setuid(65534) != 0) ::_exit(2);
    Workers workers(4);
    std::size_t parts = 0;
    const auto shared = workers.share(100, [&](Workers::Claims& claims, bool helper) {
      if (helper) ::_exit(3);
      while (claims.next()) ++parts;
    });
    bool ran = false;
    workers.add([&ran] { ran = true; });
    ::_exit(shared && parts == 100 && !ran ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ckfs
