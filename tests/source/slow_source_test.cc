// Opening checkpoints where each operation on the source takes 5 ms, and where there are no
// threads: what is open is the same, and the operations overlap.
#include <chrono>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "source/open_checkpoint.h"
#include "source/orbax_writer.h"
#include "source/zero_writer.h"
#include "support/delaying_store.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::StartsWith;

constexpr int kShards = 1000;

std::string shard_name(int number) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, kShards);
}

/// A shard with one tensor of its own, larger than what Git-LFS leaves behind.
std::string shard(int number) {
  constexpr std::size_t kBytes = 2048;
  const std::string header = fmt::format(
      R"({{"layers.{:04}.weight":{{"dtype":"F32","shape":[512],"data_offsets":[0,{}]}}}})", number,
      kBytes);
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  return text + header + std::string(kBytes, '\0');
}

class ManyShards : public testing::Test {
 protected:
  ManyShards() {
    for (int i = 1; i <= kShards; ++i) directory_.write(shard_name(i), shard(i));
    directory_.write("config.json", R"({"model_type": "llama"})");
  }

  /// Opens what is in the directory as if it were far away.
  Result<std::shared_ptr<const Catalog>> open(const Parallel& parallel = {}) {
    files_ = LocalFiles::with_reader({.engine = IoEngine::Pread, .parallel = parallel},
                                     std::make_unique<DelayingReader>(far_),
                                     std::make_unique<DelayingStore>(far_));
    return open_checkpoint(directory_.path(), *files_);
  }

  void expect_whole(const Catalog& catalog) const {
    ASSERT_EQ(catalog.tensors().size(), static_cast<std::size_t>(kShards));
    ASSERT_EQ(catalog.files().size(), kShards + 1U);
    for (std::size_t i = 0; i < catalog.files().size(); ++i) {
      EXPECT_EQ(catalog.files()[i].file, i);
      EXPECT_EQ(files_->name(static_cast<FileId>(i)), catalog.files()[i].path);
    }
  }

  TemporaryDirectory directory_;
  FarAway far_;
  std::unique_ptr<SourceFiles> files_;
};

TEST_F(ManyShards, AreOpenedManyAtOnce) {
  far_.delay = std::chrono::milliseconds(5);
  const auto catalog = open();
  ASSERT_TRUE(catalog) << catalog.error().message();
  expect_whole(**catalog);
  // Four threads are what there are before the source is found to be far away. ./dev bench has the
  // time: a twentieth of one at a time.
  EXPECT_GE(far_.most, 20U);
}

TEST_F(ManyShards, CostTwoOperationsEachToRegisterAndTwoReads) {
  const auto catalog = open();
  ASSERT_TRUE(catalog) << catalog.error().message();
  expect_whole(**catalog);
  EXPECT_EQ(far_.lists, 1U);
  EXPECT_LE(far_.resolves, 1U);
  EXPECT_EQ(far_.reads, 2U * kShards + 1);  // and the configuration
  // A file that lost its descriptor to others is opened again for its header; the configuration is
  // once more, to see whether Git-LFS holds it.
  EXPECT_LE(far_.opens, 2U * kShards + 3);
  // One to register, one before and one after each read, one at the path.
  EXPECT_LE(far_.looks, 6U * kShards + 20);
}

TEST_F(ManyShards, OpenWithoutAnyThread) {
  const auto catalog = open({.start = [](const auto& /*work*/) { return std::nullopt; }});
  ASSERT_TRUE(catalog) << catalog.error().message();
  expect_whole(**catalog);
}

TEST_F(ManyShards, OpenWithFewDescriptors) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{40, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  far_.delay = std::chrono::microseconds(100);  // so that there would be many at once
  const auto catalog = open();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(catalog) << catalog.error().message();
  expect_whole(**catalog);
}

TEST_F(ManyShards, TheFirstByPathIsTheOneAtFault) {
  for (const int broken : {900, 17, 500, 18}) directory_.write(shard_name(broken), "{}");
  for (int round = 0; round < 5; ++round) {
    const auto catalog = open();
    ASSERT_FALSE(catalog);
    EXPECT_THAT(catalog.error().message(), StartsWith(shard_name(17)));
  }
}

