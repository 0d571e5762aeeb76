// A mount can lie inside its own source (SRC/mnt), and a second one would then walk into the first
// and never come to an end; and links between directories can form circles. So the walk stays on
// one device, follows links to files only, and is bounded in depth. It notes all that it skips.
// Only a link's target may be out of reach: it may be a directory in another user's home, which
// would not be followed anyway.
//
// It goes level by level, not directory by directory: all of a level is asked for at once, so that
// the thousands of directories of a universal checkpoint cost a slow source a few rounds.
#include "source/source_tree.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <spdlog/spdlog.h>
#include <utility>

#include "base/parallel.h"
#include "base/text.h"
#include "source/hub_cache.h"
#include "source/numbered_files.h"
#include "source/source_name.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLfsFirst = "version https://git-lfs";

/// A name that has to be looked at: a link, or a directory that may be another file system's.
struct Candidate {
  std::string path;
  bool is_link = false;
};

class TreeLister {
 public:
  TreeLister(SourceTree& tree, const SourceFiles& files) : files_(files), tree_(tree) {}

  Result<void> walk() {
    const auto root = files_.store().look(tree_.root);
    if (!root) return system_failure(root.error(), tree_.name, "cannot list");
    device_ = root->fingerprint.device;
    std::vector<std::string> level = {""};
    for (int depth = 0; !level.empty(); ++depth) {
      CKFS_TRY(const std::vector<Candidate> candidates, list(level));
      CKFS_TRY(level, look(candidates));
      if (depth < kMaxSourceDepth || level.empty()) continue;
      return fail(ErrorCode::Unsupported, "{}: directories are nested more than {} deep",
                  level.front().substr(0, level.front().size() - 1), kMaxSourceDepth);
    }
    return {};
  }

 private:
  /// Takes the files of the directories `level`, and gives what else they have.
  Result<std::vector<Candidate>> list(const std::vector<std::string>& level) {
    std::vector<std::vector<StoreEntry>> entries(level.size());
    std::vector<Candidate> candidates;
    CKFS_TRY_VOID(run_in_order(
        level.size(),
        [&](std::size_t i) -> Result<void> {
          auto listed = files_.store().list(tree_.root / level[i]);
          if (!listed) {
            return system_failure(listed.error(), level[i].empty() ? tree_.name : level[i],
                                  "cannot list");
          }
          entries[i] = *std::move(listed);
          return {};
        },
        [&](std::size_t i) -> Result<void> {
          for (const StoreEntry& entry : std::exchange(entries[i], {})) {
            take(level[i] + entry.name, entry.kind, candidates);
          }
          return {};
        },
        files_.parallel()));
    return candidates;
  }

  void take(std::string path, FileKind kind, std::vector<Candidate>& candidates) {
    switch (kind) {
      case FileKind::File:
        take_file(std::move(path), false);
        return;
      case FileKind::Directory:
      case FileKind::Link:
        candidates.push_back({std::move(path), kind == FileKind::Link});
        return;
      case FileKind::Other:
        tree_.notes.push_back({std::move(path), "neither a file nor a directory; not shown"});
        return;
    }
  }

  void take_file(std::string path, bool is_link) {
    if (path.ends_with(".incomplete")) tree_.incomplete.push_back(path);
    tree_.files.push_back({std::move(path), is_link});
  }

  /// Takes files, also those behind links, and gives the directories of the next level.
  Result<std::vector<std::string>> look(const std::vector<Candidate>& candidates) {
    std::vector<Tried<FileStatus>> found(candidates.size());
    CKFS_TRY_VOID(run_parallel(
        candidates.size(),
        [&](std::size_t i) -> Result<void> {
          found[i] = files_.store().look(tree_.root / candidates[i].path);
          return {};
        },
        files_.parallel()));
    std::vector<std::string> next;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      const auto& [path, is_link] = candidates[i];
      const int error = found[i] ? 0 : found[i].error();
      if (!found[i] && !(is_link ? is_out_of_reach(error) : is_absent(error))) {
        return system_failure(error, path, "cannot look at");
      }
      const FileKind kind = found[i] ? found[i]->kind : FileKind::Other;
      if (kind == FileKind::File && is_link) {
        take_file(path, true);
      } else if (kind == FileKind::Directory && is_link) {
        tree_.notes.push_back({path, "a link to a directory; not followed"});
      } else if (kind == FileKind::Directory && found[i]->fingerprint.device != device_) {
        tree_.notes.push_back({path, "another filesystem is mounted here; not shown"});
      } else if (kind == FileKind::Directory && path == kExportFolder) {
        tree_.notes.push_back({path, "the record of an export; not shown"});
      } else if (kind == FileKind::Directory) {
        next.push_back(path + "/");
      } else {
        const bool leads_nowhere = is_link && !found[i];
        if (is_link) tree_.dangling.push_back(path);
        tree_.notes.push_back(
            {path, leads_nowhere ? "a link to a file that is absent or out of reach; not shown"
                                 : "neither a file nor a directory; not shown"});
      }
    }
    return next;
  }

  std::uint64_t device_ = 0;
  const SourceFiles& files_;
  SourceTree& tree_;
};

