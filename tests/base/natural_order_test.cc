#include "base/natural_order.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string_view>
#include <vector>

namespace ckfs {
namespace {

TEST(NaturalOrder, ComparesNumericPartsAsNumbersBeforeAllOthers) {
  std::vector<std::string_view> names = {"layers.10.w", "layers.norm", "layers.2.w", "head",
                                         "layers.2",    "layers.2.b",  "layers.02.w"};
  std::ranges::sort(names, natural_less);
  EXPECT_EQ(names, (std::vector<std::string_view>{"head", "layers.02.w", "layers.2", "layers.2.b",
                                                  "layers.2.w", "layers.10.w", "layers.norm"}));
}

}  // namespace
}  // namespace ckfs
