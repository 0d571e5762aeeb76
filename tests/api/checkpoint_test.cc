#include <atomic>
#include <chrono>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <thread>

#include <ckfs/checkpoint.h>

#include "api/checkpoint_impl.h"
#include "api/inside.h"
#include "api/open.h"
#include "api/small_reader.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

namespace fs = std::filesystem;

const fs::path kDeepseek = fs::path(CKFS_TEST_DATA) / "hf/deepseek-v3-fp8/source";
constexpr const char* kShard = "model-00001-of-00003.safetensors";

TEST(Checkpoint, RefusesABudgetThatCannotWork) {
  const auto checkpoint = Checkpoint::open(kDeepseek, {.use = {.memory = (64 << 20) - 1}});
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(checkpoint.error().code(), ErrorCode::InvalidArgument);
  EXPECT_EQ(checkpoint.error().message(), "memory: 67108863 < 64MiB");
}

TEST(Checkpoint, TellsWhatIsNotThere) {
  const auto checkpoint = Checkpoint::open("/no/such/checkpoint");
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(checkpoint.error().code(), ErrorCode::NotFound);
}

TEST(Checkpoint, ListsViewsInTheOrderOfTheDocs) {
  std::vector<std::string> names;
  for (const ViewInfo& view : open(kDeepseek).views()) {
    // Its weights are FP8 of such blocks already.
    const bool absent =
        view.name == "safetensors" || view.name == "orbax" || view.name == "fp8-safetensors";
    EXPECT_EQ(view.available, !absent) << view.name;
    EXPECT_FALSE(view.description.empty()) << view.name;
    names.push_back(view.name);
  }
  EXPECT_THAT(names,
              ElementsAre("bf16-safetensors", "fp16-safetensors", "fp32-safetensors",
                          "fp8-safetensors", "ct-safetensors", "nf4-safetensors", "safetensors",
                          "fp32-consolidated", "maxtext-unscanned", "maxtext-scanned",
                          "megatron-torch-dist", "dcp", "orbax", "source"));
}

TEST(Checkpoint, GivesOneViewForAllItsSpellings) {
  const Checkpoint checkpoint = open(kDeepseek);
  const auto plain = checkpoint.view("bf16-safetensors");
  const auto spelled = checkpoint.view("bf16-safetensors@experts=source,cast=quantized");
  ASSERT_TRUE(plain && spelled);
  EXPECT_EQ(spelled->name(), "bf16-safetensors");
  EXPECT_EQ(&impl_of(*plain), &impl_of(*spelled));
  const auto other = checkpoint.view("bf16-safetensors@cast=all");
  ASSERT_TRUE(other);
  EXPECT_NE(file_inode(*plain, 0), file_inode(*other, 0));
}

TEST(Checkpoint, CountsWhatReadersOfEachFileWereGiven) {
  const Checkpoint checkpoint = open(kDeepseek);
  const auto view = checkpoint.view("bf16-safetensors");
  ASSERT_TRUE(view);
  EXPECT_TRUE(checkpoint.statistics().given.empty());
  auto file = view->open(kShard);
  ASSERT_TRUE(file);
  ASSERT_TRUE(file->read(0, 100));
  std::vector<std::byte> out(50);
  ASSERT_TRUE(file->read(1000, out));
  auto given = checkpoint.statistics().given;
  ASSERT_EQ(given.size(), 1U);
  EXPECT_EQ(given[0].view, "bf16-safetensors");
  EXPECT_EQ(given[0].path, kShard);
  EXPECT_EQ(given[0].bytes, 150U);
}

TEST(Checkpoint, SaysWhyAViewIsNotGiven) {
  const Checkpoint checkpoint = open(kDeepseek);
  EXPECT_EQ(checkpoint.view("bf32-safetensors").error().code(), ErrorCode::NotFound);
  EXPECT_EQ(checkpoint.view("bf16-safetensors@cast=no").error().code(), ErrorCode::InvalidArgument);
  EXPECT_EQ(checkpoint.view("bf16-safetensors@tp=2").error().code(), ErrorCode::InvalidArgument);
}

