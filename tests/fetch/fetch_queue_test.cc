#include "fetch/fetch_queue.h"

#include <array>
#include <csignal>
#include <cstring>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/stop.h"
#include "support/failing_heap.h"

namespace ckfs {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// The other end, played by the test.
class PlayedFetcher {
 public:
  explicit PlayedFetcher(std::size_t memory = 16 * kLeastPlace,
                         milliseconds timeout = std::chrono::seconds(60)) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    socket.reset(ends[1]);
    auto shared = SharedMemory::make(memory).value();
    theirs.emplace(SharedMemory::map(UniqueFd(::dup(shared.descriptor()))).value());
    bytes = theirs->bytes();
    queue = FetchQueue::make(UniqueFd(ends[0]), std::move(shared), timeout).value();
  }

  void hello(std::uint32_t generation) {
    FetchMessage message;
    message.kind = FetchMessageKind::Hello;
    message.generation = its_generation = generation;
    ASSERT_TRUE(send_message(socket.get(), message));
  }

  FetchMessage next() { return receive_message(socket.get()).value(); }

  std::string input(const FetchMessage& message) const {
    return {reinterpret_cast<const char*>(bytes.data()) + message.place, message.input};
  }

  void answer(FetchMessage message, std::string_view text, std::uint16_t code = 0) {
    std::memcpy(bytes.data() + message.place, text.data(), text.size());
    message.kind = FetchMessageKind::Answer;
    message.code = code;
    message.size = text.size();
    message.generation = its_generation;
    ASSERT_TRUE(send_message(socket.get(), message));
  }

  UniqueFd socket;
  std::optional<SharedMemory> theirs;
  std::span<std::byte> bytes;
  std::unique_ptr<FetchQueue> queue;
  std::uint32_t its_generation = 0;
};

/// What becomes of a request.
struct Outcome {
  std::promise<Result<std::string>> promise;
  std::future<Result<std::string>> future = promise.get_future();

  FetchAnswered answered() {
    return [this](Result<FetchedBytes> result, const FetchMessage&) {
      if (!result) return promise.set_value(Failure(result.error()));
      const std::span<const std::byte> bytes = result->span();
      promise.set_value(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    };
  }
  Result<std::string> get() { return future.get(); }
};

FetchMessage of_kind(FetchMessageKind kind, std::uint32_t source = 0) {
  FetchMessage message;
  message.kind = kind;
  message.source = source;
  return message;
}

TEST(FetchQueue, WaitsForAFetcherAndGivesItsAnswer) {
  PlayedFetcher fetcher;
  Outcome outcome;
  fetcher.queue->ask(of_kind(FetchMessageKind::Open), "where", kLeastPlace, outcome.answered());
  fetcher.hello(1);
  const FetchMessage message = fetcher.next();
  EXPECT_EQ(message.kind, FetchMessageKind::Open);
  EXPECT_EQ(message.generation, 1);
  EXPECT_EQ(fetcher.input(message), "where");
  fetcher.answer(message, "there");
  EXPECT_EQ(outcome.get().value(), "there");
}

TEST(FetchQueue, GivesErrorsAsTheyAreSaid) {
  PlayedFetcher fetcher;
  fetcher.hello(1);
  Outcome stale, unknown;
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, stale.answered());
  fetcher.answer(fetcher.next(), "it was\nchanged", static_cast<int>(ErrorCode::Stale) + 1);
  const auto result = stale.get();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::Stale);
  EXPECT_EQ(result.error().message(), "it was changed");
  // A code that is none, and a size that is none: still within the place.
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, unknown.answered());
  FetchMessage message = fetcher.next();
  message.kind = FetchMessageKind::Answer;
  message.code = 60'000;
  message.size = ~std::uint64_t{0};
  message.place = ~std::uint64_t{0};
  ASSERT_TRUE(send_message(fetcher.socket.get(), message));
  EXPECT_EQ(unknown.get().error().code(), ErrorCode::Io);
}

