// The content of a checkpoint, known from its headers alone: the result of opening a source, and
// all that the rest of ckfs knows of it.
//
// A Catalog is immutable after CatalogBuilder::build() and safe for concurrent use. It costs 100 to
// 200 bytes a tensor: names and shapes live in arenas (equal shapes once), everything else is an
// index. Spans and string_views that leave it are valid as long as the Catalog is.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/byte_source.h"
#include "catalog/chunk_table.h"
#include "catalog/inner_files.h"
#include "catalog/obstacle.h"
#include "encoding/encoding.h"
#include "tensor/dtype.h"

namespace ckfs {

using TensorId = std::uint32_t;
using StorageId = std::uint32_t;

/// `nbytes` bytes of a storage, at `offset` in `file`.
struct Extent {
  FileId file = 0;
  std::uint64_t offset = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t begin = 0;  // in the storage: set by CatalogBuilder

  bool operator==(const Extent&) const = default;
};

/// Bytes, laid over a list of extents in order, and how they encode a dense row-major run of
/// elements. Bytes and elements are two numbers: only the encoding turns one into the other. An
/// element of a plain encoding, and a granule of any other, may cross an extent's border.
struct Storage {
  const Encoding* encoding = nullptr;          // never nullptr in a catalog
  std::int64_t numel = 0;                      // elements
  std::span<const Extent> extents;             // by begin, without gaps
  const StorageId* first_companion = nullptr;  // see companions()
  DType dtype = DType::U8;                     // what the source's header calls the bytes
  bool in_chunks = false;                      // of an extent or more, is_chunk() is true

  /// The dtype of the values that decoding gives.
  DType value_dtype() const { return encoding->dtype(); }
  std::uint64_t nbytes() const {
    return extents.empty() ? 0 : extents.back().begin + extents.back().nbytes;
  }
  /// The storages that decoding needs beside this one, as its encoding numbers them.
  std::span<const StorageId> companions() const {
    return {first_companion, encoding->companions()};
  }
  /// The extents that hold bytes of `range`, in order: found by binary search, so that a storage
  /// may have thousands. Requires: the storage has those bytes.
  std::span<const Extent> extents_in(ByteRange range) const;
};

/// A part of a stored tensor's index space that lies in one storage: index (i0, i1, ...) with
/// begin[d] <= i[d] < begin[d] + count[d] is element offset + sum (i[d] - begin[d]) * stride[d].
/// Where the storage is a grid of equal cells one after another, one box is as many of them: the
/// sum is then over k / cell[d] * cell_stride[d] + k % cell[d] * stride[d] for k = i[d] - begin[d].
struct StorageBox {
  StorageId storage = 0;
  std::int64_t offset = 0;
  std::vector<std::int64_t> begin, count, stride;
  /// Empty: one cell. Else count[d] is no more than cell[d], or a multiple of it.
  std::vector<std::int64_t> cell = {}, cell_stride = {};
};

/// The role of a tensor in the training run that saved it. A checkpoint that does not say has
/// weights only.
enum class Role : std::uint8_t {
  Weight,        // trainable: the optimizer's masters where there are such
  Frozen,        // a parameter that was recorded as not trained
  FrozenModule,  // the same, known from the module's state only (ZeRO-1): zero_to_fp32 drops it, so
                 // a view shows it only when asked to
  Buffer,
};

/// A tensor of the checkpoint. In the common case it is the whole of one storage in row-major
/// order; then `boxes` is empty. Otherwise its boxes tile its shape, and `storage` is that of the
/// first: all of them have one dtype. (With an obstacle they may cover nothing.)
struct StoredTensor {
  std::string_view name;
  std::span<const std::int64_t> shape;  // logical, also where encoded
  StorageId storage = 0;
  Role role = Role::Weight;
  bool alias = false;  // another name of a tensor of its shard, with the same storage and boxes
  std::span<const StorageBox> boxes;
};

/// A file that is shown as it is: configuration, tokenizer, code, or (in the view `source`) a
/// shard. Its bytes are those of ByteSource file `file`.
struct SourceFile {
  std::string path;  // relative to the checkpoint, with '/'
  FileId file = 0;
};

/// A thing `ckfs inspect` says about the checkpoint, not an error: a tensor that the index leaves
/// out, a weight file that no view shows.
struct Note {
  std::string subject;  // a file or tensor name
  std::string text;
};

/// The most notes of one kind, where an adapter counts them: they are for people. Left-out tensors
/// may have one note each.
inline constexpr std::size_t kMaxNotes = 100;

/// Weights of a checkpoint that are quantized in one way.
struct QuantizedGroup {
  std::string scheme;  // "pack-quantized"
  std::string format;  // "int4, BF16 scale for each 1 x 32"
  TensorId example = 0;
  std::size_t weights = 0;
};

/// Stored tensors that no converted view shows, by the last word of their names.
struct LeftOut {
  std::string suffix;  // "weight_scale"
  std::string reason;  // "used to decode its weight"
  std::size_t tensors = 0;
};

/// How a checkpoint's weights are quantized, for people; empty for a plain one.
struct Quantization {
  /// "fp8 (F8_E4M3, F32 scale for each 128 x 128)"; empty: not quantized.
  std::string summary;
  std::vector<QuantizedGroup> groups;
  std::vector<LeftOut> left_out;
  bool casts_all = false;  // the tool for such checkpoints also casts the other tensors
};

/// The files of a Hugging Face model directory beside its weights.
struct ModelDirectory {
  /// config.json as it is; absent where none was found.
  std::optional<std::string> config;
  FileId config_file = 0;  // where there is one
  /// Files that a converted view shows verbatim (not config.json, not weights, not an index).
  std::vector<SourceFile> side_files;
  /// The file that says which shard holds which tensor, where shards are mirrored; empty: none.
  std::string index = {};
};

/// Entries that a file's header has beside its tensors: a key and its text, by key.
using HeaderMetadata = std::vector<std::pair<std::string, std::string>>;

/// One file of weights and the tensors it holds, in the source's own order. Where a target's files
/// do not mirror the source's (see Catalog::mirrors_shards), all tensors are in one shard with an
/// empty path.
struct Shard {
  std::string path;
  FileId file = 0;
  std::vector<TensorId> tensors;  // the ones that views show: no companions
  /// Metadata that a file mirroring this one repeats; nullptr: none. Equal ones are one object.
  std::shared_ptr<const HeaderMetadata> metadata = nullptr;
};

class Catalog;

/// A folder of the source with weights of its own, which views show there: a module of a
/// sentence-transformers model, a component of a diffusers pipeline. Its names, paths and
/// configuration are those of a model directory by itself. Or one file of weights of its own beside
/// others, by its own name and without a configuration: an adapter.
struct CatalogPart {
  std::string directory;  // "2_Dense/"; of a file beside the source's own weights ""
  std::shared_ptr<const Catalog> catalog;
};

/// A leaf of a source that is a tree (an Orbax item): a tensor, or what has no elements.
struct TreeLeaf {
  static constexpr TensorId kNone = ~TensorId{0};

