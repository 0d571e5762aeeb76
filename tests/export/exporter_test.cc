#include "export/exporter.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <memory>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/load_le.h"
#include "base/units.h"
#include "export/export_record.h"
#include "support/forked_child.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string read_text(const fs::path& path) {
  std::string text(fs::file_size(path), '\0');
  std::ifstream(path, std::ios::binary).read(text.data(), std::ssize(text));
  return text;
}

/// A safetensors file with one U8 tensor of `size` bytes that look random.
std::string safetensors_file(const std::string& tensor, std::size_t size, unsigned seed) {
  std::string header = fmt::format(
      R"({{"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})", tensor, size, size);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  store_le(std::as_writable_bytes(std::span(file)), std::uint64_t{header.size()});
  file += header;
  std::uint64_t state = seed;
  std::string word(sizeof state, '\0');
  file.reserve(file.size() + size + word.size());
  const std::size_t end = file.size() + size;
  while (file.size() < end) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t mixed = state ^ (state >> 32);
    std::memcpy(word.data(), &mixed, sizeof mixed);
    file += word;
  }
  file.resize(end);
  return file;
}

/// All calls fail but the first `before`, as after a kill.
struct FailingCalls {
  explicit FailingCalls(int before) : left(before) {}
  OutSystem system() {
    return {.fault = [this] {
      if (left.fetch_sub(1) > 0) return 0;
      failed = true;
      return EIO;
    }};
  }

  std::atomic<int> left;
  std::atomic<bool> failed = false;
};

/// A checkpoint of two shards and two side files, one of them in a directory.
class Exporter : public testing::Test {
 protected:
  void SetUp() override { write_source(3_MiB + 5, 1); }

  void write_source(std::size_t large, unsigned seed) {
    directory_.write("src/model-00001-of-00002.safetensors", safetensors_file("a", large, seed));
    directory_.write("src/model-00002-of-00002.safetensors", safetensors_file("b", 1000, seed));
    directory_.write("src/model.safetensors.index.json",
                     R"({"metadata":{},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
                     R"("b":"model-00002-of-00002.safetensors"}})");
    directory_.write("src/config.json", R"({"architectures":["X"],"torch_dtype":"bfloat16"})");
    directory_.write("src/tokenizer.json", "{}");
    for (const auto& entry : fs::recursive_directory_iterator(source_)) {
      const timespec times[2] = {{1'600'000'000, 0}, {1'600'000'000 + seed, 0}};
      ASSERT_EQ(::utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
    }
    Result<Checkpoint> opened = Checkpoint::open(source_, {.use = {.memory = 64_MiB}});
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(*opened));
  }

  Result<ExportResult> run(const ExportOptions& options = {}, const std::string& view = "source") {
    CKFS_TRY(const View opened, checkpoint_->view(view));
    return export_view(opened, out_, options);
  }
  Result<ExportResult> run_with(const SerialOptions& options, const std::string& view = "source") {
    CKFS_TRY(const View opened, checkpoint_->view(view));
    return export_serial(opened, out_, options);
  }

  /// Makes a finished export of the view "source" what it was before exports had marks.
  void leave_old_record() {
    const Result<OutDirectory> out = OutDirectory::open(out_);
    ASSERT_TRUE(out.has_value());
    const Result<View> view = checkpoint_->view("source");
    ExportRecord record{.origin = {.fingerprint = checkpoint_->fingerprint(),
                                   .view = view->name(),
                                   .layout_version = kLayoutVersion},
                        .files = {}};
    for (const FileInfo& file : view->files()) {
      record.files[std::string(file.path)] = {.size = file.size, .finished = true};
      ASSERT_EQ(::removexattr((out_ / file.path).c_str(), "user.ckfs.export"), 0);
    }
    ASSERT_EQ(::removexattr(out_.c_str(), "user.ckfs.export"), 0);
    ASSERT_TRUE(out->make_parents(std::string(kRecordName)).has_value());
    ASSERT_TRUE(out->replace_text(std::string(kRecordName), to_json(record)).has_value());
  }

