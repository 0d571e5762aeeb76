// A mount can lie inside its own source (SRC/mnt), and a second one would then walk into the first
// and never come to an end; and links between directories can form circles. So the walk stays on
// one device, follows links to files only, and is bounded in depth and number. What it passes over
// it says.
#include "source/source_tree.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <span>
#include <sys/stat.h>

#include "source/hub_cache.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

/// The number of the filesystem that holds `path`; nullopt where it cannot be asked.
std::optional<std::uint64_t> device_of(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_dev);
}

class Walker {
 public:
  Walker(const fs::path& root, SourceTree& tree) : device_(device_of(root)), tree_(tree) {}

  Result<void> walk(const fs::path& directory, const std::string& prefix, int depth) {
    const std::string shown = prefix.empty() ? tree_.name : prefix;
    std::error_code error;
    fs::directory_iterator entry(directory, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
      CKFS_TRY_VOID(visit(*entry, prefix + entry->path().filename().string(), depth));
    }
    if (error) return system_failure(error.value(), shown, "cannot list");
    return {};
  }

 private:
  Result<void> visit(const fs::directory_entry& entry, const std::string& path, int depth) {
    std::error_code error;
    const bool is_link = entry.is_symlink(error);
    const fs::file_status status = entry.status(error);
    if (fs::is_regular_file(status)) {
      if (path == kExportRecord) {
        tree_.notes.push_back({path, "the record of an export; not shown"});
        return {};
      }
      if (tree_.files.size() == kMaxSourceFiles) {
        return fail(ErrorCode::Unsupported, "{}: more than {} files", tree_.name, kMaxSourceFiles);
      }
      tree_.files.push_back({path, entry.path()});
      if (path.ends_with(".incomplete")) tree_.incomplete.push_back(path);
    } else if (fs::is_directory(status)) {
      if (is_link) {
        tree_.notes.push_back({path, "a link to a directory; not followed"});
      } else if (device_of(entry.path()) != device_) {
        tree_.notes.push_back({path, "another filesystem is mounted here; not shown"});
      } else if (depth == kMaxSourceDepth) {
        return fail(ErrorCode::Unsupported, "{}: directories are nested more than {} deep", path,
                    kMaxSourceDepth);
      } else {
        return walk(entry.path(), path + "/", depth + 1);
      }
    } else if (is_link) {
      tree_.dangling.push_back(path);
    } else {
      tree_.notes.push_back({path, "neither a file nor a directory; not shown"});
    }
    return {};
  }

  std::optional<std::uint64_t> device_;
  SourceTree& tree_;
};

}  // namespace

const TreeFile* SourceTree::find(std::string_view path) const {
  const auto at =
      std::lower_bound(files.begin(), files.end(), path,
                       [](const TreeFile& file, std::string_view p) { return file.path < p; });
  return at != files.end() && at->path == path ? &*at : nullptr;
}

std::vector<std::byte> first_bytes(const TreeFile& file, std::size_t count) {
  std::string bytes(count, '\0');
  std::ifstream in(file.location, std::ios::binary);
  in.read(bytes.data(), static_cast<std::streamsize>(count));
  const auto all = std::as_bytes(std::span(bytes));
  const auto have = static_cast<std::ptrdiff_t>(std::max<std::streamsize>(in.gcount(), 0));
  return {all.begin(), all.begin() + have};
}

bool is_lfs_pointer(const TreeFile& file) {
  constexpr std::string_view kFirst = "version https://git-lfs";
  constexpr std::uintmax_t kLargest = 1024;  // what Git-LFS itself takes for one
  std::error_code error;
  if (fs::file_size(file.location, error) >= kLargest || error) return false;
  const std::vector<std::byte> begin = first_bytes(file, kFirst.size());
  return std::ranges::equal(begin, std::as_bytes(std::span(kFirst)));
}

Failure refuse_lfs_pointer(std::string_view path) {
  return fail(ErrorCode::Unsupported,
              "{}: a Git-LFS pointer, not the file itself (complete it with: git lfs pull)", path);
}

Result<SourceTree> list_source(const fs::path& path) {
  SourceTree tree;
  tree.name = path.string();
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) {
    return fail(ErrorCode::NotFound, "{}: no such file or directory", tree.name);
  }
  if (error) return system_failure(error.value(), tree.name, "cannot open");
  if (fs::is_regular_file(status)) {
    tree.single_file = true;
    tree.root = path.parent_path().empty() ? fs::path(".") : path.parent_path();
    tree.files.push_back({path.filename().string(), path});
    if (tree.name.ends_with(".incomplete")) tree.incomplete.push_back(path.filename().string());
    return tree;
  }
  if (!fs::is_directory(status)) {
    return fail(ErrorCode::Unsupported, "{}: neither a file nor a directory", tree.name);
  }

  fs::path root = path;
  CKFS_TRY(auto snapshot, find_hub_snapshot(path));
  if (snapshot) {
    root = snapshot->directory;
    tree.incomplete = std::move(snapshot->incomplete);
    if (!snapshot->repository.empty()) {
      tree.complete_command = fmt::format("hf download {}", snapshot->repository);
    }
  }
  tree.root = root;
  CKFS_TRY_VOID(Walker(root, tree).walk(root, "", 0));
  if (tree.complete_command.empty() && !tree.incomplete.empty()) {
    tree.complete_command = fmt::format("hf download REPOSITORY --local-dir {}", tree.name);
  }
  std::sort(tree.files.begin(), tree.files.end(),
            [](const TreeFile& a, const TreeFile& b) { return a.path < b.path; });
  std::sort(tree.dangling.begin(), tree.dangling.end());
  std::sort(tree.notes.begin(), tree.notes.end(),
            [](const Note& a, const Note& b) { return a.subject < b.subject; });
  return tree;
}

}  // namespace ckfs
