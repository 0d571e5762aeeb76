#include "base/base64.h"

#include <gtest/gtest.h>

namespace ckfs {
namespace {

// RFC 4648, section 10.
TEST(Base64, HasPublishedValues) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foob"), "Zm9vYg==");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xfb\xff\xfe\x01"), "+//+AQ==");
  EXPECT_EQ(base64url("\xfb\xff\xfe\x01"), "-__-AQ");
}

}  // namespace
}  // namespace ckfs
