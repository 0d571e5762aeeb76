// Of a DTensor the file has the local part, the mesh's shape, this rank's place in it and how each
// axis of the mesh shares the tensor; where the part lies follows from these (device_mesh.h). Of a
// ShardedTensor each part says so itself. Both wrap a plain tensor whose storage may be larger:
// FSDP pads it.
//
// A tensor is read in two steps: what its pickle says (ReadTensor), and where the parts lie, which
// follows from that and from the rank's place in the mesh. Of a model the first is kept, with the
// integers and texts that it was found by. Where a rank's pickle is alike and has the same ones, it
// would say the same, so only the second is done.
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
// Models that are kept. Ranks of one column of a mesh may be alike, and those of two columns not.
constexpr std::size_t kMostModels = 16;
constexpr std::size_t kLeastModels = 2;  // however large
/// Of their pickles in the files. A model takes several times as much memory.
constexpr std::uint64_t kMostModelBytes = std::uint64_t{64} << 20;

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

/// Notes in a trace what a pickle is asked while this is there.
class Tracing {
 public:
  /// nullptr: nothing is noted.
  Tracing(const Pickle& pickle, PickleTrace* to)
      : pickle_(pickle), to_(to), before_(pickle.trace(to)) {}
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;
  ~Tracing() {
    pickle_.trace(before_);
    if (to_ == nullptr) return;
    to_->read.shrink_to_fit();
    pickle_.budget()->hold(to_->read.size() * sizeof(NodeId) +
                           to_->compared.size() * sizeof(to_->compared.front()));
  }

 private:
  const Pickle& pickle_;
  PickleTrace* to_;
  PickleTrace* before_;
};

/// What a pickle says of a tensor.
struct ReadTensor {
  std::shared_ptr<const RankFacts> facts;
  // Of a DTensor: how the mesh of this node shares it.
  NodeId mesh = 0;
  std::vector<AxisPlacement> placements;
  std::vector<DivisionOrder> order;
  /// The rank's parts. `begin` of shards alone.
  struct Local {
    Shape begin;
    TorchTensor tensor;
  };
  std::vector<Local> locals;
  std::optional<NodeId> shards;  // of a ShardedTensor: the list of all
  PickleTrace trace;             // without those of the mesh and of all shards
};

struct ReadMesh {
  DeviceMesh mesh;
  bool from_ranks = false;  // its place follows from a tensor's elements, which no trace has
  PickleTrace trace;
};

struct ReadShards {
  Shape of;  // the whole tensor's shape, in which they lie
  std::shared_ptr<const Shape> boxes;
  PickleTrace trace;
};

}  // namespace

struct RankModel {
  explicit RankModel(TorchFile file) : torch(std::move(file)) {}

  TorchFile torch;
  TorchStateDict dict;
  PickleTrace dict_trace;
  std::vector<ReadTensor> tensors;  // as dict.tensors
  std::map<NodeId, ReadMesh> meshes;
  std::map<NodeId, ReadShards> shards;  // by the node of their list
};

namespace {

class RankReader {
 public:
  /// `model`: that of an alike file; `made`: becomes the model of this one. Each may be nullptr.
  RankReader(ByteSource& source, const TorchFile& torch, FileId file, std::uint32_t rank,
             std::uint32_t world, const RankModel* model, RankModel* made)
      : source_(source),
        torch_(torch),
        pickle_(torch.pickle()),
        file_(file),
        file_name_(source.name(file)),
        rank_(rank),
        world_(world),
        model_(model),
        made_(made) {}

  Result<RankState> read(std::string_view key) {
    RankState state{{}, {}, torch_.header_bytes()};
    if (model_ != nullptr && pickle_.answers_as_model(model_->dict_trace)) {
      CKFS_TRY_VOID(read_by_model(state));
    } else {
      CKFS_TRY_VOID(read_all(key, state));
    }
    CKFS_TRY_VOID(pickle_.budget()->check(file_name_));
    CKFS_TRY_VOID(find_bytes(state.tensors));
    return state;
  }

