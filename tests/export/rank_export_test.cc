#include "export/rank_export.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <sys/stat.h>
#include <thread>

#include "export/fleet.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kView = "bf16-safetensors@max_shard=100KB";

/// What there is below a directory: path -> bytes and seconds of mtime.
std::map<std::string, std::pair<std::string, std::int64_t>> tree(const fs::path& top) {
  std::map<std::string, std::pair<std::string, std::int64_t>> found;
  for (const auto& entry : fs::recursive_directory_iterator(top)) {
    struct stat status{};
    EXPECT_EQ(::stat(entry.path().c_str(), &status), 0);
    const std::string path = entry.path().lexically_relative(top);
    // The folder of the export itself has the time of its last change.
    const bool own = is_own_path(path);
    std::string bytes = "directory";
    if (entry.is_regular_file()) {
      std::ifstream file(entry.path(), std::ios::binary);
      bytes = {std::istreambuf_iterator<char>(file), {}};
    }
    found[path] = {bytes, own ? 0 : status.st_mtim.tv_sec};
  }
  return found;
}

/// Fails every change from a chosen one on: what is left of a process that was killed there.
struct Killer {
  std::atomic<int> left;

  OutSystem system() {
    return {.fault = [this] { return left.fetch_sub(1) > 0 ? 0 : EIO; }};
  }
};

/// A checkpoint of F32 tensors, which a BF16 view decodes, in memory.
class RankExport : public testing::Test {
 protected:
  void SetUp() override {
    write_source(1);
    open();
    const Result<ExportResult> serial = export_view(*view_, serial_, {});
    ASSERT_TRUE(serial.has_value()) << serial.error().message();
    expected_ = tree(serial_);
  }

