#include "export/out_rules.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ranges>
#include <set>
#include <spdlog/spdlog.h>
#include <vector>

#include "api/inside.h"
#include "base/paths.h"
#include "base/units.h"
#include "export/fleet.h"
#include "export/split.h"

namespace ckfs {

namespace {

constexpr std::size_t kMaxRecord = 256_MiB;

/// The path with the links of its existing part resolved. (Of a relative path that does not exist
/// at all, weakly_canonical() alone gives a relative one.)
std::filesystem::path resolved(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
}

}  // namespace

int turn_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  if (name == "commit_success.txt" || name == "_CHECKPOINT_METADATA") return 2;
  return name == "_METADATA" || name.ends_with(".index.json") ? 1 : 0;
}

Result<bool> takes_offsets(const OutDirectory& out, const std::string& probe) {
  constexpr std::array<std::byte, 1> kByte{std::byte{1}};
  const auto tried = [&]() -> Result<bool> {
    CKFS_TRY(OutFile file, out.open_shared(probe));
    CKFS_TRY_VOID(file.write(kSplitUnit, kByte));
    CKFS_TRY_VOID(file.write(0, kByte));
    CKFS_TRY_VOID(file.sync());
    CKFS_TRY(const auto text, out.read_text(probe, 2 * kSplitUnit));
    return text && text->size() == kSplitUnit + 1 && text->front() == 1 && text->back() == 1;
  }();
  (void)out.remove(probe);
  constexpr std::array kBroken{ENOSPC, EDQUOT, EIO};
  if (!tried && std::ranges::find(kBroken, tried.error().system_error()) != kBroken.end()) {
    return Failure(tried.error());
  }
  return tried.value_or(false);
}

Result<ExportRecord> fresh_record(const View& view) {
  ExportRecord record{.origin = {.fingerprint = view.checkpoint().fingerprint(),
                                 .view = view.name(),
                                 .layout_version = kLayoutVersion},
                      .files = {}};
  for (const FileInfo& file : view.files()) {
    if (!is_inner_path(file.path)) {
      return fail(ErrorCode::Corrupt, "{}: not a path inside a directory", file.path);
    }
    if (is_own_path(file.path)) {
      return fail(ErrorCode::Unsupported, "{}: a name that is reserved for export bookkeeping",
                  file.path);
    }
    record.files[std::string(file.path)].size = file.size;
  }
  return record;
}

Result<void> refuse_inside(const std::filesystem::path& out, const View& view) {
  const std::filesystem::path& source = opened_path(view);
  if (!lies_within(resolved(out), resolved(source))) return {};
  return fail(ErrorCode::InvalidArgument, "{}: lies inside the source {}", out.native(),
              source.native());
}

Result<void> refuse_own_source(const std::filesystem::path& out, const Checkpoint& checkpoint,
                               const ExportRecord& files) {
  const std::filesystem::path target = resolved(out);
  for (const std::filesystem::path& path : source_paths(checkpoint)) {
    if (!lies_within(path, target)) continue;
    const std::string inner = path.lexically_relative(target).native();
    if (!files.files.contains(inner)) continue;
    return fail(ErrorCode::InvalidArgument,
                "{}: its \"{}\" is a file of the source, which the export would replace or remove",
                out.native(), inner);
  }
  return {};
}

Result<bool> is_trusted(const OutDirectory& out, std::string_view record, bool force,
                        std::string_view remedy) {
  for (const std::string_view path : {std::string_view(), kExportFolder, record}) {
    const std::optional<std::string> reason = out.distrust(std::string(path));
    if (!reason) continue;
    if (force) return false;
    return fail(ErrorCode::InvalidArgument, "{}{}{}: {} ({})", out.name(), path.empty() ? "" : "/",
                path, *reason, remedy);
  }
  return true;
}

bool FoundExport::is_finished() const {
  return is_marked ||
         std::ranges::all_of(record.files, [](const auto& file) { return file.second.finished; });
}

bool FoundExport::is_begun() const {
  return is_marked || std::ranges::any_of(record.files, [](const auto& file) {
           return file.second.finished || file.second.synced > 0 || file.second.steps > 0;
         });
}

std::string FoundExport::text() const {
  return fmt::format("{} export of {}", is_finished() ? "a finished" : "an unfinished",
                     record.origin.view);
}

Result<std::optional<FoundExport>> find_export(const OutDirectory& out, const ExportRecord& fresh,
                                               bool force) {
  const auto recorded = [&]() -> Result<std::optional<ExportRecord>> {
    CKFS_TRY(const std::optional<std::string> text,
             out.read_text(std::string(kRecordName), kMaxRecord));
    if (!text) return std::nullopt;
    CKFS_TRY(ExportRecord record, parse_record(*text));
    return record;
  }();
  if (!recorded && force) return std::nullopt;
  if (!recorded) return Failure(recorded.error().within(out.name()));
  if (*recorded) return FoundExport{.record = **recorded};

  const std::optional<std::string> mark = out.mark("");
  const std::optional<ExportOrigin> origin = mark ? parse_mark(*mark) : std::nullopt;
  if (!origin) return std::nullopt;
  FoundExport found{.record = {.origin = *origin, .order = 0, .files = {}}, .is_marked = true};
  if (*origin != fresh.origin) return found;
  found.record.files = fresh.files;
  for (auto& [path, file] : found.record.files) file.finished = out.mark(path) == mark;
  return found;
}

