#include "container/item_arrays.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "base/checked.h"
#include "base/text.h"
#include "container/array_source.h"
#include "container/nested_names.h"
#include "format/ocdbt_read.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

constexpr std::string_view kStep = "step";
// A key costs a microsecond when the nodes of a database are measured, which is done at once.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 24;
// The most steps to choose chunks for all kinds of arrays: about a second. A large model takes a
// thousandth.
constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 27;

/// By the bytes of a + '/' and b + '/'.
bool key_less(std::string_view a, std::string_view b) {
  const auto [x, y] = std::ranges::mismatch(a, b);
  const auto byte = [](auto at) { return static_cast<unsigned char>(*at); };
  if (y == b.end()) return x != a.end() && byte(x) < '/';
  if (x == a.end()) return '/' <= byte(y);  // names below a follow it
  return byte(x) < byte(y);
}

/// Why no array of a tree has that name; empty: one may.
std::string_view refusal(std::string_view name) {
  // Joined by '.', a path is a directory's name, or a part of a key.
  if (!is_utf8(name)) return "a name that is not UTF-8";
  if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
    return "a path with '/', '\\' or NUL";
  }
  if (name.empty() || name.starts_with('.') || name.ends_with('.') ||
      name.find("..") != std::string_view::npos) {
    return "a path with an empty part";
  }
  return {};
}

/// Whether no part between '/' is empty, "." or "..".
bool has_plain_parts(std::string_view path) {
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") return false;
    begin = end + 1;
  }
  return true;
}

Result<void> check_split(const ModelTensor& tensor, std::span<const std::int64_t> split) {
  const std::span<const std::int64_t> shape = tensor.expr.shape();
  CKFS_CHECK(split.size() == shape.size());
  for (std::size_t d = 0; d < split.size(); ++d) {
    if (split[d] > 0 && shape[d] % split[d] == 0) continue;
    return fail(ErrorCode::Unsupported, "{}: shape {}: dimension {} in {} equal parts",
                quote(tensor.name), shape_text(shape), d, split[d]);
  }
  return {};
}

Result<void> check_array(const ModelTensor& tensor) {
  if (!zarr::can_hold(tensor.expr.dtype())) {
    return fail(ErrorCode::Unsupported, "{}: zarr has a byte for each element of {}",
                quote(tensor.name), name(tensor.expr.dtype()));
  }
  if (tensor.expr.shape().size() > zarr::kMaxRank) {
    return fail(ErrorCode::Unsupported, "{}: {} dimensions (limit {})", quote(tensor.name),
                tensor.expr.shape().size(), zarr::kMaxRank);
  }
  if (auto sliceable = check_sliceable(tensor.expr); !sliceable) {
    return Failure(sliceable.error().within(quote(tensor.name)));
  }
  return {};
}

}  // namespace

Result<ItemArrays> ItemArrays::make(std::shared_ptr<const Definition> definition,
                                    zarr::Version version) {
  ItemArrays item(std::move(definition), version);
  const Definition& view = item.definition();
  for (std::uint32_t id = 0; id < view.tensors.size(); ++id) item.arrays_.push_back({id, 0, 0});
  if (view.packaging.orbax.step) item.arrays_.push_back({ModelTensor::kNone, 0, 0});
  if (view.packaging.orbax.whole_tree) {
    const std::vector<TreeLeaf>& leaves = view.catalog->tree()->leaves;
    for (std::uint32_t i = 0; i < leaves.size(); ++i) {
      if (leaves[i].tensor != TreeLeaf::kNone) item.tree_leaves_.push_back(i);
    }
    CKFS_CHECK(item.tree_leaves_.size() == view.tensors.size());
  }
  if (item.arrays_.empty()) return fail(ErrorCode::Unsupported, "an Orbax item without arrays");
  const bool whole_tree = view.packaging.orbax.whole_tree;
  if (!whole_tree) {
    CKFS_TRY_VOID(item.check_names());
  }
  std::ranges::sort(item.arrays_, [&](const Array& a, const Array& b) {
    const auto name_of = [&](const Array& array) {
      return array.tensor == ModelTensor::kNone ? kStep : view.tensors[array.tensor].name;
    };
    return key_less(name_of(a), name_of(b));
  });
  if (whole_tree) {
    CKFS_TRY_VOID(item.check_tree_names());
  }
  CKFS_TRY_VOID(item.make_grids());
  CKFS_TRY_VOID(item.check_keys());
  return item;
}

