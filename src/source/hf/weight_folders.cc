// A folder counts with the files directly in it. One that also took deeper files would have to
// share them with folders below that have weights themselves.
#include "source/hf/weight_folders.h"

#include <algorithm>

#include "source/file_role.h"

namespace ckfs {
namespace {

/// "a/b/" of "a/b/c"; empty at the top.
std::string_view folder_of(std::string_view path) {
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

std::vector<std::string> weight_folders(const SourceTree& tree) {
  std::vector<std::string> folders;
  const auto take = [&](std::string_view path) {
    const std::string_view folder = folder_of(path);
    const std::string_view name = path.substr(folder.size());
    if (folder.empty() || !name.ends_with(".safetensors") || name.starts_with("consolidated") ||
        role_of(path) != FileRole::Weights || is_of_another_format(folder)) {
      return;
    }
    folders.emplace_back(folder);
  };
  for (const TreeFile& file : tree.files) take(file.path);
  for (const std::string& path : tree.dangling) take(path);
  // Deeper ones come between the files of a folder.
  std::ranges::sort(folders);
  const auto same = std::ranges::unique(folders);
  folders.erase(same.begin(), same.end());
  return folders;
}

bool is_pipeline(const SourceTree& tree) {
  if (weight_folders(tree).empty()) return false;
  if (tree.find("model_index.json") != nullptr) return true;
  if (tree.find("modules.json") == nullptr) return false;
  const auto is_weights_at_top = [](const std::string& path) {
    return folder_of(path).empty() && role_of(path) == FileRole::Weights;
  };
  return std::ranges::none_of(tree.files, is_weights_at_top, &TreeFile::path) &&
         std::ranges::none_of(tree.dangling, is_weights_at_top);
}

SourceTree tree_of(const SourceTree& tree, const std::string& folder) {
  SourceTree part;
  part.name = tree.name + "/" + folder.substr(0, folder.size() - 1);
  part.root = tree.root / folder;
  part.complete_command = tree.complete_command;
  // Its files and those of folders below it are neighbours in the sorted list.
  auto file = std::ranges::lower_bound(tree.files, folder, {}, &TreeFile::path);
  for (; file != tree.files.end() && file->path.starts_with(folder); ++file) {
    if (folder_of(file->path) != folder) continue;
    part.files.push_back({file->path.substr(folder.size()), file->is_link});
  }
  const auto take = [&](const std::vector<std::string>& from, std::vector<std::string>& to) {
    auto path = std::ranges::lower_bound(from, folder);
    for (; path != from.end() && path->starts_with(folder); ++path) {
      if (folder_of(*path) == folder) to.push_back(path->substr(folder.size()));
    }
  };
  take(tree.dangling, part.dangling);
  take(tree.incomplete, part.incomplete);
  part.whole_is_incomplete = !tree.incomplete.empty();
  return part;
}

}  // namespace ckfs
