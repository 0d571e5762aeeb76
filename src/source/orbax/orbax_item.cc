// The tree is that of _METADATA. Arrays without a leaf there are what Orbax would not restore, and
// leaves without an array are damage. An old item has its tree in msgpack, or in no file: then the
// names of its arrays are the tree.

#include <algorithm>
#include <array>
#include <map>

#include "base/checked.h"
#include "base/name_hash.h"
#include "base/parallel.h"
#include "base/text.h"
#include "format/json_tree.h"
#include "format/orbax_read.h"
#include "source/adapters.h"
#include "source/header_loader.h"
#include "source/orbax/orbax_arrays.h"
#include "source/orbax/orbax_layout.h"
#include "source/source_opener.h"

namespace ckfs {
namespace {

constexpr std::string_view kTreeFile = "_METADATA";
constexpr std::string_view kMsgpackFile = "checkpoint";
constexpr std::string_view kStringsFile = "_strings.json";
constexpr std::string_view kArrayMetadata = "array_metadatas/";
constexpr std::uint64_t kMaxSmallFile = std::uint64_t{64} << 20;
// Keys of paths that names are split into, and more for each array.
constexpr std::uint64_t kPartsBase = std::uint64_t{1} << 18;
constexpr std::uint64_t kPartsOfArray = 64;
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
    CKFS_TRY_VOID(arrays_.emplace(tree_, files_, table(), repeated_, item_)
                      .find(has_tree_ ? &flags_ : nullptr, bytes_of(item_)));
    CKFS_TRY_VOID(check_passed_over());
    CKFS_TRY_VOID(check_tree());
    CKFS_TRY_VOID(arrays_->find_chunks(builder_));
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

  // Its arrays.

  /// A chunk that listing skipped would count as absent, and show the fill value.
  Result<void> check_passed_over() const {
    for (const Note& note : tree_.notes) {
      const std::string_view path = note.subject;
      if (!path.starts_with(item_)) continue;
      const std::string_view key = path.substr(item_.size());
      const bool is_needed = key == kTreeFile || key == kMsgpackFile || key == kStringsFile ||
                             key.starts_with(kArrayMetadata) || arrays_->are_in(key);
      if (!is_needed) continue;
      // A link out of the checkpoint is noted, too, and is a file.
      if (path == kExportFolder || tree_.find(path) != nullptr) continue;
      return fail(ErrorCode::NotFound, "{}: a part of the item, but {}", path, note.text);
    }
    return {};
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
      if (wanted && !arrays_->has(name)) {
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
    for (const ZarrArray& array : arrays_->all()) {
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
      const std::uint64_t most = kPartsBase + kPartsOfArray * arrays_->all().size();
      for (const ZarrArray& array : arrays_->all()) {
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
    if (arrays_->in_database() || tree_.incomplete.empty()) return {};
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
        ZarrArray& array = *arrays_->of_name(name);
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
    const bool zarr3 =
        !arrays_->all().empty() && arrays_->all()[0].metadata().version == zarr::Version::V3;
    builder_.add_fact("storage", fmt::format("{}{}", arrays_->in_database() ? "OCDBT, " : "",
                                             zarr3 ? "zarr 3" : "zarr 2"));
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
  orbax::ItemFlags flags_;
  std::vector<orbax::TreeLeaf> leaves_;
  std::vector<orbax::MsgpackLeaf> msgpack_;
  std::map<std::string, const orbax::MsgpackLeaf*, std::less<>> aggregated_;  // by name
  NameMap<std::string> texts_;
  NameMap<std::string> key_kinds_;
  std::size_t filled_ = 0;             // arrays with chunks that are not stored
  std::optional<OrbaxArrays> arrays_;  // once the tree is known
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
