// Kinds are told apart by the files in the directory, in the order of one table: first come, first
// served, so a directory that several kinds could claim is opened as the most specific. Trying each
// adapter until one succeeds would turn every broken checkpoint into "not a checkpoint".
#include "source/open_checkpoint.h"

#include <algorithm>
#include <array>

#include "source/adapters.h"
#include "source/file_role.h"
#include "source/source_tree.h"

namespace ckfs {
namespace {

// A training run's directory may have a model in safetensors at its top, and below it the state to
// resume from; a user who opens that directory with ckfs means the state. A model's directory may
// have any other format beside its safetensors, all of the same weights. (An Orbax item may have
// safetensors files for its data files.)
constexpr std::array<const Adapter*, 9> kAdapters = {
    &kTorchFile,     &kDeepSpeedZero, &kUniversal, &kTorchDcpTop, &kOrbaxItem,
    &kHfSafetensors, &kOrbax,         &kTorchDcp,  &kTorchFiles};

/// What to do about weights that are there.
std::string hint(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) {
    return fmt::format(" (it has {}, which ckfs cannot read)", path);
  }
  return fmt::format(" (it has {}; a checkpoint below it, {}, is opened by its own name)", path,
                     path.substr(0, slash));
}

Failure not_a_checkpoint(const SourceTree& tree, const SourceFiles& files) {
  if (tree.files.empty() && tree.dangling.empty()) {
    return fail(ErrorCode::Unsupported, "{}: not a checkpoint: the directory is empty", tree.name);
  }
  const auto part = std::ranges::find_if(
      tree.files, [](const TreeFile& file) { return file.path.ends_with(".distcp"); });
  if (part != tree.files.end()) {
    return fail(ErrorCode::Unsupported,
                "{}: a part of a DCP checkpoint ({}), and .metadata is not here: it lies on the "
                "first node that saved it (copy the files of all nodes into one directory)",
                tree.name, part->path);
  }
  const auto weights = std::find_if(tree.files.begin(), tree.files.end(), [](const TreeFile& file) {
    return role_of(file.path) == FileRole::Weights;
  });
  const auto pointers = find_lfs_pointers(
      tree, files, [](const TreeFile& file) { return role_of(file.path) == FileRole::Weights; });
  if (!pointers.empty()) return refuse_lfs_pointer(pointers.front()->path);
  return fail(ErrorCode::Unsupported,
              "{}: not a checkpoint: no *.safetensors file, none of torch, DeepSpeed or Orbax{}",
              tree.name, weights == tree.files.end() ? "" : hint(weights->path));
}

}  // namespace

Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files,
                                                       const OpenCheckpointOptions& options) {
  CKFS_TRY(const SourceTree tree, list_source(path, files));
  for (const Adapter* adapter : kAdapters) {
    if (!adapter->recognizes(tree, files, options)) continue;
    const bool has_steps = adapter == &kOrbax || adapter == &kOrbaxItem;
    if (!has_steps && (options.step || !options.item.empty())) {
      // The options may mean files still to come; the files that are there, whole by themselves,
      // are not what was named.
      if (!tree.incomplete.empty()) return refuse_unfinished(tree);
      return fail(ErrorCode::InvalidArgument, "{}: only Orbax checkpoints have {}", tree.name,
                  options.step ? "steps" : "items");
    }
    return adapter->open(tree, files, options);
  }
  return not_a_checkpoint(tree, files);
}

}  // namespace ckfs
