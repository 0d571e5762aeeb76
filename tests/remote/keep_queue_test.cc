// Bytes that were fetched go to the disk behind their readers' backs, whatever the disk does.
#include "remote/keep_queue.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "cache/cached_listing.h"
#include "fetch/fetch_queue.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kPiece = kCacheCell;

/// A fetcher that gives pieces of 64 KiB, and a cache whose disk does what a test says.
class KeepQueueTest : public testing::Test {
 protected:
  KeepQueueTest() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    fetcher_.reset(ends[1]);
    queue_ = FetchQueue::make(UniqueFd(ends[0]), SharedMemory::make(kMemory).value(),
                              std::chrono::seconds(60))
                 .value();
    FetchMessage hello;
    hello.kind = FetchMessageKind::Hello;
    hello.generation = 1;
    EXPECT_TRUE(send_message(fetcher_.get(), hello));
  }

  FetchedBytes fetched() {
    std::promise<FetchedBytes> promise;
    FetchMessage message;
    message.kind = FetchMessageKind::List;
    queue_->ask(message, std::string(kPiece, 'x'), kPiece,
                [&](Result<FetchedBytes> bytes, const FetchMessage&) {
                  promise.set_value(std::move(bytes).value());
                });
    FetchMessage answer = receive_message(fetcher_.get()).value();
    answer.kind = FetchMessageKind::Answer;
    answer.size = kPiece;
    EXPECT_TRUE(send_message(fetcher_.get(), answer));
    return promise.get_future().get();
  }

  void open(std::function<int()> fault) {
    cache_ = BlockCache::open(directory_ / "cache",
                              {.keep_free = 0, .system = {.fault = std::move(fault)}})
                 .value();
    place_ = cache_->source("hf://o/r").value();
  }

  bool is_kept(std::uint64_t piece) {
    std::vector<std::byte> out(kPiece);
    return cache_->get(place_, cache_object(object_), piece * kPiece, out).empty() &&
           out.front() == std::byte{'x'};
  }

  static constexpr std::size_t kMemory = 8 * kPiece;
  const TemporaryDirectory directory_;
  const RemoteObject object_{.name = "o", .size = 100 * kPiece, .version = "v"};
  UniqueFd fetcher_;
  std::unique_ptr<FetchQueue> queue_;
  std::unique_ptr<BlockCache> cache_;
  BlockCache::Source place_;
};

TEST_F(KeepQueueTest, KeepsWhatItTakesAndGivesTheMemoryBack) {
  open([] { return 0; });
  {
    KeepQueue keeps(*cache_, kMemory);
    for (std::uint64_t piece : {0, 1, 7}) keeps.add(place_, object_, piece * kPiece, fetched());
    keeps.drain([] { return true; });
    EXPECT_EQ(keeps.dropped(), 0u);
    EXPECT_TRUE(is_kept(0) && is_kept(1) && is_kept(7));
    keeps.add(place_, object_, 9 * kPiece, fetched());
  }
  EXPECT_TRUE(is_kept(9));  // what waited at its end, too
  EXPECT_EQ(queue_->free_memory(), kMemory);
}

TEST_F(KeepQueueTest, DropsWhatADiskDoesNotTakeInTime) {
  std::atomic<bool> is_stuck = false;
  std::promise<void> reached, goes_on;
  open([&] {
    if (is_stuck.exchange(false)) {
      reached.set_value();
      goes_on.get_future().wait();
    }
    return 0;
  });
  KeepQueue keeps(*cache_, 2 * kPiece);
  is_stuck = true;
  keeps.add(place_, object_, 0, fetched());
  reached.get_future().wait();
  // The reader of the second waits for nothing, and that of the third neither.
  keeps.add(place_, object_, kPiece, fetched());
  keeps.add(place_, object_, 2 * kPiece, fetched());
  EXPECT_EQ(keeps.dropped(), kPiece);
  EXPECT_EQ(queue_->free_memory(), kMemory - 2 * kPiece);
  goes_on.set_value();
  keeps.drain([] { return true; });
  EXPECT_TRUE(is_kept(0) && is_kept(1));
  EXPECT_FALSE(is_kept(2));
}

TEST_F(KeepQueueTest, OutlivesADiskThatFails) {
  std::atomic<bool> fails = false;
  open([&] { return fails ? EIO : 0; });
  KeepQueue keeps(*cache_, kMemory);
  fails = true;
  keeps.add(place_, object_, 0, fetched());
  keeps.drain([] { return true; });
  EXPECT_FALSE(is_kept(0));
  EXPECT_EQ(queue_->free_memory(), kMemory);
  fails = false;
  keeps.add(place_, object_, 0, fetched());
  keeps.drain([] { return true; });
  EXPECT_TRUE(is_kept(0));
}

}  // namespace
}  // namespace ckfs
