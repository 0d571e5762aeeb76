// The files of an FSDP checkpoint with one file a rank (verl, SkyRL, miles), by name alone:
// model_world_size_8_rank_3.pt. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "source/source_tree.h"

namespace ckfs {

struct FsdpName {
  std::uint32_t world = 0;
  std::uint32_t rank = 0;
};

/// `name` is a file's name without directories; nullopt: not the model of a rank. Numbers are as
/// the trainer writes them, without leading zeros.
std::optional<FsdpName> parse_fsdp_name(std::string_view name);

/// The file that a rank writes its part of the model to.
std::string fsdp_file_name(std::uint32_t world, std::uint32_t rank);

/// A directory with such files.
struct FsdpFolder {
  std::string prefix;  // of the paths: "global_step_10/actor/", or empty
  /// Paths in the tree, by world size and rank.
  std::map<std::uint32_t, std::map<std::uint32_t, std::string>> worlds;
};

/// Every directory of the tree, at any depth, that has rank files; by prefix.
std::vector<FsdpFolder> find_fsdp_folders(const SourceTree& tree);

/// N of the last part "global_step_N" of the prefix, or of one above it.
std::optional<std::uint64_t> fsdp_step(std::string_view prefix);

}  // namespace ckfs
