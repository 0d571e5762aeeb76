#include "fuse/to_errno.h"

#include <cerrno>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

TEST(ToErrno, IsTheTableOfTheDocs) {
  EXPECT_EQ(to_errno(ErrorCode::NotFound), ENOENT);
  EXPECT_EQ(to_errno(ErrorCode::Corrupt), EIO);
  EXPECT_EQ(to_errno(ErrorCode::Unsupported), EIO);
  EXPECT_EQ(to_errno(ErrorCode::InvalidArgument), EINVAL);
  EXPECT_EQ(to_errno(ErrorCode::Io), EIO);
  EXPECT_EQ(to_errno(ErrorCode::Stale), ESTALE);
  EXPECT_EQ(to_errno(ErrorCode::OutOfMemory), ENOMEM);
  EXPECT_EQ(to_errno(ErrorCode::Internal), EIO);
  EXPECT_EQ(to_errno(ErrorCode::Stopped), EINTR);
  EXPECT_EQ(to_errno(ErrorCode::NotDirectory), ENOTDIR);
  EXPECT_EQ(to_errno(ErrorCode::IsDirectory), EISDIR);
  EXPECT_EQ(to_errno(ErrorCode::ReadOnly), EROFS);
  EXPECT_EQ(to_errno(ErrorCode::BadHandle), EBADF);
  EXPECT_EQ(to_errno(ErrorCode::NoAttribute), ENODATA);
}

}  // namespace
}  // namespace ckfs
