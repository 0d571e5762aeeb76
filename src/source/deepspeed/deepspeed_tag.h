// Which tag of a DeepSpeed (or universal) checkpoint is opened, and the file of each tag's module
// state.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "io/source_files.h"
#include "source/deepspeed/deepspeed_names.h"
#include "source/file_table.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// The tags of a tree that are universal checkpoints: with files zero/<name>/fp32.pt. Names as
/// those of choose_tag().
std::set<std::string> find_universal_tags(const SourceTree& tree);

/// Whether a tree with this tag is meant to be a checkpoint with tags. A tag may be a path
/// ("run1/step5"); but in a directory of many runs, or of a model and the runs it came from, such a
/// path leads to a checkpoint of its own. So it counts where the options name a path, or where the
/// file `latest` is at the root.
bool may_have_tag(const SourceTree& tree, std::string_view name, std::string_view latest,
                  const OpenCheckpointOptions& options);

/// Picks one of `names` ("." is the tree's root itself): the one that the options name, else the
/// root itself, else the one that the file `latest` at the root names, else the only one at the
/// top, else the only one. `latest` is the name of that file. Errors: InvalidArgument (the options
/// name none of them, or what they or `latest` name leads out of the tree), NotFound (`latest`
/// names none of them), Unsupported (not clear which), Corrupt, Io, Stale.
Result<std::string> choose_tag(const std::vector<std::string>& names, std::string_view latest,
                               const SourceTree& tree, const FileTable& table, SourceFiles& files,
                               const OpenCheckpointOptions& options);

/// The file with a cell's own module state: the shared one, or rank 0's. `partitioned` (ZeRO-3)
/// says which to prefer where a tag has both. nullopt: there is none.
std::optional<std::string> model_file(const DeepSpeedCell& cell, bool partitioned);

}  // namespace ckfs
