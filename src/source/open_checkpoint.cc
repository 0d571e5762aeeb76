// Kinds are told apart by what lies in the directory, in the order of one table: first come, first
// served, so a directory that several kinds could claim is opened as the most specific. Trying each
// adapter until one succeeds would turn every broken checkpoint into "not a checkpoint".
#include "source/open_checkpoint.h"

#include <algorithm>
#include <array>

#include "source/file_role.h"
#include "source/hf_safetensors.h"
#include "source/source_tree.h"

namespace ckfs {
namespace {

struct Kind {
  bool (*recognizes)(const SourceTree& tree);
  Result<std::shared_ptr<const Catalog>> (*open)(const SourceTree& tree, SourceFiles& files,
                                                 const OpenCheckpointOptions& options);
};

constexpr std::array<Kind, 1> kKinds = {{
    {is_hf_safetensors, open_hf_safetensors},
}};

Failure not_a_checkpoint(const SourceTree& tree) {
  if (tree.files.empty() && tree.dangling.empty()) {
    return fail(ErrorCode::Unsupported, "{}: not a checkpoint: the directory is empty", tree.name);
  }
  const auto weights = std::find_if(tree.files.begin(), tree.files.end(), [](const TreeFile& file) {
    return role_of(file.path) == FileRole::Weights;
  });
  return fail(ErrorCode::Unsupported, "{}: not a checkpoint: no *.safetensors file{}", tree.name,
              weights == tree.files.end()
                  ? ""
                  : fmt::format(" (it has {}, which ckfs cannot read)", weights->path));
}

}  // namespace

Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files,
                                                       const OpenCheckpointOptions& options) {
  CKFS_TRY(const SourceTree tree, list_source(path));
  for (const Kind& kind : kKinds) {
    if (kind.recognizes(tree)) return kind.open(tree, files, options);
  }
  return not_a_checkpoint(tree);
}

}  // namespace ckfs