  void write_source(unsigned seed) {
    directory_.write(
        "src/model-00001-of-00002.safetensors",
        safetensors_text({{"a", 70'000}, {"b", 33}, {"c", 9'000}, {"d", 40'000}}, seed));
    directory_.write("src/model-00002-of-00002.safetensors",
                     safetensors_text({{"e", 1}, {"f", 12'345}, {"g", 2'048}}, seed));
    directory_.write("src/config.json", R"({"architectures":["X"],"torch_dtype":"float32"})");
    directory_.write("src/empty.txt", "");
    directory_.write("src/tokenizer.json", "{}");
    for (const auto& entry : fs::recursive_directory_iterator(source_)) {
      const timespec times[2] = {{1'600'000'000, 0}, {1'600'000'000 + seed, 0}};
      ASSERT_EQ(::utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
    }
  }

  void open(const std::string& view = kView) {
    Result<Checkpoint> opened =
        Checkpoint::open(source_, {.use = {.memory = 64_MiB, .threads = 1}});
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(*opened));
    Result<View> found = checkpoint_->view(view);
    ASSERT_TRUE(found.has_value()) << found.error().message();
    view_ = std::make_unique<View>(std::move(*found));
  }

  Result<RankResult> run(unsigned rank, unsigned world, RankOptions options = {}) const {
    options.rank = rank;
    options.world = world;
    return export_rank(*view_, out_, options);
  }

  /// Lets another process finish before each change that a rank makes.
  void finish_between_steps();
  void finish_while_run_again();
  /// Kills ranks at any change, runs them again, and compares the results.
  void kill_and_resume(int cases);
  /// Removes files that ranks write to, at any change.
  void lose_parts(int cases);

  const TemporaryDirectory directory_{fs::exists("/dev/shm") ? "/dev/shm" : "/tmp"};
  const fs::path source_ = directory_ / "src";
  const fs::path serial_ = directory_ / "serial";
  const fs::path out_ = directory_ / "out";
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<View> view_;
  std::map<std::string, std::pair<std::string, std::int64_t>> expected_;
};

TEST_F(RankExport, WritesWhatOneProcessWrites) {
  for (const Split split : {Split::Ranges, Split::Files}) {
    for (unsigned world : {1U, 2U, 3U, 8U, 100U}) {
      fs::remove_all(out_);
      for (unsigned rank = 0; rank < world; ++rank) {
        const auto result = run(rank, world, {.split = split});
        ASSERT_TRUE(result.has_value()) << result.error().message();
        EXPECT_EQ(result->finished, rank + 1 == world) << result->missing;
      }
      EXPECT_EQ(tree(out_), expected_) << world;
    }
  }
}

TEST_F(RankExport, MakesADirectoryOfAnIndexAlone) {
  directory_.write("src/tf/tf_model.h5.index.json", "{}");
  write_source(1);
  open();
  fs::remove_all(serial_);
  ASSERT_TRUE(export_view(*view_, serial_, {}));
  for (const Split split : {Split::Ranges, Split::Files}) {
    fs::remove_all(out_);
    ASSERT_TRUE(run(0, 2, {.split = split}));
    const auto last = run(1, 2, {.split = split});
    ASSERT_TRUE(last) << last.error().message();
    EXPECT_TRUE(last->finished) << last->missing;
    EXPECT_EQ(tree(out_), tree(serial_));
    EXPECT_EQ(tree(out_).count("tf/tf_model.h5.index.json"), 1U);
  }
}

TEST_F(RankExport, FoldersWithWeightsOfTheirOwnAreSplitToo) {
  fs::remove_all(source_);
  // At the top one storage, in a folder more: those have numbers that the top does not.
  directory_.write("src/model.safetensors", safetensors_text({{"a", 10}}, 1));
  directory_.write("src/modules.json", "[]");
  directory_.write("src/2_Dense/model.safetensors",
                   safetensors_text({{"a", 100}, {"b", 30'000}, {"c", 7}}, 2));
  directory_.write("src/2_Dense/config.json", R"({"in_features": 2})");
  open("bf16-safetensors");
  fs::remove_all(serial_);
  ASSERT_TRUE(export_view(*view_, serial_, {}).has_value());
  for (unsigned rank : {0U, 1U, 2U}) ASSERT_TRUE(run(rank, 3).has_value());
  EXPECT_EQ(tree(out_), tree(serial_));
}

// Two ranks see at once that nothing lacks; whoever is chosen may have taken all records away
// before the other has made its next step.
void RankExport::finish_between_steps() {
  int before = 0;
  for (std::atomic<bool> reached = true; reached; ++before) {
    SCOPED_TRACE(before);
    reached = false;
    fs::remove_all(out_);
    ASSERT_TRUE(run(0, 2).has_value());
    std::atomic<int> calls = 0;  // of several threads
    const OutSystem system{.fault = [&] {
      if (calls++ == before) {
        reached = true;
        // Before this rank is complete it finishes nothing.
        (void)finish_export(*view_, out_, {});
      }
      return 0;
    }};
    auto result = run(1, 2, {.system = system});
    // The other may have removed the records that this one was about to read or write.
    if (!result) {
      EXPECT_EQ(result.error().code(), ErrorCode::NotFound) << result.error().message();
      result = run(1, 2);
    }
    ASSERT_TRUE(result.has_value()) << result.error().message();
    EXPECT_TRUE(result->finished) << result->missing;
    EXPECT_EQ(tree(out_), expected_);
  }
  EXPECT_GT(before, 10);
}

TEST_F(RankExport, AnotherMayFinishBetweenAnyTwoSteps) {
  finish_between_steps();
}

// All ranks are complete and whoever was chosen to finish is gone: somebody does while one of them
// is run again.
void RankExport::finish_while_run_again() {
  const fs::path record = out_ / rank_record_name(1);
  for (const bool force : {false, true}) {
    int before = 0;
    for (bool reached = true; reached; ++before) {
      SCOPED_TRACE(before);
      reached = false;
      fs::remove_all(out_);
      ASSERT_TRUE(run(0, 2).has_value());
      const OutSystem killed{.fault = [&] {
        std::ifstream file(record);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        const Result<RankRecord> written = parse_rank_record(text);
        return written && written->complete ? EIO : 0;
      }};
      ASSERT_FALSE(run(1, 2, {.system = killed}).has_value());
      int calls = 0;
      const OutSystem system{.fault = [&] {
        if (calls++ == before) {
          reached = true;
          EXPECT_TRUE(finish_export(*view_, out_, {}).has_value());
        }
        return 0;
      }};
      const auto result = run(1, 2, {.common = {.force = force}, .system = system});
      ASSERT_TRUE(result.has_value()) << result.error().message();
      EXPECT_TRUE(result->finished) << result->missing;
      EXPECT_EQ(tree(out_), expected_);
    }
    EXPECT_GT(before, 5);
  }
}

TEST_F(RankExport, AnotherMayFinishWhileACompleteRankIsRunAgain) {
  finish_while_run_again();
}

TEST_F(RankExport, AFinishedExportThatLostAFileSaysSo) {
  for (unsigned rank : {0U, 1U}) ASSERT_TRUE(run(rank, 2).has_value());
  fs::remove(out_ / "tokenizer.json");
  const auto message = [](const auto& result) {
    return result ? std::string() : result.error().message();
  };
  const auto lost = HasSubstr("\"tokenizer.json\" is gone or changed");
  EXPECT_THAT(message(run(0, 2)), lost);
  EXPECT_THAT(message(finish_export(*view_, out_)), lost);
  ASSERT_TRUE(export_view(*view_, out_, {}).has_value());
  EXPECT_TRUE(run(0, 2).has_value());
  EXPECT_EQ(tree(out_), expected_);
}

TEST_F(RankExport, WhoeverComesAfterwardsHasNothingToDo) {
  for (unsigned rank : {0U, 1U}) ASSERT_TRUE(run(rank, 2).has_value());
  const auto again = run(0, 2);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->finished);
  EXPECT_EQ(again->bytes, 0U);
  EXPECT_TRUE(finish_export(*view_, out_).has_value());
  EXPECT_EQ(tree(out_), expected_);
  const auto serial = export_view(*view_, out_, {});
  ASSERT_TRUE(serial.has_value()) << serial.error().message();
  EXPECT_EQ(serial->files, 0U);
}

TEST_F(RankExport, KeepsTheRecordWhereAFileSystemKeepsNoMarks) {
  const OutSystem without{.keeps_marks = false};
  for (unsigned rank : {0U, 1U}) ASSERT_TRUE(run(rank, 2, {.system = without}).has_value());
  EXPECT_TRUE(fs::exists(out_ / kRecordName));
  EXPECT_FALSE(fs::exists(out_ / kFleetName));
  const auto again = run(0, 2, {.system = without});
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_TRUE(again->finished);
  const auto serial = export_serial(*view_, out_, {.system = without});
  ASSERT_TRUE(serial.has_value()) << serial.error().message();
  EXPECT_EQ(serial->files, 0U);
  // A system that keeps them makes a mark of it.
  ASSERT_TRUE(export_view(*view_, out_, {}).has_value());
  EXPECT_EQ(tree(out_), expected_);
}

TEST_F(RankExport, NamesRanksThatAreMissing) {
  ASSERT_TRUE(run(1, 4).has_value());
  Killer killer{12};
  EXPECT_FALSE(run(2, 4, {.sync_step = 4096, .system = killer.system()}).has_value());
  const auto finished = finish_export(*view_, out_);
  ASSERT_FALSE(finished.has_value());
  EXPECT_THAT(
      finished.error().message(),
      testing::AllOf(HasSubstr("rank 0 has not begun"), HasSubstr("rank 2 has "),
                     HasSubstr("rank 3 has not begun"), testing::Not(HasSubstr("rank 1 "))));
  for (const auto& [path, content] : tree(out_)) EXPECT_TRUE(is_own_path(path)) << path;
}

TEST_F(RankExport, RefusesAnotherFleetWithBothFacts) {
  ASSERT_TRUE(run(0, 4).has_value());
  const auto world = run(1, 8);
  ASSERT_FALSE(world.has_value());
  EXPECT_THAT(world.error().message(), HasSubstr("4 parts, not 8"));

  const auto split = run(1, 4, {.split = Split::Files});
  ASSERT_FALSE(split.has_value());
  EXPECT_THAT(split.error().message(), HasSubstr("cut by ranges, not by files"));

  const auto serial = export_view(*view_, out_, {});
  ASSERT_FALSE(serial.has_value());
  EXPECT_THAT(serial.error().message(), HasSubstr("several processes export here"));

  const std::string first = fmt::format("{:016x}", checkpoint_->fingerprint());
  open("source");
  const auto view = run(1, 4);
  ASSERT_FALSE(view.has_value());
  EXPECT_THAT(view.error().message(),
              HasSubstr("view bf16-safetensors@max_shard=100KB, not source"));

  write_source(2);
  open();
  const auto source = run(1, 4);
  ASSERT_FALSE(source.has_value());
  EXPECT_THAT(source.error().message(),
              HasSubstr(fmt::format("a source of fingerprint {}, not {:016x}", first,
                                    checkpoint_->fingerprint())));
  const auto finished = finish_export(*view_, out_);
  ASSERT_FALSE(finished.has_value());
  EXPECT_THAT(finished.error().message(), HasSubstr("fingerprint"));
}

TEST_F(RankExport, RefusesWhatAnotherVersionLaysOutElsewhere) {
  ASSERT_TRUE(run(0, 4).has_value());
  const fs::path fleet = out_ / kFleetName;
  std::ifstream file(fleet);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string now = fmt::format("\"layout_version\": {}", kLayoutVersion);
  const std::size_t at = text.find(now);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, now.size(), "\"layout_version\": 999");
  std::ofstream(fleet) << text;
  const auto result = run(1, 4);
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().message(),
              HasSubstr(fmt::format("layout version 999, not {}", kLayoutVersion)));
}

TEST_F(RankExport, RefusesForeignFilesAndStrangers) {
  directory_.write("out/mine.txt", "text");
  const auto foreign = run(0, 2);
  ASSERT_FALSE(foreign.has_value());
  EXPECT_THAT(foreign.error().message(), HasSubstr("mine.txt"));
  EXPECT_TRUE(run(0, 2, {.common = {.force = true}}).has_value());

  fs::permissions(out_, fs::perms::all);
  const auto open_to_all = run(1, 2, {.common = {.force = true}});
  ASSERT_FALSE(open_to_all.has_value());
  EXPECT_THAT(open_to_all.error().message(), HasSubstr("others may write to it"));
}

TEST_F(RankExport, RefusesARankThatSomebodyWrites) {
  const auto directory = OutDirectory::open(out_, {}, Others::OfOneFleet);
  ASSERT_TRUE(directory.has_value());
  ASSERT_TRUE(directory->make_parents(std::string(kFleetName)).has_value());
  const auto lock = directory->lock(rank_lock_name(1));
  ASSERT_TRUE(lock.has_value() && *lock);
  EXPECT_TRUE(run(0, 2).has_value());
  const auto result = run(1, 2);
  ASSERT_FALSE(result.has_value());
  EXPECT_THAT(result.error().message(), HasSubstr("another process writes rank 1 of 2"));
}

TEST_F(RankExport, CutsByFilesWhereAFileTakesNoOffsets) {
  // The first write of the probe is the one at an offset.
  std::atomic<int> writes = 0;
  const OutSystem in_order{.fault = [&] { return ++writes == 4 ? ESPIPE : 0; }};
  ASSERT_TRUE(run(0, 2, {.system = in_order}).has_value());
  std::ifstream file(out_ / kFleetName);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("\"split\": \"files\""));
  ASSERT_TRUE(run(1, 2).has_value());
  EXPECT_EQ(tree(out_), expected_);
}

TEST_F(RankExport, GoesOnAfterADiskThatWasFull) {
  std::atomic<int> calls = 0;
  const OutSystem full{.fault = [&] { return ++calls == 40 ? ENOSPC : 0; }};
  const auto result = run(0, 1, {.sync_step = 4096, .system = full});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().system_error(), ENOSPC);
  EXPECT_THAT(result.error().message(), HasSubstr("no space left: rank 0 needs "));
  ASSERT_TRUE(run(0, 1).has_value());
  EXPECT_EQ(tree(out_), expected_);
}

TEST_F(RankExport, OneOfManyFinishes) {
  for (int round = 0; round < 20; ++round) {
    fs::remove_all(out_);
    std::atomic<int> finished = 0, failed = 0;
    {
      std::vector<std::jthread> ranks;
      for (unsigned rank = 0; rank < 6; ++rank) {
        ranks.emplace_back([&, rank] {
          const auto result = run(rank, 6);
          if (!result) {
            ADD_FAILURE() << result.error().message();
            ++failed;
          }
          if (result && result->finished) ++finished;
        });
      }
    }
    EXPECT_GE(finished, 1);
    EXPECT_EQ(failed, 0);
    EXPECT_EQ(tree(out_), expected_);
  }
}

void RankExport::kill_and_resume(int cases) {
  std::mt19937 random(13);
  const auto up_to = [&](unsigned most) { return static_cast<unsigned>(random() % (most + 1)); };
  int kills = 0;
  for (int i = 0; i < cases; ++i) {
    fs::remove_all(out_);
    const unsigned world = 1 + up_to(6);
    const std::optional<Split> split = up_to(3) == 0 ? std::optional(Split::Files) : std::nullopt;
    const std::uint64_t sync_step = 4096ULL << up_to(5);
    std::vector<unsigned> waiting;
    for (unsigned rank = 0; rank < world; ++rank) waiting.push_back(rank);
    bool finished = false;
    for (int attempt = 0; !finished; ++attempt) {
      ASSERT_LT(attempt, 1000);
      // Ranks come in any order, often again although they are done, and most of them are killed.
      const unsigned rank = waiting[up_to(world - 1)];
      Killer killer{up_to(2) > 0 ? static_cast<int>(up_to(60)) : 1'000'000};
      const auto result = run(rank, world,
                              {.common = {.jobs = 1 + up_to(1)},
                               .split = split,
                               .sync_step = sync_step,
                               .system = killer.system()});
      if (result) {
        finished = result->finished;
      } else {
        ASSERT_LE(killer.left, 0) << result.error().message();
        ++kills;
      }
    }
    ASSERT_EQ(tree(out_), expected_) << "case " << i;
  }
  EXPECT_GT(kills, cases);
}

TEST_F(RankExport, AnyNumberOrderKillsAndResumesGiveTheSerialExport) {
  kill_and_resume(1000);
}

void RankExport::lose_parts(int cases) {
  std::mt19937 random(7);
  const auto up_to = [&](unsigned most) { return static_cast<unsigned>(random() % (most + 1)); };
  const auto lose_one = [&] {
    std::vector<fs::path> parts;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(out_ / kExportFolder, none)) {
      if (entry.path().extension() == ".part") parts.push_back(entry.path());
    }
    if (!parts.empty()) fs::remove(parts[up_to(static_cast<unsigned>(parts.size()) - 1)]);
  };
  int gone = 0, removed = 0;
  for (int i = 0; i < cases; ++i) {
    fs::remove_all(out_);
    const unsigned world = 2 + up_to(2);
    for (bool finished = false; !finished;) {
      auto before = static_cast<int>(up_to(400));
      const auto result = run(up_to(world - 1), world,
                              {.common = {.jobs = 1}, .sync_step = 4096, .system = {.fault = [&] {
                                                                           if (before-- == 0)
                                                                             lose_one();
                                                                           return 0;
                                                                         }}});
      if (result) {
        finished = result->finished;
        continue;
      }
      const std::string& message = result.error().message();
      if (message.find("was removed while rank") != std::string::npos) {
        ++removed;
      } else {
        ASSERT_THAT(message, testing::ContainsRegex(R"(is gone, with .*begin again\))"));
        ++gone;
        fs::remove_all(out_);
      }
    }
    ASSERT_EQ(tree(out_), expected_) << "case " << i;
  }
  EXPECT_GT(gone, 10);
  EXPECT_GT(removed, 0);
}

TEST_F(RankExport, APartThatIsLostIsNoZeros) {
  lose_parts(300);
}

/// A model of BF16 matrices, which a view quantizes: its ranks are cut by weights.
class QuantizingRanks : public RankExport {
 protected:
  static constexpr const char* kFp8 = "fp8-safetensors";

  void SetUp() override {
    std::string header, data;
    std::mt19937 random(5);
    const auto add = [&](const std::string& name, std::vector<int> shape) {
      const std::size_t begin = data.size();
      std::size_t count = 1;
      for (const int size : shape) count *= static_cast<std::size_t>(size);
      for (std::size_t i = 0; i < count; ++i) {  // numbers of about one size
        data += static_cast<char>(random());
        data += static_cast<char>(0x3c + (random() & 0x83));
      }
      header +=
          fmt::format(R"({}"{}":{{"dtype":"BF16","shape":[{}],"data_offsets":[{},{}]}})",
                      header.empty() ? "" : ",", name, fmt::join(shape, ","), begin, data.size());
    };
    add("model.embed_tokens.weight", {70, 64});
    for (int layer = 0; layer < 4; ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.", layer);
      add(prefix + "input_layernorm.weight", {64});
      for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
        add(prefix + "self_attn." + name + ".weight", {64, 256});
      }
    }
    directory_.write("src/model.safetensors", ckfs::safetensors_file("{" + header + "}", data));
    directory_.write("src/config.json", R"({"model_type":"llama"})");
    directory_.write("src/empty.txt", "");
    show(kFp8);
  }

  void show(const std::string& view) {
    open(view);
    fs::remove_all(serial_);
    const Result<ExportResult> serial = export_view(*view_, serial_, {});
    ASSERT_TRUE(serial.has_value()) << serial.error().message();
    expected_ = tree(serial_);
  }

  Split split() const {
    std::ifstream file(out_ / kFleetName);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const Result<Fleet> fleet = parse_fleet(text);
    EXPECT_TRUE(fleet) << fleet.error().message();
    return fleet->split;
  }
};

TEST_F(QuantizingRanks, WriteWhatOneProcessWrites) {
  for (const char* view : {kFp8, "fp8-safetensors@block=tensor", "ct-safetensors@scheme=NVFP4A16",
                           "nf4-safetensors"}) {
    show(view);
    for (const unsigned world : {1U, 2U, 3U, 5U, 100U}) {
      fs::remove_all(out_);
      for (unsigned rank = 0; rank < world; ++rank) {
        const auto result = run(rank, world);
        ASSERT_TRUE(result.has_value()) << result.error().message();
        EXPECT_EQ(result->finished, rank + 1 == world) << result->missing;
        // With a hundred ranks a weight is more than two times the mean.
        if (world > 1 && rank == 0) {
          EXPECT_EQ(split(), world == 100 ? Split::Ranges : Split::Weights);
        }
      }
      EXPECT_EQ(tree(out_), expected_) << view << " " << world;
    }
  }
}

TEST_F(QuantizingRanks, AnyNumberOrderKillsAndResumesGiveTheSerialExport) {
  kill_and_resume(60);
}

TEST_F(QuantizingRanks, APartThatIsLostIsNoZeros) {
  lose_parts(60);
}

TEST_F(QuantizingRanks, AnotherMayFinishBetweenAnyTwoSteps) {
  finish_between_steps();
}

TEST_F(QuantizingRanks, AnotherMayFinishWhileACompleteRankIsRunAgain) {
  finish_while_run_again();
}

TEST_F(QuantizingRanks, AnyOfManyMayFinish) {
  for (int round = 0; round < 10; ++round) {
    fs::remove_all(out_);
    std::atomic<int> finished = 0;
    {
      std::vector<std::jthread> ranks;
      for (unsigned rank = 0; rank < 4; ++rank) {
        ranks.emplace_back([&, rank] {
          const auto result = run(rank, 4);
          if (!result) ADD_FAILURE() << result.error().message();
          if (result && result->finished) ++finished;
        });
      }
    }
    EXPECT_GE(finished, 1);
    EXPECT_EQ(tree(out_), expected_);
  }
}

TEST_F(QuantizingRanks, SayWhatIsLeft) {
  Killer killer{20};
  EXPECT_FALSE(run(0, 2, {.sync_step = 4096, .system = killer.system()}));
  const auto other = run(1, 2);
  ASSERT_TRUE(other) << other.error().message();
  EXPECT_FALSE(other->finished);
  EXPECT_THAT(other->missing, testing::ContainsRegex("rank 0 has [0-9]+ KB left to write"));
  const auto rest = run(0, 2);
  ASSERT_TRUE(rest) << rest.error().message();
  EXPECT_TRUE(rest->finished);
  EXPECT_EQ(tree(out_), expected_);
}

TEST_F(QuantizingRanks, BelieveNoRecordThatLeavesOutBytes) {
  ASSERT_TRUE(run(0, 2));
  const fs::path path = out_ / rank_record_name(0);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  RankRecord record = *parse_rank_record(text);
  ASSERT_FALSE(record.kept.empty());
  for (const bool shorter : {true, false}) {
    RankRecord wrong = record;
    if (shorter) {
      wrong.kept.begin()->second.pop_back();
    } else {
      wrong.kept.erase(wrong.kept.begin());
    }
    std::ofstream(path) << to_json(wrong);
    const auto last = run(1, 2);
    ASSERT_FALSE(last);
    EXPECT_THAT(last.error().message(), HasSubstr("do not have each byte once"));
    EXPECT_FALSE(fs::exists(out_ / "model.safetensors"));
  }
  std::ofstream(path) << to_json(record);
  const auto last = run(1, 2);
  ASSERT_TRUE(last) << last.error().message();
  EXPECT_EQ(tree(out_), expected_);
}

}  // namespace
}  // namespace ckfs