  /// Path -> bytes of everything in OUT but what the export keeps for itself.
  std::map<std::string, std::string> exported() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(out_)) {
      const std::string path = entry.path().lexically_relative(out_);
      if (entry.is_regular_file() && !is_own_path(path)) files[path] = read_text(entry.path());
    }
    return files;
  }

  std::map<std::string, std::string> expected(const std::string& view = "source") const {
    std::map<std::string, std::string> files;
    const Result<View> opened = checkpoint_->view(view);
    for (const FileInfo& info : opened->files()) {
      if (view == "source") {
        files[std::string(info.path)] = read_text(source_ / info.path);
        continue;
      }
      Result<ViewFile> file = opened->open(info.path);
      std::string bytes(info.size, '\0');
      EXPECT_EQ(file->read(0, std::as_writable_bytes(std::span(bytes))), info.size);
      files[std::string(info.path)] = bytes;
    }
    return files;
  }

  TemporaryDirectory directory_;
  const fs::path source_ = directory_ / "src";
  const fs::path out_ = directory_ / "out";
  std::unique_ptr<Checkpoint> checkpoint_;
};

// Side files of another framework: their index is written after all shards, its directory with it.
TEST_F(Exporter, MakesADirectoryOfAnIndexAlone) {
  directory_.write("src/tf/tf_model.h5.index.json", "{}");
  write_source(1000, 1);
  const Result<ExportResult> result = run();
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(exported(), expected());
  EXPECT_EQ(exported().count("tf/tf_model.h5.index.json"), 1u);
}

TEST_F(Exporter, WritesEveryFileWithTheCheckpointsTime) {
  const Result<ExportResult> result = run();
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(result->files, 5u);
  EXPECT_EQ(result->files_kept, 0u);
  EXPECT_EQ(exported(), expected());
  for (const auto& [path, bytes] : exported()) {
    struct stat status;
    ASSERT_EQ(::stat((out_ / path).c_str(), &status), 0);
    EXPECT_EQ(status.st_mtim.tv_sec, checkpoint_->mtime());
    EXPECT_EQ(status.st_mtim.tv_nsec, 0);
  }
}

TEST_F(Exporter, TheIndexGetsItsNameAfterAllThatItLists) {
  const fs::path index = out_ / "model.safetensors.index.json";
  int seen = 0;
  const Result<ExportResult> result =
      run({.jobs = 8, .progress = [&](std::uint64_t done, std::uint64_t total) {
             if (done == total || !fs::exists(index)) return;
             ++seen;
           }});
  ASSERT_TRUE(result.has_value()) << result.error().message();
  EXPECT_EQ(seen, 0);
  // Where nothing else gets its name, it gets none either: whatever fails, all calls before it
  // were made.
  for (int before = 0, reached = 1; reached != 0; ++before) {
    fs::remove_all(out_);
    FailingCalls calls(before);
    const Result<ExportResult> killed = run_with({.common = {.jobs = 8}, .system = calls.system()});
    reached = calls.failed ? 1 : 0;
    EXPECT_EQ(killed.has_value(), !calls.failed);
    if (fs::exists(index)) {
      EXPECT_EQ(exported(), expected()) << before;
    }
  }
}

// As file systems answer whose server was interrupted.
TEST_F(Exporter, ACallThatWasInterruptedIsNoStop) {
  for (int before = 0, reached = 1; reached != 0; ++before) {
    fs::remove_all(out_);
    std::atomic<int> left = before;
    const Result<ExportResult> result =
        run_with({.common = {.jobs = 2},
                  .system = {.fault = [&] { return left.fetch_sub(1) == 0 ? EINTR : 0; }}});
    reached = left < 0 ? 1 : 0;
    if (result) {
      EXPECT_EQ(exported(), expected()) << before;
    }
  }
}

TEST_F(Exporter, KeepsFinishedFilesOfAnEarlierRun) {
  ASSERT_TRUE(run().has_value());
  fs::remove(out_ / "tokenizer.json");
  const Result<ExportResult> again = run();
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->files, 1u);
  EXPECT_EQ(again->files_kept, 4u);
  EXPECT_EQ(exported(), expected());
}

TEST_F(Exporter, WritesAFileAgainThatSomebodyChanged) {
  ASSERT_TRUE(run().has_value());
  directory_.write("out/config.json", "{}");
  ASSERT_TRUE(run().has_value());
  EXPECT_EQ(exported(), expected());
}

