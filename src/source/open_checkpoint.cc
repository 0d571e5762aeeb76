// Kinds are told apart by what lies in the directory, in the order of one table: first come, first
// served, so a directory that several kinds could claim is opened as the most specific. Trying each
// adapter until one succeeds would turn every broken checkpoint into "not a checkpoint".
#include "source/open_checkpoint.h"

#include <algorithm>
#include <array>

#include "source/deepspeed/deepspeed_zero.h"
#include "source/deepspeed/universal.h"
#include "source/file_role.h"
#include "source/hf/hf_safetensors.h"
#include "source/source_tree.h"
#include "source/torch/torch_dcp.h"
#include "source/torch/torch_files.h"

namespace ckfs {
namespace {

struct Kind {
  bool (*recognizes)(const SourceTree& tree, const OpenCheckpointOptions& options);
  Result<std::shared_ptr<const Catalog>> (*open)(const SourceTree& tree, SourceFiles& files,
                                                 const OpenCheckpointOptions& options);
};

bool is_torch_single_file(const SourceTree& tree, const OpenCheckpointOptions& options) {
  return tree.single_file && is_torch_files(tree, options);
}

bool has_dcp_metadata(const SourceTree& tree, const OpenCheckpointOptions& options) {
  return tree.find(".metadata") != nullptr && is_torch_dcp(tree, options);
}

// A training run's directory may have a model in safetensors at its top and the state it goes on
// from below; who opens that directory with ckfs means the state. A model's directory may have any
// other format beside its safetensors, all of the same weights.
constexpr std::array<Kind, 7> kKinds = {{
    {is_torch_single_file, open_torch_files},
    {is_deepspeed_zero, open_deepspeed_zero},
    {is_universal, open_universal},
    {has_dcp_metadata, open_torch_dcp},
    {is_hf_safetensors, open_hf_safetensors},
    {is_torch_dcp, open_torch_dcp},
    {is_torch_files, open_torch_files},
}};

/// What to do about weights that are there.
std::string hint(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) {
    return fmt::format(" (it has {}, which ckfs cannot read)", path);
  }
  return fmt::format(" (it has {}; a checkpoint below it, {}, is opened by its own name)", path,
                     path.substr(0, slash));
}

Failure not_a_checkpoint(const SourceTree& tree) {
  if (tree.files.empty() && tree.dangling.empty()) {
    return fail(ErrorCode::Unsupported, "{}: not a checkpoint: the directory is empty", tree.name);
  }
  const auto weights = std::find_if(tree.files.begin(), tree.files.end(), [](const TreeFile& file) {
    return role_of(file.path) == FileRole::Weights;
  });
  const auto pointer = std::ranges::find_if(tree.files, [](const TreeFile& file) {
    return role_of(file.path) == FileRole::Weights && is_lfs_pointer(file);
  });
  if (pointer != tree.files.end()) return refuse_lfs_pointer(pointer->path);
  return fail(ErrorCode::Unsupported,
              "{}: not a checkpoint: no *.safetensors file, none of torch or DeepSpeed{}",
              tree.name, weights == tree.files.end() ? "" : hint(weights->path));
}

}  // namespace

Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files,
                                                       const OpenCheckpointOptions& options) {
  CKFS_TRY(const SourceTree tree, list_source(path));
  for (const Kind& kind : kKinds) {
    if (kind.recognizes(tree, options)) return kind.open(tree, files, options);
  }
  return not_a_checkpoint(tree);
}

}  // namespace ckfs