Result<std::map<std::string, ExportRecord::File>> marked_files(const OutDirectory& out,
                                                               const ExportOrigin& origin) {
  std::map<std::string, ExportRecord::File> files;
  const std::string mark = mark_text(origin);
  CKFS_TRY_VOID(out.find_foreign([&](const std::string& path) {
    const auto entry = out.entry(path);
    if (entry && entry->regular && out.mark(path) == mark) {
      files[path] = {.size = entry->size, .synced = 0, .finished = true, .steps = 0};
    }
    return true;
  }));
  return files;
}

Result<void> refuse_replacing(const OutDirectory& out, const FoundExport& found,
                              const ExportOrigin& asked) {
  const ExportOrigin& there = found.record.origin;
  if (there == asked || !found.is_begun()) return {};
  if (there.view != asked.view) {
    return fail(ErrorCode::InvalidArgument,
                "{}: holds {} (--force replaces it; another OUT keeps it)", out.name(),
                found.text());
  }
  if (there.layout_version != asked.layout_version) {
    return fail(ErrorCode::InvalidArgument,
                "{}: holds {} by another version of ckfs (layout version {}, now {}; --force "
                "replaces it, another OUT keeps it)",
                out.name(), found.text(), there.layout_version, asked.layout_version);
  }
  return fail(
      ErrorCode::InvalidArgument,
      "{}: holds {} from another source or recipe, or from this one before its files changed ({}; "
      "--force replaces it, another OUT keeps it)",
      out.name(), found.text(),
      found.is_finished() ? "ckfs verify shows whether the copy is still right"
                          : "the rest would not fit to it");
}

Result<void> close_export(const OutDirectory& out, ExportRecord record, std::int64_t mtime) {
  const std::string mark = mark_text(record.origin);
  const auto mark_all = [&]() -> Result<bool> {
    for (const auto& [path, file] : record.files) {
      if (out.mark(path) == mark) continue;
      CKFS_TRY(const bool marked, out.set_mark(path, mark));
      if (!marked) return false;
    }
    // OUT last: its mark says that all files are there.
    CKFS_TRY(const bool marked, out.set_mark("", mark));
    if (marked) CKFS_TRY_VOID(out.sync_directory(""));
    return marked;
  };
  CKFS_TRY(const bool marked, mark_all());
  if (!marked) {
    spdlog::info("{}: its file system keeps no extended attributes, so {} stays", out.name(),
                 kRecordName);
    for (auto& [path, file] : record.files) {
      file = {.size = file.size, .synced = 0, .finished = true, .steps = 0};
    }
    CKFS_TRY_VOID(out.replace_text(std::string(kRecordName), to_json(record)));
  }
  return remove_own_files(out, record.origin, mtime);
}

Result<void> remove_own_files(const OutDirectory& out, const ExportOrigin& origin,
                              std::int64_t mtime) {
  const std::string folder(kExportFolder);
  const bool is_marked = out.mark("") == mark_text(origin);
  const Result<std::vector<std::string>> names = out.names(folder);
  if (!names && names.error().code() != ErrorCode::NotFound) return Failure(names.error());
  if (names) {
    for (const std::string& name : *names) {
      const std::string path = fmt::format("{}/{}", folder, name);
      if (path == kFleetName || (path == kRecordName && !is_marked)) continue;
      CKFS_TRY_VOID(out.remove(path));
    }
    CKFS_TRY_VOID(out.remove(std::string(kFleetName)));
    if (is_marked) {
      CKFS_TRY_VOID(out.remove_directory(folder));
      CKFS_TRY_VOID(out.sync_directory(""));
    } else {
      CKFS_TRY_VOID(out.sync_directory(folder));
    }
  }
  out.set_directory_mtime("", mtime);
  return {};
}

Result<void> refuse_foreign(const OutDirectory& out, const ExportRecord* old) {
  CKFS_TRY(const std::optional<std::string> foreign, out.find_foreign([&](const std::string& path) {
    return is_own_path(path) || (old != nullptr && old->files.contains(path));
  }));
  if (!foreign) return {};
  return fail(ErrorCode::InvalidArgument,
              "{}: contains \"{}\", which ckfs did not write (use --force to export there anyway)",
              out.name(), *foreign);
}

Result<void> close_directories(const OutDirectory& out, const ExportRecord& record, int turns,
                               std::int64_t mtime) {
  std::set<std::string> directories{""};
  for (const auto& [path, file] : record.files) {
    if (turn_of(path) >= turns) continue;  // its directory is made with it
    for (std::string at = parent_of(path); !at.empty(); at = parent_of(at)) directories.insert(at);
  }
  // The deepest first: making an entry changes the time of the directory above.
  for (const std::string& path : directories | std::views::reverse) {
    CKFS_TRY_VOID(out.sync_directory(path));
    out.set_directory_mtime(path, mtime);
  }
  return {};
}

}  // namespace ckfs
