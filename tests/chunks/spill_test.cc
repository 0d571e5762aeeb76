#include "chunks/spill.h"

#include <csignal>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/units.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

TEST(Spill, OverwritesWhatIsOldWhereTheDiskIsFull) {
  constexpr std::uint64_t kBlock = 4_KiB;
  const TemporaryDirectory directory;
  const std::vector<std::byte> block(kBlock, std::byte{7});
  Spill spill(SpillFile::create(directory.path()).value(), kBlock, 4 * kBlock);
  for (std::uint32_t file = 0; file < 4; ++file) EXPECT_TRUE(spill.put({file, 0}, block));
  spill.forget(2);
  spill.forget(3);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{2 * kBlock, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  // The two free places are found out to be none.
  EXPECT_FALSE(spill.put({4, 0}, block));
  EXPECT_FALSE(spill.put({5, 0}, block));
  EXPECT_EQ(spill.room(), 0U);
  for (std::uint32_t file = 6; file < 10; ++file) {
    EXPECT_TRUE(spill.put({file, 0}, block));
    EXPECT_TRUE(spill.has({file, 0}));
  }
  EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
}

TEST(Spill, TriesAFullDiskAgainOnceAMinute) {
  constexpr std::uint64_t kBlock = 4_KiB;
  const TemporaryDirectory directory;
  const std::vector<std::byte> block(kBlock, std::byte{7});
  Spill::Clock::time_point now{};
  Spill spill(SpillFile::create(directory.path()).value(), kBlock, 8 * kBlock,
              [&now] { return now; });
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  EXPECT_FALSE(spill.put({0, 0}, block));
  EXPECT_EQ(spill.limit(), 0U);
  now += Spill::kUntilNextTry;
  EXPECT_FALSE(spill.put({0, 0}, block));  // still full
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_FALSE(spill.put({0, 0}, block));  // not asked yet
  now += Spill::kUntilNextTry;
  for (std::uint32_t file = 0; file < 8; ++file) EXPECT_TRUE(spill.put({file, 0}, block));
  EXPECT_EQ(spill.limit(), 8 * kBlock);
  EXPECT_EQ(spill.room(), 0U);
}

}  // namespace
}  // namespace ckfs
