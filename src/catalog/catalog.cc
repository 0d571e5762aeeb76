// A checkpoint has up to a few hundred thousand tensors, and their names and shapes are most of
// what ckfs holds of it for as long as it runs. One heap block for each name, shape and list of
// extents would double that, so they go into arenas of large chunks, from which nothing is ever
// removed; a chunk is never grown past its reserved capacity, because views point into it. Equal
// shapes are kept once: a model has thousands of experts and a handful of shapes.
#include "catalog/catalog.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/hash.h"
#include "encoding/plain_encoding.h"

namespace ckfs {
namespace {

constexpr std::size_t kNameChunk = 65536;   // bytes
constexpr std::size_t kShapeChunk = 1024;   // dimensions
constexpr std::size_t kExtentChunk = 1024;  // extents
constexpr std::size_t kCompanionChunk = 1024;

/// Copies `items` behind the last chunk's items, or into a new chunk where they do not fit.
template <typename Chunk, typename Items>
auto* keep(std::deque<Chunk>& arena, const Items& items, std::size_t chunk_size) {
  if (arena.empty() || arena.back().capacity() - arena.back().size() < items.size()) {
    arena.emplace_back().reserve(std::max(chunk_size, items.size()));
  }
  Chunk& chunk = arena.back();
  const std::size_t at = chunk.size();
  chunk.insert(chunk.end(), items.begin(), items.end());
  return chunk.data() + at;
}

}  // namespace

std::span<const Extent> Storage::extents_in(ByteRange range) const {
  if (range.empty()) return {};
  // The last extent that begins at or before the range's first byte, up to the last that begins
  // before its end.
  const auto first = std::ranges::upper_bound(extents, range.begin, {}, &Extent::begin);
  const auto last = std::ranges::lower_bound(first, extents.end(), range.end, {}, &Extent::begin);
  CKFS_CHECK(first != extents.begin());
  return {std::prev(first), last};
}

std::optional<TensorId> Catalog::find(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const StoredTensor& tensor, std::string_view n) { return tensor.name < n; });
  if (at == tensors_.end() || at->name != name) return std::nullopt;
  return static_cast<TensorId>(at - tensors_.begin());
}

CatalogBuilder::CatalogBuilder(std::string_view kind) : catalog_(new Catalog) {
  catalog_->kind_ = kind;
}

std::string_view CatalogBuilder::keep_name(std::string_view name) {
  return {keep(catalog_->names_, name, kNameChunk), name.size()};
}

std::span<const std::int64_t> CatalogBuilder::keep_shape(std::span<const std::int64_t> shape) {
  if (shape.empty()) return {};
  std::vector<std::int64_t> key(shape.begin(), shape.end());
  const auto known = shape_index_.find(key);
  if (known != shape_index_.end()) return known->second;
  const std::span<const std::int64_t> kept(keep(catalog_->shapes_, shape, kShapeChunk),
                                           shape.size());
  shape_index_.emplace(std::move(key), kept);
  return kept;
}

std::span<const Extent> CatalogBuilder::keep_extents(std::span<const Extent> extents) {
  if (extents.empty()) return {};
  Extent* const kept = keep(catalog_->extents_, extents, kExtentChunk);
  std::uint64_t begin = 0;
  for (Extent& extent : std::span(kept, extents.size())) {
    extent.begin = begin;
    begin += extent.nbytes;
  }
  return {kept, extents.size()};
}

StorageId CatalogBuilder::add_storage(DType dtype, std::int64_t numel,
                                      std::span<const Extent> extents) {
  std::uint64_t sum = 0;
  for (const Extent& extent : extents) sum += extent.nbytes;
  CKFS_CHECK(nbytes(dtype, numel) == sum);
  const bool in_chunks =
      std::ranges::any_of(extents, [](const Extent& extent) { return is_chunk(extent.file); });
  catalog_->storages_.push_back(
      {&plain_encoding(dtype), numel, keep_extents(extents), nullptr, dtype, in_chunks});
  return static_cast<StorageId>(catalog_->storages_.size() - 1);
}