 private:
  Result<void> read_all(std::string_view key, RankState& state) {
    TorchStateDict dict;
    {
      const Tracing tracing(pickle_, made_ == nullptr ? nullptr : &made_->dict_trace);
      CKFS_TRY(dict, find_state_dict(torch_, key, file_name_));
    }
    std::set<std::string> names;
    for (const NamedNode& named : dict.tensors) {
      if (!pickle_.budget()->hold(kRankTensorBytes + 2 * named.name.size())) break;
      std::string name = without_wrappers(named.name);
      if (!names.insert(name).second) {
        return fail(ErrorCode::Unsupported, "{}: tensor {}: two keys make this name", file_name_,
                    quote(name));
      }
      if (is_flattened(name)) {
        return fail(
            ErrorCode::Unsupported,
            "{}: tensor {}: parameters that FSDP flattened into one, whose names and shapes "
            "are not saved (save a sharded or a full state dict, not a local one)",
            file_name_, quote(name));
      }
      CKFS_TRY_VOID(add(named.node, std::move(name), state));
    }
    state.notes = dict.notes;
    if (made_ == nullptr) return {};
    made_->dict = std::move(dict);
    made_->meshes = std::move(meshes_);
    return {};
  }

  Result<void> read_by_model(RankState& state) {
    state.tensors.reserve(model_->tensors.size());
    for (std::size_t i = 0; i < model_->tensors.size(); ++i) {
      const ReadTensor& known = model_->tensors[i];
      const std::string& name = known.facts->name;
      if (!pickle_.budget()->hold(kRankTensorBytes + 2 * name.size())) break;
      if (!pickle_.answers_as_model(known.trace) || !has_shards_of_model(known)) {
        CKFS_TRY_VOID(add(model_->dict.tensors[i].node, name, state));
        continue;
      }
      // As if they were read here.
      const std::uint64_t local =
          kRankTensorBytes + 5 * known.facts->shape.size() * sizeof(std::int64_t);
      if (known.facts->kind != RankFacts::Kind::DTensor &&
          !pickle_.budget()->hold(known.locals.size() * local)) {
        break;
      }
      if (!pickle_.budget()->spend(known.trace.read.size() + known.trace.compared.size())) break;
      RankTensor& tensor = state.tensors.emplace_back(known.facts);
      CKFS_TRY_VOID(in_tensor(name, place(known, tensor)));
    }
    return {};
  }

  bool has_shards_of_model(const ReadTensor& known) const {
    if (!known.shards) return true;
    const PickleTrace& trace = model_->shards.at(*known.shards).trace;
    return pickle_.budget()->spend(trace.read.size() + trace.compared.size()) &&
           pickle_.answers_as_model(trace);
  }

  Result<void> add(NodeId node, std::string name, RankState& state) {
    ReadTensor found;
    RankFacts facts{.name = std::move(name)};
    Result<void> done;
    {
      const Tracing tracing(pickle_, made_ == nullptr ? nullptr : &found.trace);
      done = read_tensor(node, facts, found);
    }
    CKFS_TRY_VOID(in_tensor(facts.name, std::move(done)));
    found.facts = std::make_shared<const RankFacts>(std::move(facts));
    RankTensor& tensor = state.tensors.emplace_back(found.facts);
    CKFS_TRY_VOID(in_tensor(found.facts->name, place(found, tensor)));
    if (made_ != nullptr) made_->tensors.push_back(std::move(found));
    return {};
  }

  Result<void> in_tensor(std::string_view name, Result<void> done) const {
    CKFS_TRY_VOID(pickle_.budget()->check(file_name_));
    if (!done) return Failure(tensor_error(done.error(), file_name_, name));
    return {};
  }

  // Messages of what follows are without file and tensor.

  Result<void> read_tensor(NodeId node, RankFacts& facts, ReadTensor& found) {
    const auto wrapper = torch_.wrapper(node);
    if (!wrapper) return read_plain(node, facts, found);
    const std::string_view module = wrapper->type.module;
    const std::string_view type = wrapper->type.name;
    if (module.starts_with("torch.distributed") && type == "DTensor") {
      facts.kind = RankFacts::Kind::DTensor;
      return read_dtensor(*wrapper, facts, found);
    }
    if (module.starts_with("torch.distributed") && type == "ShardedTensor") {
      facts.kind = RankFacts::Kind::Sharded;
      return read_sharded(*wrapper, facts, found);
    }
    return fail(ErrorCode::Unsupported,
                "an object of {}, which ckfs cannot join over ranks (DTensor and ShardedTensor it "
                "can)",
                quote(fmt::format("{}.{}", module, type)));
  }

