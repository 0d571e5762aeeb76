// Nodes are read a level at a time, several at once: a slow source costs as many rounds as the tree
// is high. Leaves are kept as they are stored, about 20 bytes a key, and enumerated on each
// request; a table of all keys would be larger than all other facts of a model.
//
// A tree can be written so that it refers to one node a million times, and that to another. No
// honest tree has a byte in two nodes, so no two of them may overlap, and the nodes' own bytes
// bound what may be made of them: a data file may have any size, and consist of holes alone. Some
// megabytes of them are read at once, and decoded one after another: a thousand bytes may become a
// million, and how many they become is known afterwards.
#include "source/orbax/ocdbt_database.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/parallel.h"
#include "base/text.h"
#include "source/header_loader.h"

namespace ckfs {
namespace {

// Names of data files and keys compress well, and zeros better: what reading may make of a tree.
constexpr std::uint64_t kHeldBase = std::uint64_t{24} << 20;
constexpr std::uint64_t kHeldFactor = 64;
// Stored bytes of nodes that are read at once, or one node: honest levels have fewer.
constexpr std::uint64_t kAtOnce = std::uint64_t{32} << 20;

}  // namespace

struct OcdbtDatabase::Wanted {
  FileId file = 0;
  ocdbt::DataLocation place;
  std::uint8_t height = 0;
  std::string base_path;  // of its file
  std::string prefix;     // what its keys leave out
  std::string least;      // no key of it is less

