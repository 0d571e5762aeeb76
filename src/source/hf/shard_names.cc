// Loaders choose by names too, so their rules are the ones that count: diffusers keeps the same
// weights in another dtype beside the plain ones, and torch's writer numbers the files of each
// rank.
#include "source/hf/shard_names.h"

#include <algorithm>
#include <set>

namespace ckfs {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

/// "model.fp16" of "model.fp16.safetensors.index.json": a variant, as diffusers calls the same
/// weights in another dtype beside those of the plain name.
bool is_variant(std::string_view name) {
  return name.substr(0, name.find(kShardEnding)).find('.') != std::string_view::npos;
}

/// "model" of "model.fp16-00001-of-00002.safetensors", "model.fp16.safetensors.index.json" and
/// "model-00001-of-00002.safetensors": what a variant and the plain weights have in common.
std::string_view common_stem(std::string_view name) {
  name = name.substr(0, name.find('.'));
  const std::size_t number = name.rfind("-of-");
  return number == std::string_view::npos ? name : name.substr(0, name.rfind('-', number - 1));
}

}  // namespace

bool is_top_level(std::string_view path) {
  return path.find('/') == std::string_view::npos;
}

bool is_index_name(std::string_view path) {
  return is_top_level(path) && path.ends_with(".safetensors.index.json");
}

std::string choose_index(const SourceTree& tree) {
  if (tree.find(kIndexName) != nullptr) return std::string(kIndexName);
  std::vector<std::string> found;
  for (const TreeFile& file : tree.files) {
    if (is_index_name(file.path)) found.push_back(file.path);
  }
  if (found.size() > 1) std::erase_if(found, is_variant);
  if (found.size() != 1) return {};
  const std::string& only = found.front();
  bool plain = false, variant = false;
  for (const TreeFile& file : tree.files) {
    if (!is_top_level(file.path) || !file.path.ends_with(kShardEnding)) continue;
    if (common_stem(file.path) != common_stem(only)) continue;
    (is_variant(file.path) ? variant : plain) = true;
  }
  // Where no file is a variant's, the index is of the plain ones, whatever it is called.
  return is_variant(only) && plain && variant ? std::string() : only;
}

void drop_variants(std::vector<std::string>& shards) {
  std::set<std::string, std::less<>> plain;
  for (const std::string& path : shards) {
    if (!is_variant(path)) plain.emplace(common_stem(path));
  }
  std::erase_if(shards, [&](const std::string& path) {
    return is_variant(path) && plain.contains(common_stem(path));
  });
}

std::vector<std::string> series_of(const std::vector<std::string>& shards) {
  constexpr std::string_view kShard = "shard-";
  std::set<std::string> names;
  for (const std::string& path : shards) {
    const std::size_t model = path.find("-model-");
    const bool is_rank = path.starts_with(kShard) && model != std::string::npos &&
                         path.find_first_not_of("0123456789", kShard.size()) == model;
    names.insert(is_rank ? path.substr(model + 1) : path);
  }
  return {names.begin(), names.end()};
}

}  // namespace ckfs