  /// A plain tensor; nullopt where it cannot be shown, which the facts then say.
  Result<std::optional<TorchTensor>> plain(NodeId node, RankFacts& facts) const {
    auto found = torch_.tensor(node);
    if (found) return std::optional(*std::move(found));
    if (found.error().code() != ErrorCode::Unsupported) return Failure(found.error());
    facts.left_out = found.error().message();
    return std::optional<TorchTensor>();
  }

  Result<void> read_plain(NodeId node, RankFacts& facts, ReadTensor& found) const {
    CKFS_TRY(auto local, plain(node, facts));
    if (!local) return {};
    facts.dtype = local->dtype;
    facts.shape = local->shape;
    found.locals.push_back({{}, *std::move(local)});
    return {};
  }

  /// Shape and dtype of the whole tensor.
  Result<void> read_whole(const TorchWrapper& wrapper, RankFacts& facts) const {
    if (wrapper.args.size() < 3) return corrupt("a wrapped tensor without a shape");
    CKFS_TRY(facts.shape, shape_at(wrapper.args[2], "its shape"));
    const Pickle::GlobalName dtype = pickle_.global(wrapper.args[1]);
    const auto known = dtype.module == "torch" ? torch_dtype(dtype.name) : std::nullopt;
    if (known) {
      facts.dtype = *known;
    } else {
      facts.left_out = fmt::format("dtype {}, which ckfs does not have",
                                   quote(fmt::format("{}.{}", dtype.module, dtype.name)));
    }
    return {};
  }

  Result<void> read_dtensor(const TorchWrapper& wrapper, RankFacts& facts,
                            ReadTensor& found) const {
    CKFS_TRY_VOID(read_whole(wrapper, facts));
    const auto local_node = kept(wrapper.state, "_local_tensor");
    const auto spec = kept(wrapper.state, "_spec");
    const auto mesh_node = spec ? field(pickle_, *spec, "mesh") : std::nullopt;
    const auto placements_node = spec ? field(pickle_, *spec, "placements") : std::nullopt;
    if (!local_node || !mesh_node || !placements_node) {
      return corrupt("a DTensor without _local_tensor, mesh and placements");
    }
    CKFS_TRY_VOID(check_meta(*spec, facts));
    found.mesh = *mesh_node;
    CKFS_TRY(found.placements, placements_at(*placements_node, facts));
    CKFS_TRY(found.order, order_at(*spec, facts, found.placements.size()));
    if (!facts.left_out.empty()) return {};
    CKFS_TRY(auto local, plain(*local_node, facts));
    if (local) found.locals.push_back({{}, *std::move(local)});
    return {};
  }

  Result<void> read_sharded(const TorchWrapper& wrapper, RankFacts& facts, ReadTensor& found) {
    CKFS_TRY_VOID(read_whole(wrapper, facts));
    const auto state = pickle_.sequence(wrapper.state);
    const auto size = state.size() < 2 ? std::nullopt : field(pickle_, state[1], "size");
    const auto shards =
        state.size() < 2 ? std::nullopt : field(pickle_, state[1], "shards_metadata");
    if (!size || !shards) return corrupt("a ShardedTensor without its metadata");
    CKFS_TRY(const Shape whole, shape_at(*size, "the size in its metadata"));
    if (whole != facts.shape) {
      return corrupt("shape {}, but its metadata say {}", shape_text(facts.shape),
                     shape_text(whole));
    }
    found.shards = *shards;
    CKFS_TRY(facts.all_shards, shards_at(*shards, facts.shape));
    for (const NodeId shard : pickle_.sequence(state[0])) {
      if (!facts.left_out.empty()) return {};
      const auto node = field(pickle_, shard, "tensor");
      const auto metadata = field(pickle_, shard, "metadata");
      if (!node || !metadata) return corrupt("a local shard without tensor and metadata");
      CKFS_TRY(DeviceBox box, shard_box(*metadata, facts.shape));
      CKFS_TRY(auto local, plain(*node, facts));
      if (!local) return {};
      CKFS_TRY_VOID(check_local(*local, facts.dtype, box.count, "its metadata say"));
      // Its place, and the shape and strides of the part.
      const std::size_t numbers = 5 * box.begin.size();
      if (!pickle_.budget()->hold(kRankTensorBytes + numbers * sizeof(std::int64_t))) return {};
      found.locals.push_back({std::move(box.begin), *std::move(local)});
    }
    return {};
  }

