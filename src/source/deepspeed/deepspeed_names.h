// The kinds of files of a DeepSpeed checkpoint, by name alone. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "source/source_tree.h"

namespace ckfs {

enum class DeepSpeedFile : std::uint8_t {
  Optimizer,    // a rank's partition of the optimizer's state
  ModelShared,  // the module's state, one for all ranks (ZeRO-1 and 2)
  ModelRank,    // the module's state of one rank (ZeRO-3)
  Layer,        // the module's state of one pipeline layer
  Expert,       // of a mixture of experts
  Split,        // one of several files that a parallel writer cut one file into
};

struct DeepSpeedName {
  DeepSpeedFile kind = DeepSpeedFile::Optimizer;
  std::uint32_t dp = 0;     // Optimizer, ModelRank: the rank among the partitions
  std::uint32_t mp = 0;     // the model-parallel rank; Layer: the slice along the model axis
  std::uint32_t layer = 0;  // Layer
};

/// `name` is a file's name without directories; nullopt: not a DeepSpeed file.
std::optional<DeepSpeedName> parse_deepspeed_name(std::string_view name);

/// The files of one model-parallel rank. Paths are those of the tree.
struct DeepSpeedCell {
  std::map<std::uint32_t, std::string> optimizer;    // by rank
  std::string model_shared;                          // empty: none
  std::map<std::uint32_t, std::string> model_ranks;  // by rank
};

struct DeepSpeedLayer {
  std::uint32_t layer = 0;
  std::uint32_t slice = 0;
  std::string path;
};

/// The files of a tag directory.
struct DeepSpeedTag {
  std::string prefix;  // of the paths: "global_step2/", "run1/step5/", or empty
  std::map<std::uint32_t, DeepSpeedCell> cells;
  std::vector<DeepSpeedLayer> layers;  // by path
  std::vector<std::string> experts, splits;
  std::string twin;  // a second file of the same kind and rank; empty: none
};

/// The tag's own name: the prefix without its '/', or for an empty one ".".
std::string tag_name(const DeepSpeedTag& tag);

/// Every directory, at any depth, that has DeepSpeed's files; by prefix.
std::vector<DeepSpeedTag> find_deepspeed_tags(const SourceTree& tree);

}  // namespace ckfs