void CatalogBuilder::set_encoding(StorageId id, std::shared_ptr<const Encoding> encoding,
                                  std::span<const StorageId> companions, std::int64_t numel) {
  Storage& storage = catalog_->storages_[id];
  CKFS_CHECK(encoding->nbytes(numel) == storage.nbytes());
  CKFS_CHECK(encoding->companions() == companions.size());
  const std::int64_t unit = encoding->granule().unit();
  CKFS_CHECK(unit <= kMaxUnit);
  if (numel > 0) {
    // Extents of a companion that is too short would be read as far as they go.
    std::vector<PartRange> needs;
    const std::int64_t last = (numel - 1) / unit * unit;
    encoding->add_needs({last, numel - last}, needs);
    for (const PartRange& need : needs) {
      const Storage& part =
          need.part == 0 ? storage : catalog_->storages_[companions[need.part - 1]];
      CKFS_CHECK(need.range.end <= part.nbytes());
    }
  }
  storage.encoding = encoding.get();
  storage.numel = numel;
  storage.first_companion = keep(catalog_->companions_, companions, kCompanionChunk);
  catalog_->encodings_.insert(std::move(encoding));
}

TensorId CatalogBuilder::add_tensor(std::string_view name, std::span<const std::int64_t> shape,
                                    StorageId storage, std::vector<StorageBox> boxes) {
  CKFS_CHECK(!boxes.empty() || checked_numel(shape) == catalog_->storages_[storage].numel);
  StoredTensor tensor;
  tensor.name = keep_name(name);
  tensor.shape = keep_shape(shape);
  tensor.storage = storage;
  if (!boxes.empty()) tensor.boxes = catalog_->boxes_.emplace_back(std::move(boxes));
  catalog_->tensors_.push_back(tensor);
  return static_cast<TensorId>(catalog_->tensors_.size() - 1);
}

void CatalogBuilder::redefine(TensorId id, std::string_view name,
                              std::span<const std::int64_t> shape, std::vector<StorageBox> boxes) {
  StoredTensor& tensor = catalog_->tensors_[id];
  CKFS_CHECK(!boxes.empty() || checked_numel(shape) == catalog_->storages_[tensor.storage].numel);
  if (name != tensor.name) tensor.name = keep_name(name);
  tensor.shape = keep_shape(shape);
  tensor.boxes = {};
  if (!boxes.empty()) tensor.boxes = catalog_->boxes_.emplace_back(std::move(boxes));
}

void CatalogBuilder::set_role(TensorId tensor, Role role) {
  catalog_->tensors_[tensor].role = role;
}

TensorId CatalogBuilder::add_alias(std::string_view name, TensorId source) {
  StoredTensor tensor = catalog_->tensors_[source];
  tensor.name = keep_name(name);
  tensor.alias = true;
  catalog_->tensors_.push_back(tensor);
  return static_cast<TensorId>(catalog_->tensors_.size() - 1);
}

void CatalogBuilder::add_shard(Shard shard) {
  catalog_->shards_.push_back(std::move(shard));
}

void CatalogBuilder::add_only_shard(std::vector<TensorId> tensors) {
  CKFS_CHECK(catalog_->shards_.empty());
  catalog_->mirrors_shards_ = false;
  catalog_->shards_.push_back({{}, 0, std::move(tensors)});
}

void CatalogBuilder::add_file(SourceFile file) {
  catalog_->files_.push_back(std::move(file));
}

void CatalogBuilder::add_note(std::string subject, std::string text) {
  catalog_->notes_.push_back({std::move(subject), std::move(text)});
}

void CatalogBuilder::add_fact(std::string subject, std::string text) {
  catalog_->facts_.push_back({std::move(subject), std::move(text)});
}

bool CatalogBuilder::has_only_plain_matrices() const {
  return std::ranges::all_of(catalog_->tensors_, [this](const StoredTensor& tensor) {
    const DType dtype = catalog_->storage(tensor.storage).dtype;
    return tensor.shape.size() < 2 || is_castable_float(dtype) || dtype == DType::C64 ||
           dtype == DType::C128;
  });
}