  /// Offsets and sizes of the shards of all ranks, which grow with the ranks in each rank's file.
  Result<std::shared_ptr<const Shape>> shards_at(NodeId list, const Shape& shape) {
    if (model_ != nullptr) {
      const auto known = model_->shards.find(list);
      if (known != model_->shards.end() && known->second.of == shape &&
          pickle_.answers_as_model(known->second.trace)) {
        return known->second.boxes;
      }
    }
    ReadShards found{shape, {}, {}};
    Shape boxes;
    {
      const Tracing tracing(pickle_, made_ == nullptr ? nullptr : &found.trace);
      for (const NodeId shard : pickle_.sequence(list)) {
        CKFS_TRY(const DeviceBox box, shard_box(shard, shape));
        if (!pickle_.budget()->hold(2 * sizeof(std::int64_t) * box.begin.size())) break;
        boxes.insert(boxes.end(), box.begin.begin(), box.begin.end());
        boxes.insert(boxes.end(), box.count.begin(), box.count.end());
      }
    }
    boxes.shrink_to_fit();
    found.boxes = std::make_shared<const Shape>(std::move(boxes));
    auto result = found.boxes;
    if (made_ != nullptr) made_->shards.insert_or_assign(list, std::move(found));
    return result;
  }

  /// Adds the parts that the rank has before others, at their places.
  Result<void> place(const ReadTensor& found, RankTensor& tensor) {
    const RankFacts& facts = *found.facts;
    if (facts.kind == RankFacts::Kind::DTensor) return place_dtensor(found, tensor);
    if (!facts.left_out.empty()) return {};
    if (facts.kind == RankFacts::Kind::Plain && rank_ != 0) return {};
    for (const ReadTensor::Local& local : found.locals) {
      add_piece(local.begin.empty() ? Shape(facts.shape.size()) : local.begin, local.tensor,
                tensor);
    }
    return {};
  }

