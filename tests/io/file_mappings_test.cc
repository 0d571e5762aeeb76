// On a real file of the disk that the build lies on: what is in the page cache is asked of the
// kernel, and what happens to a page that is gone is the kernel's doing, too.
#include "io/file_mappings.h"

#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>
#include <optional>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "io/page_cache.h"
#include "io/source_files.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kSize = (3 << 20) + 17;

/// Before any mapping is made: a sanitizer's handler would report a bus error and exit.
[[maybe_unused]] const auto kHandlerBefore = ::signal(SIGBUS, SIG_DFL);

class FileMappingTest : public testing::Test {
 protected:
  FileMappingTest() : bytes_(kSize) {
    std::mt19937_64 random(1);
    for (std::byte& byte : bytes_) byte = static_cast<std::byte>(random());
    path_ = directory_.write("a.bin", bytes_);
    fd_ = UniqueFd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    CKFS_CHECK(::fsync(fd_.get()) == 0);
    files_ = LocalFiles::create({.path_check_interval = std::chrono::nanoseconds(0)}).value();
    file_ = files_->add("a.bin", path_).value();
  }

  /// files_->map(), right after all of the file was read: some kernels take out of the page cache
  /// what has not been used for a while.
  std::optional<MappedBytes> map_cached(std::uint64_t offset, std::uint64_t size,
                                        std::uint64_t used) {
    std::vector<std::byte> all(kSize);
    EXPECT_EQ(::pread(fd_.get(), all.data(), kSize, 0), static_cast<ssize_t>(kSize));
    return files_->map({file_, offset, size}, used);
  }

  const TemporaryDirectory directory_{std::filesystem::current_path()};
  std::vector<std::byte> bytes_;
  std::filesystem::path path_;
  UniqueFd fd_;
  std::unique_ptr<SourceFiles> files_;
  FileId file_ = 0;
};

/// Bytes of files that this process has mapped and touched.
std::uint64_t resident_of_files() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoull(line.substr(8)) << 10;
  }
  ADD_FAILURE() << "no RssFile";
  return 0;
}

TEST_F(FileMappingTest, AChangeIsFoundWhateverTheIntervalOfPaths) {
  files_ = LocalFiles::create({.path_check_interval = std::chrono::hours(1)}).value();
  file_ = files_->add("a.bin", path_).value();
  for (int attempt = 0; attempt < 10; ++attempt) {
    const auto mapped = map_cached(0, 1 << 20, 1 << 20);
    if (!mapped) continue;  // the kernel took pages out
    EXPECT_TRUE(files_->check_mapped(std::span(&*mapped, 1)));
    const timespec times[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(::futimens(fd_.get(), times), 0);
    EXPECT_FALSE(files_->check_mapped(std::span(&*mapped, 1)));
    return;
  }
  FAIL() << "nothing was mapped";
}

TEST_F(FileMappingTest, WhatAHintBroughtInIsReadWhereItIsWantedOnce) {
  page_cache::drop(fd_.get(), {0, kSize}, kSize);
  const FileRange hinted{file_, 0, 2 << 20}, other{file_, 2 << 20, 1 << 20};
  const auto maps_once = [&](const FileRange& range) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      EXPECT_TRUE(map_cached(range.offset, range.size, range.size));
      if (files_->map_once(range, range.size)) return true;
    }
    return false;
  };
  files_->will_need({&hinted, 1});
  EXPECT_FALSE(maps_once(hinted));
  EXPECT_TRUE(maps_once(other));

  std::vector<std::byte> out(hinted.size);
  const ReadRequest request{file_, 0, out};
  ASSERT_TRUE(files_->read_once({&request, 1}));
  EXPECT_TRUE(std::equal(out.begin(), out.end(), bytes_.begin()));
  EXPECT_TRUE(maps_once(hinted)) << "the hint is used up";
}

TEST_F(FileMappingTest, ShowsTheBytesOfACachedFile) {
  // A short range alone is not worth a mapping.
  EXPECT_FALSE(files_->map({file_, 1001, 5000}, 300));
  ASSERT_TRUE(map_cached(0, 64 << 10, 0));
  const auto mapped = map_cached(1001, 5000, 300);
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(std::equal(mapped->data, mapped->data + 5000, bytes_.begin() + 1001));
  EXPECT_TRUE(files_->check_mapped(std::span(&*mapped, 1)));
  EXPECT_EQ(files_->statistics().files[file_].bytes, 300U);
  const auto all = map_cached(0, kSize, kSize);
  ASSERT_TRUE(all);
  EXPECT_TRUE(std::equal(all->data, all->data + kSize, bytes_.begin()));
  EXPECT_EQ(all->owner, mapped->owner);
}

