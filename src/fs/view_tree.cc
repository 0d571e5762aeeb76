// Views list their files by whole path; the kernel asks for one name at a time. The directories in
// between are made here, once for each view. Keeping a map from whole path to file instead would
// need no tree, but then listing a directory means a search over all files of the view.

#include "fs/view_tree.h"

#include <algorithm>
#include <limits>
#include <map>

#include "api/report.h"
#include "base/checked.h"
#include "base/hash.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kTooMany = std::numeric_limits<std::uint64_t>::max();

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('\0') == std::string_view::npos;
}

}  // namespace

std::uint64_t directory_inode(std::string_view path) {
  // The prefix keeps a directory apart from a file of the same path in another view's hash.
  return inode_of_hash(stable_hash(path, stable_hash("directory:")));
}

const ViewTree::Entry* ViewTree::find(std::uint32_t directory, std::string_view name) const {
  const auto& entries = directories[directory].entries;
  const auto at = std::lower_bound(entries.begin(), entries.end(), name,
                                   [](const Entry& e, std::string_view n) { return e.name < n; });
  return at != entries.end() && at->name == name ? &*at : nullptr;
}

Result<std::shared_ptr<const ViewTree>> build_tree(View view) {
  auto tree = std::make_shared<ViewTree>(ViewTree{std::move(view), {}, 0, 0});
  const std::string& top = tree->view.name();
  tree->directories.push_back({"", directory_inode(top), 0, {}});

  std::map<std::string_view, std::uint32_t> known;  // directory paths, within files()'s strings
  const FileList files = tree->view.files();
  for (std::uint32_t number = 0; number < files.size(); ++number) {
    const FileInfo file = files[number];
    const std::string_view path = file.path;
    tree->bytes = checked_add(tree->bytes, file.size).value_or(kTooMany);
    std::uint32_t parent = 0;
    std::size_t begin = 0;
    while (true) {
      const std::size_t slash = path.find('/', begin);
      const std::string_view name = path.substr(begin, slash - begin);
      if (!is_plain_name(name)) return fail(ErrorCode::Internal, "{}/{}: not a path", top, path);
      if (slash == std::string_view::npos) {
        tree->directories[parent].entries.push_back({name, false, number});
        break;
      }
      const std::string_view prefix = path.substr(0, slash);
      const auto [at, is_new] =
          known.emplace(prefix, static_cast<std::uint32_t>(tree->directories.size()));
      if (is_new) {
        tree->directories[parent].entries.push_back({name, true, at->second});
        tree->directories.push_back(
            {std::string(prefix), directory_inode(top + "/" + std::string(prefix)), parent, {}});
      }
      parent = at->second;
      begin = slash + 1;
    }
  }

  tree->memory = memory_of(tree->view);
  for (auto& directory : tree->directories) {
    auto& entries = directory.entries;
    std::sort(entries.begin(), entries.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto twin =
        std::adjacent_find(entries.begin(), entries.end(),
                           [](const auto& a, const auto& b) { return a.name == b.name; });
    if (twin != entries.end()) {
      return fail(ErrorCode::Internal, "{}/{}: name \"{}\" is used twice", top, directory.path,
                  twin->name);
    }
    entries.shrink_to_fit();
  }
  return tree;
}

}  // namespace ckfs
