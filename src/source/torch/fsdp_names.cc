#include "source/torch/fsdp_names.h"

#include <algorithm>
#include <charconv>

namespace ckfs {
namespace {

constexpr std::string_view kRankBefore = "model_world_size_";
constexpr std::string_view kRankBetween = "_rank_";
constexpr std::string_view kRankEnding = ".pt";
constexpr std::string_view kStepFolder = "global_step_";

/// All of `digits`, as str(int) writes it.
template <typename Number>
std::optional<Number> number_of(std::string_view digits) {
  Number value = 0;
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, value);
  if (error != std::errc() || end != last || (digits.size() > 1 && digits.front() == '0')) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::optional<FsdpName> parse_fsdp_name(std::string_view name) {
  if (!name.starts_with(kRankBefore) || !name.ends_with(kRankEnding)) return std::nullopt;
  name.remove_prefix(kRankBefore.size());
  if (name.size() < kRankEnding.size()) return std::nullopt;
  name.remove_suffix(kRankEnding.size());
  const std::size_t between = name.find(kRankBetween);
  if (between == std::string_view::npos) return std::nullopt;
  const auto world = number_of<std::uint32_t>(name.substr(0, between));
  const auto rank = number_of<std::uint32_t>(name.substr(between + kRankBetween.size()));
  if (!world || !rank) return std::nullopt;
  return FsdpName{*world, *rank};
}

std::string fsdp_file_name(std::uint32_t world, std::uint32_t rank) {
  return fmt::format("{}{}{}{}{}", kRankBefore, world, kRankBetween, rank, kRankEnding);
}

std::vector<FsdpFolder> find_fsdp_folders(const SourceTree& tree) {
  std::map<std::string, FsdpFolder> found;
  for (const TreeFile& file : tree.files) {
    const std::size_t begin = file.path.rfind('/') + 1;  // 0 where there is none
    const auto name = parse_fsdp_name(std::string_view(file.path).substr(begin));
    if (!name) continue;
    const std::string prefix = file.path.substr(0, begin);
    FsdpFolder& folder = found[prefix];
    folder.prefix = prefix;
    folder.worlds[name->world].emplace(name->rank, file.path);
  }
  std::vector<FsdpFolder> folders;
  folders.reserve(found.size());
  for (auto& [prefix, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::optional<std::uint64_t> fsdp_step(std::string_view prefix) {
  std::optional<std::uint64_t> step;
  while (!prefix.empty()) {
    const std::size_t slash = prefix.find('/');
    const std::string_view part = prefix.substr(0, slash);
    if (part.starts_with(kStepFolder))
      step = number_of<std::uint64_t>(part.substr(kStepFolder.size()));
    prefix.remove_prefix(slash == std::string_view::npos ? prefix.size() : slash + 1);
  }
  return step;
}

}  // namespace ckfs