TEST_F(FileMappingTest, IsNotMadeOfWhatIsNotCached) {
  page_cache::drop(fd_.get(), {0, kSize}, kSize);
  EXPECT_FALSE(files_->map({file_, 1001, 2 << 20}, 5000));
  EXPECT_FALSE(files_->map({file_, 1001, 5000}, 5000));
}

TEST_F(FileMappingTest, ShowsAShortRangeOfAFileThatIsNotCachedAsAWhole) {
  page_cache::drop(fd_.get(), {0, kSize}, kSize);
  std::vector<std::byte> out(100 << 10);
  ASSERT_TRUE(files_->read_at(file_, 1 << 20, out));
  EXPECT_FALSE(files_->map({file_, 0, kSize}, kSize));
  EXPECT_FALSE(files_->map({file_, (1 << 20) - 1, out.size()}, 1));
  const auto mapped = files_->map({file_, 1 << 20, out.size()}, out.size());
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(std::equal(out.begin(), out.end(), mapped->data));
}

TEST_F(FileMappingTest, IsNotMadeWhereTheAddressSpaceIsLimited) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = std::min(before.rlim_max, RLIM_INFINITY - 1);
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &limited), 0);
  EXPECT_FALSE(files_->map({file_, 0, kSize}, kSize));
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(map_cached(0, kSize, kSize));
}

TEST_F(FileMappingTest, IsNotMadeWhereAReaderIsChosen) {
  for (const IoEngine engine : {IoEngine::Pread, IoEngine::Uring}) {
    const auto files = LocalFiles::create({.engine = engine}).value();
    const FileId file = files->add("a.bin", path_).value();
    EXPECT_FALSE(files->map({file, 0, kSize}, kSize));
  }
}

TEST_F(FileMappingTest, OfAFileThatIsCutGivesZerosAndAnError) {
  const auto mapped = map_cached(0, kSize, kSize);
  ASSERT_TRUE(mapped);
  ASSERT_EQ(::ftruncate(fd_.get(), 4096), 0);
  EXPECT_EQ(mapped->data[4095], bytes_[4095]);
  EXPECT_EQ(mapped->data[kSize - 1], std::byte{0});
  EXPECT_EQ(mapped->data[1 << 20], std::byte{0});
  const auto checked = files_->check_mapped(std::span(&*mapped, 1));
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), ErrorCode::Stale);
  EXPECT_FALSE(files_->map({file_, 0, 64 << 10}, 100));
}

TEST_F(FileMappingTest, OfAFileThatIsWrittenIsStale) {
  const auto mapped = map_cached(0, kSize, kSize);
  ASSERT_TRUE(mapped);
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::futimens(fd_.get(), times), 0);
  const auto checked = files_->check_mapped(std::span(&*mapped, 1));
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), ErrorCode::Stale);
}

// check_mapped() could find the right file open again, after its bytes were looked at.
TEST_F(FileMappingTest, IsNotMadeOfAFileThatTookTheOthersPlace) {
  std::vector<std::byte> other(kSize, std::byte{7});
  const auto path = directory_.write("b.bin", other);
  const auto files = LocalFiles::create({.max_open_files = 1}).value();
  const FileId file = files->add("a.bin", path_).value();
  const FileId last = files->add("b.bin", path).value();
  ASSERT_TRUE(files->read_at(last, 0, other));  // a.bin is not open any more
  std::filesystem::rename(path_, directory_.path() / "old.bin");
  std::filesystem::rename(path, path_);
  EXPECT_FALSE(files->map({file, 0, kSize}, kSize));
  std::filesystem::rename(directory_.path() / "old.bin", path_);
}

