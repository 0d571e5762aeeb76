#include "fuse/mount_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

TEST(ParseMountinfo, ReadsTargetTypeAndSource) {
  const auto entries = parse_mountinfo(
      "22 28 0:21 / /proc rw,nosuid shared:13 master:2 - proc proc rw\n"
      "36 35 0:52 / /mnt/view ro,nosuid,nodev - fuse.ckfs /srv/model ro,user_id=0\n");
  ASSERT_THAT(entries, SizeIs(2));
  EXPECT_EQ(entries[0].target, "/proc");
  EXPECT_EQ(entries[0].type, "proc");
  EXPECT_EQ(entries[1].target, "/mnt/view");
  EXPECT_EQ(entries[1].type, "fuse.ckfs");
  EXPECT_EQ(entries[1].source, "/srv/model");
}

TEST(ParseMountinfo, UndoesTheKernelsEscapes) {
  const auto entries =
      parse_mountinfo("1 2 0:5 / /a\\040b\\134c\\0120\\0111\\1 ro - fuse.ckfs x\\040- ro\n");
  ASSERT_THAT(entries, SizeIs(1));
  EXPECT_EQ(entries[0].target, "/a b\\c\n0\t1\\1");
  EXPECT_EQ(entries[0].source, "x -");
}

TEST(ParseMountinfo, LeavesOutLinesOfAnotherForm) {
  EXPECT_THAT(parse_mountinfo(""), IsEmpty());
  EXPECT_THAT(parse_mountinfo("\n\n"), IsEmpty());
  EXPECT_THAT(parse_mountinfo("1 2 0:5 / /mnt ro\n"), IsEmpty());
  EXPECT_THAT(parse_mountinfo("1 2 0:5 / /mnt ro -\n"), IsEmpty());
  EXPECT_THAT(parse_mountinfo("1 2 0:5 / /mnt ro - fuse.ckfs\n"), IsEmpty());
  EXPECT_THAT(parse_mountinfo("- - - - - - -\n"), IsEmpty());
}

TEST(FindMount, KnowsProc) {
  const auto entry = find_mount("/proc").value();
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->type, "proc");
  EXPECT_FALSE(find_mount("/proc/self/nothing").value());
}

TEST(ResolveMountpoint, TakesSlashesAndLastPartsThatAreNotThere) {
  EXPECT_EQ(resolve_mountpoint("/proc/").value(), "/proc");
  EXPECT_EQ(resolve_mountpoint("//proc///").value(), "/proc");
  EXPECT_EQ(resolve_mountpoint("/proc/nothing").value(), "/proc/nothing");
  EXPECT_EQ(resolve_mountpoint("/").value(), "/");
  EXPECT_EQ(resolve_mountpoint("/proc/./self/root/../nothing/.").value(), "/nothing");
  EXPECT_FALSE(resolve_mountpoint("/proc/nothing/more"));
}

}  // namespace
}  // namespace ckfs