TEST(Checkpoint, NamesEveryTensorThatStandsInTheWay) {
  const TemporaryDirectory directory;
  directory.write("config.json", R"({"quantization_config": {"quant_method": "fp8"}})");
  directory.write(
      "model.safetensors",
      safetensors_file(R"({"a.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[0,4]},)"
                       R"("b.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[4,8]}})",
                       "01234567"));
  const Checkpoint checkpoint = open(directory.path());
  std::size_t absent = 0;
  for (const ViewInfo& view : checkpoint.views()) {
    if (view.available || view.name == "safetensors" || view.name == "orbax") continue;
    ++absent;
    std::vector<std::string> subjects;
    for (const Reason& reason : view.reasons) subjects.push_back(reason.subject);
    EXPECT_THAT(subjects, ElementsAre("a.weight", "b.weight"));
    const auto refused = checkpoint.view(view.name);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::Unsupported);
    EXPECT_THAT(refused.error().message(), HasSubstr("a.weight"));
  }
  EXPECT_EQ(absent, 11u);
  ASSERT_TRUE(checkpoint.view("source"));
}

TEST(Checkpoint, IsTheSameWhenOpenedAgain) {
  const Checkpoint first = open(kDeepseek);
  const Checkpoint second = open(kDeepseek);
  EXPECT_EQ(first.fingerprint(), second.fingerprint());
  EXPECT_EQ(first.mtime(), second.mtime());
  EXPECT_GT(first.mtime(), 0);
  const auto a = first.view("fp16-safetensors");
  const auto b = second.view("fp16-safetensors");
  ASSERT_EQ(a->files().size(), b->files().size());
  for (std::size_t i = 0; i < a->files().size(); ++i) {
    EXPECT_EQ(a->files()[i].path, b->files()[i].path);
    EXPECT_EQ(a->files()[i].size, b->files()[i].size);
    EXPECT_EQ(file_inode(*a, i), file_inode(*b, i));
  }
}

TEST(Checkpoint, ReadsNoTensorDataToListViews) {
  const Checkpoint checkpoint = open(kDeepseek);
  const std::uint64_t headers = checkpoint.statistics().source_bytes;
  for (const ViewInfo& info : checkpoint.views()) {
    if (!info.available) continue;
    const auto view = checkpoint.view(info.name);
    ASSERT_TRUE(view);
    EXPECT_GT(view->files().size(), 0u);
  }
  EXPECT_EQ(checkpoint.statistics().source_bytes, headers);
}

TEST(ViewFile, GivesTheSameBytesForEveryRange) {
  const Checkpoint checkpoint = open(kDeepseek);
  const auto view = checkpoint.view("bf16-safetensors");
  auto file = view->open(kShard);
  ASSERT_TRUE(file);
  const std::uint64_t size = file->info().size;
  const std::string whole = text_of(*file->read(0, size));
  ASSERT_EQ(whole.size(), size);
  std::mt19937_64 random(7);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t offset = random() % size;
    const std::uint64_t length = random() % (i % 10 == 0 ? size : 5000);
    const std::string expected = whole.substr(offset, length);
    ASSERT_EQ(text_of(*file->read(offset, length)), expected) << offset << " " << length;
    std::string out(length, '?');
    const auto got = file->read(offset, std::as_writable_bytes(std::span(out)));
    ASSERT_EQ(got, expected.size());
    ASSERT_EQ(out.substr(0, *got), expected);
  }
}

TEST(ViewFile, IsShortOnlyAtTheEnd) {
  const auto view = open(kDeepseek).view("bf16-safetensors");
  auto file = view->open(kShard);
  ASSERT_TRUE(file);
  const std::uint64_t size = file->info().size;
  EXPECT_EQ(file->read(size, 10)->size(), 0u);
  EXPECT_EQ(file->read(~std::uint64_t{0}, 10)->size(), 0u);
  EXPECT_EQ(file->read(size - 3, 10)->size(), 3u);
  EXPECT_EQ(file->read(0, 0)->size(), 0u);
  EXPECT_EQ(file->read(5, std::span<std::byte>()), 0u);
}