  Result<void> place_dtensor(const ReadTensor& found, RankTensor& tensor) {
    const RankFacts& facts = *found.facts;
    CKFS_TRY(const DeviceMesh* mesh, mesh_at(found.mesh));
    if (found.placements.size() != mesh->shape.size()) {
      return corrupt("{} placements on a mesh {}", found.placements.size(),
                     shape_text(mesh->shape));
    }
    CKFS_TRY(DeviceBox box, box_of(facts.shape, found.placements, *mesh, found.order));
    if (!facts.left_out.empty()) return {};
    const TorchTensor& local = found.locals.front().tensor;
    CKFS_TRY_VOID(check_local(local, facts.dtype, box.count, rank_));
    if (!is_replica(found.placements, *mesh)) add_piece(std::move(box.begin), local, tensor);
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

  static Result<void> check_local(const TorchTensor& local, DType dtype,
                                  std::span<const std::int64_t> count, std::uint32_t rank) {
    if (local.dtype == dtype && std::ranges::equal(local.shape, count)) return {};
    return check_local(local, dtype, count, fmt::format("its placements give rank {}", rank));
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
  Result<DeviceBox> shard_box(NodeId metadata, const Shape& shape) const {
    const auto offsets = field(pickle_, metadata, "shard_offsets");
    const auto sizes = field(pickle_, metadata, "shard_sizes");
    if (!offsets || !sizes) return corrupt("a shard without offsets and sizes");
    CKFS_TRY(Shape begin, shape_at(*offsets, "the offsets of a shard"));
    CKFS_TRY(Shape count, shape_at(*sizes, "the sizes of a shard"));
    bool inside = begin.size() == shape.size() && count.size() == shape.size();
    for (std::size_t d = 0; inside && d < begin.size(); ++d) {
      inside = begin[d] <= shape[d] && count[d] <= shape[d] - begin[d];
    }
    if (!inside) {
      return corrupt("a shard at {} of {} in shape {}", shape_text(begin), shape_text(count),
                     shape_text(shape));
    }
    return DeviceBox{std::move(begin), std::move(count)};
  }

  /// The shape is stated twice.
  Result<void> check_meta(NodeId spec, const RankFacts& tensor) const {
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

  Result<std::vector<AxisPlacement>> placements_at(NodeId node, const RankFacts& tensor) const {
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
  Result<std::vector<DivisionOrder>> order_at(NodeId spec, const RankFacts& tensor,
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

  /// Most tensors have one and the same. Valid as long as this object and its model.
  Result<const DeviceMesh*> mesh_at(NodeId node) {
    const auto known = meshes_.find(node);
    if (known != meshes_.end()) return &known->second.mesh;
    if (model_ != nullptr) {
      const auto of_model = model_->meshes.find(node);
      if (of_model != model_->meshes.end() && !of_model->second.from_ranks &&
          pickle_.answers_as_model(of_model->second.trace)) {
        return &of_model->second.mesh;
      }
    }
    ReadMesh found;
    {
      const Tracing tracing(pickle_, made_ == nullptr ? nullptr : &found.trace);
      CKFS_TRY_VOID(read_mesh(node, found));
    }
    if (!pickle_.budget()->hold(kRankTensorBytes)) return corrupt("too many meshes");
    return &meshes_.emplace(node, std::move(found)).first->second.mesh;
  }

  Result<void> read_mesh(NodeId node, ReadMesh& found) const {
    DeviceMesh& mesh = found.mesh;
    CKFS_TRY(mesh.shape, mesh_shape(node));
    std::optional<std::int64_t> devices = 1;
    for (const std::int64_t axis : mesh.shape) {
      devices = axis > 0 && devices ? checked_mul(*devices, axis) : std::nullopt;
    }
    if (!devices || *devices > world_) {
      return corrupt("a mesh {} of more devices than the {} ranks, or none", shape_text(mesh.shape),
                     world_);
    }
    CKFS_TRY(mesh.place, mesh_place(node, mesh.shape, *devices, found.from_ranks));
    return {};
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
  Result<Shape> mesh_place(NodeId mesh, const Shape& shape, std::int64_t devices,
                           bool& from_ranks) const {
    const auto node = field(pickle_, mesh, "_coordinate_on_dim");
    Shape place;
    if (node && !pickle_.is_none(*node)) {
      const bool fits = pickle_.sequence(*node).size() == shape.size();
      auto said = fits ? pickle_.integers(*node) : std::nullopt;
      if (!said) return corrupt("a mesh {} without this rank's place", shape_text(shape));
      place = *std::move(said);
    } else {
      from_ranks = true;
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
  const RankModel* model_;
  RankModel* made_;
  std::map<NodeId, ReadMesh> meshes_;
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

FsdpRankReader::FsdpRankReader(ByteSource& source, std::uint32_t world, std::string key)
    : source_(source), world_(world), key_(std::move(key)) {}
FsdpRankReader::~FsdpRankReader() = default;

Result<RankState> FsdpRankReader::read(FileId file, std::uint32_t rank) {
  std::vector<std::shared_ptr<const RankModel>> models;
  {
    const MutexLock lock(mutex_);
    models.assign(models_.rbegin(), models_.rend());
  }
  std::vector<const TorchFile*> files;
  for (const auto& model : models) files.push_back(&model->torch);
  CKFS_TRY(TorchFile torch, TorchFile::open_alike(source_, file, {0, source_.size(file)}, files));
  if (const auto by = torch.model()) {
    return RankReader(source_, torch, file, rank, world_, models[*by].get(), nullptr).read(key_);
  }
  const std::vector<std::shared_ptr<const RankModel>> compared = std::exchange(models, {});
  const auto made = std::make_shared<RankModel>(std::move(torch));
  CKFS_TRY(RankState state,
           RankReader(source_, made->torch, file, rank, world_, nullptr, made.get()).read(key_));
  const MutexLock lock(mutex_);
  ++parsed_;
  // Other threads may have parsed one that is alike at the same time.
  for (const auto& model : models_) {
    const bool is_new = std::ranges::find(compared, model) == compared.end();
    if (is_new && made->torch.is_alike(model->torch)) return state;
  }
  models_.push_back(made);
  std::uint64_t bytes = 0;
  for (const auto& model : models_) bytes += model->torch.header_bytes();
  while (models_.size() > kMostModels ||
         (models_.size() > kLeastModels && bytes > kMostModelBytes)) {
    bytes -= models_.front()->torch.header_bytes();
    models_.erase(models_.begin());
  }
  return state;
}

std::size_t FsdpRankReader::parsed() const {
  const MutexLock lock(mutex_);
  return parsed_;
}

}  // namespace ckfs
