// Shards mirror the source's where its files are safetensors. Packing them anew would read no
// better, and equal names let people compare with a conversion that they already have. All other
// sources are split by the rule that their own tools use, so that zero_to_fp32's files come out
// with the same names and the same tensors in each.
#include "view/shards.h"

#include <algorithm>
#include <map>

namespace ckfs {

std::string FileNames::single() const {
  return fmt::format("{}{}", stem, extension);
}

std::string FileNames::numbered(std::size_t number, std::size_t count) const {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, number, count, extension);
}

std::string FileNames::index() const {
  return single() + ".index.json";
}

std::vector<const Shard*> kept_shards(const Catalog& catalog) {
  std::vector<const Shard*> kept;
  for (const Shard& shard : catalog.shards()) {
    if (!shard.tensors.empty()) kept.push_back(&shard);
  }
  return kept;
}

bool must_rename(std::span<const Shard* const> shards) {
  const std::string single = kSafetensorsNames.single();
  return shards.size() > 1 &&
         std::ranges::any_of(shards, [&](const Shard* shard) { return shard->path == single; });
}

std::vector<TensorFile> mirror_shards(const Catalog& catalog) {
  const std::vector<const Shard*> shards = kept_shards(catalog);
  const bool rename = must_rename(shards);
  std::vector<TensorFile> files;
  std::uint32_t next = 0;
  for (const Shard* shard : shards) {
    TensorFile& file = files.emplace_back();
    file.path = rename ? kSafetensorsNames.numbered(files.size(), shards.size()) : shard->path;
    file.tensors.reserve(shard->tensors.size());
    for (std::size_t i = 0; i < shard->tensors.size(); ++i) file.tensors.push_back(next++);
  }
  return files;
}

std::vector<TensorFile> split_by_size(std::span<const ViewTensor> tensors, std::uint64_t max_bytes,
                                      const FileNames& names) {
  std::vector<TensorFile> files;
  TensorFile open;
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
    } else if (tensors[i].same_as != ViewTensor::kOwnBytes) {
      followers[tensors[i].same_as].push_back(i);
      continue;
    }
    if (bytes > max_bytes) {
      files.push_back({{}, {i}});
      continue;
    }
    if (bytes > max_bytes - open_bytes) {
      files.push_back(std::move(open));
      open = {};
      open_bytes = 0;
    }
    open.tensors.push_back(i);
    open_bytes += bytes;
  }
  if (!open.tensors.empty()) files.push_back(std::move(open));

  if (!followers.empty()) {
    std::map<std::uint32_t, std::size_t> file_of;  // of tensors with followers
    for (std::size_t file = 0; file < files.size(); ++file) {
      for (const std::uint32_t id : files[file].tensors) {
        if (followers.contains(id)) file_of.emplace(id, file);
      }
    }
    for (const auto& [source, ids] : followers) {
      std::vector<std::uint32_t>& shard = files[file_of.at(source)].tensors;
      shard.insert(shard.end(), ids.begin(), ids.end());
    }
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].path = files.size() == 1 ? names.single() : names.numbered(i + 1, files.size());
  }
  return files;
}

}  // namespace ckfs
