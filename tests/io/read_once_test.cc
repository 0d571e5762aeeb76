// What read_once() leaves in the page cache, and what hints bring into it; on the disk that the
// build lies on, over both readers.
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "io/file_system.h"
#include "io/page_cache.h"
#include "io/reader.h"
#include "io/source_files.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kPages = 1024;
constexpr std::uint64_t kSize = kPages * kPage + 100;

/// How RWF_DONTCACHE fares in a test.
enum class Kernel { AsItIs, Refuses };

struct Setting {
  IoEngine engine;
  Kernel kernel;
};

/// Answers for a kernel that does not know RWF_DONTCACHE.
class RefusingReader final : public Reader {
 public:
  explicit RefusingReader(std::unique_ptr<Reader> real) : real_(std::move(real)) {}
  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      if (!accesses[i].uncached) continue;
      return tl::unexpected(AccessFailure{i, accesses[i].offset, EOPNOTSUPP});
    }
    return real_->read(accesses);
  }

 private:
  const std::unique_ptr<Reader> real_;
};

class ReadOnceTest : public testing::TestWithParam<Setting> {
 protected:
  ReadOnceTest() : content_(kSize), out_(kSize) {
    for (std::size_t i = 0; i < kSize; ++i) {
      content_[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
    }
    path_ = directory_.write("a.bin", content_);
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    CKFS_CHECK(::fsync(fd_.get()) == 0);
    page_cache::drop(fd_.get(), {0, kSize}, kSize);
    auto reader =
        GetParam().engine == IoEngine::Pread ? make_pread_reader() : make_uring_reader(8).value();
    if (GetParam().kernel == Kernel::Refuses) {
      reader = std::make_unique<RefusingReader>(std::move(reader));
    }
    files_ = SourceFiles::with_reader({.max_access = 64 * kPage}, std::move(reader));
    file_ = files_->add("a.bin", path_).value();
  }

  /// By mincore and not by what the code under test asks.
  std::uint64_t cached() const {
    void* const mapping = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, fd_.get(), 0);
    CKFS_CHECK(mapping != MAP_FAILED);
    std::vector<unsigned char> resident(kPages + 1);
    CKFS_CHECK(::mincore(mapping, kSize, resident.data()) == 0);
    ::munmap(mapping, kSize);
    std::uint64_t count = 0;
    for (const unsigned char page : resident) count += page & 1;
    return count;
  }

  /// What was read stays; but for a machine whose caches somebody else empties just then: so a few
  /// attempts are made.
  void expect_cached_after(const std::function<void()>& what, std::uint64_t pages) const {
    for (int attempt = 0; attempt < 10 && (attempt == 0 || cached() != pages); ++attempt) what();
    EXPECT_EQ(cached(), pages);
  }

