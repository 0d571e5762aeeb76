// Which item of an Orbax checkpoint is opened: known from names alone.
//
// An *item* is a directory with a tree of arrays; a *step* a directory of items, or an item that is
// named like one; a *root* a directory of steps, as Orbax's CheckpointManager keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Whether the tree's own directory is an item.
bool is_orbax_item(const SourceTree& tree);

/// Whether it is an item, a step or a root, complete or not, as far as it has a tree or a manifest.
bool is_orbax(const SourceTree& tree);

/// Directories are relative to the tree: empty, or ending in '/'.
struct OrbaxPlace {
  std::string step_directory;  // empty: the tree is a step, or an item
  std::optional<std::uint64_t> step;
  std::string item_directory;  // within the step's
  /// Items of the step that are not opened, without their '/'; ".": the step itself.
  std::vector<std::string> others;
  std::vector<Note> notes;  // steps and items that were passed over, and why
};

/// Chooses an item: the one that the options name, else the step itself if it is one, else the only
/// one, else the first with a usual name. Takes it from the options' step, else from the newest
/// whole one. Never takes a temporary one (nor one whose tree or step is temporary) or an
/// unfinished one. Requires: is_orbax(). Errors: InvalidArgument (the options name something
/// absent), Unsupported (not finished; not clear which).
Result<OrbaxPlace> choose_orbax_item(const SourceTree& tree, const OpenCheckpointOptions& options);

/// The part of the tree below a step's `directory`, which ends in '/': files, links and notes.
/// Links that lead out are those of the whole tree. Unfinished downloads are all but those below
/// other steps, because their marks lie at the top or in a cache: paths below the step are relative
/// to it, the others are those of the whole tree.
SourceTree subtree(const SourceTree& tree, std::string_view directory);

}  // namespace ckfs
