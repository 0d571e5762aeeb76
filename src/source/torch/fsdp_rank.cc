// Of a DTensor the file has the local part, the mesh's shape, this rank's place in it and how each
// axis of the mesh shares the tensor; where the part lies follows from these (device_mesh.h). Of a
// ShardedTensor each part says so itself. Both wrap a plain tensor whose storage may be larger:
// FSDP pads it.
#include "source/torch/fsdp_rank.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/text.h"
#include "format/torch_names.h"
#include "source/torch/device_mesh.h"
#include "source/torch/pickle_fields.h"
#include "source/torch/torch_state_dict.h"
#include "source/torch/torch_tensors.h"

namespace ckfs {
namespace {

constexpr std::size_t kRankTensorBytes = 640;  // kept for a tensor in all, about
constexpr std::size_t kMaxAxes = 16;           // of a mesh
constexpr int kMaxNesting = 4;                 // of an axis that was flattened

constexpr std::array<std::string_view, 3> kWrapperNames{"_fsdp_wrapped_module",
                                                        "_checkpoint_wrapped_module", "_orig_mod"};

using Shape = std::vector<std::int64_t>;

/// What FSDP calls the parameters of a module that it joined (LOCAL_STATE_DICT).
bool is_flattened(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return last == "flat_param" || last == "_flat_param";
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

class RankReader {
 public:
  RankReader(ByteSource& source, const TorchFile& torch, FileId file, std::uint32_t rank,
             std::uint32_t world)
      : source_(source),
        torch_(torch),
        pickle_(torch.pickle()),
        file_(file),
        file_name_(source.name(file)),
        rank_(rank),
        world_(world) {}

  Result<RankState> read(std::string_view key) {
    CKFS_TRY(TorchStateDict dict, find_state_dict(torch_, key, file_name_));
    RankState state{{}, std::move(dict.notes), torch_.header_bytes()};
    std::set<std::string> names;
    for (const NamedNode& named : dict.tensors) {
      if (!pickle_.budget()->hold(kRankTensorBytes + 2 * named.name.size())) break;
      RankTensor tensor{.name = without_wrappers(named.name), .shape = {}};
      if (!names.insert(tensor.name).second) {
        return fail(ErrorCode::Unsupported, "{}: tensor {}: two keys make this name", file_name_,
                    quote(tensor.name));
      }
      if (is_flattened(tensor.name)) {
        return fail(
            ErrorCode::Unsupported,
            "{}: tensor {}: parameters that FSDP flattened into one, whose names and shapes "
            "are not saved (save a sharded or a full state dict, not a local one)",
            file_name_, quote(tensor.name));
      }
      const Result<void> done = read_tensor(named.node, tensor);
      CKFS_TRY_VOID(pickle_.budget()->check(file_name_));
      if (!done) return Failure(tensor_error(done.error(), file_name_, tensor.name));
      state.tensors.push_back(std::move(tensor));
    }
    CKFS_TRY_VOID(pickle_.budget()->check(file_name_));
    CKFS_TRY_VOID(find_bytes(state.tensors));
    return state;
  }

 private:
  // Messages of what follows are without file and tensor.

  Result<void> read_tensor(NodeId node, RankTensor& tensor) {
    const auto wrapper = torch_.wrapper(node);
    if (!wrapper) return read_plain(node, tensor);
    const std::string_view module = wrapper->type.module;
    const std::string_view type = wrapper->type.name;
    if (module.starts_with("torch.distributed") && type == "DTensor") {
      tensor.kind = RankTensor::Kind::DTensor;
      return read_dtensor(*wrapper, tensor);
    }
    if (module.starts_with("torch.distributed") && type == "ShardedTensor") {
      tensor.kind = RankTensor::Kind::Sharded;
      return read_sharded(*wrapper, tensor);
    }
    return fail(ErrorCode::Unsupported,
                "an object of {}, which ckfs cannot join over ranks (DTensor and ShardedTensor it "
                "can)",
                quote(fmt::format("{}.{}", module, type)));
  }

  /// A plain tensor; nullopt where it cannot be shown, which the tensor then says.
  Result<std::optional<TorchTensor>> plain(NodeId node, RankTensor& tensor) const {
    auto found = torch_.tensor(node);
    if (found) return std::optional(*std::move(found));
    if (found.error().code() != ErrorCode::Unsupported) return Failure(found.error());
    tensor.left_out = found.error().message();
    return std::optional<TorchTensor>();
  }

  Result<void> read_plain(NodeId node, RankTensor& tensor) const {
    CKFS_TRY(auto local, plain(node, tensor));
    if (!local) return {};
    tensor.dtype = local->dtype;
    tensor.shape = local->shape;
    if (rank_ == 0) add_piece(Shape(tensor.shape.size()), *std::move(local), tensor);
    return {};
  }

  /// Shape and dtype of the whole tensor.
  Result<void> read_whole(const TorchWrapper& wrapper, RankTensor& tensor) const {
    if (wrapper.args.size() < 3) return corrupt("a wrapped tensor without a shape");
    CKFS_TRY(tensor.shape, shape_at(wrapper.args[2], "its shape"));
    const Pickle::GlobalName dtype = pickle_.global(wrapper.args[1]);
    const auto known = dtype.module == "torch" ? torch_dtype(dtype.name) : std::nullopt;
    if (known) {
      tensor.dtype = *known;
    } else {
      tensor.left_out = fmt::format("dtype {}, which ckfs does not have",
                                    quote(fmt::format("{}.{}", dtype.module, dtype.name)));
    }
    return {};
  }

  Result<void> read_dtensor(const TorchWrapper& wrapper, RankTensor& tensor) {
    CKFS_TRY_VOID(read_whole(wrapper, tensor));
    const auto local_node = kept(wrapper.state, "_local_tensor");
    const auto spec = kept(wrapper.state, "_spec");
    const auto mesh_node = spec ? field(pickle_, *spec, "mesh") : std::nullopt;
    const auto placements_node = spec ? field(pickle_, *spec, "placements") : std::nullopt;
    if (!local_node || !mesh_node || !placements_node) {
      return corrupt("a DTensor without _local_tensor, mesh and placements");
    }
    CKFS_TRY_VOID(check_meta(*spec, tensor));
    CKFS_TRY(const DeviceMesh* mesh, mesh_at(*mesh_node));
    CKFS_TRY(const std::vector<AxisPlacement> placements, placements_at(*placements_node, tensor));
    if (placements.size() != mesh->shape.size()) {
      return corrupt("{} placements on a mesh {}", placements.size(), shape_text(mesh->shape));
    }
    CKFS_TRY(const std::vector<DivisionOrder> order, order_at(*spec, tensor, placements.size()));
    CKFS_TRY(DeviceBox box, box_of(tensor.shape, placements, *mesh, order));
    if (!tensor.left_out.empty()) return {};
    CKFS_TRY(auto local, plain(*local_node, tensor));
    if (!local) return {};
    CKFS_TRY_VOID(check_local(*local, tensor.dtype, box.count,
                              fmt::format("its placements give rank {}", rank_)));
    if (!is_replica(placements, *mesh)) {
      add_piece(std::move(box.begin), *std::move(local), tensor);
    }
    return {};
  }

  Result<void> read_sharded(const TorchWrapper& wrapper, RankTensor& tensor) const {
    CKFS_TRY_VOID(read_whole(wrapper, tensor));
    const auto state = pickle_.sequence(wrapper.state);
    const auto size = state.size() < 2 ? std::nullopt : field(pickle_, state[1], "size");
    const auto shards =
        state.size() < 2 ? std::nullopt : field(pickle_, state[1], "shards_metadata");
    if (!size || !shards) return corrupt("a ShardedTensor without its metadata");
    CKFS_TRY(const Shape whole, shape_at(*size, "the size in its metadata"));
    if (whole != tensor.shape) {
      return corrupt("shape {}, but its metadata say {}", shape_text(tensor.shape),
                     shape_text(whole));
    }
    for (const NodeId shard : pickle_.sequence(*shards)) {
      CKFS_TRY(const DeviceBox box, shard_box(shard, tensor));
      if (!pickle_.budget()->hold(2 * sizeof(std::int64_t) * box.begin.size())) break;
      tensor.all_shards.insert(tensor.all_shards.end(), box.begin.begin(), box.begin.end());
      tensor.all_shards.insert(tensor.all_shards.end(), box.count.begin(), box.count.end());
    }
    for (const NodeId shard : pickle_.sequence(state[0])) {
      if (!tensor.left_out.empty()) return {};
      const auto node = field(pickle_, shard, "tensor");
      const auto metadata = field(pickle_, shard, "metadata");
      if (!node || !metadata) return corrupt("a local shard without tensor and metadata");
      CKFS_TRY(DeviceBox box, shard_box(*metadata, tensor));
      CKFS_TRY(auto local, plain(*node, tensor));
      if (!local) return {};
      CKFS_TRY_VOID(check_local(*local, tensor.dtype, box.count, "its metadata say"));
      // Its place, and the shape and strides of the part.
      const std::size_t numbers = 5 * box.begin.size();
      if (!pickle_.budget()->hold(kRankTensorBytes + numbers * sizeof(std::int64_t))) return {};
      add_piece(std::move(box.begin), *std::move(local), tensor);
    }
    return {};
  }

  // ---- parts of these

  /// What a wrapper's class keeps: its state is a dictionary, a pair (dictionary or None, slots).
  std::optional<NodeId> kept(NodeId state, std::string_view name) const {
    if (const auto value = pickle_.find(state, name)) return value;
    for (const NodeId part : pickle_.sequence(state)) {
      if (const auto value = pickle_.find(part, name)) return value;
    }
    return std::nullopt;
  }

  static void add_piece(Shape begin, TorchTensor local, RankTensor& tensor) {
    if (run_of(local).empty()) return;
    tensor.pieces.push_back({std::move(begin), std::move(local), {}});
  }

  /// `says`: where the count is from.
  static Result<void> check_local(const TorchTensor& local, DType dtype,
                                  std::span<const std::int64_t> count, std::string_view says) {
    if (local.dtype != dtype) {
      return corrupt("{}, but its part here is {}", name(dtype), name(local.dtype));
    }
    if (!std::ranges::equal(local.shape, count)) {
      return corrupt("a part of {} here, but {} {}", shape_text(local.shape), says,
                     shape_text(count));
    }
    return {};
  }

  /// A shape with a possible number of elements.
  Result<Shape> shape_at(NodeId node, std::string_view what) const {
    const std::size_t rank = pickle_.sequence(node).size();
    if (rank > kMaxTorchRank) {
      return fail(ErrorCode::Unsupported, "{} dimensions (limit {})", rank, kMaxTorchRank);
    }
    auto shape = pickle_.integers(node);
    const auto numel = shape ? checked_numel(*shape) : std::nullopt;
    if (!numel || !nbytes(DType::C128, *numel)) return corrupt("{} is not a possible shape", what);
    return *std::move(shape);
  }

  /// A shard's offsets and sizes: inside of the tensor.
  Result<DeviceBox> shard_box(NodeId metadata, const RankTensor& tensor) const {
    const auto offsets = field(pickle_, metadata, "shard_offsets");
    const auto sizes = field(pickle_, metadata, "shard_sizes");
    if (!offsets || !sizes) return corrupt("a shard without offsets and sizes");
    CKFS_TRY(Shape begin, shape_at(*offsets, "the offsets of a shard"));
    CKFS_TRY(Shape count, shape_at(*sizes, "the sizes of a shard"));
    bool inside = begin.size() == tensor.shape.size() && count.size() == tensor.shape.size();
    for (std::size_t d = 0; inside && d < begin.size(); ++d) {
      inside = begin[d] <= tensor.shape[d] && count[d] <= tensor.shape[d] - begin[d];
    }
    if (!inside) {
      return corrupt("a shard at {} of {} in shape {}", shape_text(begin), shape_text(count),
                     shape_text(tensor.shape));
    }
    return DeviceBox{std::move(begin), std::move(count)};
  }

  /// The shape is stated twice.
  Result<void> check_meta(NodeId spec, const RankTensor& tensor) const {
    const auto meta = field(pickle_, spec, "tensor_meta");
    if (!meta || pickle_.kind(*meta) != NodeKind::Call) return {};
    const auto args = pickle_.items(pickle_.args(*meta));
    const auto stated = args.empty() ? field(pickle_, *meta, "shape") : std::optional(args[0]);
    if (!stated) return {};
    CKFS_TRY(const Shape shape, shape_at(*stated, "the shape in its tensor_meta"));
    if (shape == tensor.shape) return {};
    return corrupt("shape {}, but its tensor_meta says {}", shape_text(tensor.shape),
                   shape_text(shape));
  }

  Result<std::vector<AxisPlacement>> placements_at(NodeId node, const RankTensor& tensor) const {
    const auto nodes = pickle_.sequence(node);
    if (nodes.size() > kMaxAxes) {
      return fail(ErrorCode::Unsupported, "{} placements (limit {})", nodes.size(), kMaxAxes);
    }
    std::vector<AxisPlacement> placements;
    for (const NodeId each : nodes) {
      const Pickle::GlobalName type = pickle_.global(pickle_.callable(each));
      AxisPlacement placement;
      if (type.name == "Replicate") {
        placements.push_back(placement);
        continue;
      }
      if (type.name.ends_with("Partial")) {
        return fail(ErrorCode::Unsupported,
                    "placement {}: its value is a sum over ranks that was never done (save it with "
                    "the gradients' reduction finished, or redistribute it first)",
                    type.name);
      }
      if (type.name != "Shard" && type.name != "_StridedShard") {
        return fail(ErrorCode::Unsupported, "placement {}, which ckfs does not know",
                    quote(fmt::format("{}.{}", type.module, type.name)));
      }
      const bool strided = type.name == "_StridedShard";
      placement.kind = strided ? AxisPlacement::Kind::StridedShard : AxisPlacement::Kind::Shard;
      const auto args = pickle_.items(pickle_.args(each));
      const auto number = [&](std::string_view field_name, std::size_t at) {
        const auto value = field(pickle_, each, field_name);
        if (value) return pickle_.integer(*value);
        return at < args.size() ? pickle_.integer(args[at]) : std::nullopt;
      };
      const auto rank = static_cast<std::int64_t>(tensor.shape.size());
      const auto dim = number("dim", 0);
      const auto factor = strided ? number("split_factor", 1) : 1;
      if (!dim || *dim < -rank || *dim >= rank || !factor || *factor < 1) {
        return corrupt("placement {} of no dimension of {}", type.name, shape_text(tensor.shape));
      }
      placement.dim = static_cast<std::size_t>(*dim < 0 ? *dim + rank : *dim);
      placement.split_factor = *factor;
      placements.push_back(placement);
    }
    return placements;
  }

  /// shard_order: ((dim, (axis, ...)), ...), or None.
  Result<std::vector<DivisionOrder>> order_at(NodeId spec, const RankTensor& tensor,
                                              std::size_t axes) const {
    std::vector<DivisionOrder> orders;
    const auto node = field(pickle_, spec, "shard_order");
    if (!node || pickle_.is_none(*node)) return orders;
    const auto entries = pickle_.sequence(*node);
    if (entries.size() > kMaxAxes) return corrupt("a shard_order of {} entries", entries.size());
    for (const NodeId entry : entries) {
      // A named tuple is a call with its elements, or a class of two fields.
      auto parts = pickle_.sequence(entry);
      if (pickle_.kind(entry) == NodeKind::Call) parts = pickle_.items(pickle_.args(entry));
      const auto dim = parts.size() == 2 ? pickle_.integer(parts[0]) : std::nullopt;
      const bool short_enough = dim && pickle_.sequence(parts[1]).size() <= kMaxAxes;
      const auto listed = short_enough ? pickle_.integers(parts[1]) : std::nullopt;
      if (!listed || *dim < 0 || std::cmp_greater_equal(*dim, tensor.shape.size())) {
        return corrupt("a shard_order that names no dimension and axes");
      }
      DivisionOrder order{static_cast<std::size_t>(*dim), {}};
      for (const std::int64_t axis : *listed) {
        if (axis < 0 || std::cmp_greater_equal(axis, axes)) {
          return corrupt("a shard_order with axis {} of a mesh of {} axes", axis, axes);
        }
        order.axes.push_back(static_cast<std::size_t>(axis));
      }
      orders.push_back(std::move(order));
    }
    return orders;
  }

  // ---- the mesh

  /// Most tensors have one and the same. Valid as long as this object.
  Result<const DeviceMesh*> mesh_at(NodeId node) {
    const auto known = meshes_.find(node);
    if (known != meshes_.end()) return &known->second;
    DeviceMesh mesh;
    CKFS_TRY(mesh.shape, mesh_shape(node));
    std::optional<std::int64_t> devices = 1;
    for (const std::int64_t axis : mesh.shape) {
      devices = axis > 0 && devices ? checked_mul(*devices, axis) : std::nullopt;
    }
    if (!devices || *devices > world_) {
      return corrupt("a mesh {} of more devices than the {} ranks, or none", shape_text(mesh.shape),
                     world_);
    }
    CKFS_TRY(mesh.place, mesh_place(node, mesh.shape, *devices));
    if (!pickle_.budget()->hold(kRankTensorBytes)) return corrupt("too many meshes");
    return &meshes_.emplace(node, std::move(mesh)).first->second;
  }

  Result<Shape> mesh_shape(NodeId mesh) const {
    if (const auto layout = field(pickle_, mesh, "_layout")) {
      const auto axes = field(pickle_, *layout, "axes");    // torch 2.13
      const auto sizes = field(pickle_, *layout, "shape");  // before
      if (!axes && sizes && pickle_.integer(*sizes)) return Shape{*pickle_.integer(*sizes)};
      const auto nodes =
          axes || sizes ? pickle_.sequence(axes ? *axes : *sizes) : std::span<const NodeId>();
      if ((!axes && !sizes) || nodes.size() > kMaxAxes) {
        return corrupt("a mesh whose layout has no axes, or more than {}", kMaxAxes);
      }
      Shape shape;
      for (const NodeId axis : nodes) {
        const auto size = axes ? field(pickle_, axis, "shape") : std::optional(axis);
        const auto product = size ? product_of(*size, kMaxNesting) : std::nullopt;
        if (!product) return corrupt("a mesh with an axis of no size");
        shape.push_back(*product);
      }
      return shape;
    }
    const auto ranks = field(pickle_, mesh, "mesh");
    if (!ranks) return corrupt("a mesh without a shape");
    auto tensor = torch_.tensor(*ranks);
    if (!tensor) return corrupt("a mesh of ranks: {}", tensor.error().message());
    if (tensor->shape.size() > kMaxAxes) return corrupt("a mesh of more than {} axes", kMaxAxes);
    return std::move(tensor->shape);
  }

  /// Of an integer, or of all integers of nested tuples.
  std::optional<std::int64_t> product_of(NodeId node, int depth) const {
    if (const auto value = pickle_.integer(node)) return value;
    const NodeKind kind = pickle_.kind(node);
    if (depth == 0 || (kind != NodeKind::Tuple && kind != NodeKind::List)) return std::nullopt;
    std::optional<std::int64_t> product = 1;
    for (const NodeId item : pickle_.sequence(node)) {
      const auto size = product_of(item, depth - 1);
      product = size && product ? checked_mul(*size, *product) : std::nullopt;
      if (!product) break;
    }
    return product;
  }

  /// This rank's, as the mesh says, or as the list of its ranks does.
  Result<Shape> mesh_place(NodeId mesh, const Shape& shape, std::int64_t devices) const {
    const auto node = field(pickle_, mesh, "_coordinate_on_dim");
    Shape place;
    if (node && !pickle_.is_none(*node)) {
      const bool fits = pickle_.sequence(*node).size() == shape.size();
      auto said = fits ? pickle_.integers(*node) : std::nullopt;
      if (!said) return corrupt("a mesh {} without this rank's place", shape_text(shape));
      place = *std::move(said);
    } else {
      CKFS_TRY(place, place_in_ranks(mesh, shape, devices));
    }
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (place[axis] >= 0 && place[axis] < shape[axis]) continue;
      return corrupt("place {} in a mesh {}", shape_text(place), shape_text(shape));
    }
    return place;
  }

  /// How far apart in the list of ranks neighbours along each axis are.
  Result<Shape> mesh_strides(NodeId mesh, const Shape& shape) const {
    Shape strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      strides[axis] = stride;
      stride *= shape[axis];
    }
    const auto layout = field(pickle_, mesh, "_layout");
    if (!layout) return strides;  // the list is the mesh itself, in row-major order
    const auto axes = field(pickle_, *layout, "axes");
    const auto listed = field(pickle_, *layout, "stride");
    const auto nodes =
        axes || listed ? pickle_.sequence(axes ? *axes : *listed) : std::span<const NodeId>();
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == 1) continue;
      auto said = axis < nodes.size() ? std::optional(nodes[axis]) : std::nullopt;
      if (axes && said) said = field(pickle_, *said, "stride");
      if (said && pickle_.sequence(*said).size() == 1) said = pickle_.sequence(*said).front();
      const auto value = said ? pickle_.integer(*said) : std::nullopt;
      if (!value || *value < 1) {
        return fail(ErrorCode::Unsupported,
                    "a mesh {} that says neither this rank's place nor simple strides",
                    shape_text(shape));
      }
      strides[axis] = *value;
    }
    return strides;
  }

  Result<Shape> place_in_ranks(NodeId mesh, const Shape& shape, std::int64_t devices) const {
    const auto map = field(pickle_, mesh, "_rank_map");
    const auto node = map ? map : field(pickle_, mesh, "mesh");
    if (!node) return corrupt("a mesh without this rank's place and a list of ranks");
    auto ranks = torch_.tensor(*node);
    if (!ranks) return corrupt("the ranks of a mesh: {}", ranks.error().message());
    const std::uint64_t width = bits(ranks->dtype) / 8;
    const bool is_integer = ranks->dtype == DType::I32 || ranks->dtype == DType::I64;
    if (!is_integer || !is_contiguous(*ranks) || checked_numel(ranks->shape) != devices) {
      return corrupt("a list of ranks that is not of the {} devices of its mesh", devices);
    }
    CKFS_TRY(const ByteRange storage, torch_.storage_bytes(ranks->storage));
    const ByteRange run = run_of(*ranks);
    std::vector<std::byte> bytes(run.size());
    CKFS_TRY_VOID(source_.read_at(file_, storage.begin + run.begin, bytes));
    CKFS_TRY(const Shape strides, mesh_strides(mesh, shape));
    for (std::int64_t i = 0; i < devices; ++i) {
      const auto at = std::span(bytes).subspan(static_cast<std::size_t>(i) * width, width);
      const std::int64_t value = ranks->dtype == DType::I32
                                     ? std::int64_t{load_le<std::int32_t>(at)}
                                     : load_le<std::int64_t>(at);
      if (value != rank_) continue;
      Shape place(shape.size());
      for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        place[axis] = i / strides[axis] % shape[axis];
      }
      return place;
    }
    return corrupt("a mesh that rank {} is not in", rank_);
  }

  // ---- places in the file

  Result<void> find_bytes(std::vector<RankTensor>& tensors) const {
    std::vector<std::uint32_t> storages;
    for (const RankTensor& tensor : tensors) {
      for (const RankTensor::Piece& piece : tensor.pieces) storages.push_back(piece.local.storage);
    }
    CKFS_TRY(const std::vector<ByteRange> bytes, torch_.storage_bytes(storages));
    auto next = bytes.begin();
    for (RankTensor& tensor : tensors) {
      for (RankTensor::Piece& piece : tensor.pieces) piece.bytes = *next++;
    }
    return {};
  }

  template <typename... Args>
  static Failure corrupt(fmt::format_string<Args...> text, Args&&... args) {
    return fail(ErrorCode::Corrupt, text, std::forward<Args>(args)...);
  }

  ByteSource& source_;
  const TorchFile& torch_;
  const Pickle& pickle_;
  FileId file_;
  const std::string& file_name_;
  std::uint32_t rank_, world_;
  std::map<NodeId, DeviceMesh> meshes_;
};

}  // namespace

std::string without_wrappers(std::string_view name) {
  std::string kept;
  kept.reserve(name.size());
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    const bool is_last = dot == std::string_view::npos;
    if (is_last || std::ranges::find(kWrapperNames, part) == kWrapperNames.end()) {
      kept += part;
      if (!is_last) kept += '.';
    }
    if (is_last) return kept;
    name.remove_prefix(dot + 1);
  }
}

Result<RankState> read_fsdp_rank(ByteSource& source, FileId file, std::uint32_t rank,
                                 std::uint32_t world, std::string_view key) {
  CKFS_TRY(const TorchFile torch, TorchFile::open(source, file, {0, source.size(file)}));
  return RankReader(source, torch, file, rank, world).read(key);
}

}  // namespace ckfs
