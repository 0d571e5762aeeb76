// The number of files is in every name, so a listing alone shows that one is missing, and which;
// without an index nothing else does.
#include "source/numbered_files.h"

#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace ckfs {
namespace {

/// nullopt: no number.
std::optional<std::int64_t> number(std::string_view digits) {
  std::int64_t value = 0;
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, value);
  if (end != last || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc()) return value;
  using Limits = std::numeric_limits<std::int64_t>;
  return digits.front() == '-' ? Limits::min() : Limits::max();
}

}  // namespace

std::optional<NumberedFile> parse_numbered(std::string_view path, std::string_view ending) {
  constexpr std::string_view kOf = "-of-";
  if (!path.ends_with(ending)) return std::nullopt;
  path.remove_suffix(ending.size());
  const std::size_t of = path.rfind(kOf);
  if (of == 0 || of == std::string_view::npos) return std::nullopt;
  const std::size_t dash = path.rfind('-', of - 1);
  if (dash == std::string_view::npos) return std::nullopt;
  const auto mine = number(path.substr(dash + 1, of - dash - 1));
  const auto all = number(path.substr(of + kOf.size()));
  if (!mine || !all) return std::nullopt;
  return NumberedFile{std::string(path.substr(0, dash)), *mine, *all};
}

Result<void> check_series(std::span<const std::string> paths, std::string_view ending,
                          std::string_view hint) {
  std::map<std::pair<std::string, std::int64_t>, std::set<std::int64_t>> series;
  for (const std::string& path : paths) {
    const auto name = parse_numbered(path, ending);
    if (!name) continue;
    if (name->count < 1 || name->count > kMaxSeries) {
      return fail(ErrorCode::Corrupt, "{}: one of {} files (limit 1 to {})", path, name->count,
                  kMaxSeries);
    }
    if (name->number < 0 || name->number > name->count) {
      return fail(ErrorCode::Corrupt, "{}: number {} (limit 0 to {})", path, name->number,
                  name->count);
    }
    series[{name->stem, name->count}].insert(name->number);
  }
  for (const auto& [name, numbers] : series) {
    const auto& [stem, count] = name;
    // At most one step for each name that is there, whatever count they say.
    for (std::int64_t number = numbers.contains(0) ? 0 : 1; number <= count; ++number) {
      if (numbers.contains(number)) continue;
      return fail(ErrorCode::Corrupt, "{}-*-of-*{}: number {} of {} is missing{}", stem, ending,
                  number, count, hint);
    }
  }
  return {};
}

}  // namespace ckfs
