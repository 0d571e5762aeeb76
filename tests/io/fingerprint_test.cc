#include "io/fingerprint.h"

#include <gtest/gtest.h>
#include <limits>

namespace ckfs {
namespace {

TEST(Fingerprint, TimesBeyondSixtyFourBitsOfNanosecondsAreTheLatest) {
  struct stat status{};
  status.st_mtim.tv_sec = 13'569'465'600;  // the year 2400
  EXPECT_EQ(fingerprint_of(status).mtime_ns, std::numeric_limits<std::int64_t>::max());
}

TEST(Fingerprint, KeepsNanoseconds) {
  struct stat status{};
  status.st_size = 5;
  status.st_mtim = {1'700'000'000, 123'456'789};
  status.st_ctim = {1'800'000'000, 1};
  status.st_dev = 3;
  status.st_ino = 4;
  const Fingerprint fingerprint = fingerprint_of(status);
  EXPECT_EQ(fingerprint,
            (Fingerprint{5, 1'700'000'000'123'456'789, 1'800'000'000'000'000'001, 3, 4}));
}

TEST(Fingerprint, DifferencesAreGivenInWords) {
  const Fingerprint was{10, 7, 5, 1, 2};
  EXPECT_EQ(difference(was, was, CompareInodes::On), std::nullopt);
  EXPECT_EQ(difference(was, {11, 7, 5, 1, 2}, CompareInodes::On), "size 11, was 10");
  EXPECT_EQ(difference(was, {10, 8, 5, 1, 2}, CompareInodes::Off), "modified at 8 ns, was 7 ns");
  EXPECT_EQ(difference(was, {10, 7, 5, 1, 3}, CompareInodes::On),
            "replaced by another file (inode 3, was 2)");
  EXPECT_EQ(difference(was, {10, 7, 5, 9, 3}, CompareInodes::Off), std::nullopt);
}

TEST(Fingerprint, AChangeOfCtimeIsOnlyOneWhereNothingElseChanged) {
  const Fingerprint was{10, 7, 5, 1, 2};
  EXPECT_EQ(ctime_change(was, was, CompareInodes::On), std::nullopt);
  EXPECT_EQ(difference(was, {10, 7, 6, 1, 2}, CompareInodes::On), std::nullopt);
  EXPECT_EQ(ctime_change(was, {10, 7, 6, 1, 2}, CompareInodes::On),
            "its attributes changed at 6 ns, before that at 5 ns");
  EXPECT_EQ(ctime_change(was, {10, 7, 6, 1, 2}, CompareInodes::Off), std::nullopt);
  EXPECT_EQ(ctime_change(was, {10, 8, 8, 1, 2}, CompareInodes::On), std::nullopt);
}

}  // namespace
}  // namespace ckfs
