// The order of names of tensors that people expect: layer 2 before layer 10.
#pragma once

#include <string_view>

namespace ckfs {

/// Whether a < b where numeric parts compare as numbers, and come before all others: "layers.2.w"
/// before "layers.10.w". A strict order of different names.
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b);

}  // namespace ckfs
