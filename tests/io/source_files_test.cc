// One suite for SourceFiles over both readers: right bytes or an error, and the error says what
// happened to the file.
#include "io/source_files.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <future>
#include <gtest/gtest.h>
#include <random>
#include <rapidcheck/gtest.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "io/reader.h"
#include "support/delaying_store.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using Buffer = std::vector<std::byte>;

Buffer random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  Buffer bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::string error_of(const Result<void>& result) {
  return result ? "no error" : result.error().message();
}

class SourceFilesTest : public testing::TestWithParam<IoEngine> {
 protected:
  static IoOptions options() {
    return {.engine = GetParam(), .path_check_interval = std::chrono::nanoseconds(0)};
  }

  static std::unique_ptr<SourceFiles> make(const IoOptions& with = options()) {
    auto files = LocalFiles::create(with);
    CKFS_CHECK(files.has_value());
    return *std::move(files);
  }

  FileId add(SourceFiles& files, const std::string& name, const Buffer& bytes) const {
    const auto id = files.add(name, directory_.write(name, bytes));
    CKFS_CHECK(id.has_value());
    return *id;
  }

  /// The batch's files, all of it.
  static Result<void> read_both_ends(SourceFiles& files, FileId file) {
    Buffer first(16), last(16);
    const ReadRequest batch[] = {{file, 0, first}, {file, files.size(file) - 16, last}};
    return files.read(batch);
  }

  void set_mtime(const std::string& name, std::int64_t seconds) const {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    CKFS_CHECK(::utimensat(AT_FDCWD, (directory_ / name).c_str(), times, 0) == 0);
  }

  TemporaryDirectory directory_;
};

TEST_P(SourceFilesTest, UsesTheEngineThatWasAskedFor) {
  EXPECT_EQ(make()->engine(), GetParam());
}

