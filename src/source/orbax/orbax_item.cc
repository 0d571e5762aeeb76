// Two passes over the keys: the first finds the arrays, by the names of their metadata, the second
// gives each its chunks. Which array a chunk is of follows from its key alone once all arrays are
// known; a name may have dots and slashes of its own, and look like any other key.
//
// The tree is that of _METADATA. Arrays without a leaf there are what Orbax would not restore, and
// leaves without an array are damage. An old item has its tree in msgpack, or in no file: then the
// names of its arrays are the tree.

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "base/checked.h"
#include "base/name_hash.h"
#include "base/parallel.h"
#include "base/text.h"
#include "format/json_tree.h"
#include "format/orbax_read.h"
#include "source/adapters.h"
#include "source/header_loader.h"
#include "source/orbax/ocdbt_database.h"
#include "source/orbax/orbax_layout.h"
#include "source/orbax/zarr_arrays.h"
#include "source/source_opener.h"

namespace ckfs {
namespace {

constexpr std::string_view kTreeFile = "_METADATA";
constexpr std::string_view kMsgpackFile = "checkpoint";
constexpr std::string_view kStringsFile = "_strings.json";
constexpr std::string_view kArrayMetadata = "array_metadatas/";
constexpr std::uint64_t kMaxSmallFile = std::uint64_t{64} << 20;
// Chunks of all arrays together, beside two for each key: the others are fill values, or those of
// shards, whose index has so many bytes for each.
constexpr std::uint64_t kAbsentBase = std::uint64_t{1} << 18;
constexpr std::uint64_t kMostAbsentChunks = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytesInIndex = 16;
// Bytes of the names of all arrays of a database, and more for each byte of its nodes: keys that
// share most of their bytes are stored in twenty.
constexpr std::uint64_t kNamesBase = std::uint64_t{4} << 20;
constexpr std::uint64_t kNamesFactor = 16;
// Keys of paths that names are split into, and more for each array.
constexpr std::uint64_t kPartsBase = std::uint64_t{1} << 18;
constexpr std::uint64_t kPartsOfArray = 64;
// Bytes of names by which the arrays of chunks are looked for, and more for each key.
constexpr std::uint64_t kSoughtBase = std::uint64_t{1} << 28;
constexpr std::uint64_t kSoughtOfKey = std::uint64_t{1} << 12;
// Boxes of all arrays together, and 8 more for each: as many as one has that is cut along three
// dimensions.
constexpr std::uint64_t kMostBoxes = std::uint64_t{1} << 15;

/// What becomes of a leaf of the tree.
bool has_array(const orbax::TreeLeaf& leaf) {
  if (leaf.skip_deserialize) return false;
  return leaf.value_type == "jax.Array" || leaf.value_type == "np.ndarray" ||
         leaf.value_type == "scalar";
}

/// A value that is not an array of its own, but lies somewhere in msgpack.
bool is_stored_apart(const orbax::TreeLeaf& leaf) {
  constexpr std::array<std::string_view, 5> kEmpty{"None", "Dict", "List", "Tuple", "NamedTuple"};
  return leaf.skip_deserialize && std::ranges::find(kEmpty, leaf.value_type) == kEmpty.end();
}

std::string encoded(std::span<const orbax::PathKey> path) {
  std::string text;
  for (const orbax::PathKey& key : path) {
    text += key.is_index ? 'i' : 'k';
    text += key.text;
    text += '\0';
  }
  return text;
}

std::vector<orbax::PathKey> split_at_dots(std::string_view name) {
  std::vector<orbax::PathKey> path;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    path.push_back({std::string(name.substr(begin, end - begin)), false});
    begin = end + 1;
  }
  return path;
}

std::string path_text(const orbax::TreeLeaf& leaf) {
  std::string text;
  for (const orbax::PathKey& key : leaf.path) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", quote(key.text));
  }
  return "(" + text + ")";
}