TEST_F(Exporter, AFinishedExportIsTheFilesOfTheViewAlone) {
  ASSERT_TRUE(run().has_value());
  EXPECT_FALSE(fs::exists(out_ / kExportFolder));
  struct stat status;
  ASSERT_EQ(::stat(out_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mtim.tv_sec, checkpoint_->mtime());
  const Result<ExportResult> again = run_with({.system = {.fault = [] { return EIO; }}});
  ASSERT_TRUE(again.has_value()) << "nothing is changed: " << again.error().message();
  EXPECT_EQ(again->files, 0u);
  EXPECT_EQ(again->files_kept, 5u);
  EXPECT_FALSE(fs::exists(out_ / kExportFolder));
}

TEST_F(Exporter, KnowsAFinishedExportThatWasMoved) {
  ASSERT_TRUE(run().has_value());
  fs::rename(out_, directory_ / "elsewhere");
  const View view = *checkpoint_->view("source");
  const Result<ExportResult> again = export_view(view, directory_ / "elsewhere", {});
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->files, 0u);
}

// As every version before 0.2 left it, and as it stays where a file system keeps no attributes.
TEST_F(Exporter, KnowsAFinishedExportByItsRecord) {
  ASSERT_TRUE(run().has_value());
  leave_old_record();
  const Result<ExportResult> again = run();
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->files, 0u);
  EXPECT_EQ(again->files_kept, 5u);
  EXPECT_FALSE(fs::exists(out_ / kExportFolder)) << "it has become a mark";

  leave_old_record();
  const Result<ExportResult> refused = run({}, "fp32-consolidated");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), HasSubstr("holds a finished export of source"));
  ASSERT_TRUE(run({.force = true}, "fp32-consolidated").has_value());
  EXPECT_EQ(exported(), expected("fp32-consolidated"));
}

TEST_F(Exporter, KeepsItsRecordWhereAFileSystemKeepsNoMarks) {
  const OutSystem without{.keeps_marks = false};
  ASSERT_TRUE(run_with({.system = without}).has_value());
  EXPECT_EQ(exported(), expected());
  EXPECT_EQ(std::distance(fs::directory_iterator(out_ / kExportFolder), {}), 1) << "the record";
  const Result<ExportResult> again = run_with({.system = without});
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->files, 0u);
  EXPECT_EQ(again->files_kept, 5u);
  const Result<ExportResult> refused = run_with({.system = without}, "fp32-consolidated");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), HasSubstr("holds a finished export of source"));
  EXPECT_EQ(exported(), expected());
  const Result<ExportResult> other =
      run_with({.common = {.force = true}, .system = without}, "fp32-consolidated");
  ASSERT_TRUE(other.has_value()) << other.error().message();
  EXPECT_EQ(other->replaced, "a finished export of source");
  EXPECT_EQ(exported(), expected("fp32-consolidated"));
}

TEST_F(Exporter, BelievesNoMarkOfOutOverFilesWithout) {
  ASSERT_TRUE(run().has_value());
  // Of the same size and time, and not written by that export.
  const fs::path file = out_ / "tokenizer.json";
  fs::remove(file);
  directory_.write("out/tokenizer.json", "[]");
  const timespec times[2] = {{.tv_sec = checkpoint_->mtime(), .tv_nsec = 0},
                             {.tv_sec = checkpoint_->mtime(), .tv_nsec = 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  const Result<ExportResult> again = run();
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->files, 1u);
  EXPECT_EQ(exported(), expected());
}

TEST_F(Exporter, ReplacesAnotherViewOnlyIfForced) {
  ASSERT_TRUE(run().has_value());
  const auto before = exported();
  const Result<ExportResult> refused = run({}, "fp32-consolidated");
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("holds a finished export of source (--force replaces it"));
  EXPECT_EQ(exported(), before);

  const Result<ExportResult> other = run({.force = true}, "fp32-consolidated");
  ASSERT_TRUE(other.has_value()) << other.error().message();
  EXPECT_EQ(other->files_kept, 0u);
  EXPECT_EQ(other->replaced, "a finished export of source");
  EXPECT_EQ(exported(), expected("fp32-consolidated"));
}