TEST(FetchQueue, AttachesASourceBeforeItsFirstReadInEachGeneration) {
  PlayedFetcher fetcher;
  fetcher.queue->set_source(5, "how", 0);
  fetcher.hello(1);
  Outcome first, second;
  fetcher.queue->ask(of_kind(FetchMessageKind::Read, 5), "a", kLeastPlace, first.answered());
  EXPECT_EQ(fetcher.input(fetcher.next()), "how");
  fetcher.answer(fetcher.next(), "1");
  EXPECT_EQ(first.get().value(), "1");
  fetcher.queue->ask(of_kind(FetchMessageKind::Read, 5), "b", kLeastPlace, second.answered());
  EXPECT_EQ(fetcher.input(fetcher.next()), "b");
  // It dies with the read.
  fetcher.hello(2);
  const FetchMessage attach = fetcher.next();
  EXPECT_EQ(attach.kind, FetchMessageKind::Attach);
  EXPECT_EQ(attach.generation, 2);
  EXPECT_EQ(fetcher.input(attach), "how");
  const FetchMessage again = fetcher.next();
  EXPECT_EQ(again.kind, FetchMessageKind::Read);
  EXPECT_EQ(fetcher.input(again), "b");
  fetcher.answer(again, "2");
  EXPECT_EQ(second.get().value(), "2");
}

TEST(FetchQueue, HoldsRequestsBackUntilThereIsRoom) {
  PlayedFetcher fetcher(4 * kLeastPlace);
  fetcher.hello(1);
  std::array<Outcome, 10> outcomes;
  for (Outcome& each : outcomes) {
    fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, each.answered());
  }
  std::vector<FetchMessage> sent;
  for (int i = 0; i < 4; ++i) sent.push_back(fetcher.next());
  for (std::size_t i = 0; i < 10; ++i) {
    fetcher.answer(sent[i], std::to_string(i));
    EXPECT_EQ(outcomes[i].get().value(), std::to_string(i));
    if (i < 6) sent.push_back(fetcher.next());
  }
}

TEST(FetchQueue, LendsAPlaceUntilItsBytesAreDropped) {
  PlayedFetcher fetcher(kLeastPlace);
  fetcher.hello(1);
  std::promise<FetchedBytes> promise;
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace,
                     [&](Result<FetchedBytes> result, const FetchMessage&) {
                       promise.set_value(std::move(result).value());
                     });
  fetcher.answer(fetcher.next(), "lent");
  std::optional<FetchedBytes> lent = promise.get_future().get();
  Outcome next;
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "second", kLeastPlace, next.answered());
  EXPECT_EQ(fetcher.queue->free_memory(), 0);
  EXPECT_EQ(lent->span().size(), 4);
  EXPECT_EQ(std::memcmp(lent->span().data(), "lent", 4), 0);
  lent.reset();
  const FetchMessage second = fetcher.next();
  EXPECT_EQ(fetcher.input(second), "second");
  fetcher.answer(second, "fine");
  EXPECT_EQ(next.get().value(), "fine");
}

TEST(FetchQueue, NeverWaitsForAFetcherThatWaitsForIt) {
  // More than the socket takes in both directions: the fetcher answers all before it takes more.
  constexpr std::size_t kMany = 3000;
  PlayedFetcher fetcher(kMany * kLeastPlace);
  fetcher.hello(1);
  std::vector<Outcome> outcomes(kMany);
  for (Outcome& each : outcomes) {
    fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, each.answered());
  }
  for (std::size_t i = 0; i < kMany; ++i) fetcher.answer(fetcher.next(), std::to_string(i));
  for (std::size_t i = 0; i < kMany; ++i) EXPECT_EQ(outcomes[i].get().value(), std::to_string(i));
}

