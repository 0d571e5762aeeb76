// The kinds of checkpoint that ckfs opens. Each row is defined in the file of its adapter, in its
// family's folder; the order in which they are asked is open_checkpoint.cc's.
#pragma once

#include <memory>
#include <string_view>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

class FileTable;
class SourceOpener;

struct Adapter {
  std::string_view name;  // Catalog::kind()
  /// Whether `tree` is meant to be such a checkpoint, complete or not. (kDeepSpeedZero: and
  /// options.tag is not that of a universal one in it, which is asked after it. No other option is
  /// looked at.) Looks at names, and where those say nothing at files' first bytes.
  bool (*recognizes)(const SourceTree& tree, const SourceFiles& files,
                     const OpenCheckpointOptions& options);
  /// Registers all files of `tree` with `files` (of a directory of steps, those of the step) and
  /// reads headers, pickles and indexes, by several threads. Requires: recognizes(). Errors: as
  /// open_checkpoint().
  Result<std::shared_ptr<const Catalog>> (*open)(const SourceTree& tree, SourceFiles& files,
                                                 const OpenCheckpointOptions& options);
  /// Opens `tree`, a single file among those of `table`, as weights of their own: without a
  /// configuration, and shown under their own name. nullptr: never asked. Errors: as open.
  Result<std::shared_ptr<const Catalog>> (*open_file)(const SourceTree& tree, SourceFiles& files,
                                                      SourceOpener& whole,
                                                      const FileTable& table) = nullptr;
};

/// A Hugging Face model directory, or one safetensors file (any single file, where no other adapter
/// recognizes it). Recognizes any directory with an unfinished download, too, because the missing
/// files decide what it is. Opens it only if all of this holds: the top is whole by itself (all
/// shards that an index or their names count, or `model.safetensors` and no other safetensors file
/// but variants and consolidated*; a pipeline's top never is); each present module folder has the
/// weights that it needs; no option asks for something that is not there.
extern const Adapter kHfSafetensors;
/// Files of torch.save: a single file of any name; a directory with one, or shards with an index or
/// numbers.
extern const Adapter kTorchFile;
extern const Adapter kTorchFiles;

/// Orbax checkpoints: an item, a step, a directory of steps. The first: only an item.
extern const Adapter kOrbaxItem;
extern const Adapter kOrbax;

/// Checkpoints of torch.distributed.checkpoint, also inside a framework's folders: a directory of
/// .distcp files beside their .metadata. The first: only with .metadata at the top.
extern const Adapter kTorchDcpTop;
extern const Adapter kTorchDcp;

/// A model in one torch file a rank, as trainers on FSDP save it: a directory with files
/// model_world_size_W_rank_R.pt. The first: only at the top, or one such file.
extern const Adapter kFsdpRanksTop;
extern const Adapter kFsdpRanks;
/// Checkpoints of Megatron-Core, alone or as iterations of a run; NeMo's among them. Opens those of
/// the backend torch_dist, and refuses the others by name.
extern const Adapter kMegatron;

/// DeepSpeed's ZeRO optimizers, stages 1 to 3: a directory with one optimizer file a rank, or one
/// above such; choose_tag() says which of them is opened.
extern const Adapter kDeepSpeedZero;

/// The output of DeepSpeed's ds_to_universal: a directory with one file for each parameter's
/// master, zero/<name>/fp32.pt, beside copies of the model files.
extern const Adapter kUniversal;

}  // namespace ckfs