/// A tree of the source's own: only what no file or key can be called is refused.
Result<void> ItemArrays::check_tree_names() const {
  const bool files = definition_->packaging.orbax.storage != ArrayStorage::Ocdbt;
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < size(); ++i) names.push_back(name(i));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string_view mine = names[i];
    std::string_view why;
    if (mine.empty()) why = "an array without a name";
    if (mine.find('\0') != std::string_view::npos) why = "a path with NUL";
    if (files && (mine.find('\\') != std::string_view::npos || !has_plain_parts(mine))) {
      why = "not a directory name (storage=ocdbt takes any name)";
    }
    if (!why.empty()) return fail(ErrorCode::Unsupported, "{}: {}", quote(mine), why);
    // Arrays are in the order of their keys, and all keys of an array follow each other.
    if (i > 0 && mine.size() > names[i - 1].size() && mine.starts_with(names[i - 1]) &&
        mine[names[i - 1].size()] == '/') {
      return fail(ErrorCode::Unsupported, "{}: its chunks lie among those of {}", quote(mine),
                  quote(names[i - 1]));
    }
  }
  return {};
}

Result<void> ItemArrays::check_names() const {
  std::vector<std::string_view> names;
  const std::vector<orbax::Leaf> all = leaves();
  for (const orbax::Leaf& leaf : all) {
    if (const std::string_view why = refusal(leaf.name); !why.empty()) {
      return fail(ErrorCode::Unsupported, "{}: {}", quote(leaf.name), why);
    }
    names.push_back(leaf.name);
  }
  std::ranges::sort(names);
  if (const auto twice = std::ranges::adjacent_find(names); twice != names.end()) {
    return fail(ErrorCode::Unsupported, "{}: two leaves of this name", quote(*twice));
  }
  if (const auto nested = find_nested(names, '.')) {
    return fail(ErrorCode::Unsupported, "{}: below {}, which is a leaf", quote(nested->second),
                quote(nested->first));
  }
  return {};
}

/// Readers take no longer keys of a database, TensorStore's and ckfs's own.
Result<void> ItemArrays::check_keys() const {
  if (definition_->packaging.orbax.storage != ArrayStorage::Ocdbt) return {};
  for (std::size_t i = 0; i < size(); ++i) {
    if (name(i).size() < ocdbt::kMaxName / 2) continue;  // a chunk's indices are shorter
    const std::uint64_t count = chunks(i).count();
    // The last chunk has the greatest index in each dimension.
    const std::size_t longest = std::max(
        metadata_path(i).size(), count == 0 ? std::size_t{0} : chunk_path(i, count - 1).size());
    if (longest <= ocdbt::kMaxName) continue;
    return fail(ErrorCode::Unsupported, "{}: keys of {} bytes (limit {})", quote(name(i)), longest,
                ocdbt::kMaxName);
  }
  return {};
}

Result<void> ItemArrays::make_grids() {
  using Key = std::tuple<DType, std::vector<std::int64_t>, std::vector<std::int64_t>,
                         std::array<std::vector<std::int64_t>, 4>, std::int64_t>;
  std::map<Key, std::uint32_t> known;
  const ChunkOrders orders =
      version_ == zarr::Version::V3 ? ChunkOrders::Any : ChunkOrders::AsOrTurned;
  std::uint64_t steps = 0;
  for (Array& array : arrays_) {
    DType dtype = DType::I64;  // of `step`
    std::span<const std::int64_t> shape;
    std::span<const std::int64_t> split;
    ArraySource source;
    if (array.tensor != ModelTensor::kNone) {
      const ModelTensor& tensor = definition_->tensors[array.tensor];
      CKFS_TRY_VOID(check_array(tensor));
      if (tensor.split != ModelTensor::kNone) {
        split = definition_->splits[tensor.split];
        CKFS_TRY_VOID(check_split(tensor, split));
      }
      dtype = tensor.expr.dtype();
      shape = tensor.expr.shape();
      if (tensor.expr.numel() > 0) source = array_source(*definition_->catalog, tensor.expr);
    }
    Key key{dtype,
            {shape.begin(), shape.end()},
            {split.begin(), split.end()},
            {source.cell, source.order, source.cell_order, source.granule},
            source.bits};
    const auto [grid, is_new] =
        known.emplace(std::move(key), static_cast<std::uint32_t>(grids_.size()));
    const std::uint64_t most = definition_->packaging.orbax.max_chunk;
    if (is_new) {
      grids_.emplace_back(dtype, shape, split, source, orders, most == 0 ? kMostChunkBytes : most);
      steps += grids_.back().steps();
    }
    const auto number = static_cast<std::size_t>(&array - arrays_.data());
    if (steps > kMostSteps) {
      return fail(ErrorCode::Unsupported,
                  "{}: too many kinds of arrays up to it to choose chunks for ({} steps)",
                  quote(name(number)), kMostSteps);
    }
    array.grid = grid->second;
    array.first_chunk = chunk_count_;
    const auto chunks = checked_add(chunk_count_, grids_[array.grid].count());
    if (!chunks || *chunks > kMostChunks) {
      return fail(ErrorCode::Unsupported, "{}: the item has {} chunks (limit {}; see max_chunk)",
                  quote(name(number)), chunks ? std::to_string(*chunks) : "2^64", kMostChunks);
    }
    chunk_count_ = *chunks;
  }
  return {};
}

