// The number of files is in every name, so a listing alone shows that one is missing, and which;
// without an index nothing else does.
#include "source/numbered_files.h"

#include <array>
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

std::optional<RankFile> parse_rank_file(std::string_view name) {
  constexpr std::array<std::string_view, 2> kWords{"consolidated", "rank"};
  if (name.find("mp_rank_") != std::string_view::npos || name.starts_with("zero_")) {
    return std::nullopt;
  }
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (const std::string_view word : kWords) {
    const std::size_t at = name.find(word);
    if (at == std::string_view::npos || (at > 0 && is_letter(name[at - 1]))) continue;
    std::size_t begin = at + word.size();
    const bool is_mark =
        begin < name.size() && (name[begin] == '.' || name[begin] == '-' || name[begin] == '_');
    if (is_mark) ++begin;
    std::size_t end = begin;
    while (end < name.size() && is_digit(name[end])) ++end;
    // consolidated-00001-of-00002.safetensors is a shard, and rank16 without an ending no file.
    if (end == begin || end == name.size() || name.substr(end).starts_with("-of-")) continue;
    const auto rank = number(name.substr(begin, end - begin));
    if (!rank) continue;
    return RankFile{fmt::format("{}*{}", name.substr(0, begin), name.substr(end)), *rank};
  }
  return std::nullopt;
}

std::map<std::string, std::string> find_slices(std::span<const std::string> names) {
  std::map<std::string, std::set<std::int64_t>> ranks;  // by series
  for (const std::string& name : names) {
    if (const auto file = parse_rank_file(name)) ranks[file->series].insert(file->rank);
  }
  std::map<std::string, std::string> slices;
  for (const std::string& name : names) {
    const auto file = parse_rank_file(name);
    if (!file) continue;
    const std::set<std::int64_t>& all = ranks[file->series];
    // "rank" may be said of anything (lora_rank_16); of a series it is where there is a first.
    const bool is_sure = name.starts_with("consolidated") || all.contains(0);
    if (*all.rbegin() == 0 || !is_sure) continue;
    slices.emplace(name, all.size() == 1
                             ? fmt::format("a slice of one rank of several ({})", file->series)
                             : fmt::format("slices of {} ranks of tensor parallelism ({})",
                                           all.size(), file->series));
  }
  return slices;
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