class ItemOpener : public SourceOpener {
 public:
  ItemOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options,
             const OrbaxPlace& place)
      : SourceOpener(tree, files, options, kOrbax.name),
        place_(place),
        item_(place.item_directory) {}

 private:
  Result<void> read() override {
    // Files have names below the step's directory: those of two steps may agree in all that is
    // looked at.
    if (!place_.step_directory.empty()) builder_.saw_file(place_.step_directory, 0, 0);
    for (const Note& note : place_.notes) builder_.add_note(note.subject, note.text);
    for (const std::string& other : place_.others) {
      builder_.add_note(other, other == "." ? "the item that is shown without --item"
                                            : "another item (--item shows it)");
    }
    CKFS_TRY_VOID(read_tree());
    CKFS_TRY_VOID(open_database());
    CKFS_TRY_VOID(find_arrays());
    CKFS_TRY_VOID(check_passed_over());
    CKFS_TRY_VOID(check_tree());
    CKFS_TRY_VOID(find_chunks());
    CKFS_TRY_VOID(read_strings());
    CKFS_TRY_VOID(read_key_kinds());
    CKFS_TRY_VOID(add_leaves());
    CKFS_TRY_VOID(add_model(std::nullopt));
    return {};
  }

  std::string path(std::string_view name) const { return item_ + std::string(name); }

  // The tree.

  Result<void> read_tree() {
    const auto file = find(path(kTreeFile));
    if (!file) return read_old_tree();
    CKFS_TRY(const std::string text, read_once(*file, orbax::kMaxMetadata));
    const auto keep = [&](orbax::TreeLeaf leaf) -> Result<void> {
      leaves_.push_back(std::move(leaf));
      return {};
    };
    CKFS_TRY(flags_, orbax::parse_item_metadata(text, path(kTreeFile), keep));
    has_tree_ = true;
    zarr3_ = flags_.use_zarr3;
    return std::ranges::any_of(leaves_, is_stored_apart) ? read_old_tree() : Result<void>();
  }

  Result<void> read_old_tree() {
    const auto file = find(path(kMsgpackFile));
    if (!file) return {};
    CKFS_TRY(const std::string text, read_once(*file, orbax::kMaxMsgpack));
    CKFS_TRY(msgpack_, orbax::parse_msgpack_tree(text, path(kMsgpackFile)));
    for (const orbax::MsgpackLeaf& leaf : msgpack_) {
      if (leaf.kind == orbax::MsgpackLeaf::Kind::Array) {
        aggregated_.emplace(orbax::joined(leaf.path), &leaf);
      }
    }
    return {};
  }

  // Keys.

  Result<void> open_database() {
    const bool manifest = find(path(ocdbt::kManifestName)).has_value();
    if (!flags_.use_ocdbt.value_or(manifest)) return {};
    if (!manifest) {
      return fail(ErrorCode::NotFound, "{}: missing, and {} says that the arrays are in it",
                  path(ocdbt::kManifestName), kTreeFile);
    }
    auto opened = OcdbtDatabase::open(tree_, files_, table(), item_);
    if (!opened) return Failure(std::move(opened).error());
    database_.emplace(*std::move(opened));
    return {};
  }

  /// All keys: those of the database, or the files of the arrays' directories.
  Result<void> for_each_key(const TakeEntry& take) const {
    if (database_) return database_->for_each(take);
    for (const TreeFile& file : tree_.files) {
      if (!file.path.starts_with(item_)) continue;
      const std::string_view key = std::string_view(file.path).substr(item_.size());
      const FileId number = id(file.path);
      CKFS_TRY_VOID(take(key, {{number, 0, files_.size(number)}, {}}));
    }
    return {};
  }

  /// The array whose metadata has this key.
  std::optional<std::string_view> array_of_metadata(std::string_view key,
                                                    zarr::Version version) const {
    const std::string_view metadata = zarr::metadata_name(version);
    if (!key.ends_with(metadata)) return std::nullopt;
    key.remove_suffix(metadata.size());
    if (key.empty()) return key;  // the tree is one leaf
    if (!key.ends_with('/')) return std::nullopt;
    return key.substr(0, key.size() - 1);
  }

  /// An array's metadata, to be parsed.
  struct Found {
    std::string name;
    zarr::Version version = zarr::Version::V3;
    StoredValue value;
  };

  Result<void> find_arrays() {
    std::vector<Found> found;
    std::vector<zarr::Version> versions;
    if (zarr3_.value_or(true)) versions.push_back(zarr::Version::V3);
    if (!zarr3_.value_or(false)) versions.push_back(zarr::Version::V2);
    const auto look = [&](std::string_view key, const StoredValue& value) -> Result<void> {
      ++keys_;
      for (const zarr::Version version : versions) {
        const auto name = array_of_metadata(key, version);
        if (!name) continue;
        if (!is_utf8(*name)) {
          return fail(ErrorCode::Unsupported, "{}: an array whose name is not UTF-8: {}",
                      tree_.name, quote(*name));
        }
        CKFS_TRY_VOID(take_name(*name));
        found.push_back({std::string(*name), version, value});
      }
      return {};
    };
    CKFS_TRY_VOID(for_each_key(look));
    if (found.empty()) {
      return fail(ErrorCode::Unsupported, "{}{}: no array in it ({} keys)", tree_.name + "/", item_,
                  keys_);
    }
    CKFS_TRY_VOID(check_apart(found));
    std::vector<std::optional<ZarrArray>> made(found.size());
    const auto make = [&](std::size_t i) -> Result<void> {
      CKFS_TRY(made[i], read_array(found[i]));
      return {};
    };
    CKFS_TRY_VOID(run_parallel(found.size(), make, files_.parallel()));
    const std::uint64_t most_cells =
        2 * keys_ + std::min(kMostAbsentChunks, kAbsentBase + bytes_of(item_) / kBytesInIndex);
    std::uint64_t cells = 0;
    std::uint64_t boxes = 0;
    arrays_.reserve(made.size());  // by_name_ refers to them
    for (std::optional<ZarrArray>& array : made) {
      cells += std::min<std::uint64_t>(array->cells(), std::uint64_t{1} << 40);
      if (cells > most_cells) {
        return fail(
            ErrorCode::Unsupported,
            "{}: {} chunks with those of the arrays before it, and {} keys are stored (limit {})",
            quote(array->name()), cells, keys_, most_cells);
      }
      boxes += array->boxes();
      const std::uint64_t most_boxes = kMostBoxes + 8 * made.size();
      if (boxes > most_boxes) {
        return fail(
            ErrorCode::Unsupported,
            "{}: chunks of it and the arrays before it end beyond them: {} boxes (limit {})",
            quote(array->name()), boxes, most_boxes);
      }
      arrays_.push_back(*std::move(array));
      const std::string_view name = arrays_.back().name();
      if (!by_name_.emplace(name, arrays_.size() - 1).second) {
        return fail(ErrorCode::Corrupt, "{}: has both .zarray and zarr.json", quote(name));
      }
      longest_name_ = std::max(longest_name_, name.size());
    }
    return {};
  }

  /// Each name is copied several times. Those of files are paid for by the directory.
  Result<void> take_name(std::string_view name) {
    if (!database_) return {};
    name_bytes_ += name.size();
    const std::uint64_t most = kNamesBase + kNamesFactor * database_->stored_bytes();
    if (name_bytes_ <= most) return {};
    return fail(ErrorCode::Corrupt, "{}{}: names of arrays of {} bytes, in nodes of {} (limit {})",
                item_, ocdbt::kManifestName, name_bytes_, database_->stored_bytes(), most);
  }

  /// Whether the item would show other values without the key, and without an error.
  bool is_needed(std::string_view key) const {
    if (key == kTreeFile || key == kMsgpackFile || key == kStringsFile ||
        key.starts_with(kArrayMetadata)) {
      return true;
    }
    if (database_) return false;
    if (array_of_metadata(key, zarr::Version::V3) || array_of_metadata(key, zarr::Version::V2)) {
      return true;
    }
    while (true) {
      const std::size_t slash = key.rfind('/');
      key = key.substr(0, slash == std::string_view::npos ? 0 : slash);
      if (by_name_.contains(key)) return true;
      if (key.empty()) return false;
    }
  }

  /// A chunk that listing skipped would count as absent, and show the fill value.
  Result<void> check_passed_over() const {
    for (const Note& note : tree_.notes) {
      const std::string_view path = note.subject;
      if (!path.starts_with(item_) || !is_needed(path.substr(item_.size()))) continue;
      // A link out of the checkpoint is noted, too, and is a file.
      if (path == kExportFolder || tree_.find(path) != nullptr) continue;
      return fail(ErrorCode::NotFound, "{}: a part of the item, but {}", path, note.text);
    }
    return {};
  }

  /// A value may be that of many keys, and each would be read and parsed by itself.
  Result<void> check_apart(std::span<const Found> found) const {
    std::vector<const Found*> stored;
    for (const Found& array : found) {
      if (!array.value.bytes && array.value.range.size != 0) stored.push_back(&array);
    }
    std::ranges::sort(stored, {}, [](const Found* array) {
      return std::pair(array->value.range.file, array->value.range.offset);
    });
    for (std::size_t i = 1; i < stored.size(); ++i) {
      const FileRange& before = stored[i - 1]->value.range;
      const FileRange& range = stored[i]->value.range;
      if (before.file != range.file || range.offset - before.offset >= before.size) continue;
      return fail(ErrorCode::Corrupt, "{}: the metadata of {} at {} are within those of {}",
                  files_.name(range.file), quote(stored[i]->name), range.offset,
                  quote(stored[i - 1]->name));
    }
    return {};
  }

  Result<std::optional<ZarrArray>> read_array(const Found& found) {
    const std::string shown = fmt::format("{}/{}", found.name.empty() ? "." : found.name,
                                          zarr::metadata_name(found.version));
    if (found.value.size() > zarr::kMaxMetadata) {
      return fail(ErrorCode::Unsupported, "{}: {} bytes (limit {})", shown, found.value.size(),
                  zarr::kMaxMetadata);
    }
    std::string text;
    if (found.value.bytes) {
      text = *found.value.bytes;
    } else {
      text.resize(found.value.size());
      CKFS_TRY_VOID(repeated_.add(found.value.range.file, text.size()));
      CKFS_TRY_VOID(files_.read_at(found.value.range.file, found.value.range.offset,
                                   std::as_writable_bytes(std::span(text))));
    }
    CKFS_TRY(zarr::Metadata metadata, zarr::parse_metadata(found.version, text, shown));
    CKFS_TRY(ZarrArray array, ZarrArray::create(found.name, std::move(metadata)));
    return std::optional(std::move(array));
  }

  /// The array that `key` has a chunk of, and the chunk's `index`; nullptr: no array's.
  Result<ZarrArray*> array_of_chunk(std::string_view key, std::vector<std::int64_t>& index) {
    const auto is_chunk_of = [&](ZarrArray& array, std::string_view rest) {
      auto found =
          zarr::parse_chunk_name(array.metadata().names, array.metadata().shape.size(), rest);
      if (!found) return false;
      index = *std::move(found);
      return true;
    };
    // Keys are sorted, so most are of the array that the one before was of.
    if (last_ != nullptr && key.starts_with(last_->name())) {
      const std::string_view rest = key.substr(last_->name().size());
      if (last_->name().empty() ? is_chunk_of(*last_, rest)
                                : rest.starts_with('/') && is_chunk_of(*last_, rest.substr(1))) {
        return last_;
      }
    }
    // The longest name first; a chunk's own has no more parts than there may be dimensions, and
    // "c".
    std::size_t parts = 0;
    for (std::size_t slash = key.rfind('/');; slash = key.rfind('/', slash - 1)) {
      if (++parts > zarr::kMaxRank + 1) return nullptr;
      const bool top = slash == std::string_view::npos;
      const std::string_view name = top ? "" : key.substr(0, slash);
      if (name.size() <= longest_name_) {
        sought_ += name.size();
        if (sought_ > kSoughtBase + kSoughtOfKey * keys_) {
          return fail(ErrorCode::Corrupt,
                      "{}: {} bytes of names, with those before, may be of its array, and {} keys "
                      "are stored",
                      quote(key), sought_, keys_);
        }
        const auto found = by_name_.find(name);
        if (found != by_name_.end() &&
            is_chunk_of(arrays_[found->second], top ? key : key.substr(slash + 1))) {
          last_ = &arrays_[found->second];
          return last_;
        }
      }
      if (top || slash == 0) return nullptr;
    }
  }

  Result<void> find_chunks() {
    std::vector<std::int64_t> index;
    return for_each_key([&](std::string_view key, const StoredValue& value) -> Result<void> {
      CKFS_TRY(ZarrArray* const array, array_of_chunk(key, index));
      if (array == nullptr) return {};
      return array->add_chunk(builder_, index, value);
    });
  }

  // What goes into the catalog.

  /// Leaves and arrays must agree; a tree that is in no file is made of the arrays' names.
  Result<void> check_tree() {
    if (!has_tree_) {
      CKFS_TRY_VOID(make_tree());
      builder_.add_note(path(kTreeFile),
                        fmt::format("absent; the tree is that of {}",
                                    msgpack_.empty() ? "the names of the arrays, split at dots"
                                                     : std::string(kMsgpackFile)));
    }
    NameMap<const orbax::TreeLeaf*> names;
    for (const orbax::TreeLeaf& leaf : leaves_) {
      // Views are described by paths whose keys end there.
      for (const orbax::PathKey& key : leaf.path) {
        if (key.text.find('\0') == std::string::npos) continue;
        return fail(ErrorCode::Corrupt, "{}: leaf {}: a key with a NUL", tree_.name,
                    path_text(leaf));
      }
      std::string name = orbax::joined(leaf.path);
      const bool wanted = has_array(leaf);
      if (wanted && !by_name_.contains(name)) {
        return fail(ErrorCode::Corrupt, "{}: leaf {}: no array {} is stored", path(kTreeFile),
                    path_text(leaf), quote(name));
      }
      const auto [other, is_new] = names.emplace(std::move(name), &leaf);
      if (!is_new) {
        return fail(ErrorCode::Unsupported, "{}: leaves {} and {} are both called {}",
                    path(kTreeFile), path_text(*other->second), path_text(leaf),
                    quote(other->first));
      }
    }
    std::size_t extra = 0;
    for (const ZarrArray& array : arrays_) {
      const auto leaf = names.find(array.name());
      if (leaf != names.end() && leaf->second->value_type != "placeholder") continue;
      if (++extra <= kMaxNotes) {
        builder_.add_note(array.name(), "an array that is not a leaf of the tree; left out");
      }
    }
    return {};
  }

  Result<void> make_tree() {
    if (msgpack_.empty()) {
      std::uint64_t parts = 0;
      const std::uint64_t most = kPartsBase + kPartsOfArray * arrays_.size();
      for (const ZarrArray& array : arrays_) {
        parts += static_cast<std::uint64_t>(std::ranges::count(array.name(), '.')) + 1;
        if (parts > most) {
          return fail(ErrorCode::Corrupt,
                      "{}: {} parts between dots with those of the arrays before it (limit {})",
                      quote(array.name()), parts, most);
        }
        leaves_.push_back({split_at_dots(array.name()), "np.ndarray", false});
      }
      return {};
    }
    for (const orbax::MsgpackLeaf& leaf : msgpack_) {
      using Kind = orbax::MsgpackLeaf::Kind;
      orbax::TreeLeaf made{leaf.path, "np.ndarray", true};
      switch (leaf.kind) {
        case Kind::Placeholder:
          if (leaf.text != orbax::joined(leaf.path)) {
            return fail(ErrorCode::Unsupported, "{}: leaf {}: its array has another name, {}",
                        path(kMsgpackFile), path_text(made), quote(leaf.text));
          }
          made.skip_deserialize = false;
          break;
        case Kind::Array:
          break;
        case Kind::Text:
          made.value_type = "string";
          texts_.emplace(orbax::joined(leaf.path), leaf.text);
          break;
        case Kind::Other:
          builder_.add_note(orbax::joined(leaf.path),
                            fmt::format("{} in {}; left out", leaf.text, kMsgpackFile));
          continue;
        case Kind::None:
          made.value_type = "None";
          break;
        case Kind::Dict:
          made.value_type = "Dict";
          break;
        case Kind::List:
          made.value_type = "List";
          break;
      }
      leaves_.push_back(std::move(made));
    }
    return {};
  }

  Result<void> read_strings() {
    const auto file = find(path(kStringsFile));
    const bool wanted = std::ranges::any_of(
        leaves_, [](const orbax::TreeLeaf& leaf) { return leaf.value_type == "string"; });
    if (!file || !wanted) return {};
    CKFS_TRY(const std::string text, read_once(*file, kMaxSmallFile));
    CKFS_TRY(const JsonNode root, parse_json_tree(text, path(kStringsFile), JsonKeys::LastWins));
    for (std::size_t i = 0; i < root.keys.size(); ++i) {
      if (root.items[i].kind == JsonNode::Kind::String) {
        texts_[root.keys[i]] = root.items[i].text;
      }
    }
    return {};
  }

  /// Which arrays are keys of random number generators.
  Result<void> read_key_kinds() {
    const std::string begin = path(kArrayMetadata) + "process_";
    std::vector<FileId> found;
    for (const TreeFile& file : tree_.files) {
      if (!file.path.starts_with(begin)) continue;
      const std::uint64_t size = files_.size(id(file.path));
      if (size > kMaxSmallFile) {
        return fail(ErrorCode::Unsupported,
                    "{}: {} bytes (limit {}), and it says which arrays are random keys", file.path,
                    size, kMaxSmallFile);
      }
      found.push_back(id(file.path));
    }
    std::vector<std::string> texts(found.size());
    const auto read = [&](std::size_t i) -> Result<void> {
      CKFS_TRY(texts[i], read_once(found[i], kMaxSmallFile));
      // In most checkpoints no array is one, and the file is large.
      if (texts[i].find("random_key_impl") == std::string::npos) texts[i] = {};
      return {};
    };
    // Parsed one at a time: a tree is many times larger than its text.
    const auto take = [&](std::size_t i) -> Result<void> {
      const std::string text = std::move(texts[i]);
      return text.empty() ? Result<void>() : add_key_kinds(text, files_.name(found[i]));
    };
    return run_in_order(found.size(), read, take, files_.parallel());
  }

  Result<void> add_key_kinds(std::string_view text, std::string_view file) {
    CKFS_TRY(const JsonNode root, parse_json_tree(text, file, JsonKeys::LastWins));
    const JsonNode* list = root.find("array_metadatas");
    if (list == nullptr) return {};
    for (const JsonNode& entry : list->items) {
      const JsonNode* array = entry.find("array_metadata");
      const JsonNode* name = array == nullptr ? nullptr : array->find("param_name");
      const JsonNode* more = array == nullptr ? nullptr : array->find("ext_metadata");
      const JsonNode* kind = more == nullptr ? nullptr : more->find("random_key_impl");
      if (name != nullptr && kind != nullptr) key_kinds_[name->text] = kind->text;
    }
    return {};
  }

  /// Why no chunk may be missing; empty: a missing one is the fill value.
  std::string why_whole() const {
    if (flags_.missing_chunk_is_error)
      return fmt::format("{} says that none may be missing", kTreeFile);
    if (database_ || tree_.incomplete.empty()) return {};
    return fmt::format("{} is a download that was not finished{}", tree_.incomplete.front(),
                       tree_.complete_command.empty()
                           ? ""
                           : fmt::format(" (complete it with: {})", tree_.complete_command));
  }

  /// With a key, `name` relative to it, if it lies below it.
  std::optional<std::string_view> shown_name(std::string_view name) const {
    const std::string_view key = options_.key;
    if (key.empty()) return name;
    if (!name.starts_with(key)) return std::nullopt;
    if (name.size() == key.size()) return std::nullopt;
    return name[key.size()] == '.' ? std::optional(name.substr(key.size() + 1)) : std::nullopt;
  }

  /// The same of a path. Where the option `key` ends within one of its keys, at a dot, what is left
  /// of that key is the first.
  std::vector<orbax::PathKey> shown_path(const std::vector<orbax::PathKey>& keys) const {
    std::size_t above = options_.key.empty() ? 0 : options_.key.size() + 1;  // bytes of the name
    auto first = keys.begin();
    for (; first != keys.end() && first->text.size() < above; ++first) {
      above -= first->text.size() + 1;
    }
    std::vector<orbax::PathKey> shown(first, keys.end());
    if (!shown.empty()) shown.front().text.erase(0, above);
    return shown;
  }

  Result<void> add_leaves() {
    ItemTree tree;
    tree.custom_metadata = flags_.custom_metadata;
    std::vector<TensorId> shown;
    Totals totals;
    const std::string whole = why_whole();
    for (const orbax::TreeLeaf& leaf : leaves_) {
      const std::string name = orbax::joined(leaf.path);
      const auto relative = shown_name(name);
      if (!relative) continue;
      const std::vector<orbax::PathKey> below = shown_path(leaf.path);
      TreeLeaf made;
      made.path = builder_.keep_text(encoded(below));
      made.type = keep_type(leaf.value_type);
      if (has_array(leaf)) {
        ZarrArray& array = arrays_[by_name_.at(name)];
        CKFS_TRY(made.tensor, array.finish(builder_, *relative, whole));
        totals.add(leaf, array);
        note_filled(array, *relative);
        if (array.metadata().dtype) {
          shown.push_back(made.tensor);
        } else {
          made.element = keep_type(array.metadata().data_type);
          builder_.add_note(
              std::string(*relative),
              fmt::format("left out: safetensors cannot hold {}", array.metadata().data_type));
        }
        const auto kind = key_kinds_.find(name);
        if (kind != key_kinds_.end()) tree.key_kinds.emplace(tree.leaves.size(), kind->second);
      } else if (const auto inside = aggregated_.find(name); inside != aggregated_.end()) {
        CKFS_TRY_VOID(add_aggregated(*inside->second, *relative, made, shown));
      } else if (leaf.value_type == "string") {
        const auto text = texts_.find(name);
        if (text != texts_.end()) made.text = builder_.keep_text(text->second);
        builder_.add_note(std::string(*relative), "a string; left out of views in safetensors");
      } else if (is_stored_apart(leaf)) {
        builder_.add_note(std::string(*relative),
                          fmt::format("a value of type {} that is stored apart; left out",
                                      quote(leaf.value_type)));
      }
      tree.leaves.push_back(made);
    }
    if (tree.leaves.empty() && options_.key.empty()) {
      return fail(ErrorCode::Unsupported, "{}: a tree without leaves", tree_.name);
    }
    if (tree.leaves.empty()) {
      return fail(ErrorCode::InvalidArgument, "{}: nothing below the key {}", tree_.name,
                  quote(options_.key));
    }
    if (filled_ > kMaxNotes) {
      builder_.add_note(tree_.name, fmt::format("{} more arrays have chunks that are not stored",
                                                filled_ - kMaxNotes));
    }
    add_facts(totals);
    builder_.set_tree(std::move(tree));
    builder_.add_only_shard(std::move(shown));
    return {};
  }

  /// Writers leave out chunks that are the fill value; so does a copy that was cut off.
  void note_filled(const ZarrArray& array, std::string_view name) {
    if (array.filled() == 0 || ++filled_ > kMaxNotes) return;
    builder_.add_note(std::string(name),
                      fmt::format("{} of {} chunks are not stored: shown as their fill value",
                                  array.filled(), array.cells()));
  }

  /// An array that lies in the old tree itself.
  Result<void> add_aggregated(const orbax::MsgpackLeaf& leaf, std::string_view name, TreeLeaf& made,
                              std::vector<TensorId>& shown) {
    if (!leaf.dtype) {
      builder_.add_note(std::string(name),
                        fmt::format("left out: safetensors cannot hold {}", quote(leaf.text)));
      return {};
    }
    const Extent extent{id(path(kMsgpackFile)), leaf.bytes.begin, leaf.bytes.size()};
    const std::int64_t numel = checked_numel(leaf.shape).value();
    const StorageId storage = builder_.add_storage(
        *leaf.dtype, numel, leaf.bytes.empty() ? std::span<const Extent>() : std::span(&extent, 1));
    made.tensor = builder_.add_tensor(name, leaf.shape, storage);
    shown.push_back(made.tensor);
    return {};
  }

  /// The texts of types are few.
  std::string_view keep_type(std::string_view type) {
    const auto known = types_.find(std::string(type));
    if (known != types_.end()) return known->second;
    return types_.emplace(std::string(type), builder_.keep_text(type)).first->second;
  }

  /// What `ckfs inspect` says first.
  struct Totals {
    struct KeyTotals {
      std::size_t arrays = 0;
      std::uint64_t bytes = 0;
    };
    std::map<std::string, KeyTotals> parts;  // by the first key
    std::map<std::string, std::size_t> stored_as;
    std::uint64_t chunks = 0;
    std::size_t arrays = 0;

    void add(const orbax::TreeLeaf& leaf, const ZarrArray& array) {
      KeyTotals& part = parts[leaf.path.empty() ? "." : leaf.path.front().text];
      ++part.arrays;
      ++arrays;
      part.bytes += array.stored_bytes();
      chunks += array.chunks();
      const zarr::Metadata& meta = array.metadata();
      std::string codecs = fmt::format("{}", fmt::join(meta.codecs.bytes_codecs, ", "));
      if (codecs.empty()) codecs = "uncompressed";
      if (meta.sharding) codecs += ", in shards";
      ++stored_as[codecs];
    }
  };

  void add_facts(const Totals& totals) {
    if (place_.step) builder_.add_fact("step", std::to_string(*place_.step));
    if (!item_.empty()) builder_.add_fact("item", item_.substr(0, item_.size() - 1));
    const bool zarr3 = !arrays_.empty() && arrays_[0].metadata().version == zarr::Version::V3;
    builder_.add_fact("storage",
                      fmt::format("{}{}", database_ ? "OCDBT, " : "", zarr3 ? "zarr 3" : "zarr 2"));
    builder_.add_fact("arrays", std::to_string(totals.arrays));
    builder_.add_fact("chunks", std::to_string(totals.chunks));
    for (const auto& [codecs, count] : totals.stored_as) {
      builder_.add_fact(codecs, fmt::format("{} arrays", count));
    }
    constexpr std::size_t kParts = 20;
    for (const auto& [key, part] : totals.parts) {
      if (totals.parts.size() > kParts) break;
      builder_.add_fact(key, fmt::format("{} arrays, {} bytes stored", part.arrays, part.bytes));
    }
  }

  const OrbaxPlace& place_;
  const std::string item_;  // its directory in the tree
  bool has_tree_ = false;
  std::optional<bool> zarr3_;  // nullopt: not said
  orbax::ItemFlags flags_;
  std::vector<orbax::TreeLeaf> leaves_;
  std::vector<orbax::MsgpackLeaf> msgpack_;
  std::map<std::string, const orbax::MsgpackLeaf*, std::less<>> aggregated_;  // by name
  NameMap<std::string> texts_;
  NameMap<std::string> key_kinds_;
  std::optional<OcdbtDatabase> database_;  // nullopt: keys are files
  std::uint64_t keys_ = 0;
  std::size_t filled_ = 0;  // arrays with chunks that are not stored
  std::vector<ZarrArray> arrays_;
  std::unordered_map<std::string_view, std::size_t, NameHash> by_name_;  // in arrays_
  std::size_t longest_name_ = 0;
  std::uint64_t name_bytes_ = 0;
  std::uint64_t sought_ = 0;   // bytes of names, by array_of_chunk()
  ZarrArray* last_ = nullptr;  // of array_of_chunk()
  std::map<std::string, std::string_view, std::less<>> types_;
};

bool recognizes_item(const SourceTree& tree, const SourceFiles& /*files*/,
                     const OpenCheckpointOptions& /*options*/) {
  return is_orbax_item(tree);
}

bool recognizes_orbax(const SourceTree& tree, const SourceFiles& /*files*/,
                      const OpenCheckpointOptions& /*options*/) {
  return is_orbax(tree);
}

Result<std::shared_ptr<const Catalog>> open_orbax(const SourceTree& tree, SourceFiles& files,
                                                  const OpenCheckpointOptions& options) {
  if (!options.tag.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: only DeepSpeed checkpoints have tags", tree.name);
  }
  CKFS_TRY(const OrbaxPlace place, choose_orbax_item(tree, options));
  if (place.step_directory.empty()) return ItemOpener(tree, files, options, place).open();
  // Other steps come and go while a training runs: they are not part of the source.
  const SourceTree step = subtree(tree, place.step_directory);
  return ItemOpener(step, files, options, place).open();
}

}  // namespace

const Adapter kOrbaxItem{"orbax", recognizes_item, open_orbax};
const Adapter kOrbax{"orbax", recognizes_orbax, open_orbax};

}  // namespace ckfs