TEST(FetchQueue, KeepsThePlaceOfACancelledRequestUntilItIsAnswered) {
  PlayedFetcher fetcher(kLeastPlace);
  fetcher.hello(1);
  Outcome cancelled, next;
  const auto id = fetcher.queue->ask(of_kind(FetchMessageKind::List), "first", kLeastPlace,
                                     cancelled.answered());
  const FetchMessage message = fetcher.next();
  fetcher.queue->cancel(id);
  EXPECT_EQ(cancelled.get().error().code(), ErrorCode::Stopped);
  const FetchMessage cancel = fetcher.next();
  EXPECT_EQ(cancel.kind, FetchMessageKind::Cancel);
  EXPECT_EQ(cancel.id, id);
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "second", kLeastPlace, next.answered());
  EXPECT_EQ(fetcher.queue->free_memory(), 0);
  EXPECT_EQ(fetcher.input(message), "first");
  fetcher.answer(message, "late");
  const FetchMessage second = fetcher.next();
  EXPECT_EQ(fetcher.input(second), "second");
  fetcher.answer(second, "fine");
  EXPECT_EQ(next.get().value(), "fine");
}

TEST(FetchQueue, CancelsAtOnceWhereMemoryHasEnded) {
  CKFS_NEEDS_FAILING_HEAP();
  PlayedFetcher fetcher(kLeastPlace);
  fetcher.hello(1);
  Outcome sent, waits;
  std::array<std::uint64_t, 2> ids{};
  ids[0] = fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, sent.answered());
  (void)fetcher.next();
  ids[1] = fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, waits.answered());
  failing_heap::left = 0;
  for (const std::uint64_t id : ids) fetcher.queue->cancel(id);
  failing_heap::left = -1;
  EXPECT_EQ(sent.get().error().code(), ErrorCode::Stopped);
  EXPECT_EQ(waits.get().error().code(), ErrorCode::Stopped);
}

TEST(FetchQueue, FailsAllWhenTheFetcherIsGoneForGood) {
  PlayedFetcher fetcher(kLeastPlace);
  fetcher.hello(1);
  Outcome sent, queued, later;
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, sent.answered());
  (void)fetcher.next();
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, queued.answered());
  fetcher.socket.reset();
  EXPECT_THAT(sent.get().error().message(), HasSubstr("ckfs-fetcher has ended"));
  EXPECT_EQ(queued.get().error().code(), ErrorCode::Io);
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, later.answered());
  EXPECT_EQ(later.get().error().code(), ErrorCode::Io);
}

TEST(FetchQueue, StopsThoseThatWaitWhenItEnds) {
  PlayedFetcher fetcher;
  fetcher.hello(1);
  Outcome outcome;
  fetcher.queue->ask(of_kind(FetchMessageKind::List), "", kLeastPlace, outcome.answered());
  fetcher.queue.reset();
  EXPECT_EQ(outcome.get().error().code(), ErrorCode::Stopped);
}

TEST(FetchQueue, EndsItsSocketThoughAChildThatWasForkedHoldsIt) {
  PlayedFetcher fetcher;
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  fetcher.queue.reset();
  pollfd ended{fetcher.socket.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 20'000), 1) << "the socket is still open";
  EXPECT_TRUE(ended.revents & POLLHUP);
  ::kill(child, SIGKILL);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(FetchQueue, StopsAWaitWhoseThreadIsToStop) {
  PlayedFetcher fetcher;
  fetcher.hello(1);
  std::stop_source stop;
  auto waits = std::async(std::launch::async, [&] {
    const StopScope scope(stop.get_token());
    FetchMessage answer;
    return fetcher.queue->ask_now(of_kind(FetchMessageKind::List), "", kLeastPlace, answer);
  });
  const FetchMessage message = fetcher.next();
  stop.request_stop();
  EXPECT_EQ(waits.get().error().code(), ErrorCode::Stopped);
  EXPECT_EQ(fetcher.next().kind, FetchMessageKind::Cancel);
  fetcher.answer(message, "");
}

}  // namespace
}  // namespace ckfs
