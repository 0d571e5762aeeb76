// One suite for both readers: the same bytes and the same failures, whatever the kernel answers.
#include "io/reader.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "io/uring.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

enum class Kind { Pread, Uring };

class ReaderTest : public testing::TestWithParam<Kind> {
 protected:
  ReaderTest() : content_(300'000) {
    for (std::size_t i = 0; i < content_.size(); ++i) {
      content_[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
    }
    path_ = directory_.write("a.bin", content_);
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }

  static std::unique_ptr<Reader> make(ResultFilter filter = {}, unsigned depth = 4) {
    if (GetParam() == Kind::Pread) return make_pread_reader(std::move(filter));
    auto reader = make_uring_reader(depth, std::move(filter));
    // A machine without io_uring cannot say anything about it: the suite fails there on purpose.
    CKFS_CHECK(reader.has_value());
    return *std::move(reader);
  }

  /// Many accesses of odd sizes, two parts each, over the whole file.
  struct Work {
    std::vector<std::byte> out;
    std::vector<iovec> parts;
    std::vector<Access> accesses;
  };
  Work make_work(std::size_t size, std::size_t step) const {
    Work work;
    work.out.resize(size);
    work.parts.reserve(2 * (size / step + 1));
    for (std::size_t at = 0; at < size; at += step) {
      const std::size_t length = std::min(step, size - at);
      const std::size_t first = length / 3;
      const std::size_t index = work.parts.size();
      if (first > 0) work.parts.push_back({work.out.data() + at, first});
      work.parts.push_back({work.out.data() + at + first, length - first});
      work.accesses.push_back({fd_.get(), 1, at, length,
                               std::span(work.parts).subspan(index, work.parts.size() - index)});
    }
    return work;
  }

  void expect_reads_all(Reader& reader) const {
    Work work = make_work(content_.size(), 1013);
    const auto done = reader.read(work.accesses);
    ASSERT_TRUE(done) << done.error().error;
    EXPECT_EQ(work.out, content_);
  }

  TemporaryDirectory directory_;
  std::vector<std::byte> content_;
  std::filesystem::path path_;
  UniqueFd fd_;
};

TEST_P(ReaderTest, ReadsManyAccessesWithFewInFlight) {
  expect_reads_all(*make({}, 3));
}

TEST_P(ReaderTest, ReadsOneAccess) {
  Work work = make_work(content_.size(), content_.size());
  ASSERT_EQ(work.accesses.size(), 1u);
  ASSERT_TRUE(make()->read(work.accesses));
  EXPECT_EQ(work.out, content_);
}

TEST_P(ReaderTest, ReadsNothing) {
  EXPECT_TRUE(make()->read({}));
}

TEST_P(ReaderTest, ContinuesShortReads) {
  std::atomic<int> calls = 0;
  const auto reader = make([&](std::int64_t result) -> std::int64_t {
    ++calls;
    return result > 1 ? 1 + result / 2 : result;
  });
  expect_reads_all(*reader);
  EXPECT_GT(calls, 2000);  // 297 accesses of about 10 steps
}

TEST_P(ReaderTest, RetriesInterruptedCallsAndThoseThatWouldBlock) {
  std::atomic<int> calls = 0;
  const auto reader = make([&](std::int64_t result) -> std::int64_t {
    const int call = calls++;
    if (call % 3 == 0) return -EINTR;
    return call % 3 == 1 ? -EAGAIN : result;
  });
  expect_reads_all(*reader);
}

TEST_P(ReaderTest, GivesUpOnACallThatNeverSucceeds) {
  Work work = make_work(2000, 1000);
  const auto done = make([](std::int64_t) { return -EAGAIN; })->read(work.accesses);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().error, EAGAIN);
}

TEST_P(ReaderTest, SaysWhichAccessFailedAndWhere) {
  Work work = make_work(10'000, 1000);
  std::atomic<int> calls = 0;
  const auto reader = make([&](std::int64_t result) -> std::int64_t {
    // The first call is cut short, its continuation fails.
    const int call = calls++;
    if (result == 1000 && call == 0) return 600;
    return result == 400 ? -EIO : result;
  });
  const auto done = reader->read(work.accesses);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().error, EIO);
  EXPECT_EQ(done.error().offset % 1000, 600u);
  EXPECT_EQ(done.error().offset / 1000, done.error().access);
}

