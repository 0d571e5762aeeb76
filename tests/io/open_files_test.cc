#include "io/open_files.h"

#include <cerrno>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include "support/temporary_directory.h"

namespace ckfs {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

class OpenFilesTest : public testing::Test {
 protected:
  Pin pin(OpenFiles& files, FileId file) {
    auto pinned = files.pin(file, directory_.write(std::to_string(file), "content"));
    CKFS_CHECK(pinned.has_value());
    return *std::move(pinned);
  }

  TemporaryDirectory directory_;
  const std::unique_ptr<OpenStore> store_ = make_local_store();
};

TEST_F(OpenFilesTest, TheLeastRecentlyUsedOneGoesFirst) {
  OpenFiles files(2, *store_);
  const auto first = pin(files, 1)->serial, second = pin(files, 2)->serial;
  EXPECT_EQ(pin(files, 1)->serial, first);  // used again
  pin(files, 3);
  EXPECT_EQ(files.count(), 2u);
  EXPECT_EQ(pin(files, 1)->serial, first);
  EXPECT_NE(pin(files, 2)->serial, second);  // opened again
}

TEST_F(OpenFilesTest, APinnedOneStaysOpenAfterItWasEvicted) {
  OpenFiles files(1, *store_);
  Pin pinned = pin(files, 1);
  const int fd = pinned->fd.get();
  pin(files, 2);
  EXPECT_TRUE(is_open(fd));
  pinned.reset();
  EXPECT_FALSE(is_open(fd));
}

TEST_F(OpenFilesTest, ADroppedOneIsOpenedAgain) {
  OpenFiles files(4, *store_);
  const auto serial = pin(files, 1)->serial;
  files.drop(1);
  files.drop(7);  // not there: nothing happens
  EXPECT_EQ(files.count(), 0u);
  EXPECT_NE(pin(files, 1)->serial, serial);
}

TEST_F(OpenFilesTest, AMissingFileIsItsErrno) {
  OpenFiles files(4, *store_);
  const auto pinned = files.pin(1, directory_ / "missing");
  ASSERT_FALSE(pinned);
  EXPECT_EQ(pinned.error(), ENOENT);
}

TEST_F(OpenFilesTest, WhenDescriptorsRunOutUnpinnedOnesAreGivenBack) {
  OpenFiles files(1000, *store_);
  for (FileId file = 0; file < 40; ++file) pin(files, file);
  // Below what is open now: no new descriptor until some are closed.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto path = directory_.write("one more", "content");
  const rlimit low{20, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto pinned = files.pin(100, path);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(pinned);
  EXPECT_EQ(files.count(), 1u);
}

TEST_F(OpenFilesTest, ManyThreadsShareFewDescriptors) {
  OpenFiles files(3, *store_);
  std::vector<std::filesystem::path> paths;
  for (int i = 0; i < 10; ++i) paths.push_back(directory_.write(std::to_string(i), "content"));
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 500; ++i) {
        const FileId file = (i * 7 + t * 3) % 10;
        const auto pinned = files.pin(file, paths[file]);
        if (!pinned || !is_open((*pinned)->fd.get())) ++wrong;
        if (i % 50 == 0) files.drop(file);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(files.count(), 3u);
}

}  // namespace
}  // namespace ckfs
