#include "base/read_text.h"

#include <cstdio>
#include <gtest/gtest.h>
#include <string>
#include <unistd.h>

namespace ckfs {
namespace {

TEST(ReadTextFile, GivesOneByteMoreThanIsAllowed) {
  std::string path = testing::TempDir() + "ckfs-read-text-XXXXXX";
  const int fd = ::mkstemp(path.data());
  ASSERT_GE(fd, 0);
  ASSERT_EQ(::write(fd, "0123456789", 10), 10);
  ::close(fd);
  EXPECT_EQ(read_text_file(path, 10), "0123456789");
  EXPECT_EQ(read_text_file(path, 9), "0123456789");
  EXPECT_EQ(read_text_file(path, 4), "01234");
  ::unlink(path.c_str());
  EXPECT_EQ(read_text_file(path, 4).error().code(), ErrorCode::NotFound);
  EXPECT_EQ(read_text_file(testing::TempDir(), 4).error().code(), ErrorCode::Io);
}

}  // namespace
}  // namespace ckfs
