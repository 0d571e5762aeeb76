#include "base/memory_limit.h"

#include <gtest/gtest.h>

#include "base/units.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

class MemoryLimit : public testing::Test {
 protected:
  void SetUp() override {
    root_.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
  }
  std::optional<std::uint64_t> limit() const { return group_memory_limit(root_.path().native()); }

  TemporaryDirectory root_;
};

TEST_F(MemoryLimit, OfVersion2IsTheLeastOnTheWayUp) {
  root_.write("proc/self/cgroup", "0::/a/b\n");
  EXPECT_EQ(limit(), std::nullopt);
  root_.write("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_EQ(limit(), std::nullopt);
  root_.write("sys/fs/cgroup/a/memory.max", "2147483648\n");
  EXPECT_EQ(limit(), 2_GiB);
  root_.write("sys/fs/cgroup/a/b/memory.max", "1073741824\n");
  EXPECT_EQ(limit(), 1_GiB);
}

TEST_F(MemoryLimit, OfVersion1AndInAContainerIsThatOfTheMountedRoot) {
  root_.write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/0123\n0::/\n");
  root_.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n");
  EXPECT_EQ(limit(), 512_MiB);
}

TEST_F(MemoryLimit, OfMoreThanTheMachineHasIsNone) {
  root_.write("proc/self/cgroup", "4:memory:/\n");
  root_.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), std::nullopt);
  EXPECT_EQ(machine_memory(root_.path().native()), 16_GiB);
}

}  // namespace
}  // namespace ckfs