TEST(ViewFile, OutlivesTheCheckpointItCameFrom) {
  std::optional<ViewFile> file;
  {
    const auto view = open(kDeepseek).view("source");
    file.emplace(*view->open("config.json"));
  }
  EXPECT_EQ(text_of(*file->read(0, 1 << 20)), read_text(kDeepseek / "config.json"));
}

TEST(ViewFile, ServesManyThreadsAtOnce) {
  const Checkpoint checkpoint = open(kDeepseek, {.use = {.memory = 64 << 20, .threads = 2}});
  const auto view = checkpoint.view("fp32-safetensors");
  const std::string whole = text_of(*view->open(kShard)->read(0, 1 << 30));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      auto file = view->open(kShard);
      for (int i = 0; i < 100; ++i) {
        const std::uint64_t offset = random() % whole.size();
        const auto bytes = file->read(offset, 20'000);
        if (!bytes || text_of(*bytes) != whole.substr(offset, 20'000)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ViewFile, IsNotFoundUnderAnotherName) {
  const auto view = open(kDeepseek).view("bf16-safetensors");
  for (const char* path : {"", "model", "model-00001-of-00003.safetensors/", "../config.json"}) {
    const auto file = view->open(path);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().code(), ErrorCode::NotFound) << path;
  }
}

TEST(Statistics, CountWhatReadersGot) {
  const Checkpoint checkpoint = open(kDeepseek);
  const auto view = checkpoint.view("bf16-safetensors");
  const Statistics before = checkpoint.statistics();
  auto file = view->open(kShard);
  ASSERT_TRUE(file->read(0, 1000));
  ASSERT_TRUE(file->read(1000, 500));
  const Statistics after = checkpoint.statistics();
  EXPECT_EQ(after.requests - before.requests, 2u);
  EXPECT_EQ(after.bytes_to_readers - before.bytes_to_readers, 1500u);
  EXPECT_GE(after.memory_peak, after.memory);
  EXPECT_EQ(after.memory_budget, std::uint64_t{1} << 30);
  EXPECT_TRUE(after.io == "uring" || after.io == "pread") << after.io;
  std::uint64_t sum = 0;
  for (const Statistics::File& source : after.source) sum += source.bytes;
  EXPECT_EQ(sum, after.source_bytes);
}

TEST(Statistics, CountWhatIsDeliveredAheadOfItsReader) {
  using Clock = std::chrono::steady_clock;
  // Before the checkpoint, whose threads may deliver until it is gone.
  std::atomic<std::uint64_t> taken = 0;
  std::atomic<bool> takes = true;
  const TemporaryDirectory directory;
  directory.write("model.safetensors", safetensors_text({{"t", std::size_t{4} << 20}}, 1));
  const Checkpoint checkpoint = open(directory.path());
  const auto view = checkpoint.view("bf16-safetensors");
  const auto deliver = [&](std::uint64_t, std::span<const std::byte> bytes) {
    if (!takes) return false;
    taken += bytes.size();
    return true;
  };
  std::uint64_t answered = 0;
  const auto late = Clock::now() + std::chrono::seconds(60);
  // On a busy machine a reader may be at the end before a thread begins to compute ahead of it.
  while (taken == 0 && Clock::now() < late) {
    auto file =
        open_stream(*view, view->files().find("model.safetensors").value(), {.deliver = deliver});
    for (std::uint64_t at = 0; at < file->info().size; at += std::uint64_t{64} << 10) {
      const auto bytes = file->read(at, std::size_t{64} << 10);
      ASSERT_TRUE(bytes);
      answered += bytes->size();
      std::this_thread::yield();
    }
  }
  ASSERT_GT(taken, 0u);
  takes = false;
  // A thread counts what was taken just after it was.
  while (checkpoint.statistics().bytes_delivered != taken && Clock::now() < late) {
    std::this_thread::yield();
  }
  const Statistics after = checkpoint.statistics();
  EXPECT_EQ(after.bytes_delivered, taken);
  EXPECT_EQ(after.bytes_to_readers, answered + taken);
  ASSERT_EQ(after.given.size(), 1u);
  EXPECT_EQ(after.given[0].bytes, after.bytes_to_readers);
}

TEST(Version, IsThreeNumbers) {
  EXPECT_THAT(std::string(version()), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

}  // namespace
}  // namespace ckfs
