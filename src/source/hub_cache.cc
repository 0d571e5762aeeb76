// Users point at what `ls ~/.cache/huggingface/hub` shows, which is a repository and not a model
// directory. Asking huggingface_hub itself would need Python; the layout of its cache is documented
// and has been stable for years, so the three names of it are known here, and nowhere else.
#include "source/hub_cache.h"

#include <algorithm>
#include <cerrno>

#include "base/text.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

Result<bool> has_directory(SourceStore& store, const fs::path& path) {
  const auto status = store.look(path);
  if (status) return status->kind == FileKind::Directory;
  // A user who may not look into a directory gets that error when it is listed, with its name.
  if (is_absent(status.error()) || status.error() == EACCES) return false;
  return system_failure(status.error(), path.string(), "cannot look at");
}

/// The directories in a directory, without links to such, which may lead anywhere; by name.
Result<std::vector<std::string>> list_directories(SourceStore& store, const fs::path& directory) {
  auto listed = store.list(directory);
  if (!listed) return system_failure(listed.error(), directory.string(), "cannot list");
  std::vector<std::string> names;
  for (StoreEntry& entry : *listed) {
    if (entry.kind == FileKind::Directory) names.push_back(std::move(entry.name));
  }
  return names;
}

/// models--org--name -> org/name
std::string repository_name(const fs::path& repository) {
  constexpr std::string_view kPrefix = "models--";
  std::string name = repository.filename().string();
  if (!name.starts_with(kPrefix)) return {};
  name.erase(0, kPrefix.size());
  const std::size_t separator = name.find("--");
  if (separator == std::string::npos) return name;
  return fmt::format("{}/{}", name.substr(0, separator), name.substr(separator + 2));
}

std::string complete_hint(const std::string& repository) {
  if (repository.empty()) return {};
  return fmt::format(" (complete it with: hf download {})", repository);
}

/// Which snapshots there are in the place of the one that is named.
std::string others_hint(const fs::path& repository, const std::vector<std::string>& snapshots) {
  constexpr std::size_t kMostListed = 10;
  if (snapshots.empty()) return {};
  std::string text = "; try: ckfs inspect ";
  text += one_line((repository / "snapshots" / snapshots.front()).string());
  for (std::size_t i = 1; i < std::min(snapshots.size(), kMostListed); ++i) {
    text += (i == 1 ? "; there are also: " : ", ") + one_line(snapshots[i]);
  }
  if (snapshots.size() > kMostListed) {
    text += fmt::format(" and {} more", snapshots.size() - kMostListed);
  }
  return text;
}

/// models--NAME of a path that begins with it and goes on with `then`; "" otherwise.
std::string_view first_part_before(std::string_view path, std::string_view then) {
  const std::size_t slash = path.find('/');
  if (!path.starts_with("models--") || slash == std::string_view::npos ||
      !path.substr(slash).starts_with(then)) {
    return {};
  }
  return path.substr(0, slash);
}

/// The first word of refs/main; empty where there is no such file. Errors: Io.
Result<std::string> current_revision(SourceStore& store, const fs::path& repository) {
  constexpr std::size_t kLongest = 256;
  const fs::path file = repository / "refs" / "main";
  const std::vector<std::byte> bytes = store.first_bytes(file, kLongest);
  std::string revision(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  revision.resize(std::min(revision.find_first_of(" \t\r\n"), revision.size()));
  if (!revision.empty()) return revision;
  const auto status = store.look(file);
  if (!status && (status.error() == ENOENT || status.error() == ENOTDIR)) return revision;
  return fail(ErrorCode::Io, "{}: refs/main cannot be read, or names nothing", repository.string());
}

Result<fs::path> choose_snapshot(SourceStore& store, const fs::path& repository,
                                 const std::string& name) {
  const fs::path snapshots = repository / "snapshots";
  CKFS_TRY(const std::string revision, current_revision(store, repository));
  if (one_line(revision) != revision) {
    return fail(ErrorCode::Unsupported, "{}: refs/main has control characters",
                repository.string());
  }
  CKFS_TRY(const std::vector<std::string> all, list_directories(store, snapshots));
  if (!revision.empty()) {
    if (std::ranges::find(all, revision) != all.end()) return snapshots / revision;
    return fail(ErrorCode::Unsupported, "{}: refs/main names the snapshot {}, which is absent{}{}",
                repository.string(), revision, complete_hint(name), others_hint(repository, all));
  }
  if (all.size() == 1) return snapshots / all.front();
  if (all.empty()) {
    return fail(ErrorCode::Unsupported, "{}: a hub cache entry without a snapshot{}",
                repository.string(), complete_hint(name));
  }
  return fail(ErrorCode::Unsupported, "{}: no refs/main, and {} snapshots: name one of them{}",
              repository.string(), all.size(), others_hint(repository, all));
}

Result<bool> is_repository(SourceStore& store, const fs::path& path) {
  CKFS_TRY(const bool snapshots, has_directory(store, path / "snapshots"));
  if (!snapshots) return false;
  CKFS_TRY(const bool blobs, has_directory(store, path / "blobs"));
  CKFS_TRY(const bool refs, has_directory(store, path / "refs"));
  if (!blobs && !refs) return false;
  // By another name, or through a link, it is not a cache's; if it may not be listed, that stays
  // unknown.
  const auto own = list_directories(store, path);
  if (!own && own.error().system_error() == EACCES) return true;
  if (!own) return Failure(own.error());
  return std::ranges::find(*own, "snapshots") != own->end();
}

}  // namespace

std::string repository_of_blob(std::string_view path) {
  return repository_name(first_part_before(path, "/blobs/"));
}

std::string_view repository_directory(std::string_view path) {
  return first_part_before(path, "/snapshots/");
}

Result<std::optional<HubSnapshot>> find_hub_snapshot(const fs::path& path, SourceStore& store) {
  fs::path repository;
  HubSnapshot snapshot;
  CKFS_TRY(const bool whole, is_repository(store, path));
  const fs::path above = path.parent_path();
  bool one = false;
  if (!whole && above.filename() == "snapshots") {
    CKFS_TRY(one, is_repository(store, above.parent_path()));
  }
  if (whole) {
    repository = path;
    snapshot.repository = repository_name(repository);
    CKFS_TRY(snapshot.directory, choose_snapshot(store, repository, snapshot.repository));
  } else if (one) {
    repository = above.parent_path();
    snapshot.repository = repository_name(repository);
    snapshot.directory = path;
  } else {
    return std::nullopt;
  }
  const fs::path blobs = repository / "blobs";
  const auto listed = store.list(blobs);
  // A directory that may not be listed can still be read: a link whose target is absent shows, too.
  if (!listed && (is_absent(listed.error()) || listed.error() == EACCES)) return snapshot;
  if (!listed) return system_failure(listed.error(), blobs.string(), "cannot list");
  for (const StoreEntry& blob : *listed) {
    if (blob.name.ends_with(".incomplete")) snapshot.incomplete.push_back("blobs/" + blob.name);
  }
  return snapshot;
}

}  // namespace ckfs
