#include "io/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/unique_fd.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

TEST(FileSystemTraits, LocalOnesKeepInodesAndMayBeReadAnywhere) {
  for (const std::int64_t type : {0xEF53, 0x01021994, 0x58465342}) {  // ext4, tmpfs, xfs
    EXPECT_TRUE(traits_of(type).stable_inodes);
    EXPECT_FALSE(traits_of(type).remote);
  }
}

TEST(FileSystemTraits, NetworkAndFuseOnesAreRemoteAndTheirInodesNotTrusted) {
  // nfs, fuse, and cifs as a 32-bit signed f_type shows it
  for (const std::int64_t type : {std::int64_t{0x6969}, std::int64_t{0x65735546},
                                  std::int64_t{static_cast<std::int32_t>(0xFF534D42)}}) {
    EXPECT_FALSE(traits_of(type).stable_inodes);
    EXPECT_TRUE(traits_of(type).remote);
  }
}

TEST(FileSystemTraits, FatIsLocalButHasNoInodes) {
  EXPECT_FALSE(traits_of(0x4d44).stable_inodes);
  EXPECT_FALSE(traits_of(0x4d44).remote);
}

TEST(FileSystems, AreOneObjectForEachDevice) {
  const TemporaryDirectory directory;
  const UniqueFd fd(::open(directory.path().c_str(), O_RDONLY | O_CLOEXEC));
  FileSystems systems;
  FileSystem& one = systems.of(1, fd.get());
  EXPECT_EQ(&systems.of(1, fd.get()), &one);
  EXPECT_NE(&systems.of(2, fd.get()), &one);
  EXPECT_GE(one.hint_bytes, 128u << 10);
  EXPECT_LE(one.hint_bytes, 2u << 20);
}

TEST(FileSystems, OnlyThoseThatAreKnownToLieInThisMachineAreOnDisk) {
  const TemporaryDirectory directory;
  const UniqueFd fd(::open(directory.path().c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(FileSystems().of(gnu_dev_makedev(8, 1), fd.get()).on_disk);
  EXPECT_TRUE(traits_of(0x01021994).without_device);   // tmpfs
  EXPECT_TRUE(traits_of(0x9123683E).without_device);   // btrfs
  EXPECT_FALSE(traits_of(0xEF53).without_device);      // ext4
  EXPECT_FALSE(traits_of(0x794C7630).without_device);  // overlayfs: its layers may lie on a server
  // One without a device that the table does not have, as a server's may be.
  const UniqueFd proc(::open("/proc", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(FileSystems().of(gnu_dev_makedev(0, 5), proc.get()).on_disk);
}

TEST(FileSystems, OneThatDoesNotAnswerIsRemote) {
  FileSystems systems;
  EXPECT_TRUE(systems.of(1, -1).traits.remote);
}

TEST(Pace, IsInOrderUntilTwoComparisonsAgree) {
  using Seconds = std::chrono::duration<double>;
  Pace pace;
  EXPECT_FALSE(pace.at_once());
  pace.compared(Seconds(2), Seconds(1));
  EXPECT_FALSE(pace.at_once());
  pace.compared(Seconds(1), Seconds(1));  // a busy moment: counting starts over
  pace.compared(Seconds(2), Seconds(1));
  EXPECT_FALSE(pace.at_once());
  EXPECT_TRUE(pace.wants_comparison());
  pace.compared(Seconds(2), Seconds(1));
  EXPECT_TRUE(pace.at_once());
  EXPECT_FALSE(pace.wants_comparison());
}

TEST(Pace, BelievesDoubtfulMeasurementsOnlyWhereManyAgree) {
  using Seconds = std::chrono::duration<double>;
  Pace pace;
  for (int k = 0; k < 5; ++k) pace.compared(Seconds(3), Seconds(1), Pace::Trust::Little);
  EXPECT_FALSE(pace.at_once());
  EXPECT_TRUE(pace.wants_comparison());
  pace.compared(Seconds(3), Seconds(1), Pace::Trust::Little);
  EXPECT_TRUE(pace.at_once());
  Pace other;
  for (int k = 0; k < 5; ++k) other.compared(Seconds(3), Seconds(1), Pace::Trust::Little);
  other.compared(Seconds(1), Seconds(1), Pace::Trust::Little);
  other.compared(Seconds(1), Seconds(1), Pace::Trust::Little);
  EXPECT_FALSE(other.wants_comparison());
}

TEST(Pace, AStreamStaysInOrderForGood) {
  using Seconds = std::chrono::duration<double>;
  Pace pace;
  pace.compared(Seconds(1), Seconds(0.8));
  pace.compared(Seconds(1), Seconds(3));
  EXPECT_FALSE(pace.wants_comparison());
  pace.compared(Seconds(9), Seconds(1));
  pace.compared(Seconds(9), Seconds(1));
  EXPECT_FALSE(pace.at_once());
}

}  // namespace
}  // namespace ckfs