TEST_P(ReaderTest, AFailureLeavesTheReaderUsable) {
  std::atomic<bool> broken = true;
  const auto reader =
      make([&](std::int64_t result) -> std::int64_t { return broken ? -EIO : result; });
  Work work = make_work(100'000, 1000);
  EXPECT_FALSE(reader->read(work.accesses));
  broken = false;
  expect_reads_all(*reader);
}

TEST_P(ReaderTest, TheEndOfTheFileIsAFailureNotZeros) {
  Work work = make_work(content_.size(), 1000);
  for (Access& access : work.accesses) access.offset += 500;
  const auto done = make()->read(work.accesses);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().error, 0);
  EXPECT_EQ(done.error().access, work.accesses.size() - 1);
  EXPECT_EQ(done.error().offset, content_.size());
}

TEST_P(ReaderTest, ABadDescriptorIsItsErrno) {
  Work work = make_work(3000, 1000);
  for (Access& access : work.accesses) {
    access.fd = 1'000'000;
    access.serial = 77;
  }
  const auto done = make()->read(work.accesses);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().error, EBADF);
}

TEST_P(ReaderTest, ADescriptorNumberThatIsUsedAgainIsAnotherFile) {
  const auto reader = make();
  std::uint64_t serial = 1;
  int number = -1;
  for (int i = 0; i < 100; ++i) {
    const std::vector<std::byte> bytes(2000, static_cast<std::byte>(i));
    const auto path = directory_.write("again.bin", bytes);
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (number < 0) number = fd.get();
    ASSERT_EQ(fd.get(), number);
    std::filesystem::remove(path);
    Work work = make_work(2000, 500);
    ++serial;
    for (Access& access : work.accesses) {
      access.fd = fd.get();
      access.serial = serial;
    }
    ASSERT_TRUE(reader->read(work.accesses));
    ASSERT_EQ(work.out, bytes);
  }
}

TEST_P(ReaderTest, KeepsNoFileOpenThatIsOnlyPassing) {
  const auto reader = make();
  const auto path = directory_.write("passing.bin", std::vector<std::byte>(2000));
  {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::flock(fd.get(), LOCK_EX), 0);  // lasts as long as the file is open anywhere
    Work work = make_work(2000, 500);
    for (Access& access : work.accesses) {
      access.fd = fd.get();
      access.serial = 99;
      access.passing = true;
    }
    ASSERT_TRUE(reader->read(work.accesses));
  }
  const UniqueFd again(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::flock(again.get(), LOCK_EX | LOCK_NB), 0);
}

TEST_P(ReaderTest, ReadsMoreFilesInABatchThanItCanRegister) {
  std::vector<UniqueFd> fds;
  Work work;
  constexpr std::size_t kFiles = 200;
  work.out.resize(kFiles * 100);
  work.parts.reserve(kFiles);
  for (std::size_t i = 0; i < kFiles; ++i) {
    const std::vector<std::byte> bytes(100, static_cast<std::byte>(i));
    fds.emplace_back(
        ::open(directory_.write(std::to_string(i), bytes).c_str(), O_RDONLY | O_CLOEXEC));
    work.parts.push_back({work.out.data() + i * 100, 100});
    work.accesses.push_back({fds[i].get(), i + 1, 0, 100, std::span(work.parts).subspan(i, 1)});
  }
  const auto reader = make();
  for (int round = 0; round < 3; ++round) {
    std::fill(work.out.begin(), work.out.end(), std::byte{0xAA});
    ASSERT_TRUE(reader->read(work.accesses));
    for (std::size_t i = 0; i < work.out.size(); ++i) {
      ASSERT_EQ(work.out[i], static_cast<std::byte>(i / 100));
    }
  }
}

TEST_P(ReaderTest, ManyThreadsReadAtOnce) {
  const auto reader = make();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) expect_reads_all(*reader);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST_P(ReaderTest, WhatAThreadHeldEndsWithTheThread) {
  const auto reader = make();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) std::thread([&] { expect_reads_all(*reader); }).join();
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(ReaderTest, WhatAReaderHeldEndsWithTheReader) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) expect_reads_all(*make());
  EXPECT_EQ(open_descriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Io, ReaderTest, testing::Values(Kind::Pread, Kind::Uring),
                         [](const auto& parameter) {
                           return parameter.param == Kind::Pread ? "Pread" : "Uring";
                         });

TEST(RemainingParts, BeginsInTheMiddleOfAPart) {
  std::vector<std::byte> buffer(30);
  const std::vector<iovec> parts = {{buffer.data(), 10}, {buffer.data() + 10, 20}};
  auto rest = remaining_parts(parts, 4);
  ASSERT_EQ(rest.size(), 2u);
  EXPECT_EQ(rest[0].iov_base, buffer.data() + 4);
  EXPECT_EQ(rest[0].iov_len, 6u);
  rest = remaining_parts(parts, 10);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].iov_base, buffer.data() + 10);
  rest = remaining_parts(parts, 29);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].iov_len, 1u);
}

}  // namespace
}  // namespace ckfs
