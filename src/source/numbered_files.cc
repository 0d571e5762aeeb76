// The number of files is in every name, so a listing alone shows that one is missing, and which;
// without an index nothing else does.
#include "source/numbered_files.h"

#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace ckfs {

std::optional<NumberedFile> parse_numbered(std::string_view path, std::string_view ending) {
  constexpr std::string_view kOf = "-of-";
  if (!path.ends_with(ending)) return std::nullopt;
  path.remove_suffix(ending.size());
  const std::size_t of = path.rfind(kOf);
  if (of == std::string_view::npos) return std::nullopt;
  const std::size_t dash = path.rfind('-', of - 1);
  if (of == 0 || dash == std::string_view::npos) return std::nullopt;
  const auto number = [](std::string_view digits) -> std::optional<int> {
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0) {
      return std::nullopt;
    }
    return value;
  };
  const auto mine = number(path.substr(dash + 1, of - dash - 1));
  const auto all = number(path.substr(of + kOf.size()));
  if (!mine || !all) return std::nullopt;
  return NumberedFile{std::string(path.substr(0, dash)), *mine, *all};
}

Result<void> check_series(std::span<const std::string> paths, std::string_view ending,
                          std::string_view hint) {
  std::map<std::pair<std::string, int>, std::set<int>> series;
  for (const std::string& path : paths) {
    if (const auto name = parse_numbered(path, ending)) {
      series[{name->stem, name->count}].insert(name->number);
    }
  }
  for (const auto& [name, numbers] : series) {
    const auto& [stem, count] = name;
    const int first = numbers.contains(0) ? 0 : 1;
    // At most one step for each name that is there, whatever count they say.
    for (std::int64_t number = first; number < std::int64_t{first} + count; ++number) {
      if (numbers.contains(static_cast<int>(number))) continue;
      return fail(ErrorCode::Corrupt, "{}-*-of-*{}: number {} of {} is missing{}", stem, ending,
                  number, count, hint);
    }
  }
  return {};
}

}  // namespace ckfs