TEST_F(Exporter, ReplacesWhatAnotherSourceGaveOnlyIfForced) {
  ASSERT_TRUE(run().has_value());
  const auto before = exported();
  write_source(2_MiB, 2);
  const Result<ExportResult> refused = run();
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(
      refused.error().message(),
      HasSubstr("from another source or recipe, or from this one before its files changed (ckfs "
                "verify shows"));
  EXPECT_EQ(exported(), before);

  directory_.write("out/mine.txt", "mine");
  const Result<ExportResult> other = run({.force = true});
  ASSERT_TRUE(other.has_value()) << other.error().message();
  EXPECT_EQ(other->files_kept, 0u);
  auto files = expected();
  files["mine.txt"] = "mine";
  EXPECT_EQ(exported(), files);
}

TEST_F(Exporter, ReplacesAnUnfinishedExportOfAnotherViewOnlyIfForced) {
  // Some files are finished, the last one is not.
  std::stop_source stop;
  const auto stop_late = [&](std::uint64_t done, std::uint64_t total) {
    if (done < total && done > total - 1000) stop.request_stop();
  };
  ASSERT_FALSE(run({.jobs = 1, .stop = stop.get_token(), .progress = stop_late}).has_value());
  const Result<ExportResult> refused = run({}, "fp32-consolidated");
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), HasSubstr("holds an unfinished export of source"));
  const Result<ExportResult> other = run({.force = true}, "fp32-consolidated");
  ASSERT_TRUE(other.has_value()) << other.error().message();
  EXPECT_EQ(other->replaced, "an unfinished export of source");
  EXPECT_EQ(exported(), expected("fp32-consolidated"));
}

// Whatever ends a replacement, the next one knows which files are an export's.
TEST_F(Exporter, AReplacementThatEndsAnywhereCanBeRunAgain) {
  write_source(2000, 1);
  for (int before = 0, reached = 1; reached != 0; ++before) {
    fs::remove_all(out_);
    ASSERT_TRUE(run().has_value());
    FailingCalls calls(before);
    (void)run_with({.common = {.force = true}, .system = calls.system()}, "fp32-consolidated");
    reached = calls.failed ? 1 : 0;
    const Result<ExportResult> again = run({.force = true}, "fp32-consolidated");
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_EQ(exported(), expected("fp32-consolidated")) << before;
    EXPECT_FALSE(fs::exists(out_ / kExportFolder));
  }
}

// Whoever waits for the index must not take what is left of the old copy for a whole one.
TEST_F(Exporter, AStartOverThatEndsAnywhereLeavesNoIndexOverLess) {
  const fs::path index = out_ / "model.safetensors.index.json";
  for (int before = 0, reached = 1; reached != 0; ++before) {
    fs::remove_all(out_);
    write_source(2000, 1);
    ASSERT_TRUE(run().has_value());
    const auto old = exported();
    write_source(1000, 2);
    FailingCalls calls(before);
    const Result<ExportResult> killed =
        run_with({.common = {.force = true}, .system = calls.system()});
    reached = calls.failed ? 1 : 0;
    EXPECT_EQ(killed.has_value(), !calls.failed);
    if (fs::exists(index)) {
      EXPECT_THAT(exported(), testing::AnyOf(old, expected())) << before;
    }
  }
}

TEST_F(Exporter, StartsOverWhereADirectoryHasBecomeAFile) {
  directory_.write("src/a/b/c.json", "{}");
  directory_.write("src/a/d/e.json", "{}");
  write_source(1000, 1);
  ASSERT_TRUE(run().has_value());
  directory_.write("out/a/d/mine.txt", "mine");
  fs::remove_all(source_ / "a/b");
  directory_.write("src/a/b", "a file");
  write_source(1000, 2);
  const Result<ExportResult> other = run({.force = true});
  ASSERT_TRUE(other.has_value()) << other.error().message();
  auto files = expected();
  files["a/d/mine.txt"] = "mine";
  EXPECT_EQ(exported(), files);
}

TEST_F(Exporter, RefusesForeignFilesUnlessForced) {
  directory_.write("out/notes/mine.txt", "mine");
  directory_.write("out/config.json", "also mine");
  const Result<ExportResult> refused = run();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("which ckfs did not write"));
  EXPECT_EQ(exported().size(), 2u);

  const Result<ExportResult> forced = run({.force = true});
  ASSERT_TRUE(forced.has_value()) << forced.error().message();
  auto files = expected();
  files["notes/mine.txt"] = "mine";
  EXPECT_EQ(exported(), files);
}

