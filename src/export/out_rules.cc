#include "export/out_rules.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <ranges>
#include <set>

#include "api/checkpoint_impl.h"
#include "api/report.h"
#include "base/paths.h"
#include "base/units.h"
#include "export/split.h"

namespace ckfs {

namespace {

constexpr std::size_t kMaxRecord = 256_MiB;

/// Without links, for what exists of it. Of a relative path nothing of which exists
/// weakly_canonical() alone makes a relative one.
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

Result<ExportRecord> fresh_record(const Checkpoint& checkpoint, const View& view) {
  ExportRecord record{.origin = {.fingerprint = checkpoint.fingerprint(),
                                 .view = view.name(),
                                 .layout_version = kLayoutVersion},
                      .files = {}};
  for (const FileInfo& file : view.files()) {
    if (!is_inner_path(file.path)) {
      return fail(ErrorCode::Corrupt, "{}: not a path inside a directory", file.path);
    }
    if (is_own_path(file.path)) {
      return fail(ErrorCode::Unsupported, "{}: a name that exports keep for themselves", file.path);
    }
    record.files[std::string(file.path)].size = file.size;
  }
  return record;
}

Result<void> refuse_inside(const std::filesystem::path& out, const Checkpoint& checkpoint) {
  const std::filesystem::path& source = checkpoint.impl().path;
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

Result<std::optional<ExportRecord>> load_record(const OutDirectory& out, bool force) {
  const std::string name(kRecordName);
  const auto usable = [&]() -> Result<std::optional<ExportRecord>> {
    CKFS_TRY(const std::optional<std::string> text, out.read_text(name, kMaxRecord));
    if (!text) return std::nullopt;
    CKFS_TRY(ExportRecord record, parse_record(*text));
    return record;
  }();
  if (usable || !force) {
    if (!usable) return Failure(usable.error().within(out.name()));
    return usable;
  }
  return std::nullopt;
}

Result<void> refuse_foreign(const OutDirectory& out, const std::optional<ExportRecord>& old) {
  CKFS_TRY(const std::optional<std::string> foreign, out.find_foreign([&](const std::string& path) {
    return is_own_path(path) || (old && old->files.contains(path));
  }));
  if (!foreign) return {};
  return fail(ErrorCode::InvalidArgument,
              "{}: holds \"{}\", which no export wrote (--force goes on)", out.name(), *foreign);
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
