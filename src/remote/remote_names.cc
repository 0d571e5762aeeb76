// Objects are sorted by name, so all below a directory are neighbours, and the entries of a
// directory are found by leaping over each of its directories. A table of directories would hold
// each name's beginnings a second time, of up to 500,000 names.
#include "remote/remote_names.h"

#include <algorithm>
#include <cerrno>
#include <fmt/format.h>

#include "base/hash.h"
#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;
constexpr std::int64_t kLatest = INT64_MAX / kNanoseconds;

std::string root_of(const RemoteSource& source) {
  std::string root = source.pinned.masked();
  if (const std::size_t query = root.find('?'); query != std::string::npos) root.resize(query);
  while (root.ends_with('/')) root.pop_back();
  if (source.is_file) {
    if (const std::size_t slash = root.rfind('/'); slash != std::string::npos) root.resize(slash);
    while (root.ends_with('/')) root.pop_back();
  }
  return root;
}

}  // namespace

RemoteNames::RemoteNames(RemoteSource source)
    : source_(std::move(source)), root_(root_of(source_)) {}

std::filesystem::path RemoteNames::path() const {
  if (!source_.is_file || source_.objects.empty()) return root_;
  return root_ + "/" + source_.objects.front().name;
}

std::optional<std::string_view> RemoteNames::name_of(const std::filesystem::path& path) const {
  std::string_view text = path.native();
  if (!text.starts_with(root_)) return std::nullopt;
  text.remove_prefix(root_.size());
  if (!text.empty() && text.front() != '/') return std::nullopt;
  while (text.starts_with('/')) text.remove_prefix(1);
  while (text.ends_with('/')) text.remove_suffix(1);
  return text;
}

std::size_t RemoteNames::first_from(std::string_view name) const {
  const auto found = std::ranges::lower_bound(
      source_.objects, name, {}, [](const RemoteObject& o) { return std::string_view(o.name); });
  return static_cast<std::size_t>(found - source_.objects.begin());
}

bool RemoteNames::is_directory(std::string_view name) const {
  if (name.empty()) return true;
  const std::string below = std::string(name) + "/";
  const std::size_t first = first_from(below);
  return first < source_.objects.size() && source_.objects[first].name.starts_with(below);
}

Tried<std::vector<StoreEntry>> RemoteNames::list(std::string_view directory) const {
  if (!is_directory(directory)) return tl::unexpected(find(directory) ? ENOTDIR : ENOENT);
  const std::string below = directory.empty() ? "" : std::string(directory) + "/";
  std::vector<StoreEntry> entries;
  const std::vector<RemoteObject>& objects = source_.objects;
  for (std::size_t i = first_from(below); i < objects.size();) {
    std::string_view rest = objects[i].name;
    if (!rest.starts_with(below)) break;
    rest.remove_prefix(below.size());
    const std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos) {
      entries.push_back({std::string(rest), FileKind::File});
      ++i;
      continue;
    }
    const std::string name(rest.substr(0, slash));
    entries.push_back({name, FileKind::Directory});
    i = first_from(below + name + static_cast<char>('/' + 1));
  }
  std::ranges::sort(entries, {}, &StoreEntry::name);
  // A key may be what others begin with, too: a name is one thing, and the directory holds more.
  const auto twice = [&](const StoreEntry& entry) {
    return entry.kind == FileKind::File && is_directory(below + entry.name);
  };
  std::erase_if(entries, twice);
  return entries;
}

Tried<FileStatus> RemoteNames::look(std::string_view name) const {
  if (is_directory(name)) return FileStatus{FileKind::Directory, {}, 1};
  const auto object = find(name);
  if (!object) return tl::unexpected(ENOENT);
  return FileStatus{FileKind::File, fingerprint(*object), 1};
}

std::optional<std::size_t> RemoteNames::find(std::string_view name) const {
  const std::size_t at = first_from(name);
  if (at == source_.objects.size() || source_.objects[at].name != name) return std::nullopt;
  return at;
}

Fingerprint RemoteNames::fingerprint(std::size_t object) const {
  const RemoteObject& its = source_.objects[object];
  const std::int64_t time = its.time != 0 ? its.time : source_.time;
  return {.size = its.size,
          .mtime_ns = std::clamp<std::int64_t>(time, 0, kLatest) * kNanoseconds,
          .version = stable_hash(its.version)};
}

}  // namespace ckfs