TEST_F(Exporter, RefusesARecordThatIsNone) {
  directory_.write("out/.ckfs-export.d/record.json", "something else");
  const Result<ExportResult> refused = run();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::InvalidArgument);
  ASSERT_TRUE(run({.force = true}).has_value());
  EXPECT_EQ(exported(), expected());
}

TEST_F(Exporter, RefusesToWriteIntoTheSource) {
  const View view = *checkpoint_->view("source");
  fs::create_directory_symlink(source_, directory_ / "link");
  for (const fs::path& out :
       {source_, source_ / "out", directory_ / "link" / "out", directory_ / "out" / ".." / "src"}) {
    const Result<ExportResult> refused = export_view(view, out, {});
    ASSERT_FALSE(refused.has_value()) << out;
    EXPECT_EQ(refused.error().code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(refused.error().message(), HasSubstr("lies inside the source"));
  }
  EXPECT_FALSE(fs::exists(source_ / "out"));
  // A name that merely begins like the source's is another directory.
  EXPECT_TRUE(export_view(view, directory_ / "src-out", {}).has_value());
}

TEST_F(Exporter, AStoppedRunLeavesNoFinishedNameUnfinished) {
  std::stop_source stop;
  const Result<ExportResult> stopped =
      run({.jobs = 1, .stop = stop.get_token(), .progress = [&](std::uint64_t done, std::uint64_t) {
             if (done >= 1_MiB) stop.request_stop();
           }});
  ASSERT_FALSE(stopped.has_value());
  EXPECT_EQ(stopped.error().code(), ErrorCode::Stopped);
  EXPECT_EQ(exported(), (std::map<std::string, std::string>{}));
  const Result<ExportResult> again = run();
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(exported(), expected());
}

TEST_F(Exporter, GoesOnWhereALargeFileWasLastSynced) {
  write_source(130_MiB, 3);
  std::stop_source stop;
  const Result<ExportResult> stopped =
      run({.jobs = 1, .stop = stop.get_token(), .progress = [&](std::uint64_t done, std::uint64_t) {
             if (done >= 100_MiB) stop.request_stop();
           }});
  ASSERT_FALSE(stopped.has_value());
  const std::string part = part_name(1);  // behind config.json
  EXPECT_EQ(fs::file_size(out_ / part), 64_MiB);
  // A byte of the synced part is changed: it must be found again, for that part is not rewritten.
  {
    std::fstream file(out_ / part, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1_MiB);
    file.put('\x55').put('\x55');
  }

  const std::uint64_t total = expected()["model-00001-of-00002.safetensors"].size();
  const Result<ExportResult> again = run();
  ASSERT_TRUE(again.has_value()) << again.error().message();
  auto files = expected();
  EXPECT_EQ(
      again->bytes, total - 64_MiB + [&] {
        std::uint64_t others = 0;
        for (const auto& [path, bytes] : files) {
          if (path != "model-00001-of-00002.safetensors") others += bytes.size();
        }
        return others;
      }());
  files["model-00001-of-00002.safetensors"].replace(1_MiB, 2, "\x55\x55");
  EXPECT_TRUE(exported() == files);
}

TEST_F(Exporter, FollowsNoLinkBelowOut) {
  directory_.write("src/nested/deep/vocab.json", "{}");
  write_source(1000, 1);
  directory_.write("elsewhere/mine.txt", "mine");
  for (const char* link : {"nested", "nested/deep"}) {
    fs::remove_all(out_);
    fs::create_directories((out_ / link).parent_path());
    fs::create_directory_symlink(directory_ / "elsewhere", out_ / link);
    const Result<ExportResult> refused = run({.force = true});
    ASSERT_FALSE(refused.has_value()) << link;
    EXPECT_THAT(refused.error().message(), HasSubstr("a symbolic link"));
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_ / "elsewhere"), {}), 1) << link;
  }
  // A link in the place of a file is replaced, and what it leads to is left alone.
  fs::remove_all(out_);
  fs::create_directory(out_);
  fs::create_symlink(directory_ / "elsewhere/mine.txt", out_ / "config.json");
  ASSERT_TRUE(run({.force = true}).has_value());
  EXPECT_EQ(exported(), expected());
  EXPECT_EQ(read_text(directory_ / "elsewhere/mine.txt"), "mine");
}