  /// Its keys: 'k' (of a dict) or 'i' (a place in a list), the text, NUL.
  std::string_view path;
  std::string_view type;     // as the source calls it: "jax.Array", "scalar", "string", "Dict"
  TensorId tensor = kNone;   // kNone: no array, or one in msgpack of no DType
  std::string_view element;  // what the source calls elements of a `tensor` of no DType; else empty
  std::string_view text;     // of a string
};

/// A source's tree. A tensor of it that is in no shard is shown only by the view of the whole tree.
struct ItemTree {
  std::vector<TreeLeaf> leaves;  // in the source's order
  std::string custom_metadata;   // JSON; empty: none
  /// Names of JAX's random number generators, by leaf: those arrays are their keys.
  std::map<std::size_t, std::string> key_kinds;
};

/// The masters that an optimizer keeps of tensors, in F32 where the tensors are not: each in no
/// shard, with the shape of its tensor.
struct Masters {
  struct Pair {
    TensorId tensor, master;
  };
  std::vector<Pair> pairs;  // by tensor
  std::string absence;      // why there are none; where there are some, empty
};

class Catalog {
 public:
  /// What kind of checkpoint, for people: its Adapter's name, "safetensors", "deepspeed_zero",
  /// "universal", "torch_file", "torch_dcp", "megatron", "orbax".
  const std::string& kind() const { return kind_; }

  /// "fp8 (F8_E4M3, F32 scale for each 128 x 128)" or empty for a plain checkpoint.
  const std::string& quantization() const { return quantization_.summary; }
  bool is_quantized() const { return !quantization_.summary.empty(); }
  /// The same at length.
  const Quantization& quantization_details() const { return quantization_; }

