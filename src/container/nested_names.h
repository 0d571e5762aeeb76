// Names that make a directory of another's file.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace ckfs {

/// Two of `names`, the second of which goes on behind the first with `separator`: "a" and "a/b".
/// nullopt: none does. Costs a few looks at each byte. Requires: sorted, by bytes.
inline std::optional<std::pair<std::string_view, std::string_view>> find_nested(
    std::span<const std::string_view> names, char separator) {
  // Those before the present one that begin it, each with those before it. Others may stand between
  // them and what goes on with the separator: "a-b".
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