/// Notes the files that are links out of `boundary`: their content is not the checkpoint's own.
Result<void> note_outside_links(SourceTree& tree, const fs::path& boundary,
                                const SourceFiles& files) {
  std::vector<const TreeFile*> links;
  for (const TreeFile& file : tree.files) {
    if (file.is_link) links.push_back(&file);
  }
  std::vector<std::string> targets(links.size());  // empty: inside, or unknown
  CKFS_TRY_VOID(run_parallel(
      links.size(),
      [&](std::size_t i) -> Result<void> {
        const auto target = files.store().resolve(tree.location(*links[i]));
        if (!target) return {};  // opening it says why
        if (!lies_in(*target, boundary)) targets[i] = target->string();
        return {};
      },
      files.parallel()));
  const auto first = std::ranges::find_if_not(targets, &std::string::empty);
  if (first == targets.end()) return {};
  const auto count =
      std::ranges::count_if(targets, [](const std::string& target) { return !target.empty(); });
  const std::string& path = links[static_cast<std::size_t>(first - targets.begin())]->path;
  tree.notes.push_back({path, fmt::format("a link out of the checkpoint, to {}{}", *first,
                                          count > 1 ? fmt::format(" (and {} more such)", count - 1)
                                                    : std::string())});
  tree.outside_links = fmt::format("{}, the first of them {} -> {}", count, path, *first);
  return {};
}

/// A file by itself, perhaps a link; its directory has the files beside it.
Result<SourceTree> single_file(SourceTree tree, const fs::path& path, const SourceFiles& files) {
  const fs::path parent = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  auto root = files.store().resolve(parent);
  if (!root) return system_failure(root.error(), tree.name, "cannot open");
  tree.single_file = true;
  tree.root = *std::move(root);
  tree.files.push_back({path.filename().string(), true});
  if (tree.name.ends_with(".incomplete")) tree.incomplete.push_back(tree.files.front().path);
  return tree;
}

}  // namespace

Result<fs::path> link_boundary(const fs::path& directory, SourceStore& store) {
  CKFS_TRY(const auto snapshot, find_hub_snapshot(directory, store));
  return snapshot ? snapshot->directory.parent_path().parent_path() : directory;
}

bool lies_in(const fs::path& path, const fs::path& directory) {
  return std::ranges::mismatch(directory, path).in1 == directory.end();
}

const TreeFile* SourceTree::find(std::string_view path) const {
  const auto at =
      std::lower_bound(files.begin(), files.end(), path,
                       [](const TreeFile& file, std::string_view p) { return file.path < p; });
  return at != files.end() && at->path == path ? &*at : nullptr;
}

bool has_lfs_pointer_size(std::uint64_t size) {
  constexpr std::uint64_t kSmallest = 126;   // its three lines, of a file of no bytes
  constexpr std::uint64_t kTooLarge = 1024;  // what Git-LFS itself takes for one is smaller
  return size >= kSmallest && size < kTooLarge;
}

std::vector<const TreeFile*> find_lfs_pointers(const SourceTree& tree, const SourceFiles& files,
                                               const std::function<bool(const TreeFile&)>& wanted) {
  std::vector<const TreeFile*> found;
  const auto look = [&]() -> Result<void> {
    for (const TreeFile& file : tree.files) {
      if (wanted(file)) found.push_back(&file);
    }
    return run_parallel(
        found.size(),
        [&](std::size_t i) -> Result<void> {
          SourceStore& store = files.store();
          const fs::path location = tree.location(*found[i]);
          const auto status = store.look(location);
          if (status && has_lfs_pointer_size(status->fingerprint.size) &&
              std::ranges::equal(store.first_bytes(location, kLfsFirst.size()),
                                 std::as_bytes(std::span(kLfsFirst)))) {
            return {};
          }
          found[i] = nullptr;
          return {};
        },
        files.parallel());
  };
  // Without memory this is left out: it only explains or adds to an error.
  if (!or_out_of_memory(look)) return {};
  std::erase(found, nullptr);
  return found;
}

Failure refuse_lfs_pointer(std::string_view path) {
  return fail(ErrorCode::Unsupported,
              "{}: a Git-LFS pointer, not the file itself (complete it with: git lfs pull)", path);
}

std::string download_hint(const SourceTree& tree) {
  if (tree.complete_command.empty()) return {};
  return fmt::format(" (complete the download with: {})", tree.complete_command);
}

Failure refuse_unfinished(const SourceTree& tree) {
  return fail(ErrorCode::Unsupported, "{}: a download that was not finished{}",
              tree.single_file ? tree.name : tree.incomplete.front(), download_hint(tree));
}