std::string_view ItemArrays::name(std::size_t array) const {
  return tensor(array) == ModelTensor::kNone ? kStep : definition_->tensors[tensor(array)].name;
}

std::size_t ItemArrays::array_of(std::uint64_t chunk) const {
  const auto after = std::ranges::upper_bound(arrays_, chunk, {}, &Array::first_chunk);
  return static_cast<std::size_t>(after - arrays_.begin()) - 1;
}

std::string ItemArrays::metadata(std::size_t array) const {
  const ArrayChunks& grid = chunks(array);
  return zarr::render_metadata(
      version_, {grid.dtype(), grid.shape(), grid.chunk(), grid.order(), element(array)});
}

std::string ItemArrays::chunk_path(std::size_t array, std::uint64_t number) const {
  return fmt::format("{}/{}", name(array), zarr::chunk_name(version_, chunks(array).index(number)));
}

std::string ItemArrays::metadata_path(std::size_t array) const {
  return fmt::format("{}/{}", name(array), zarr::metadata_name(version_));
}

void ItemArrays::add_to(FileLayout& layout, std::size_t array, std::uint64_t first,
                        std::uint64_t end, std::uint64_t begin) const {
  if (tensor(array) == ModelTensor::kNone) {
    layout.segments.push_back({begin, 0, 0, Segment::Kind::Zero});
    return;
  }
  const ArrayChunks& grid = chunks(array);
  const TensorExpr& expr = definition_->tensors[tensor(array)].expr;
  for (std::uint64_t count = 0; first < end; first += count) {
    const bool whole = first % grid.together() == 0 && end - first >= grid.together();
    count = whole ? grid.together() : 1;
    const auto id = static_cast<std::uint32_t>(layout.chunks.size());
    layout.segments.push_back({begin, 0, id, Segment::Kind::Tensor});
    auto shown = grid.expr(expr, first, count);
    if (!shown && count > 1) {
      count = 1;
      shown = grid.expr(expr, first, count);
    }
    CKFS_CHECK(shown);
    layout.chunks.push_back({*std::move(shown), tensor(array)});
    begin += count * grid.bytes();
  }
}

std::string_view ItemArrays::element(std::size_t array) const {
  if (!definition_->packaging.orbax.whole_tree) return {};
  return tree_leaf(tensor(array)).element;
}

const TreeLeaf& ItemArrays::tree_leaf(std::uint32_t tensor) const {
  return definition_->catalog->tree()->leaves[tree_leaves_[tensor]];
}

std::vector<orbax::Leaf> ItemArrays::leaves() const {
  std::vector<orbax::Leaf> leaves;
  if (definition_->packaging.orbax.whole_tree) {
    std::uint32_t tensor = 0;
    for (const TreeLeaf& leaf : definition_->catalog->tree()->leaves) {
      using Kind = orbax::Leaf::Kind;
      if (leaf.tensor == TreeLeaf::kNone) {
        leaves.push_back({{}, Kind::Other, leaf.path, leaf.type});
        continue;
      }
      leaves.push_back({definition_->tensors[tensor++].name,
                        leaf.type == "scalar" ? Kind::Scalar : Kind::Array, leaf.path});
    }
    return leaves;
  }
  leaves.reserve(size() + definition_->packaging.orbax.empty_dicts.size());
  for (std::size_t i = 0; i < size(); ++i) {
    const bool scalar = tensor(i) == ModelTensor::kNone;
    leaves.push_back({name(i), scalar ? orbax::Leaf::Kind::Scalar : orbax::Leaf::Kind::Array});
  }
  for (const std::string& dict : definition_->packaging.orbax.empty_dicts) {
    leaves.push_back({dict, orbax::Leaf::Kind::EmptyDict});
  }
  return leaves;
}

}  // namespace ckfs