TEST_P(SourceFilesTest, ReadsUnalignedRangesOfSeveralFilesInOneBatch) {
  const auto files = make();
  const Buffer a = random_bytes(100'003, 1), b = random_bytes(5'000, 2);
  const FileId file_a = add(*files, "a.bin", a), file_b = add(*files, "b.bin", b);
  EXPECT_EQ(files->size(file_a), a.size());
  EXPECT_EQ(files->name(file_b), "b.bin");
  EXPECT_EQ(files->count(), 2u);
  Buffer one(7), two(99'000), three(5'000), none;
  const ReadRequest batch[] = {
      {file_b, 0, three}, {file_a, 99'990, one}, {file_a, 1'003, two}, {file_a, 5, none}};
  ASSERT_EQ(error_of(files->read(batch)), "no error");
  EXPECT_EQ(std::memcmp(one.data(), a.data() + 99'990, one.size()), 0);
  EXPECT_EQ(std::memcmp(two.data(), a.data() + 1'003, two.size()), 0);
  EXPECT_EQ(three, b);
}

TEST_P(SourceFilesTest, EmptyBatchesAndEmptyFilesAreNoErrors) {
  const auto files = make();
  const FileId file = add(*files, "empty", {});
  Buffer none;
  EXPECT_TRUE(files->read({}));
  EXPECT_TRUE(files->read_at(file, 0, none));
}

TEST_P(SourceFilesTest, CoalescesNearRequestsAndCountsWhatWasRead) {
  IoOptions with = options();
  with.coalesce_gap = 100;
  const auto files = make(with);
  const Buffer a = random_bytes(10'000, 3);
  const FileId file = add(*files, "a.bin", a);
  Buffer one(1'000), two(1'000), far(1'000);
  const ReadRequest batch[] = {{file, 0, one}, {file, 1'050, two}, {file, 9'000, far}};
  ASSERT_TRUE(files->read(batch));
  EXPECT_EQ(std::memcmp(two.data(), a.data() + 1'050, 1'000), 0);
  const IoStatistics statistics = files->statistics();
  ASSERT_EQ(statistics.files.size(), 1u);
  EXPECT_EQ(statistics.files[0].requests, 2u);
  EXPECT_EQ(statistics.files[0].bytes, 3'050u);
}

TEST_P(SourceFilesTest, ThousandsOfFilesNeedFewDescriptors) {
  IoOptions with = options();
  with.max_open_files = 8;
  const auto files = make(with);
  constexpr std::size_t kFiles = 2'000;
  std::vector<Buffer> contents;
  for (std::size_t i = 0; i < kFiles; ++i) {
    contents.push_back(random_bytes(64, static_cast<unsigned>(i)));
    add(*files, std::to_string(i), contents.back());
  }
  std::vector<Buffer> out(kFiles, Buffer(64));
  std::vector<ReadRequest> batch;
  for (std::size_t i = 0; i < kFiles; ++i) batch.push_back({static_cast<FileId>(i), 0, out[i]});
  ASSERT_EQ(error_of(files->read(batch)), "no error");
  EXPECT_EQ(out, contents);
  std::size_t open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
    open += target.starts_with(directory_.path().string()) ? 1 : 0;
  }
  EXPECT_LE(open, 8u);
}

TEST_P(SourceFilesTest, ConcurrentReadersGetTheirOwnBytes) {
  IoOptions with = options();
  with.max_open_files = 4;
  with.max_access = 3'000;
  const auto files = make(with);
  std::vector<Buffer> contents;
  for (unsigned i = 0; i < 20; ++i) {
    contents.push_back(random_bytes(20'000, i));
    add(*files, std::to_string(i), contents.back());
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < 100; ++round) {
        std::vector<Buffer> out;
        std::vector<ReadRequest> batch;
        for (int i = 0; i < 10; ++i) out.emplace_back(random() % 5'000);
        for (Buffer& buffer : out) {
          batch.push_back({static_cast<FileId>(random() % 20), random() % 15'000, buffer});
        }
        if (!files->read(batch)) ++wrong;
        for (const ReadRequest& request : batch) {
          const Buffer& content = contents[request.file];
          if (!std::equal(request.out.begin(), request.out.end(),
                          content.begin() + static_cast<std::ptrdiff_t>(request.offset))) {
            ++wrong;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(SourceFilesTest, FilesMayBeAddedWhileOthersAreRead) {
  const auto files = make();
  const Buffer content = random_bytes(10'000, 9);
  add(*files, "0", content);
  std::atomic<bool> stop = false;
  std::atomic<int> wrong = 0;
  std::thread reader([&] {
    while (!stop) {
      Buffer out(content.size());
      if (!files->read_at(static_cast<FileId>(files->count() - 1), 0, out) || out != content) {
        ++wrong;
      }
    }
  });
  for (int i = 1; i < 200; ++i) add(*files, std::to_string(i), content);
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0);
}

// What add() refuses.

TEST_P(SourceFilesTest, WhatIsNoRegularFileIsRefused) {
  const auto files = make();
  const auto missing = files->add("missing.bin", directory_ / "missing.bin");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::NotFound);
  EXPECT_EQ(missing.error().message(), "missing.bin: open: No such file or directory");
  const auto directory = files->add("d", directory_.path());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code(), ErrorCode::InvalidArgument);
  ASSERT_EQ(::mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  const auto fifo = files->add("fifo", directory_ / "fifo");
  ASSERT_FALSE(fifo);
  EXPECT_EQ(fifo.error().message(), "fifo: not a regular file");
  std::filesystem::create_symlink("nowhere", directory_ / "dangling");
  const auto dangling = files->add("dangling", directory_ / "dangling");
  ASSERT_FALSE(dangling);
  EXPECT_EQ(dangling.error().code(), ErrorCode::NotFound);
  EXPECT_EQ(files->count(), 0u);
}

TEST_P(SourceFilesTest, SymbolicLinksAreFollowedOnce) {
  const auto files = make();
  const Buffer content = random_bytes(100, 4);
  directory_.write("target", content);
  directory_.write("other", random_bytes(100, 5));
  std::filesystem::create_symlink("target", directory_ / "link");
  const auto id = files->add("link", directory_ / "link");
  ASSERT_TRUE(id);
  std::filesystem::remove(directory_ / "link");
  std::filesystem::create_symlink("other", directory_ / "link");
  Buffer out(100);
  ASSERT_EQ(error_of(files->read_at(*id, 0, out)), "no error");
  EXPECT_EQ(out, content);
}

// What happens to files that were added.

TEST_P(SourceFilesTest, ATruncatedFileIsStaleForGood) {
  const auto files = make();
  const Buffer content = random_bytes(10'000, 6);
  const FileId file = add(*files, "a.bin", content);
  ASSERT_TRUE(read_both_ends(*files, file));
  std::filesystem::resize_file(directory_ / "a.bin", 100);
  const auto stale = read_both_ends(*files, file);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::Stale);
  EXPECT_EQ(stale.error().message(),
            "a.bin: changed since it was opened: size 100, was 10000 (mount again to see the new "
            "file)");
  // Also when it looks as before again.
  directory_.write("a.bin", content);
  EXPECT_EQ(error_of(read_both_ends(*files, file)), stale.error().message());
  const FileId ids[] = {file};
  EXPECT_EQ(error_of(files->verify(ids)), stale.error().message());
}

TEST_P(SourceFilesTest, ARewrittenFileOfTheSameSizeIsStale) {
  const auto files = make();
  const FileId file = add(*files, "a.bin", random_bytes(10'000, 7));
  set_mtime("a.bin", 1'000'000'000);
  const auto stale = read_both_ends(*files, file);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::Stale);
}

TEST_P(SourceFilesTest, AReplacedFileIsStaleEvenWithTheSameSizeAndTime) {
  directory_.write("a.bin", random_bytes(10'000, 7));
  directory_.write("b.bin", random_bytes(10'000, 8));
  set_mtime("a.bin", 1'000'000'000);
  set_mtime("b.bin", 1'000'000'000);
  const auto files = make();
  const FileId file = *files->add("a.bin", directory_ / "a.bin");
  ASSERT_TRUE(read_both_ends(*files, file));
  std::filesystem::rename(directory_ / "b.bin", directory_ / "a.bin");
  const auto stale = read_both_ends(*files, file);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::Stale);
  EXPECT_NE(stale.error().message().find("replaced by another file"), std::string::npos);
}

TEST_P(SourceFilesTest, ADeletedFileIsStaleEvenIfItIsStillOpen) {
  const auto files = make();
  const FileId file = add(*files, "a.bin", random_bytes(10'000, 7));
  std::filesystem::remove(directory_ / "a.bin");
  const FileId ids[] = {file};
  const auto stale = files->verify(ids);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::Stale);
  EXPECT_EQ(error_of(read_both_ends(*files, file)), stale.error().message());
}

TEST_P(SourceFilesTest, AReplacementIsSeenWhenTheFileIsOpenedAgain) {
  IoOptions with = options();
  with.max_open_files = 1;
  with.path_check_interval = std::chrono::hours(1);  // by opening, not by looking at the path
  const auto files = make(with);
  const FileId file = add(*files, "a.bin", random_bytes(10'000, 7));
  add(*files, "other", random_bytes(10, 7));  // pushes the first one out
  const auto time = std::filesystem::last_write_time(directory_ / "a.bin");
  directory_.write("b.bin", random_bytes(10'000, 8));
  std::filesystem::last_write_time(directory_ / "b.bin", time);
  std::filesystem::rename(directory_ / "b.bin", directory_ / "a.bin");
  const auto stale = read_both_ends(*files, file);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::Stale);
}

TEST_P(SourceFilesTest, OneStaleFileDoesNotHarmTheOthers) {
  const auto files = make();
  const Buffer content = random_bytes(10'000, 7);
  const FileId gone = add(*files, "gone", content), stays = add(*files, "stays", content);
  std::filesystem::remove(directory_ / "gone");
  EXPECT_FALSE(read_both_ends(*files, gone));
  Buffer out(content.size());
  ASSERT_TRUE(files->read_at(stays, 0, out));
  EXPECT_EQ(out, content);
}

TEST_P(SourceFilesTest, AnyBatchGivesTheBytesOfTheFiles) {
  std::vector<Buffer> contents;
  for (unsigned i = 0; i < 3; ++i) {
    contents.push_back(random_bytes(30'000, i + 50));
    directory_.write(std::to_string(i), contents.back());
  }
  EXPECT_TRUE(rc::check("reads are slices", [&] {
    IoOptions with = options();
    with.coalesce_gap = *rc::gen::inRange<std::uint64_t>(0, 500);
    with.max_access = *rc::gen::inRange<std::uint64_t>(50, 8'000);
    with.max_open_files = *rc::gen::inRange<std::size_t>(1, 5);
    with.queue_depth = *rc::gen::inRange<unsigned>(1, 20);
    const auto files = make(with);
    for (int i = 0; i < 3; ++i) RC_ASSERT(files->add("f", directory_ / std::to_string(i)));
    std::vector<Buffer> out;
    std::vector<ReadRequest> batch;
    const int count = *rc::gen::inRange(0, 40);
    for (int i = 0; i < count; ++i) out.emplace_back(*rc::gen::inRange<std::size_t>(0, 9'000));
    for (Buffer& buffer : out) {
      batch.push_back({*rc::gen::inRange<FileId>(0, 3),
                       *rc::gen::inRange<std::uint64_t>(0, 30'000 - buffer.size() + 1), buffer});
    }
    RC_ASSERT(files->read(batch).has_value());
    for (const ReadRequest& request : batch) {
      RC_ASSERT(
          std::equal(request.out.begin(), request.out.end(),
                     contents[request.file].begin() + static_cast<std::ptrdiff_t>(request.offset)));
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Io, SourceFilesTest, testing::Values(IoEngine::Pread, IoEngine::Uring),
                         [](const auto& parameter) {
                           return parameter.param == IoEngine::Pread ? "Pread" : "Uring";
                         });

// What only a reader by script shows.

/// A reader of which every access fails in one way, after something happened to the world.
class ScriptedReader final : public Reader {
 public:
  ScriptedReader(int error, std::function<void()> happening)
      : error_(error), happening_(std::move(happening)) {}

  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    if (happening_) happening_();
    if (error_ < 0) return {};  // as if all had been read
    const std::size_t last = accesses.size() - 1;
    return tl::unexpected(AccessFailure{last, accesses[last].offset + 3, error_});
  }

 private:
  int error_;
  std::function<void()> happening_;
};

Result<void> read_with(int error, const std::filesystem::path& path,
                       const std::function<void()>& happening = {}) {
  const auto files =
      LocalFiles::with_reader({}, std::make_unique<ScriptedReader>(error, happening));
  CKFS_TRY(const FileId file, files->add("a.bin", path));
  Buffer one(10), two(10);
  const ReadRequest batch[] = {{file, 0, one}, {file, 9'000, two}};
  return files->read(batch);
}

class SourceFilesFaults : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.write("a.bin", random_bytes(10'000, 1));
};

TEST_F(SourceFilesFaults, AnIoErrorNamesFileOffsetAndErrno) {
  const auto failed = read_with(EIO, path_);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Io);
  EXPECT_EQ(failed.error().system_error(), EIO);
  EXPECT_EQ(failed.error().message(), "a.bin: offset 9003: Input/output error");
}

TEST_F(SourceFilesFaults, AnEarlyEndOfAnUnchangedFileIsAnIoError) {
  const auto failed = read_with(0, path_);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Io);
  EXPECT_EQ(failed.error().message(), "a.bin: offset 9003: the file ends here (size 10000)");
}

TEST_F(SourceFilesFaults, AFileThatTheServerLostIsStale) {
  const auto failed = read_with(ESTALE, path_);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Stale);
}

TEST_F(SourceFilesFaults, ATruncationDuringTheReadIsStaleNotAnIoError) {
  const auto failed = read_with(0, path_, [&] { std::filesystem::resize_file(path_, 20); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Stale);
}

TEST_F(SourceFilesFaults, AChangeDuringASuccessfulReadIsStale) {
  EXPECT_TRUE(read_with(-1, path_));
  const auto failed = read_with(-1, path_, [&] { std::filesystem::resize_file(path_, 20'000); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Stale);
}

TEST(SourceFiles, WhoMustHaveADescriptorWaitsForOne) {
  const TemporaryDirectory directory;
  FarAway far;
  const auto files = LocalFiles::with_reader({.max_open_files = 1}, make_pread_reader(),
                                             std::make_unique<DelayingStore>(far));
  const FileId file = files->add("a.bin", directory.write("a.bin", "a")).value();
  const FileId other = files->add("b.bin", directory.write("b.bin", "b")).value();
  ASSERT_EQ(error_of(files->verify({{other}})), "no error");
  far.has_descriptors = false;
  const std::uint64_t before = far.opens;
  auto verified = std::async(std::launch::async, [&] { return error_of(files->verify({{file}})); });
  while (far.opens < before + 5 &&
         verified.wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout) {
  }
  far.has_descriptors = true;
  EXPECT_EQ(verified.get(), "no error");
}

// One system call for each file and read: what comes after the bytes says what they are.
TEST(SourceFiles, AReadLooksAtAnOpenFileOnce) {
  const TemporaryDirectory directory;
  FarAway far;
  const auto files =
      LocalFiles::with_reader({.path_check_interval = std::chrono::hours(1)}, make_pread_reader(),
                              std::make_unique<DelayingStore>(far));
  const FileId file = files->add("a.bin", directory.write("a.bin", "abc")).value();
  Buffer bytes(2);
  ASSERT_EQ(error_of(files->read_at(file, 0, bytes)), "no error");
  const std::uint64_t before = far.looks;
  ASSERT_EQ(error_of(files->read_at(file, 1, bytes)), "no error");
  EXPECT_EQ(far.looks - before, 1u);
  ASSERT_EQ(error_of(files->verify({{file}})), "no error");
  EXPECT_EQ(far.looks - before, 2u);
}

TEST(SourceFiles, AutoFindsAnEngine) {
  const auto files = LocalFiles::create({});
  ASSERT_TRUE(files);
  EXPECT_NE((*files)->engine(), IoEngine::Auto);
}

}  // namespace
}  // namespace ckfs