  /// All tensors by name in byte order: the ones to show, and companions.
  std::span<const StoredTensor> tensors() const { return tensors_; }
  const StoredTensor& tensor(TensorId id) const { return tensors_[id]; }
  std::span<const Storage> storages() const { return storages_; }
  const Storage& storage(StorageId id) const { return storages_[id]; }
  /// A tensor's own storage where it has just one.
  const Storage& storage(const StoredTensor& tensor) const { return storages_[tensor.storage]; }
  std::optional<TensorId> find(std::string_view name) const;

  /// The dtype a view sees before its casts: that of the decoded values.
  DType value_dtype(TensorId id) const { return storage(tensors_[id]).value_dtype(); }

  /// The tensors that views show (not companions), by shard in the order of shard paths.
  std::span<const Shard> shards() const { return shards_; }
  /// Whether a view's files may be those of the source. False: there is one shard, with an empty
  /// path and no file; a view splits it by size.
  bool mirrors_shards() const { return mirrors_shards_; }

  /// The chunks that extents name as files; empty where all bytes lie in files as they are.
  const ChunkTable& chunks() const { return chunks_; }
  /// Those that extents name; empty where all places are known.
  const InnerFiles& inner_files() const { return inner_files_; }
  /// About where an extent begins, to order reads by. For an inner file, as if its elements came
  /// first in it; for a chunk, its number.
  FileRange place(const Extent& extent) const {
    if (!is_inner_file(extent.file)) return {extent.file, extent.offset, extent.nbytes};
    const FileRange stored = inner_files_.file(extent.file).stored;
    return {stored.file, stored.offset + extent.offset, extent.nbytes};
  }

  /// The tree whose leaves the tensors are; nullptr: the source has none.
  const ItemTree* tree() const { return tree_ ? &*tree_ : nullptr; }

  /// nullptr: this kind of checkpoint has none.
  const Masters* masters() const { return masters_ ? &*masters_ : nullptr; }

  const ModelDirectory& model() const { return model_; }
  /// By directory, within one by the paths of their shards; parts have no parts themselves. Their
  /// files are among files(), not in model().
  std::span<const CatalogPart> parts() const { return parts_; }
  /// Every file of the source, by path: the view `source`.
  std::span<const SourceFile> files() const { return files_; }
  std::span<const Note> notes() const { return notes_; }
  /// What `ckfs inspect` lists first: pairs like "world size" and "64", in the order added.
  std::span<const Note> facts() const { return facts_; }
  /// By tensor; the first few of each reason.
  std::span<const Obstacle> obstacles() const { return obstacles_; }
  /// Obstacles for those views alone that do not say what F8 without a scale is: by tensor, too.
  std::span<const Obstacle> unscaled() const { return unscaled_; }
  /// The further tensors of that reason, which obstacles() counts: none of a reason that was the
  /// hundredth or later.
  std::span<const std::string> more_obstacles(std::string_view reason) const {
    const std::span<const std::string> more = all_obstacles_.unlisted(reason);
    return more.empty() ? all_unscaled_.unlisted(reason) : more;
  }

  /// Newest mtime of the source's files in whole seconds since 1970, never 0.
  std::int64_t mtime() const { return mtime_; }
  /// A hash over the names, sizes and mtimes of all files: another value, another source.
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  friend class CatalogBuilder;
  Catalog() = default;

  std::string kind_;
  Quantization quantization_;
  std::deque<std::string> names_;                 // arena chunks
  std::deque<std::vector<std::int64_t>> shapes_;  // arena, equal shapes once
  std::deque<std::vector<Extent>> extents_;       // arena chunks
  std::deque<std::vector<StorageBox>> boxes_;
  std::deque<std::vector<StorageId>> companions_;        // arena chunks
  std::set<std::shared_ptr<const Encoding>> encodings_;  // except plain ones
  std::vector<Storage> storages_;
  std::vector<StoredTensor> tensors_;
  std::vector<Shard> shards_;
  std::vector<SourceFile> files_;
  std::vector<Note> notes_, facts_;
  bool mirrors_shards_ = true;
  std::vector<Obstacle> obstacles_;
  ObstacleList all_obstacles_;
  std::vector<Obstacle> unscaled_;
  ObstacleList all_unscaled_;
  std::optional<ItemTree> tree_;
  std::optional<Masters> masters_;
  ModelDirectory model_;
  std::vector<CatalogPart> parts_;
  ChunkTable chunks_;
  InnerFiles inner_files_;
  std::int64_t mtime_ = 1;
  std::uint64_t fingerprint_ = 0;
};

/// Collects a Catalog. Not for concurrent use.
class CatalogBuilder {
 public:
  explicit CatalogBuilder(std::string_view kind);

