// Checkpoints of Megatron-Core's dist_checkpointing: which directory of a run is opened, and what
// the names in it mean. The directory itself is one of torch's DCP (backend torch_dist).
//
// A *run* is a directory of iterations (iter_0000007/, release/), perhaps with a tracker file that
// names one; NeMo's checkpoints have theirs in weights/.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "io/source_files.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Whether the tree is meant to be a run or a checkpoint of Megatron's, complete or not, of any of
/// its formats. Not so where Megatron was interrupted: such a directory has no metadata.json.
bool is_megatron(const SourceTree& tree, const SourceFiles& files);

struct MegatronPlace {
  std::string directory;  // relative to the tree, with its '/'; empty: the tree itself
  std::string iteration;  // "7", "release"; empty: its directory's name does not say
  std::string chosen;     // why this one: "--step", "the only one"; empty: there was no choice
};

/// Chooses the checkpoint: the options' step, else the one that the tracker file names, else the
/// only one. Requires: is_megatron(). Errors: InvalidArgument (no such step), Unsupported (the
/// tracker names none that is there; several and no tracker; a format that ckfs does not read),
/// Corrupt (the tracker file, metadata.json).
Result<MegatronPlace> choose_megatron(const SourceTree& tree, const SourceFiles& files,
                                      const OpenCheckpointOptions& options);

/// The kinds of entries of a checkpoint.
enum class MegatronEntry : std::uint8_t {
  Weight,  // of the model, or a buffer of it
  Master,  // the F32 copy of a weight that the optimizer keeps
  Optimizer,
  ExtraState,   // of a module: scales of FP8, mostly empty
  RandomState,  // of generators, and the state of the machine that runs iterations again
  Common,       // arguments of the run
};

/// By its name alone: its first parts, or its last.
MegatronEntry megatron_entry(std::string_view name);

/// The name of the weight whose master it is. Requires: megatron_entry() is Master.
std::string_view weight_of_master(std::string_view name);

}  // namespace ckfs
