// Names that make a directory of another's file.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace ckfs {

/// Two of `names` such that the second is the first, `separator` and more: "a" and "a/b". nullopt:
/// there are none. Costs a few looks at each byte. Requires: `names` are sorted by bytes.
inline std::optional<std::pair<std::string_view, std::string_view>> find_nested(
    std::span<const std::string_view> names, char separator) {
  // Earlier names that the present one begins with, shortest first. Names like "a-b" may lie
  // between "a" and "a/b".
  std::vector<std::string_view> begins;
  for (const std::string_view name : names) {
    while (!begins.empty() && !name.starts_with(begins.back())) begins.pop_back();
    const auto above = std::ranges::find_if(begins, [&](std::string_view begin) {
      return begin.size() < name.size() && name[begin.size()] == separator;
    });
    if (above != begins.end()) return std::pair(*above, name);
    begins.push_back(name);
  }
  return std::nullopt;
}

}  // namespace ckfs