  /// The pages that a hint names. Where some were taken away meanwhile it is given again, to a file
  /// of which nothing is left: a hint looks at the ends of what it names, and not at what is
  /// between.
  void hint_and_wait(std::span<const FileRange> ranges, std::uint64_t pages) const {
    for (int attempt = 0; attempt < 10 && (attempt == 0 || cached() != pages); ++attempt) {
      if (attempt > 0) page_cache::drop(fd_.get(), {0, kSize}, kSize);
      files_->will_need(ranges);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (cached() < pages && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
    }
    ASSERT_EQ(cached(), pages);
  }

  /// In requests of an odd size, several in a batch.
  void read_once(std::uint64_t begin, std::uint64_t end) {
    std::vector<ReadRequest> batch;
    const std::span<std::byte> out(out_);
    for (std::uint64_t at = begin; at < end; at += 100'001) {
      batch.push_back({file_, at, out.subspan(at, std::min<std::uint64_t>(100'001, end - at))});
      if (batch.size() < 5 && at + 100'001 < end) continue;
      ASSERT_TRUE(files_->read_once(batch));
      batch.clear();
    }
    EXPECT_TRUE(std::equal(out_.begin() + static_cast<std::ptrdiff_t>(begin),
                           out_.begin() + static_cast<std::ptrdiff_t>(end),
                           content_.begin() + static_cast<std::ptrdiff_t>(begin)));
  }

  const TemporaryDirectory directory_{std::filesystem::current_path()};
  std::vector<std::byte> content_, out_;
  std::filesystem::path path_;
  UniqueFd fd_;
  std::unique_ptr<SourceFiles> files_;
  FileId file_ = 0;
};

TEST_P(ReadOnceTest, ReadKeepsAndReadOnceDoesNot) {
  read_once(0, kSize);
  EXPECT_EQ(cached(), 0u);
  expect_cached_after([&] { ASSERT_TRUE(files_->read_at(file_, 0, out_)); }, kPages + 1);
}

TEST_P(ReadOnceTest, WhatWasCachedBeforeStays) {
  expect_cached_after(
      [&] {
        ASSERT_TRUE(files_->read_at(file_, 0, out_));
        read_once(0, kSize);
      },
      kPages + 1);
}

TEST_P(ReadOnceTest, WhatAHintBroughtInGoesToo) {
  const FileRange ranges[] = {{file_, 0, 400 * kPage}, {file_, 400 * kPage, kSize - 400 * kPage}};
  hint_and_wait(ranges, kPages + 1);
  read_once(0, kSize);
  EXPECT_EQ(cached(), 0u);
}

TEST_P(ReadOnceTest, PagesThatOthersWantARowOfStay) {
  // A matrix with rows of two pages, cut by columns: each cut reads 512 bytes of each row.
  constexpr std::uint64_t kRow = 2 * kPage, kRows = kPages / 2;
  for (std::uint64_t column = 0; column < kPage; column += 512) {
    std::vector<ReadRequest> batch;
    for (std::uint64_t row = 0; row < kRows; ++row) {
      batch.push_back({file_, row * kRow + column, std::span(out_).subspan(row * 512, 512)});
    }
    expect_cached_after([&] { ASSERT_TRUE(files_->read_once(batch)); }, kRows);
  }
}

TEST_P(ReadOnceTest, HintsBringInWhatTheyNameAndNoMore) {
  const FileRange ranges[] = {{file_, 10 * kPage + 5, 20 * kPage}, {file_, 500 * kPage, 1}};
  hint_and_wait(ranges, 22);
  EXPECT_EQ(files_->statistics().files[0].requests, 0u);
}

TEST_P(ReadOnceTest, ReadsBringInWhatTheyNameAndNoMore) {
  ASSERT_TRUE(files_->read_at(file_, 100 * kPage, std::span(out_).first(10 * kPage)));
  EXPECT_EQ(cached(), 10u);
}

TEST_P(ReadOnceTest, HintsOnAStaleFileAreNoMatter) {
  std::filesystem::resize_file(path_, 10);
  const FileRange range{file_, 0, kSize};
  files_->will_need({&range, 1});
  EXPECT_FALSE(files_->read_at(file_, 0, out_));
  files_->will_need({&range, 1});
  const FileRange none{file_, 0, 0};
  files_->will_need({&none, 1});
}

TEST_P(ReadOnceTest, ALocalFileHasNoOrder) {
  EXPECT_FALSE(files_->prefers_order(file_));
  // On overlayfs, which a container may have, nothing is known of the disks.
  struct stat status{};
  ASSERT_EQ(::fstat(fd_.get(), &status), 0);
  EXPECT_EQ(files_->heeds_hints(file_), FileSystems().of(status.st_dev, fd_.get()).on_disk);
}

INSTANTIATE_TEST_SUITE_P(Io, ReadOnceTest,
                         testing::Values(Setting{IoEngine::Pread, Kernel::AsItIs},
                                         Setting{IoEngine::Pread, Kernel::Refuses},
                                         Setting{IoEngine::Uring, Kernel::AsItIs},
                                         Setting{IoEngine::Uring, Kernel::Refuses}),
                         [](const auto& each) {
                           return std::string(each.param.engine == IoEngine::Pread ? "Pread"
                                                                                   : "Uring") +
                                  (each.param.kernel == Kernel::Refuses ? "Refused" : "");
                         });

}  // namespace
}  // namespace ckfs