TEST(SlowSource, DirectoriesOfALevelAreListedAtOnce) {
  const TemporaryDirectory directory;
  for (int i = 0; i < 400; ++i) directory.write(fmt::format("notes/{}/{}.txt", i, i), "text");
  directory.write("model.safetensors", shard(1));
  FarAway far;
  far.delay = std::chrono::milliseconds(5);
  const auto files =
      LocalFiles::with_reader({.engine = IoEngine::Pread}, std::make_unique<DelayingReader>(far),
                              std::make_unique<DelayingStore>(far));
  const auto catalog = open_checkpoint(directory.path(), *files);
  ASSERT_TRUE(catalog) << catalog.error().message();
  EXPECT_EQ((*catalog)->files().size(), 401U);
  EXPECT_EQ(far.lists, 402U);
  EXPECT_GE(far.most, 20U);
}

/// Files of which each is small and there are many, beside few others.
class ManyFiles : public testing::Test {
 protected:
  static constexpr int kMany = 80;

  void expect_opened_many_at_once() {
    FarAway far;
    far.delay = std::chrono::milliseconds(5);
    const auto files =
        LocalFiles::with_reader({.engine = IoEngine::Pread}, std::make_unique<DelayingReader>(far),
                                std::make_unique<DelayingStore>(far));
    const auto catalog = open_checkpoint(directory_.path(), *files);
    ASSERT_TRUE(catalog) << catalog.error().message();
    EXPECT_GE(far.reads, static_cast<std::uint64_t>(kMany));
    EXPECT_LT(far.lone_reads, far.reads / 3);
  }

  void write(const std::string& name, const std::string& bytes) {
    directory_.write("step/" + name, bytes);
  }

  static ZeroRun run_of(std::int64_t world, const std::string& parameter) {
    ZeroRun run;
    run.world = world;
    run.groups = {{{parameter, {2}}}};
    return run;
  }

  /// `stages` of a pipeline, one rank each.
  void write_pipeline(int stages) {
    for (int mp = 0; mp < stages; ++mp) {
      const ZeroWriter writer(run_of(1, fmt::format("{}.w", mp)));
      write(fmt::format("zero_pp_rank_0_mp_rank_{:02}_optim_states.pt", mp),
            writer.optimizer_file(0));
      write(fmt::format("mp_rank_{:02}_model_states.pt", mp),
            writer.model_file({{"module", py_none()}, {"mp_world_size", py_int(stages)}}));
    }
  }

  TemporaryDirectory directory_;
};

TEST_F(ManyFiles, OfStagesOfAPipeline) {
  write_pipeline(kMany);
  expect_opened_many_at_once();
}

TEST_F(ManyFiles, OfLayers) {
  write_pipeline(2);
  for (int layer = 0; layer < kMany; ++layer) {
    write(fmt::format("layer_{:02}-model_states.pt", layer), TorchWriter().file(py_dict({})));
  }
  expect_opened_many_at_once();
}

TEST_F(ManyFiles, OfRanksThatNoLongerExist) {
  const ZeroWriter larger(run_of(2 * kMany, "w"));
  for (int rank = 1; rank < kMany; ++rank) {
    write(ZeroWriter::optimizer_name(rank), larger.optimizer_file(rank));
  }
  ZeroWriter(run_of(1, "w")).write(directory_, "step");
  expect_opened_many_at_once();
}

TEST_F(ManyFiles, OfModelsOfAUniversalCheckpoint) {
  const ZeroWriter writer(run_of(1, "w"));
  for (int mp = 0; mp < kMany; ++mp) {
    write(fmt::format("mp_rank_{:02}_model_states.pt", mp), writer.model_file());
  }
  TorchWriter torch;
  const Opcodes tensor = torch.tensor("Float", {2}, std::string(8, 'x'));
  write("zero/w/fp32.pt", torch.file(py_dict({{"param", tensor}})));
  expect_opened_many_at_once();
}

TEST_F(ManyFiles, OfMetadataOfAnOrbaxItem) {
  OrbaxWriter item;
  for (int process = 0; process < kMany; ++process) {
    item.files[fmt::format("array_metadatas/process_{}", process)] = R"({"array_metadatas": []})";
  }
  item.write(directory_);
  expect_opened_many_at_once();
}

}  // namespace
}  // namespace ckfs
