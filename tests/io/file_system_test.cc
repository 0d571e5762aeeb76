#include "io/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/unique_fd.h"
#include "base/units.h"
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
  // nfs, fuse, OpenAFS, the kernel's afs, and cifs as a 32-bit signed f_type shows it
  for (const std::int64_t type :
       {std::int64_t{0x6969}, std::int64_t{0x65735546}, std::int64_t{0x5346414F},
        std::int64_t{0x6B414653}, std::int64_t{static_cast<std::int32_t>(0xFF534D42)}}) {
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

using Seconds = Pace::Seconds;

/// Of a source that takes 10 ms for each MiB in order.
class PaceTest : public testing::Test {
 protected:
  void read_in_order(std::uint64_t bytes, double seconds_of_mib = 0.010) {
    for (std::uint64_t at = 0; at < bytes; at += 1_MiB) {
      pace_.began_in_order(now_);
      pass(seconds_of_mib);
      pace_.ended_in_order(1_MiB, now_);
      pass(3600);  // nobody waits
    }
  }
  void pass(double seconds) {
    now_ += std::chrono::duration_cast<std::chrono::steady_clock::duration>(Seconds(seconds));
  }
  /// At once it is so much faster than the usual 10 ms for each MiB; and than the request before,
  /// which took as long unless `beside` says so.
  void compare(double gain, Pace::Trust trust = Pace::Trust::Much, double beside = 0) {
    const Seconds at_once(0.010 / 1_MiB / gain);
    pace_.compared(at_once, at_once * (beside == 0 ? gain : beside), trust);
  }
  bool can_compare() {
    const bool can = pace_.begin_comparison();
    if (can) pace_.end_comparison();
    return can;
  }
  void decide() {
    for (int k = 0; k < 2; ++k) compare(2);
  }
  /// Two calls that overlap, of `requests` of `size` bytes together, take `seconds`.
  void ask(std::uint64_t requests, std::uint64_t size, double seconds) {
    pace_.began(now_);
    pace_.began(now_);
    pass(seconds);
    pace_.ended(requests, requests * size, now_);
    pace_.ended(0, 0, now_);
    pass(3600);
  }

  /// Two looks at four times what it takes in order.
  void find_slow() {
    for (int look = 0; look < 2; ++look) ask(16, 1_MiB, 16 * 0.040);
  }

  Pace pace_;
  Pace::Time now_{};
};

TEST_F(PaceTest, IsInOrderUntilTwoComparisonsAgree) {
  read_in_order(4_MiB);
  EXPECT_FALSE(pace_.at_once());
  compare(2);
  EXPECT_FALSE(pace_.at_once());
  compare(1);  // a busy moment: counting starts over
  compare(2);
  EXPECT_FALSE(pace_.at_once());
  EXPECT_TRUE(pace_.wants_comparison());
  compare(2);
  EXPECT_TRUE(pace_.at_once());
  EXPECT_FALSE(pace_.wants_comparison());
}

TEST_F(PaceTest, BelievesDoubtfulMeasurementsOnlyWhereManyAgree) {
  read_in_order(4_MiB);
  for (int k = 0; k < 5; ++k) compare(3, Pace::Trust::Little);
  compare(1, Pace::Trust::Little);
  for (int k = 0; k < 5; ++k) compare(3, Pace::Trust::Little);
  EXPECT_FALSE(pace_.at_once());
  EXPECT_TRUE(pace_.wants_comparison());
  compare(3, Pace::Trust::Little);
  EXPECT_TRUE(pace_.at_once());
}

TEST_F(PaceTest, AStreamStaysInOrderForGood) {
  read_in_order(4_MiB);
  compare(1.2);
  compare(0.3, Pace::Trust::Little);
  EXPECT_FALSE(pace_.wants_comparison());
  for (int k = 0; k < 3; ++k) compare(9);
  EXPECT_FALSE(pace_.at_once());
}

TEST_F(PaceTest, ComparesWithWhatReadingInOrderGaveForSomeTime) {
  EXPECT_TRUE(pace_.wants_comparison());
  EXPECT_FALSE(can_compare());
  compare(9);
  read_in_order(1_MiB);
  EXPECT_FALSE(can_compare());
  read_in_order(1_MiB);
  EXPECT_TRUE(can_compare());
  // The first request after a pause.
  read_in_order(30_MiB);
  read_in_order(1_MiB, 0.030);
  decide();
  EXPECT_TRUE(pace_.at_once());
}

TEST_F(PaceTest, CheapBytesInTheBeginningDecideNothing) {
  read_in_order(2_MiB, 0.0003);  // somebody had read them
  read_in_order(2_MiB, 0.020);
  for (int k = 0; k < 2; ++k) compare(1, Pace::Trust::Much, 2);
  EXPECT_TRUE(pace_.wants_comparison());
  EXPECT_FALSE(can_compare());
  read_in_order(32_MiB, 0.020);
  EXPECT_TRUE(can_compare());
  for (int k = 0; k < 2; ++k) compare(1, Pace::Trust::Much, 2);
  EXPECT_TRUE(pace_.at_once());
}

TEST_F(PaceTest, AComparisonThatShowsNothingIsRepeatedLessAndLess) {
  read_in_order(4_MiB);
  for (std::uint64_t pause = 16; pause <= 256; pause *= 2) {
    compare(1, Pace::Trust::Much, 2);
    read_in_order((pause - 1) * 1_MiB);
    EXPECT_FALSE(can_compare());
    read_in_order(1_MiB);
    EXPECT_TRUE(can_compare());
  }
}

TEST_F(PaceTest, AFewRequestsThatTakeTheSameTimeAreEnough) {
  for (const double first : {0.100, 0.050}) {
    Pace pace;
    for (int k = 0; k < 2; ++k) {
      EXPECT_FALSE(pace.begin_comparison());
      pace.began_in_order(now_);
      pass(k == 0 ? first : 0.050);
      pace.ended_in_order(1_MiB / 8, now_);
    }
    EXPECT_EQ(pace.begin_comparison(), first == 0.050);
  }
}

TEST_F(PaceTest, OneFileComparesAtATime) {
  read_in_order(4_MiB);
  ASSERT_TRUE(pace_.begin_comparison());
  EXPECT_FALSE(pace_.begin_comparison());
  pace_.end_comparison();
  EXPECT_TRUE(can_compare());
}

TEST_F(PaceTest, BesideOtherFilesOneIsComparedWithItsShareAndNoSingleComparisonIsBeyondDoubt) {
  for (int file = 0; file < 8; ++file) pace_.began_in_order(now_);
  for (int k = 0; k < 64; ++k) {
    pass(0.010);
    pace_.ended_in_order(1_MiB, now_);
    pace_.began_in_order(now_);
  }
  pace_.ended_in_order(0, now_);
  // 80 ms alone beside seven others, 20 for each of four at once.
  ASSERT_TRUE(can_compare());
  compare(1. / 2, Pace::Trust::Much, 4);
  EXPECT_FALSE(pace_.at_once());
  compare(1. / 2, Pace::Trust::Much, 4);
  EXPECT_TRUE(pace_.at_once());
}

TEST_F(PaceTest, AStreamWhoseSpeedVariesIsNoGain) {
  read_in_order(16_MiB);
  for (int k = 0; k < 64; ++k) {
    compare(4, Pace::Trust::Little, k % 3 == 0 ? 1.2 : 0.5);  // fast moments, for one alone as well
    read_in_order(1_MiB);
  }
  EXPECT_FALSE(pace_.at_once());
  compare(4, Pace::Trust::Little);
  EXPECT_FALSE(pace_.at_once());
}

TEST_F(PaceTest, AGainThatTheRequestBeforeDoesNotShowIsNone) {
  read_in_order(4_MiB);
  compare(9, Pace::Trust::Much, 1);  // all that it takes is less than it was
  EXPECT_FALSE(pace_.at_once());
  EXPECT_FALSE(can_compare());
  read_in_order(16_MiB);
  compare(8, Pace::Trust::Much, 64);  // it has waited for what the others then got
  EXPECT_FALSE(pace_.at_once());
  EXPECT_FALSE(can_compare());
}

TEST_F(PaceTest, WhatSeveralFilesGetTogetherIsWhatTheSourceGives) {
  // Eight in turn, each of which waits for all: 80 ms for its MiB, 10 ms for each of the source's.
  for (int file = 0; file < 8; ++file) pace_.began_in_order(now_);
  for (int k = 0; k < 64; ++k) {
    pass(0.010);
    pace_.ended_in_order(1_MiB, now_);
    pace_.began_in_order(now_);
  }
  for (int file = 0; file < 8; ++file) {
    pass(0.010);
    pace_.ended_in_order(1_MiB, now_);
  }
  compare(1);
  EXPECT_TRUE(pace_.wants_comparison());
  compare(1);
  EXPECT_FALSE(pace_.wants_comparison());
}

TEST_F(PaceTest, AFastStreamIsNotCompared) {
  read_in_order(16_MiB, 0.003);
  EXPECT_FALSE(pace_.wants_comparison());
  EXPECT_FALSE(can_compare());
  compare(99);
  compare(99);
  EXPECT_FALSE(pace_.at_once());
  read_in_order(300_MiB);  // it is not any more
  EXPECT_TRUE(can_compare());
  decide();
  EXPECT_TRUE(pace_.at_once());
}

TEST_F(PaceTest, IsTakenBackWhereItIsMuchSlowerThanInOrder) {
  read_in_order(4_MiB);
  decide();
  ASSERT_TRUE(pace_.at_once());
  ask(16, 1_MiB, 16 * 0.020);
  EXPECT_TRUE(pace_.at_once());  // slow, but no mistake
  ask(16, 1_MiB, 16 * 0.040);
  EXPECT_TRUE(pace_.at_once());  // once is a busy moment
  ask(16, 1_MiB, 16 * 0.040);
  EXPECT_FALSE(pace_.at_once());
  EXPECT_TRUE(pace_.wants_comparison());  // perhaps the network stood still
}

TEST_F(PaceTest, ALookEndsWhereLittleComes) {
  read_in_order(4_MiB);
  decide();
  for (int k = 0; k < 2; ++k) ask(1, 1_MiB, 0.300);
  EXPECT_FALSE(pace_.at_once());
}

TEST_F(PaceTest, IsNotTakenBackForOneSlowRequest) {
  read_in_order(4_MiB);
  decide();
  ask(1, 1_MiB, 1);
  for (int k = 0; k < 200; ++k) ask(8, 1_MiB, 8 * 0.005);
  EXPECT_TRUE(pace_.at_once());
}

TEST_F(PaceTest, HoldsSmallRequestsNotAgainstTheSource) {
  read_in_order(4_MiB);
  decide();
  for (int k = 0; k < 64; ++k) ask(64, 4096, 64 * 0.010);
  EXPECT_TRUE(pace_.at_once());
}

TEST_F(PaceTest, MistakesAreForgottenWhereItProvedRight) {
  read_in_order(4_MiB);
  for (int k = 0; k < 9; ++k) {
    decide();
    ASSERT_TRUE(pace_.at_once()) << k;
    for (int look = 0; look < 80; ++look) ask(16, 1_MiB, 16 * 0.005);
    find_slow();
    ASSERT_FALSE(pace_.at_once()) << k;
  }
}

TEST_F(PaceTest, IsNotTriedForEver) {
  read_in_order(4_MiB);
  for (int k = 0; k < 3; ++k) {
    decide();
    ASSERT_TRUE(pace_.at_once()) << k;
    find_slow();
    ASSERT_FALSE(pace_.at_once()) << k;
  }
  EXPECT_FALSE(pace_.wants_comparison());
  decide();
  EXPECT_FALSE(pace_.at_once());
}

}  // namespace
}  // namespace ckfs
