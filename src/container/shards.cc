// Shards mirror the source's where its files are safetensors. Packing them anew would read no
// better, and equal names let people compare with a conversion that they already have. All other
// sources are split by the rule that their own tools use, so that zero_to_fp32's files come out
// with the same names and the same tensors in each.
#include "container/shards.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace ckfs {

std::string FileNames::single() const {
  return fmt::format("{}{}", stem, extension);
}

std::string FileNames::numbered(std::size_t number, std::size_t count) const {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, number, count, extension);
}

std::string FileNames::of_layer(std::optional<std::uint32_t> layer) const {
  if (!layer) return fmt::format("{}-rest{}", stem, extension);
  return fmt::format("{}-layer-{:05}{}", stem, *layer, extension);
}

std::string FileNames::index() const {
  return single() + ".index.json";
}

TensorGroups mirror_shards(std::span<const ModelTensor> tensors) {
  TensorGroups groups;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    CKFS_CHECK(tensors[i].shard != ModelTensor::kNone);
    if (tensors[i].shard >= groups.size()) groups.resize(tensors[i].shard + std::size_t{1});
    groups[tensors[i].shard].push_back(i);
  }
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

TensorGroups split_by_size(std::span<const ModelTensor> tensors, std::uint64_t max_bytes,
                           bool shares) {
  TensorGroups files;
  std::vector<std::uint32_t> open;
  std::uint64_t open_bytes = 0;
  std::map<std::uint32_t, std::vector<std::uint32_t>> followers;  // by whose bytes they share
  std::optional<std::uint32_t> empty;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = tensors[i].expr.nbytes();
    if (bytes == 0 && empty) {
      followers[*empty].push_back(i);
      continue;
    }
    if (bytes == 0) {
      empty = i;
    } else if (shares && tensors[i].same_as != ModelTensor::kNone) {
      followers[tensors[i].same_as].push_back(i);
      continue;
    }
    if (bytes > max_bytes) {
      files.push_back({i});
      continue;
    }
    if (bytes > max_bytes - open_bytes) {
      files.push_back(std::move(open));
      open = {};
      open_bytes = 0;
    }
    open.push_back(i);
    open_bytes += bytes;
  }
  if (!open.empty()) files.push_back(std::move(open));

  if (!followers.empty()) {
    std::map<std::uint32_t, std::size_t> file_of;  // of tensors with followers
    for (std::size_t file = 0; file < files.size(); ++file) {
      for (const std::uint32_t id : files[file]) {
        if (followers.contains(id)) file_of.emplace(id, file);
      }
    }
    for (const auto& [source, ids] : followers) {
      std::vector<std::uint32_t>& shard = files[file_of.at(source)];
      shard.insert(shard.end(), ids.begin(), ids.end());
    }
  }
  return files;
}

std::optional<std::uint32_t> layer_of(std::string_view tensor) {
  constexpr std::string_view kLayers = "layers.";
  for (std::size_t at = 0; (at = tensor.find(kLayers, at)) != std::string_view::npos; ++at) {
    if (at > 0 && tensor[at - 1] != '.') continue;
    const std::string_view rest = tensor.substr(at + kLayers.size());
    std::uint32_t layer = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
    const bool whole = end == rest.data() + rest.size() || *end == '.';
    if (error == std::errc() && whole) return layer;
  }
  return std::nullopt;
}

TensorGroups split_by_layer(std::span<const ModelTensor> tensors) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> layers;
  std::vector<std::uint32_t> rest;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const std::optional<std::uint32_t> layer = layer_of(tensors[i].name);
    (layer ? layers[*layer] : rest).push_back(i);
  }
  TensorGroups groups;
  for (auto& [layer, ids] : layers) groups.push_back(std::move(ids));
  if (!rest.empty()) groups.push_back(std::move(rest));
  return groups;
}

bool must_rename(std::span<const std::string_view> paths) {
  return paths.size() > 1 && std::ranges::find(paths, kSafetensorsNames.single()) != paths.end();
}

std::vector<Note> placement_remarks(const Catalog& catalog, std::string_view view) {
  if (!mirrors_source(catalog, view)) return {};
  std::vector<std::string_view> paths;
  for (const Shard& shard : catalog.shards()) {
    if (!shard.tensors.empty()) paths.push_back(shard.path);
  }
  if (!must_rename(paths)) return {};
  return {{kSafetensorsNames.single(),
           fmt::format("shards are named {} and so on: loaders take a file of this name for the "
                       "whole model",
                       kSafetensorsNames.numbered(1, paths.size()))}};
}

}  // namespace ckfs