void CatalogBuilder::add_obstacle(std::string_view tensor, std::string_view reason) {
  obstacles_.add(tensor, reason);
}

void CatalogBuilder::add_unscaled(TensorId id) {
  const StoredTensor& tensor = catalog_->tensors_[id];
  catalog_->all_unscaled_.add(
      tensor.name,
      fmt::format("{} without a scale (VIEW@unscaled=one takes 1 for it, unscaled=keep shows the "
                  "tensor as it is stored, unscaled=drop leaves it out)",
                  name(catalog_->storages_[tensor.storage].dtype)));
}

void CatalogBuilder::set_quantization(Quantization quantization) {
  catalog_->quantization_ = std::move(quantization);
}

void CatalogBuilder::set_model(ModelDirectory model) {
  catalog_->model_ = std::move(model);
}

void CatalogBuilder::set_tree(ItemTree tree) {
  catalog_->tree_ = std::move(tree);
}

void CatalogBuilder::saw_file(std::string_view name, std::uint64_t size, std::int64_t mtime_ns) {
  // A sum, so that it does not matter in which order files are seen.
  catalog_->fingerprint_ += stable_hash(fmt::format("{}\n{}\n{}", name, size, mtime_ns));
  catalog_->mtime_ = std::max(catalog_->mtime_, mtime_ns / 1'000'000'000);
}

std::shared_ptr<const Catalog> CatalogBuilder::build() && {
  Catalog& catalog = *catalog_;
  std::vector<TensorId> order(catalog.tensors_.size());
  std::iota(order.begin(), order.end(), TensorId{0});
  std::sort(order.begin(), order.end(), [&](TensorId a, TensorId b) {
    return catalog.tensors_[a].name < catalog.tensors_[b].name;
  });

  std::vector<StoredTensor> sorted;
  sorted.reserve(order.size());
  std::vector<TensorId> new_id(order.size());
  for (const TensorId old : order) {
    CKFS_CHECK(sorted.empty() || sorted.back().name != catalog.tensors_[old].name);
    new_id[old] = static_cast<TensorId>(sorted.size());
    sorted.push_back(catalog.tensors_[old]);
  }
  catalog.tensors_ = std::move(sorted);
  catalog.storages_.shrink_to_fit();

  for (Shard& shard : catalog.shards_) {
    for (TensorId& id : shard.tensors) id = new_id[id];
    shard.tensors.shrink_to_fit();
  }
  if (catalog.tree_) {
    for (TreeLeaf& leaf : catalog.tree_->leaves) {
      if (leaf.tensor != TreeLeaf::kNone) leaf.tensor = new_id[leaf.tensor];
    }
  }
  if (catalog.masters_) {
    for (Masters::Pair& pair : catalog.masters_->pairs) {
      pair = {new_id[pair.tensor], new_id[pair.master]};
    }
    std::ranges::sort(catalog.masters_->pairs, {}, &Masters::Pair::tensor);
  }
  for (QuantizedGroup& group : catalog.quantization_.groups) group.example = new_id[group.example];
  const auto by_path = [](const auto& a, const auto& b) { return a.path < b.path; };
  std::sort(catalog.shards_.begin(), catalog.shards_.end(), by_path);
  std::sort(catalog.files_.begin(), catalog.files_.end(), by_path);
  std::sort(catalog.model_.side_files.begin(), catalog.model_.side_files.end(), by_path);
  std::ranges::sort(catalog.parts_, {}, [](const CatalogPart& part) {
    const auto shards = part.catalog->shards();
    return std::pair(std::string_view(part.directory),
                     shards.empty() ? std::string_view() : std::string_view(shards[0].path));
  });
  catalog.obstacles_ = obstacles_.list();
  catalog.all_obstacles_ = std::move(obstacles_);
  catalog.unscaled_ = catalog.all_unscaled_.list();
  return {std::move(catalog_)};
}

}  // namespace ckfs
