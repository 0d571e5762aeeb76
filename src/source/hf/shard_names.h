// Which files of a Hugging Face directory are the model's shards, as far as names tell: the index
// to go by, weights in another dtype beside the plain ones, and files that ranks wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "source/source_tree.h"

namespace ckfs {

inline constexpr std::string_view kShardEnding = ".safetensors";

bool is_top_level(std::string_view path);

/// Whether `path` is named as an index of safetensors files is, at the top.
bool is_index_name(std::string_view path);

/// The index to go by: the one of the standard name, else the only one, else the only one of no
/// variant; empty: none, or only a variant's beside the plain weights.
std::string choose_index(const SourceTree& tree);

/// Drops "model.fp16.safetensors" where there is a "model.safetensors", or a series of that name.
void drop_variants(std::vector<std::string>& shards);

/// The shards as names of a series: of files that ranks wrote (shard-00001-model-00001-of-00002)
/// those of all ranks together, for a rank without slices of a file's tensors has no such file.
std::vector<std::string> series_of(const std::vector<std::string>& shards);

}  // namespace ckfs
