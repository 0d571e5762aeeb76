// Guessing a tag (the highest step, the newest) would show other weights than training would resume
// from; where nothing says which, the user must.
#include "source/deepspeed/deepspeed_tag.h"

#include <algorithm>

#include "base/text.h"
#include "source/header_loader.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kMaxLatest = 4096;  // bytes
constexpr std::string_view kMaster = "/fp32.pt";
constexpr std::string_view kParameters = "zero/";

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string list(std::vector<std::string> names) {
  constexpr std::size_t kShown = 8;
  const std::size_t count = names.size();
  if (count > kShown) names.resize(kShown);
  return fmt::format("{}{}", fmt::join(names, ", "), count > kShown ? ", ..." : "");
}

/// The prefix of the tag that a file zero/<name>/fp32.pt is in; nullopt: it is no such file.
std::optional<std::string> tag_prefix_of(std::string_view path) {
  if (!path.ends_with(kMaster)) return std::nullopt;
  const auto names_one = [](std::string_view rest) {
    return rest.starts_with(kParameters) && rest.size() > kParameters.size() + kMaster.size();
  };
  if (names_one(path)) return std::string();
  const std::size_t slash = path.find('/');
  if (!names_one(path.substr(slash + 1))) return std::nullopt;
  return std::string(path.substr(0, slash + 1));
}

std::string name_of_tag(std::string_view prefix) {
  return prefix.empty() ? "." : std::string(prefix.substr(0, prefix.size() - 1));
}

}  // namespace

std::set<std::string> find_universal_tags(const SourceTree& tree) {
  std::set<std::string> tags;
  for (const TreeFile& file : tree.files) {
    if (const auto prefix = tag_prefix_of(file.path)) tags.insert(name_of_tag(*prefix));
  }
  return tags;
}

Result<std::string> choose_tag(const std::vector<std::string>& names, std::string_view latest,
                               const SourceTree& tree, const FileTable& table, SourceFiles& files,
                               const OpenCheckpointOptions& options) {
  if (!options.tag.empty()) {
    if (has(names, options.tag)) return options.tag;
    return fail(ErrorCode::InvalidArgument, "{}: no tag {} (it has {})", tree.name,
                quote(options.tag), list(names));
  }
  if (has(names, ".")) return std::string(".");
  if (const auto file = table.find(latest)) {
    CKFS_TRY(const std::string text, read_text(files, *file, kMaxLatest));
    std::string_view tag = trim(text);
    while (tag.ends_with('/')) tag.remove_suffix(1);
    if (has(names, tag)) return std::string(tag);
    return fail(ErrorCode::NotFound, "{}: names the tag {}, which is absent or has no such files",
                latest, quote(tag));
  }
  if (names.size() == 1) return names.front();
  return fail(ErrorCode::Unsupported, "{}: no file {} says which tag to open (choose one: {})",
              tree.name, latest, list(names));
}

std::optional<std::string> model_file(const DeepSpeedCell& cell, bool partitioned) {
  const auto rank = cell.model_ranks.find(0);
  const bool has_rank = rank != cell.model_ranks.end();
  if (has_rank && (partitioned || cell.model_shared.empty())) return rank->second;
  if (!cell.model_shared.empty()) return cell.model_shared;
  return std::nullopt;
}

}  // namespace ckfs
