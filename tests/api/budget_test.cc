// Memory that several checkpoints share.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ckfs/budget.h>
#include <ckfs/checkpoint.h>

#include "api/checkpoint_impl.h"
#include "api/open.h"
#include "base/units.h"
#include "support/forked_child.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

/// A checkpoint of `size` F32 values, and the bytes of its file in the view bf16-safetensors.
class Shared {
 public:
  Shared(std::size_t size, unsigned seed) {
    directory_.write("model.safetensors", safetensors_text({{"t", size}}, seed));
    expected_ = contents(open(directory_.path()).view("bf16-safetensors").value());
  }

  Checkpoint opened(const Budget& budget) const {
    // It takes the place of `memory`, which alone would be refused.
    return open(directory_.path(), {.use = {.memory = 0, .budget = budget}});
  }
  static std::string contents(const View& view) {
    ViewFile file = view.open("model.safetensors").value();
    std::string text(file.info().size, '?');
    for (std::uint64_t at = 0; at < text.size(); at += 1_MiB) {
      const auto piece =
          std::span(text).subspan(at, std::min<std::size_t>(1_MiB, text.size() - at));
      EXPECT_TRUE(file.read(at, std::as_writable_bytes(piece)));
    }
    return text;
  }
  const std::string& expected() const { return expected_; }
  std::filesystem::path path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
  std::string expected_;
};

TEST(Budget, HasAtLeastWhatOneCheckpointNeeds) {
  EXPECT_TRUE(Budget::create(64_MiB));
  EXPECT_TRUE(Budget::create(80_MiB, 16_MiB));
  const auto little = Budget::create(80_MiB, 16_MiB + 1);
  ASSERT_FALSE(little);
  EXPECT_EQ(little.error().code(), ErrorCode::InvalidArgument);
  EXPECT_FALSE(Budget::create(64_MiB - 1));
  EXPECT_FALSE(Budget::create(1_GiB, 15_MiB));
  EXPECT_FALSE(Budget::create(64_MiB, ~std::uint64_t{0}));
}

TEST(Budget, TwoCheckpointsNeverTakeMoreThanItTogether) {
  const Shared one(std::size_t{6} << 20, 1), two(std::size_t{7} << 20, 2);
  const Budget budget = Budget::create(64_MiB).value();
  const Checkpoint first = one.opened(budget);
  const Checkpoint second = two.opened(budget);
  std::atomic<bool> is_over = false;
  std::uint64_t most = 0;
  std::thread watcher([&] {
    while (!is_over) most = std::max(most, budget.held());
  });
  std::vector<std::thread> readers;
  for (int k = 0; k < 3; ++k) {
    readers.emplace_back([&] {
      const View view = first.view("bf16-safetensors").value();
      for (int turn = 0; turn < 3; ++turn) EXPECT_TRUE(Shared::contents(view) == one.expected());
    });
    readers.emplace_back([&] {
      const View view = second.view("bf16-safetensors").value();
      for (int turn = 0; turn < 3; ++turn) EXPECT_TRUE(Shared::contents(view) == two.expected());
    });
  }
  for (std::thread& reader : readers) reader.join();
  is_over = true;
  watcher.join();
  EXPECT_GT(budget.peak(), 0u);
  EXPECT_LE(most, 64_MiB);
  EXPECT_LE(budget.peak(), 64_MiB);
  EXPECT_EQ(budget.memory(), 64_MiB);
  // Both tell the same of it.
  EXPECT_EQ(first.statistics().memory_budget, 64_MiB);
  EXPECT_EQ(first.statistics().memory_peak, second.statistics().memory_peak);
}

TEST(Budget, ResultsThatAreKeptOfOneCountForTheOther) {
  const Shared one(std::size_t{10} << 20, 1), two(std::size_t{10} << 20, 2);
  const Budget budget = Budget::create(64_MiB).value();
  auto first = std::make_optional(one.opened(budget));
  const Checkpoint second = two.opened(budget);
  std::vector<Bytes> kept;
  const auto keep = [&](const Checkpoint& checkpoint, std::size_t bytes) {
    ViewFile file = checkpoint.view("bf16-safetensors")->open("model.safetensors").value();
    for (std::uint64_t at = 0; at < bytes; at += 1_MiB) {
      auto piece = file.read(at, std::size_t{1} << 20);
      ASSERT_TRUE(piece) << piece.error().message();
      kept.push_back(*std::move(piece));
    }
  };
  keep(*first, 16_MiB);  // a quarter: all that results may have
  const KeptResults& counted = *impl_of(second).kept;
  EXPECT_EQ(counted.now(), 16_MiB);
  keep(second, 16_MiB);  // on the heap
  EXPECT_EQ(counted.now(), 16_MiB);
  EXPECT_TRUE(Shared::contents(second.view("bf16-safetensors").value()) == two.expected());
  // They may outlive their checkpoint, and are of the budget until they go.
  first.reset();
  EXPECT_EQ(counted.now(), 16_MiB);
  EXPECT_TRUE(one.expected().starts_with(text_of(kept[0])));
  kept.clear();
  EXPECT_EQ(counted.now(), 0u);
  EXPECT_TRUE(Shared::contents(second.view("bf16-safetensors").value()) == two.expected());
}

TEST(Budget, IsNotUsedByAForkedChild) {
  const Shared one(1000, 1);
  const Budget budget = Budget::create(64_MiB).value();
  const Checkpoint first = one.opened(budget);
  EXPECT_THAT(message_in_child([&] {
                const auto child = Checkpoint::open(one.path(), {.use = {.budget = budget}});
                return child ? std::string("opened") : child.error().message();
              }),
              HasSubstr("the budget: opened by process"));
}

TEST(Budget, ServersTakeTheirsOfWhatIsSetApart) {
  const Budget budget = Budget::create(256_MiB, 100_MiB).value();
  Budget::Impl& impl = Inside::of(budget);
  auto one = impl.take_for_server();
  ASSERT_TRUE(one);
  EXPECT_EQ(**one, 64_MiB);
  const auto two = impl.take_for_server();
  ASSERT_TRUE(two);
  EXPECT_EQ(**two, 36_MiB);
  const auto three = impl.take_for_server();
  ASSERT_FALSE(three);
  EXPECT_EQ(three.error().code(), ErrorCode::OutOfMemory);
  EXPECT_THAT(three.error().message(), HasSubstr("0 are left for servers"));
  one->reset();
  EXPECT_EQ(**impl.take_for_server(), 64_MiB);
}

}  // namespace
}  // namespace ckfs
