// Mountpoints that are refused; the ones that work are the business of tests/mounted.

#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "fuse/mount.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;
using testing::HasSubstr;

class CheckMountpoint : public testing::Test {
 protected:
  CheckMountpoint() {
    std::string name = (stdfs::temp_directory_path() / "ckfs-fuse-XXXXXX").native();
    top_ = stdfs::canonical(::mkdtemp(name.data()));
    stdfs::create_directories(top_ / "source/inner");
    stdfs::create_directories(top_ / "source-like");
    stdfs::create_directory_symlink("source/inner", top_ / "link");
    std::ofstream(top_ / "source/file") << "x";
  }
  ~CheckMountpoint() override { stdfs::remove_all(top_); }

  std::string refusal(const stdfs::path& mountpoint, const stdfs::path& source) {
    const auto result = check_mountpoint(top_ / mountpoint, top_ / source);
    if (result) return "allowed";
    EXPECT_EQ(result.error().code(), ErrorCode::InvalidArgument);
    return result.error().message();
  }

  stdfs::path top_;
};

TEST_F(CheckMountpoint, AllowsADirectoryBesideTheSource) {
  EXPECT_EQ(check_mountpoint(top_ / "source-like/", top_ / "source").value(), top_ / "source-like");
}

/// Whether a child of this process ended meanwhile, also one that was waited for.
template <typename Work>
bool starts_a_process(Work work) {
  sigset_t ends, before, pending;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &ends, &before);
  work();
  ::sigpending(&pending);
  const bool started = sigismember(&pending, SIGCHLD) == 1;
  const timespec at_once{};
  if (started) ::sigtimedwait(&ends, nullptr, &at_once);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

// An answer that came late on a busy machine was once taken for that of a mount that hangs.
TEST_F(CheckMountpoint, AsksNothingWhereNothingIsMounted) {
  EXPECT_FALSE(starts_a_process([&] { EXPECT_EQ(refusal("source-like", "source"), "allowed"); }));
  EXPECT_TRUE(starts_a_process([&] { (void)check_mountpoint("/proc", top_ / "source"); }));
}

TEST_F(CheckMountpoint, RefusesWhatIsNoDirectory) {
  EXPECT_THAT(refusal("absent", "source"), HasSubstr("absent: no such directory"));
  stdfs::create_directory_symlink("gone", top_ / "dangling");
  EXPECT_THAT(refusal("dangling", "source"), HasSubstr("dangling: a link that leads nowhere"));
  EXPECT_THAT(refusal("absent/deeper", "source"), HasSubstr("absent"));
  EXPECT_THAT(refusal("source/file", "source-like"), HasSubstr("file: not a directory"));
}

TEST_F(CheckMountpoint, RefusesSourceAndMountpointWithinEachOther) {
  EXPECT_THAT(refusal("source", "source"), HasSubstr("hide its own source"));
  EXPECT_THAT(refusal(".", "source"), HasSubstr("hide its own source"));
  EXPECT_THAT(refusal("source/inner", "source"), HasSubstr("lies within the source"));
  EXPECT_THAT(refusal("link", "source"), HasSubstr("lies within the source"));
  EXPECT_THAT(refusal("source", "source/file"), HasSubstr("hide its own source"));
}

TEST(Unmount, RefusesWhatIsNoCkfsMount) {
  for (const char* path : {"/proc", "/", "/proc/nothing"}) {
    const auto result = unmount(path, FilesInUse::LiveOn);
    ASSERT_FALSE(result) << path;
    EXPECT_EQ(result.error().code(), ErrorCode::InvalidArgument) << path;
    EXPECT_THAT(result.error().message(), HasSubstr("not a ckfs mount"));
  }
}

}  // namespace
}  // namespace ckfs
