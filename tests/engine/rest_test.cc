// What an engine and its source give back when nobody reads.
#include <atomic>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <latch>
#include <optional>
#include <thread>

#include "base/units.h"
#include "engine/engine.h"
#include "support/memory_source.h"

namespace ckfs {
namespace {

using namespace std::chrono_literals;

/// A source that holds memory for speed, as chunks do, and can be slow in all it does.
class RestingSource final : public ByteSource {
 public:
  Result<void> read(std::span<const ReadRequest> batch) override {
    const int before = rests;
    // The delay of a slow source.
    std::this_thread::sleep_for(reads_take);
    rests_in_reads += rests - before;
    return files.read(batch);
  }
  void rest(const std::function<bool()>& still) override {
    ++rests;
    while (never_ends && still()) std::this_thread::sleep_for(1ms);
    held.reset();
  }
  Result<void> verify(std::span<const FileId> ids) override { return files.verify(ids); }
  std::uint64_t size(FileId file) const override { return files.size(file); }
  const std::string& name(FileId file) const override { return files.name(file); }

  MemorySource files;
  std::chrono::milliseconds reads_take{0};
  bool never_ends = false;
  std::atomic<int> rests = 0, rests_in_reads = 0;
  std::optional<Buffer> held;
};

/// A tensor of 1 MiB, alone in a file.
class Rest : public testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kLook{10};

  Rest() {
    source_.files.add("w.bin", std::vector<std::byte>(1_MiB));
    CatalogBuilder builder("test");
    const Extent extent{0, 0, 1_MiB};
    const StorageId storage = builder.add_storage(DType::U8, 1_MiB, std::span(&extent, 1));
    const std::int64_t shape[] = {1_MiB};
    builder.add_tensor("w", shape, storage, {});
    catalog_ = std::move(builder).build();
    auto definition = std::make_shared<Definition>();
    definition->catalog = catalog_;
    definition->tensors.push_back({"w", TensorExpr::stored(*catalog_, 0), Exactness::BitExact});
    FileLayout file;
    file.path = "w";
    file.segments.push_back({0, 0, 0, Segment::Kind::Tensor});
    file.size = 1_MiB;
    file.definition = std::move(definition);
    file.finish();
    file_ = std::make_shared<FileLayout>(std::move(file));
    engine_ = std::make_unique<Engine>(
        catalog_, source_, pool_, EngineOptions{.look = kLook, .rest = [this] { ++other_rests_; }});
  }

  void read_once() {
    const auto stream = engine_->open_stream(file_);
    EXPECT_TRUE(engine_->read(*stream, {0, 4096}));
  }

  /// Or for 10 s.
  static void wait_until(const std::function<bool()>& is_so) {
    for (int i = 0; i < 1000 && !is_so(); ++i) std::this_thread::sleep_for(kLook);
  }

  std::atomic<int> other_rests_ = 0;
  RestingSource source_;
  const std::shared_ptr<BufferPool> pool_ = BufferPool::create(64_MiB);
  std::shared_ptr<const Catalog> catalog_;
  std::shared_ptr<const FileLayout> file_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(Rest, GivesBackWhatTheSourceLetGo) {
  source_.held = *pool_->acquire(Tier::Source, 1_MiB);
  read_once();
  wait_until([&] { return engine_->statistics().memory == 0; });
  EXPECT_EQ(engine_->statistics().memory, 0U);
  EXPECT_EQ(source_.rests, 1);
  wait_until([&] { return other_rests_ > 0; });
  EXPECT_EQ(other_rests_, 1);
}

TEST_F(Rest, DoesNotBeginWhileARequestWaits) {
  source_.reads_take = 20 * kLook;
  read_once();
  wait_until([&] { return source_.rests > 0; });
  EXPECT_GT(source_.rests, 0);
  EXPECT_EQ(source_.rests_in_reads, 0);
}

TEST_F(Rest, EndsWithTheNextRequestAndWithTheEngine) {
  source_.never_ends = true;
  for (int round = 1; round <= 3; ++round) {
    read_once();
    wait_until([&] { return source_.rests >= round; });
    ASSERT_EQ(source_.rests, round);
  }
  engine_.reset();
}

}  // namespace
}  // namespace ckfs