Failure refuse_dangling(const SourceTree& tree, const std::string& path, const SourceFiles& files) {
  const auto target = files.store().link_target(tree.location({path, true}));
  const std::string text = target ? target->string() : std::string();
  // A snapshot alone, bound into a container, has links to files that were not bound.
  std::string remedy = download_hint(tree);
  if (remedy.empty() && text.find("/blobs/") != std::string::npos) {
    remedy =
        " (its links lead to the blobs of a hub cache: bind the whole models--* directory, "
        "and not a snapshot of it alone)";
  }
  return fail(ErrorCode::NotFound, "{}: a link to {}, which is absent or out of reach{}", path,
              text.empty() ? "a file" : one_line(text), remedy);
}

Failure refuse_slices(std::string_view path, std::string_view what) {
  return fail(ErrorCode::Unsupported,
              "{}: {}, which ckfs does not join (convert them to one model first)", path, what);
}

Result<void> refuse_slice(const SourceTree& tree, const SourceFiles& files) {
  const std::string& own = tree.files.front().path;
  const auto file = parse_rank_file(own);
  if (!file) return {};
  std::vector<std::string> names{own};
  const auto listed = files.store().list(tree.root);
  for (const StoreEntry& entry : listed ? *listed : std::vector<StoreEntry>()) {
    const auto other = parse_rank_file(entry.name);
    if (other && other->series == file->series) names.push_back(entry.name);
  }
  const auto slices = find_slices(names);
  const auto found = slices.find(own);
  return found == slices.end() ? Result<void>() : refuse_slices(own, found->second);
}

Result<std::vector<TreeFile>> list_files(const fs::path& directory, const std::string& shown,
                                         const SourceFiles& files,
                                         const std::function<bool(std::string_view)>& wanted) {
  auto listed = files.store().list(directory);
  if (!listed) return system_failure(listed.error(), shown, "cannot list");
  std::erase_if(*listed, [&](const StoreEntry& entry) { return !wanted(entry.name); });
  CKFS_TRY_VOID(run_parallel(
      listed->size(),
      [&](std::size_t i) -> Result<void> {
        StoreEntry& entry = (*listed)[i];
        if (entry.kind != FileKind::Link) return {};
        const auto status = files.store().look(directory / entry.name);
        if (!status && !is_out_of_reach(status.error())) {
          return system_failure(status.error(), fmt::format("{}/{}", shown, entry.name),
                                "cannot look at");
        }
        if (!status || status->kind != FileKind::File) entry.kind = FileKind::Other;
        return {};
      },
      files.parallel()));
  std::vector<TreeFile> found;
  for (StoreEntry& entry : *listed) {
    const bool is_link = entry.kind == FileKind::Link;
    if (is_link || entry.kind == FileKind::File) found.push_back({std::move(entry.name), is_link});
  }
  return found;
}

Result<SourceTree> list_source(const fs::path& source, const SourceFiles& files) {
  SourceTree tree;
  tree.name = source.string();
  CKFS_TRY(const fs::path path, find_source(source, files.store()));
  const auto status = files.store().look(path);
  if (!status) return system_failure(status.error(), tree.name, "cannot open");
  if (status->kind == FileKind::File) return single_file(std::move(tree), path, files);
  if (status->kind != FileKind::Directory) {
    return fail(ErrorCode::Unsupported, "{}: neither a file nor a directory", tree.name);
  }

  auto root = files.store().resolve(path);
  if (!root) return system_failure(root.error(), tree.name, "cannot open");
  tree.root = *std::move(root);
  CKFS_TRY(auto snapshot, find_hub_snapshot(tree.root, files.store()));
  if (snapshot) {
    tree.root = snapshot->directory;
    tree.incomplete = std::move(snapshot->incomplete);
    if (!snapshot->repository.empty()) {
      tree.complete_command = fmt::format("hf download {}", snapshot->repository);
    }
  }
  CKFS_TRY_VOID(TreeLister(tree, files).walk());
  std::ranges::sort(tree.files, {}, &TreeFile::path);
  CKFS_TRY(const fs::path boundary, link_boundary(tree.root, files.store()));
  CKFS_TRY_VOID(note_outside_links(tree, boundary, files));
  if (tree.complete_command.empty() && !tree.incomplete.empty()) {
    const std::string repository = repository_of_blob(tree.incomplete.front());
    tree.complete_command =
        repository.empty() ? fmt::format("hf download REPOSITORY --local-dir {}", tree.name)
                           : fmt::format("hf download {} --cache-dir {}", repository, tree.name);
  }
  std::ranges::sort(tree.dangling);
  std::ranges::sort(tree.incomplete);
  std::ranges::sort(tree.notes, {}, &Note::subject);
  return tree;
}

}  // namespace ckfs