  std::uint64_t held() const {
    return sizeof(*this) + base_path.size() + prefix.size() + least.size();
  }
};

Result<OcdbtDatabase> OcdbtDatabase::open(const SourceTree& tree, SourceFiles& files,
                                          const FileTable& table, std::string directory) {
  OcdbtDatabase database(tree, files, table, std::move(directory));
  CKFS_TRY(const ocdbt::Manifest manifest, database.read_manifest());
  if (manifest.root) CKFS_TRY_VOID(database.read_tree(manifest));
  return database;
}

Result<ocdbt::Manifest> OcdbtDatabase::parse_file(const std::string& path) const {
  const auto file = table_->find(path);
  if (!file) return fail(ErrorCode::NotFound, "{}: missing", path);
  CKFS_TRY(const std::string text, read_text(*files_, *file, ocdbt::kMaxNode));
  return ocdbt::parse_manifest(text, path);
}

Result<ocdbt::Manifest> OcdbtDatabase::read_manifest() const {
  CKFS_TRY(ocdbt::Manifest manifest, parse_file(directory_ + std::string(ocdbt::kManifestName)));
  if (!manifest.numbered) return manifest;
  std::string newest;
  std::uint64_t highest = 0;
  for (const TreeFile& file : tree_->files) {
    if (!file.path.starts_with(directory_)) continue;
    const std::string_view name = std::string_view(file.path).substr(directory_.size());
    const auto number = ocdbt::numbered_manifest(name);
    if (!number || (!newest.empty() && *number <= highest)) continue;
    newest = name;
    highest = *number;
  }
  if (newest.empty()) {
    return fail(ErrorCode::NotFound,
                "{}{}: says that the state is in numbered manifests, and there is none", directory_,
                ocdbt::kManifestName);
  }
  CKFS_TRY(manifest, parse_file(directory_ + newest));
  if (!manifest.numbered) return manifest;
  return fail(ErrorCode::Corrupt, "{}{}: says that the state is in numbered manifests, and is one",
              directory_, newest);
}

Result<FileId> OcdbtDatabase::file_of(std::string_view path) const {
  const std::string whole = directory_ + std::string(path);
  const auto file = table_->find(whole);
  if (!file) return fail(ErrorCode::NotFound, "{}: missing, but the database refers to it", whole);
  return *file;
}

Result<std::string> OcdbtDatabase::read_stored(const Wanted& wanted) const {
  std::string bytes(wanted.place.size, '\0');
  CKFS_TRY_VOID(
      files_->read_at(wanted.file, wanted.place.offset, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Result<ocdbt::Node> OcdbtDatabase::parse_node(std::string bytes, const Wanted& wanted,
                                              std::uint64_t most) const {
  return ocdbt::Node::parse(
      std::move(bytes),
      {.height = wanted.height,
       .base_path = wanted.base_path,
       .least = wanted.least,
       .most_decoded = most},
      fmt::format("{}: node at {}", files_->name(wanted.file), wanted.place.offset));
}

Result<void> OcdbtDatabase::read_tree(const ocdbt::Manifest& manifest) {
  std::vector<Wanted> level(1);
  const ocdbt::DataFile& root = manifest.files[manifest.root->file];
  CKFS_TRY(level[0].file, file_of(root.path));
  level[0].place = *manifest.root;
  level[0].height = manifest.height;
  level[0].base_path = root.base_path();
  std::map<std::pair<FileId, std::uint64_t>, std::uint64_t> nodes;  // begin: end
  std::uint64_t stored = 0;
  std::uint64_t held = 0;
  while (!level.empty()) {
    for (const Wanted& wanted : level) {
      const std::uint64_t size = files_->size(wanted.file);
      const std::string& name = files_->name(wanted.file);
      const auto& [file, offset, length] = wanted.place;
      if (offset > size || length > size - offset) {
        return fail(ErrorCode::Corrupt, "{}: a node of {} bytes at {} ends beyond the file at {}",
                    name, length, offset, size);
      }
      if (length > ocdbt::kMaxNode) {
        return fail(ErrorCode::Unsupported, "{}: a node of {} bytes at {} (limit {})", name, length,
                    offset, ocdbt::kMaxNode);
      }
      stored += length;
      const auto [node, is_new] = nodes.emplace(std::pair(wanted.file, offset), offset + length);
      const auto next = std::next(node);
      const bool meets_next = next != nodes.end() && next->first.first == wanted.file &&
                              next->first.second < node->second;
      const bool meets_last = node != nodes.begin() &&
                              std::prev(node)->first.first == wanted.file &&
                              std::prev(node)->second > offset;
      if (!is_new || meets_next || meets_last) {
        return fail(ErrorCode::Corrupt, "{}: a node of {} bytes at {} overlaps another", name,
                    length, offset);
      }
    }
    const std::uint64_t most = kHeldBase + kHeldFactor * stored;
    std::vector<Wanted> next;
    std::string last;  // the last key of the level
    const auto keep = [&](const Wanted& wanted, std::string bytes) -> Result<void> {
      const std::uint64_t left = std::min(most - held, ocdbt::kMaxNode);
      CKFS_TRY(ocdbt::Node node, parse_node(std::move(bytes), wanted, left));
      held += node.held();
      const auto check = [&](std::uint64_t more) -> Result<void> {
        held += more;
        if (held <= most) return {};
        return fail(ErrorCode::Corrupt, "{}: nodes of {} bytes become more than {}",
                    files_->name(wanted.file), stored, most);
      };
      CKFS_TRY_VOID(check(0));
      return descend(next, std::move(node), wanted, last, check);
    };
    for (std::span<const Wanted> rest = level; !rest.empty();) {
      std::size_t count = 0;
      for (std::uint64_t bytes = 0; count < rest.size(); ++count) {
        bytes += rest[count].place.size;
        if (count > 0 && bytes > kAtOnce) break;
      }
      std::vector<std::string> texts(count);
      const auto read = [&](std::size_t i) -> Result<void> {
        CKFS_TRY(texts[i], read_stored(rest[i]));
        return {};
      };
      const auto take = [&](std::size_t i) { return keep(rest[i], std::move(texts[i])); };
      CKFS_TRY_VOID(run_in_order(count, read, take, files_->parallel()));
      rest = rest.subspan(count);
    }
    level = std::move(next);
  }
  stored_bytes_ = stored;
  return {};
}

/// Keeps a leaf, or adds its children to the `next` level. `last`: the last key of the level.
/// `check` is told what each child takes: the keys of a node may share all their bytes.
Result<void> OcdbtDatabase::descend(std::vector<Wanted>& next, ocdbt::Node node, const Wanted& from,
                                    std::string& last,
                                    const std::function<Result<void>(std::uint64_t)>& check) {
  const auto check_order = [&](std::string_view key) -> Result<void> {
    std::string whole = from.prefix + std::string(key);
    if (!last.empty() && whole <= last) {
      return fail(ErrorCode::Corrupt, "{}: node at {}: key {} after {} of the node before it",
                  files_->name(from.file), from.place.offset, quote(whole), quote(last));
    }
    last = std::move(whole);
    return {};
  };
  if (node.height() == 0) {
    // Only the first and the last: they may be long.
    std::string end;
    std::size_t seen = 0;
    const auto note = [&](std::string_view key, const ocdbt::Value& /*value*/) -> Result<void> {
      if (++seen == node.entries()) end = key;
      return seen == 1 ? check_order(key) : Result<void>();
    };
    CKFS_TRY_VOID(node.for_each_value(note));
    last = from.prefix + end;
    if (last.size() > ocdbt::kMaxName) {
      return fail(ErrorCode::Corrupt, "{}: node at {}: a key of {} bytes (limit {})",
                  files_->name(from.file), from.place.offset, last.size(), ocdbt::kMaxName);
    }
    leaves_.push_back({std::move(node), from.prefix, from.file, from.place.offset});
    return {};
  }
  return node.for_each_child([&](const ocdbt::ChildRef& child) -> Result<void> {
    CKFS_TRY_VOID(check_order(child.key));
    if (from.prefix.size() + child.key.size() > ocdbt::kMaxName) {
      return fail(ErrorCode::Corrupt, "{}: node at {}: a key of {} bytes (limit {})",
                  files_->name(from.file), from.place.offset, from.prefix.size() + child.key.size(),
                  ocdbt::kMaxName);
    }
    Wanted wanted;
    const ocdbt::DataFile& file = node.files()[child.place.file];
    CKFS_TRY(wanted.file, file_of(file.path));
    wanted.place = child.place;
    wanted.height = static_cast<std::uint8_t>(node.height() - 1);
    wanted.base_path = file.base_path();
    wanted.prefix = from.prefix + std::string(child.key.substr(0, child.stripped));
    wanted.least = child.key.substr(child.stripped);
    CKFS_TRY_VOID(check(wanted.held()));
    next.push_back(std::move(wanted));
    return {};
  });
}

Result<void> OcdbtDatabase::for_each(const TakeEntry& take) const {
  for (const Leaf& leaf : leaves_) {
    std::vector<std::optional<FileId>> files(leaf.node.files().size());
    const auto give = [&](std::string_view key, const ocdbt::Value& value) -> Result<void> {
      StoredValue stored;
      if (value.in_node && value.at) {
        stored.range = {leaf.file, leaf.offset + *value.at, value.place.size};
        return take(key, stored);
      }
      if (value.in_node || value.place.size == 0) {
        stored.bytes = value.text;
        return take(key, stored);
      }
      std::optional<FileId>& file = files[value.place.file];
      if (!file) {
        CKFS_TRY(file, file_of(leaf.node.files()[value.place.file].path));
      }
      const std::uint64_t size = files_->size(*file);
      if (value.place.offset > size || value.place.size > size - value.place.offset) {
        return fail(ErrorCode::Corrupt, "{}: {} bytes at {} end beyond the file at {} (key {})",
                    files_->name(*file), value.place.size, value.place.offset, size, quote(key));
      }
      stored.range = {*file, value.place.offset, value.place.size};
      return take(key, stored);
    };
    CKFS_TRY_VOID(leaf.node.for_each_value(give, leaf.prefix));
  }
  return {};
}

}  // namespace ckfs
