// Guessing a tag (the highest step, the newest) would show other weights than training would resume
// from; where nothing says which, the user must.
#include "source/deepspeed/deepspeed_tag.h"

#include <algorithm>

#include "base/suggest.h"
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

/// The prefix of the tag that a file zero/<name>/fp32.pt is in; nullopt: it is not such a file.
std::optional<std::string> tag_prefix_of(std::string_view path) {
  if (!path.ends_with(kMaster)) return std::nullopt;
  for (std::size_t begin = 0; begin < path.size(); begin = path.find('/', begin) + 1) {
    const std::string_view rest = path.substr(begin);
    if (rest.size() <= kParameters.size() + kMaster.size()) return std::nullopt;
    if (rest.starts_with(kParameters)) return std::string(path.substr(0, begin));
  }
  return std::nullopt;
}

std::string name_of_tag(std::string_view prefix) {
  return prefix.empty() ? "." : std::string(prefix.substr(0, prefix.size() - 1));
}

bool is_nested(std::string_view name) {
  return name.find('/') != std::string_view::npos;
}

/// A tag as it was written, as DeepSpeed joins it to the directory: without what a path has the
/// same meaning without ("./", "//", a '/' at the end). `says` is what the message begins with.
/// Errors: InvalidArgument (it leads out of the directory).
Result<std::string> plain_tag(std::string_view written, std::string_view says) {
  std::string tag;
  bool leads_out = written.starts_with('/');
  for (std::size_t begin = 0; begin <= written.size();) {
    const std::size_t end = std::min(written.find('/', begin), written.size());
    const std::string_view part = written.substr(begin, end - begin);
    begin = end + 1;
    leads_out = leads_out || part == "..";
    if (part.empty() || part == ".") continue;
    if (!tag.empty()) tag += '/';
    tag += part;
  }
  if (leads_out) {
    return fail(ErrorCode::InvalidArgument,
                "{} the tag {}, which leads out of the checkpoint: a tag is a directory in it",
                says, quote(written));
  }
  return tag.empty() && written.find('.') != std::string_view::npos ? "." : tag;
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
    CKFS_TRY(const std::string tag, plain_tag(options.tag, tree.name + ": --tag names"));
    if (has(names, tag)) return tag;
    const std::vector<std::string_view> known(names.begin(), names.end());
    return fail(ErrorCode::InvalidArgument, "{}: no tag {}{}", tree.name, quote(options.tag),
                did_you_mean(options.tag, known, "it has "));
  }
  if (has(names, ".")) return std::string(".");
  if (const auto file = table.find(latest)) {
    CKFS_TRY(const std::string text, read_text(files, *file, kMaxLatest));
    const std::string_view written = trim(text);
    CKFS_TRY(const std::string tag, plain_tag(written, fmt::format("{}: names", latest)));
    if (has(names, tag)) return tag;
    return fail(
        ErrorCode::NotFound,
        "{}: names the tag {}, which is absent or has no such files (--tag chooses one: {})",
        latest, quote(written), list(names));
  }
  std::vector<std::string> top = names;
  std::erase_if(top, is_nested);
  if (top.size() == 1) return top.front();
  if (names.size() == 1) return names.front();
  return fail(ErrorCode::Unsupported, "{}: no file {} says which tag to open (choose one: {})",
              tree.name, latest, list(names));
}

bool may_have_tag(const SourceTree& tree, std::string_view name, std::string_view latest,
                  const OpenCheckpointOptions& options) {
  return !is_nested(name) || is_nested(options.tag) || tree.find(latest) != nullptr;
}

std::optional<std::string> model_file(const DeepSpeedCell& cell, bool partitioned) {
  const auto rank = cell.model_ranks.find(0);
  const bool has_rank = rank != cell.model_ranks.end();
  if (has_rank && (partitioned || cell.model_shared.empty())) return rank->second;
  if (!cell.model_shared.empty()) return cell.model_shared;
  return std::nullopt;
}

}  // namespace ckfs