TEST_F(FileMappingTest, KnowsThatItIsBrokenAndAnotherIsNot) {
  const auto one = FileMapping::make(fd_.get(), kSize);
  const auto path = directory_.write("b.bin", bytes_);
  const UniqueFd other(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto two = FileMapping::make(other.get(), kSize);
  ASSERT_TRUE(one && two);
  ASSERT_EQ(::ftruncate(fd_.get(), 0), 0);
  EXPECT_FALSE(one->broken());
  EXPECT_EQ(one->bytes()[kSize / 2], std::byte{0});
  EXPECT_TRUE(one->broken());
  one->let_go();
  EXPECT_EQ(two->bytes()[kSize / 2], bytes_[kSize / 2]);
  EXPECT_FALSE(two->broken());
  EXPECT_FALSE(FileMapping::make(fd_.get(), 0));
}

TEST_F(FileMappingTest, LetsGoOfPagesAndShowsThemAgain) {
  const auto mapping = FileMapping::make(fd_.get(), kSize);
  const std::uint64_t before = resident_of_files();
  const std::span<const std::byte> shown = mapping->bytes();
  EXPECT_TRUE(std::equal(shown.begin(), shown.end(), bytes_.begin()));
  EXPECT_GE(resident_of_files(), before + kSize / 2);
  mapping->let_go();
  EXPECT_LT(resident_of_files(), before + kSize / 2);
  EXPECT_EQ(mapping->bytes()[kSize - 1], bytes_.back());
}

TEST_F(FileMappingTest, StayResidentWithinABound) {
  const std::uint64_t before = resident_of_files();
  FileMappings mappings;
  const auto mapping = mappings.of(file_, fd_.get(), kSize);
  ASSERT_TRUE(mapping);
  EXPECT_TRUE(std::ranges::equal(mapping->bytes(), bytes_));
  mappings.bound(before + 2 * kSize);
  EXPECT_GE(resident_of_files(), before + kSize / 2);
  // Looked at once in a while only.
  while (resident_of_files() >= before + kSize / 2) mappings.bound(before + kSize / 2);
  EXPECT_TRUE(std::ranges::equal(mapping->bytes(), bytes_));
}

TEST_F(FileMappingTest, AreNoMoreThanTheProcessMayHave) {
  std::vector<std::shared_ptr<FileMapping>> mappings;
  while (auto mapping = FileMapping::make(fd_.get(), kSize)) {
    mappings.push_back(std::move(mapping));
    ASSERT_LE(mappings.size(), FileMapping::kMostMappings);
  }
  EXPECT_GT(mappings.size(), FileMapping::kMostMappings / 2);
  EXPECT_FALSE(files_->map({file_, 0, kSize}, kSize));
  mappings.clear();
  EXPECT_TRUE(map_cached(0, kSize, kSize));
}

TEST_F(FileMappingTest, ABusErrorElsewhereEndsTheProcess) {
  EXPECT_EXIT(
      {
        void* const memory = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd_.get(), 0);
        const auto mapping = FileMapping::make(fd_.get(), kSize);
        if (::ftruncate(fd_.get(), 0) != 0) std::_Exit(1);
        std::_Exit(static_cast<const volatile char*>(memory)[kSize / 2]);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FileMappingTest, ABusErrorThatIsSentEndsTheProcess) {
  const auto send = [](int way, const FileMapping& mapping) {
    if (way == 0) ::kill(::getpid(), SIGBUS);
    if (way == 1) ::raise(SIGBUS);
    if (way == 2) {
      // The ids of a sender that look like an address in a mapping.
      siginfo_t info{};
      info.si_signo = SIGBUS;
      info.si_code = SI_QUEUE;
      info.si_addr = const_cast<std::byte*>(mapping.bytes().data());
      ::syscall(SYS_rt_sigqueueinfo, ::getpid(), SIGBUS, &info);
    }
  };
  for (const int way : {0, 1, 2}) {
    EXPECT_EXIT(
        {
          const auto mapping = FileMapping::make(fd_.get(), kSize);
          if (mapping == nullptr) std::_Exit(1);
          send(way, *mapping);
          std::_Exit(mapping->broken() ? 3 : 2);
        },
        testing::KilledBySignal(SIGBUS), "")
        << way;
  }
}

TEST_F(FileMappingTest, AHandlerThatWasThereIsCalledAndMappingsStayGuarded) {
  // In a process of its own: here the handler of mappings may be there already.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  static std::atomic<int> calls;
  const auto guards = [&] {
    const auto mapping = FileMapping::make(fd_.get(), kSize);
    if (mapping == nullptr) return false;
    for (int time = 0; time < 2; ++time) ::kill(::getpid(), SIGBUS);
    if (calls != 2 || ::ftruncate(fd_.get(), 0) != 0) return false;
    const auto& last = static_cast<const volatile std::byte&>(mapping->bytes()[kSize - 1]);
    return last == std::byte{0} && mapping->broken() && calls == 2;
  };
  const auto with = [&](int flags) {
    ::alarm(20);  // a fault that nobody mends comes again and again
    struct sigaction own{};
    own.sa_flags = flags;
    if (flags == 0) {
      own.sa_handler = [](int) { ++calls; };
    } else {
      own.sa_sigaction = [](int, siginfo_t* info, void*) { calls += info->si_pid == ::getpid(); };
    }
    ::sigaction(SIGBUS, &own, nullptr);
    const bool good = guards();
    std::filesystem::remove_all(directory_.path());  // this process's own: nobody else does
    std::_Exit(good ? 0 : 1);
  };
  for (const int flags : {0, SA_SIGINFO}) {
    EXPECT_EXIT(with(flags), testing::ExitedWithCode(0), "") << flags;
  }
}

TEST_F(FileMappingTest, ABusErrorThatIsSentToOneThatIgnoresItEndsNothing) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_IGN);
        const auto mapping = FileMapping::make(fd_.get(), kSize);
        for (int time = 0; time < 2; ++time) ::kill(::getpid(), SIGBUS);
        std::_Exit(mapping != nullptr && !mapping->broken() ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ckfs