  /// Chunks are added here; the returned numbers may be the file of an extent.
  ChunkTable& chunks() { return catalog_->chunks_; }
  /// And inner files here.
  InnerFiles& inner_files() { return catalog_->inner_files_; }

  /// Adds a plain storage. Requires: the extents' sizes add up to `numel` elements of `dtype`.
  StorageId add_storage(DType dtype, std::int64_t numel, std::span<const Extent> extents);

  /// Says that the bytes of `storage` stand for `numel` values of `encoding`, which needs
  /// `companions`. Equal encodings should be one object. Requires: the storage has as many bytes,
  /// the encoding as many companions, and each of them all that the last value needs.
  void set_encoding(StorageId storage, std::shared_ptr<const Encoding> encoding,
                    std::span<const StorageId> companions, std::int64_t numel);

  /// Adds a tensor that is the whole of `storage` (boxes empty), or is made of boxes.
  /// Requires: no two tensors have one name at build(); the product of `shape` is the storage's
  /// numel where there are no boxes. The id is provisional: build() sorts by name and renumbers
  /// shards' ids with it.
  TensorId add_tensor(std::string_view name, std::span<const std::int64_t> shape, StorageId storage,
                      std::vector<StorageBox> boxes = {});

  /// Says under which name and shape a view shows `tensor`, and by which boxes of storages, none
  /// for the whole of its own: a quantized weight has another name than its codes. Requires: as for
  /// add_tensor(); no alias of it was added.
  void redefine(TensorId tensor, std::string_view name, std::span<const std::int64_t> shape,
                std::vector<StorageBox> boxes = {});

  /// Says what `tensor` is in its training run.
  void set_role(TensorId tensor, Role role);

  /// Adds another name for `source`, with its shape, storage, boxes and role.
  /// Requires: the name is new.
  TensorId add_alias(std::string_view name, TensorId source);

  /// The tensors added so far, by provisional ids. References are valid until more is added; names
  /// and shapes of tensors, and extents, stay valid into the built Catalog.
  std::size_t tensor_count() const { return catalog_->tensors_.size(); }
  const StoredTensor& tensor(TensorId id) const { return catalog_->tensors_[id]; }
  const Storage& storage(StorageId id) const { return catalog_->storages_[id]; }

  void add_shard(Shard shard);
  /// Adds the one shard of a source whose files a target does not mirror.
  void add_only_shard(std::vector<TensorId> tensors);
  void add_file(SourceFile file);
  void add_part(CatalogPart part) { catalog_->parts_.push_back(std::move(part)); }
  void add_note(std::string subject, std::string text);
  void add_fact(std::string subject, std::string text);
  /// Whether every tensor so far of two dimensions and more holds F64, F32, F16, BF16, C64 or C128:
  /// no quantization has its codes in such.
  bool has_only_plain_matrices() const;
  void add_obstacle(std::string_view tensor, std::string_view reason);
  /// Says that nothing scales the F8 of `tensor`, though others of the checkpoint are scaled.
  void add_unscaled(TensorId tensor);
  /// Requires: `example` of each group is a provisional id.
  void set_quantization(Quantization quantization);
  bool is_quantized() const { return !catalog_->quantization_.summary.empty(); }
  void set_model(ModelDirectory model);
  /// Requires: provisional ids, in any order.
  void set_masters(Masters masters) { catalog_->masters_ = std::move(masters); }
  /// Requires: tensors are provisional ids; texts are kept by keep_text().
  void set_tree(ItemTree tree);
  /// A copy that lives as long as the catalog.
  std::string_view keep_text(std::string_view text) { return keep_name(text); }
  /// Takes one source file into account: its mtime (nanoseconds) for mtime(), all of it for
  /// fingerprint().
  void saw_file(std::string_view name, std::uint64_t size, std::int64_t mtime_ns);

  /// Sorts tensors by name, shards and files by path, parts by directory, and hands the catalog
  /// over.
  std::shared_ptr<const Catalog> build() &&;

 private:
  std::unique_ptr<Catalog> catalog_;
  ObstacleList obstacles_;
  std::string_view keep_name(std::string_view name);
  std::span<const std::int64_t> keep_shape(std::span<const std::int64_t> shape);
  std::span<const Extent> keep_extents(std::span<const Extent> extents);
  std::map<std::vector<std::int64_t>, std::span<const std::int64_t>> shape_index_;
};

}  // namespace ckfs
