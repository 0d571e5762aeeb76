#include "base/size_text.h"

#include <gtest/gtest.h>

namespace ckfs {
namespace {

TEST(HumanSize, HasThreeDigitsAtMost) {
  EXPECT_EQ(human_size(0), "0 B");
  EXPECT_EQ(human_size(999), "999 B");
  EXPECT_EQ(human_size(1000), "1.0 KB");
  EXPECT_EQ(human_size(1'530'000'000), "1.5 GB");
  EXPECT_EQ(human_size(99'960), "100 KB");
  EXPECT_EQ(human_size(999'499), "999 KB");
  EXPECT_EQ(human_size(999'500), "1.0 MB");
  EXPECT_EQ(human_size(~std::uint64_t{0}), "18.4 EB");
}

}  // namespace
}  // namespace ckfs
