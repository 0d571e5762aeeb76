#include "base/paths.h"

#include <gtest/gtest.h>

#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

TEST(AbsolutePath, GoesUpFromWhereALinkLeads) {
  const TemporaryDirectory top;
  const fs::path root = fs::canonical(top.path());
  fs::create_directories(root / "a/sub");
  fs::create_directories(root / "b");
  fs::create_directory_symlink("../a/sub", root / "b/link");
  EXPECT_EQ(absolute_path(root / "b/link/../model").value(), root / "a/model");
  EXPECT_EQ(absolute_path(root / "b/../b/./link//").value(), root / "b/link");
  EXPECT_EQ(absolute_path(root / "b/link/more/").value(), root / "b/link/more");
  EXPECT_EQ(absolute_path(root / "b/link/..").value(), root / "a");
  // As the kernel: nothing lies above what is not there.
  const auto none = absolute_path(root / "none/../a");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::NotFound);
}

TEST(AbsolutePath, BeginsAtTheRootOrTheCurrentDirectory) {
  EXPECT_EQ(absolute_path("/").value(), "/");
  EXPECT_EQ(absolute_path("/..").value(), "/");
  EXPECT_EQ(absolute_path("//proc///").value(), "/proc");
  EXPECT_EQ(absolute_path("x").value(), fs::current_path() / "x");
  EXPECT_EQ(absolute_path(".").value(), fs::current_path());
}

}  // namespace
}  // namespace ckfs