TEST_F(Exporter, RemovesNothingOutsideOutWhateverARecordLists) {
  directory_.write("elsewhere/mine.txt", "mine");
  directory_.write("elsewhere/.mine.txt.ckfs-part", "mine");
  fs::create_directory(out_);
  fs::create_directory_symlink(directory_ / "elsewhere", out_ / "way");
  directory_.write("out/.ckfs-export.d/record.json",
                   R"({"version":1,"fingerprint":"00","view":"source","layout_version":1,"files":)"
                   R"({"way":{"size":4,"synced":0,"finished":true},)"
                   R"("way/mine.txt":{"size":4,"synced":0,"finished":true}}})");
  for (const bool force : {false, true}) {
    (void)run({.force = force});
    EXPECT_TRUE(fs::exists(directory_ / "elsewhere/mine.txt"));
    EXPECT_TRUE(fs::exists(directory_ / "elsewhere/.mine.txt.ckfs-part"));
  }
}

TEST_F(Exporter, WaitsForNoOtherEndOfAFifo) {
  fs::create_directory(out_);
  fs::create_directory(out_ / kExportFolder);
  ASSERT_EQ(::mkfifo((out_ / kRecordName).c_str(), 0600), 0);
  const Result<ExportResult> refused = run();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("not a regular file"));
  ASSERT_TRUE(run({.force = true}).has_value());
  EXPECT_EQ(exported(), expected());
}

TEST_F(Exporter, KeepsItsPartsApartFromTheViewsNames) {
  directory_.write("src/a", "first");
  directory_.write("src/.a.ckfs-part", "second");
  directory_.write("src/.ckfs-export.d/0.part", "no part of a checkpoint");
  write_source(1000, 1);
  ASSERT_TRUE(run().has_value());
  auto files = expected();
  EXPECT_EQ(files["a"], "first");
  EXPECT_EQ(files[".a.ckfs-part"], "second");
  EXPECT_EQ(exported(), files);
  EXPECT_FALSE(fs::exists(out_ / kExportFolder));
}

TEST_F(Exporter, BelievesNothingWhereOthersMayWrite) {
  for (const fs::path& path : {out_, out_ / kExportFolder, out_ / kRecordName}) {
    fs::remove_all(out_);
    ASSERT_TRUE(run().has_value());
    leave_old_record();
    fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
    const Result<ExportResult> refused = run();
    ASSERT_FALSE(refused.has_value()) << path;
    EXPECT_THAT(refused.error().message(), HasSubstr("others may write to it"));
    const Result<ExportResult> forced = run({.force = true}, "fp32-consolidated");
    ASSERT_TRUE(forced.has_value()) << forced.error().message();
    EXPECT_TRUE(fs::exists(out_ / "model-00001-of-00002.safetensors")) << "nothing is removed";
  }
  fs::remove_all(out_);
  ASSERT_TRUE(run().has_value());
  fs::permissions(out_, fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(run().has_value()) << "nor a mark";
  fs::permissions(out_, fs::perms::others_write, fs::perm_options::remove);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(out_.c_str(), 12345, 12345), 0);
    const Result<ExportResult> refused = run();
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message(), HasSubstr("belongs to user 12345"));
  }
}

TEST_F(Exporter, ReportsProgressUpToTheTotal) {
  std::uint64_t last = 0;
  std::uint64_t last_total = 0;
  ASSERT_TRUE(run({.progress = [&](std::uint64_t done, std::uint64_t total) {
                EXPECT_GE(done, last);
                EXPECT_LE(done, total);
                last = done;
                last_total = total;
              }}).has_value());
  std::uint64_t total = 0;
  for (const auto& [path, bytes] : expected()) total += bytes.size();
  EXPECT_EQ(last, total);
  EXPECT_EQ(last_total, total);
}

TEST_F(Exporter, IsNotUsedByAForkedChild) {
  const View view = checkpoint_->view("source").value();
  EXPECT_THAT(message_in_child([&] { return export_view(view, out_).error().message(); }),
              testing::HasSubstr("(open it again after a fork)"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(Exporter, RefusesAnOutThatIsAFile) {
  directory_.write("out", "a file");
  const Result<ExportResult> refused = run();
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().message(), HasSubstr("not a directory"));
}

}  // namespace
}  // namespace ckfs
