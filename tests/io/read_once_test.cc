// What read_once() leaves in the page cache, and what hints bring into it; on the disk that the
// build lies on, over both readers.
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "io/file_system.h"
#include "io/page_cache.h"
#include "io/reader.h"
#include "io/source_files.h"
#include "support/heap_meter.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kPages = 1024;
constexpr std::uint64_t kOnceBytes = kPages * kPage + 100;

/// How RWF_DONTCACHE and O_DIRECT fare in a test.
enum class Kernel { AsItIs, Refuses };

struct Setting {
  IoEngine engine;
  Kernel kernel;
};

/// Answers for a kernel that does not know RWF_DONTCACHE, and a disk that O_DIRECT does not suit.
class RefusingReader final : public Reader {
 public:
  explicit RefusingReader(std::unique_ptr<Reader> real) : real_(std::move(real)) {}
  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      const bool direct = page_cache::bypasses(accesses[i].fd);
      if (!accesses[i].uncached && !direct) continue;
      return tl::unexpected(AccessFailure{i, accesses[i].offset, direct ? EINVAL : EOPNOTSUPP});
    }
    return real_->read(accesses);
  }

 private:
  const std::unique_ptr<Reader> real_;
};

class ReadOnceTest : public testing::TestWithParam<Setting> {
 protected:
  ReadOnceTest() : content_(kOnceBytes), out_(kOnceBytes) {
    for (std::size_t i = 0; i < kOnceBytes; ++i) {
      content_[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
    }
    path_ = directory_.write("a.bin", content_);
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    CKFS_CHECK(::fsync(fd_.get()) == 0);
    page_cache::drop(fd_.get(), {0, kOnceBytes}, kOnceBytes);
    auto reader =
        GetParam().engine == IoEngine::Pread ? make_pread_reader() : make_uring_reader(8).value();
    if (GetParam().kernel == Kernel::Refuses) {
      reader = std::make_unique<RefusingReader>(std::move(reader));
    }
    files_ = LocalFiles::with_reader({.max_access = 64 * kPage}, std::move(reader));
    file_ = files_->add("a.bin", path_).value();
  }

  /// By mincore and not by what the code under test asks.
  std::uint64_t cached() const {
    void* const mapping = ::mmap(nullptr, kOnceBytes, PROT_READ, MAP_SHARED, fd_.get(), 0);
    CKFS_CHECK(mapping != MAP_FAILED);
    std::vector<unsigned char> resident(kPages + 1);
    CKFS_CHECK(::mincore(mapping, kOnceBytes, resident.data()) == 0);
    ::munmap(mapping, kOnceBytes);
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
      if (attempt > 0) page_cache::drop(fd_.get(), {0, kOnceBytes}, kOnceBytes);
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
  read_once(0, kOnceBytes);
  EXPECT_EQ(cached(), 0u);
  expect_cached_after([&] { ASSERT_TRUE(files_->read_at(file_, 0, out_)); }, kPages + 1);
}

TEST_P(ReadOnceTest, WhatWasCachedBeforeStays) {
  expect_cached_after(
      [&] {
        ASSERT_TRUE(files_->read_at(file_, 0, out_));
        read_once(0, kOnceBytes);
      },
      kPages + 1);
}

TEST_P(ReadOnceTest, WhatAHintBroughtInGoesToo) {
  const FileRange ranges[] = {{file_, 0, 400 * kPage},
                              {file_, 400 * kPage, kOnceBytes - 400 * kPage}};
  hint_and_wait(ranges, kPages + 1);
  read_once(0, kOnceBytes);
  EXPECT_EQ(cached(), 0u);
}

TEST_P(ReadOnceTest, WhatOthersBroughtInStaysBesideAHint) {
  // Hints are cut at multiples of at most 2 MiB, and accesses are not.
  constexpr std::uint64_t kOthers = 512;
  const FileRange all{file_, 0, kOnceBytes};
  expect_cached_after(
      [&] {
        page_cache::drop(fd_.get(), {0, kOnceBytes}, kOnceBytes);
        ASSERT_TRUE(files_->read_at(file_, 0, std::span(out_).first(kOthers * kPage)));
        files_->will_need({&all, 1});
        read_once(0, kOnceBytes);
      },
      kOthers);
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

TEST_P(ReadOnceTest, BehindTheEndNobodyWantsAnything) {
  read_once(kPages * kPage, kOnceBytes);  // a part of a page
  EXPECT_EQ(cached(), 0u);
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
  const FileRange range{file_, 0, kOnceBytes};
  files_->will_need({&range, 1});
  EXPECT_FALSE(files_->read_at(file_, 0, out_));
  files_->will_need({&range, 1});
  const FileRange none{file_, 0, 0};
  files_->will_need({&none, 1});
}

TEST_P(ReadOnceTest, ALocalFileHasNoOrder) {
  EXPECT_FALSE(files_->traits(file_).streams);
  // On overlayfs, which a container may have, nothing is known of the disks.
  struct stat status{};
  ASSERT_EQ(::fstat(fd_.get(), &status), 0);
  EXPECT_EQ(files_->traits(file_).heeds_hints, FileSystems().of(status.st_dev, fd_.get()).on_disk);
}

/// A buffer as ReadRequest::padded wants it: blocks of bytes that are known, of which a request
/// gets the middle.
class PaddedBuffer {
 public:
  explicit PaddedBuffer(std::uint64_t offset, std::size_t size)
      : offset_(offset), size_(size), bytes_(size + 5 * kDiskBlock, std::byte{0xA5}) {
    void* begin = bytes_.data() + kDiskBlock;
    std::size_t room = bytes_.size() - kDiskBlock;
    first_ = static_cast<std::byte*>(std::align(kDiskBlock, size, begin, room));
  }
  std::span<std::byte> out() const { return {first_ + offset_ % kDiskBlock, size_}; }
  ReadRequest request(FileId file) const { return {file, offset_, out(), true}; }
  /// Outside of the blocks that the request has bytes of.
  bool is_whole_around() const {
    const std::byte* const end =
        first_ + (offset_ % kDiskBlock + size_ + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
    const auto known = [](std::byte byte) { return byte == std::byte{0xA5}; };
    return std::all_of(bytes_.data(), static_cast<const std::byte*>(first_), known) &&
           std::all_of(end, bytes_.data() + bytes_.size(), known);
  }

 private:
  const std::uint64_t offset_;
  const std::size_t size_;
  std::vector<std::byte> bytes_;
  std::byte* first_ = nullptr;
};

TEST_P(ReadOnceTest, PaddedRequestsGoPastTheCacheWhereNothingIsInIt) {
  // Where the machine cannot do it, they are read as any others.
  struct stat status{};
  ASSERT_EQ(::fstat(fd_.get(), &status), 0);
  FileSystems file_systems;
  const FileSystem& on = file_systems.of(status.st_dev, fd_.get());
  const UniqueFd direct(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  const bool can = GetParam().kernel == Kernel::AsItIs && direct.get() >= 0 && on.on_disk &&
                   !on.traits.without_device &&
                   page_cache::cached_pages(fd_.get(), {0, kPage}).has_value();
  EXPECT_EQ(files_->traits(file_).reads_past_cache, on.on_disk && !on.traits.without_device)
      << "at first";
  const auto read = [&](std::uint64_t offset, std::size_t size) {
    const PaddedBuffer buffer(offset, size);
    const ReadRequest request = buffer.request(file_);
    ASSERT_TRUE(files_->read_once({&request, 1}));
    EXPECT_TRUE(std::equal(buffer.out().begin(), buffer.out().end(),
                           content_.begin() + static_cast<std::ptrdiff_t>(offset)));
    EXPECT_TRUE(buffer.is_whole_around());
  };
  read(17 * kPage + 100, 600 * kPage + 1);  // several accesses
  EXPECT_EQ(files_->traits(file_).reads_past_cache, can);
  const std::uint64_t bytes = files_->statistics().files[0].bytes;
  EXPECT_EQ(bytes, can ? 601 * kPage : 600 * kPage + 1);
  read(0, 1);
  read(3 * kPage, 64 * kPage);
  if (can) {
    EXPECT_LE(cached(), 1u);  // of the one byte
  }
  read(kOnceBytes - 300 * kPage, 300 * kPage);  // the last block is none as a whole

  // A page that is in the cache is not read from the disk; some machines empty theirs just then.
  std::uint64_t taken = 0;
  for (int attempt = 0; attempt < 10 && taken != 20 * kPage; ++attempt) {
    ASSERT_TRUE(files_->read_at(file_, 20 * kPage, std::span(out_).first(kPage)));
    const std::uint64_t before = files_->statistics().files[0].bytes;
    read(10 * kPage + 5, 20 * kPage);
    taken = files_->statistics().files[0].bytes - before;
  }
  EXPECT_EQ(taken, 20 * kPage);
}

TEST_P(ReadOnceTest, PaddedRequestsOfOneBatchMayBeAnything) {
  std::vector<PaddedBuffer> buffers;
  for (std::uint64_t offset = 0; offset + 100 * kPage < kOnceBytes; offset += 70 * kPage + 13) {
    buffers.emplace_back(offset, 70 * kPage + 13);
  }
  std::vector<ReadRequest> batch;
  for (const PaddedBuffer& buffer : buffers) {
    batch.push_back(buffer.request(file_));
    batch.back().padded = batch.size() % 3 != 0;
  }
  ASSERT_TRUE(files_->read_once(batch));
  for (const ReadRequest& request : batch) {
    EXPECT_TRUE(std::equal(request.out.begin(), request.out.end(),
                           content_.begin() + static_cast<std::ptrdiff_t>(request.offset)));
  }
  std::filesystem::resize_file(path_, kOnceBytes - 1);
  auto failed = files_->read_once(batch);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Stale);
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

TEST(ReadOnce, KeepsNothingOfAFileThatWasNeverHinted) {
  constexpr std::size_t kWarm = 500, kFiles = 2500;
  const TemporaryDirectory directory{std::filesystem::current_path()};
  const auto files = LocalFiles::with_reader({.max_open_files = 8}, make_pread_reader());
  std::vector<std::byte> out(10);
  for (std::size_t i = 0; i < kFiles; ++i) {
    const std::string name = std::to_string(i);
    ASSERT_TRUE(files->add(name, directory.write(name, out)));
  }
  std::size_t before = 0;
  for (FileId file = 0; file < kFiles; ++file) {
    if (file == kWarm) before = heap_meter::now;
    const ReadRequest request{file, 0, out};
    ASSERT_TRUE(files->read_once({&request, 1}));
  }
  EXPECT_LE(heap_meter::now, before + 50 * (kFiles - kWarm));
}

}  // namespace
}  // namespace ckfs
