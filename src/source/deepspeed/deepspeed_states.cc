// Both files are one big dictionary, into which frameworks and users put more than DeepSpeed does:
// arguments, schedulers, random states. Only the keys below are looked at. In particular the base
// optimizer's state is not looked at, so the Adam moments are never even located.
#include "source/deepspeed/deepspeed_states.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/checked.h"
#include "base/text.h"
#include "source/torch/torch_tensors.h"

namespace ckfs {
namespace {

constexpr std::array<std::string_view, 4> kStageNames = {"disabled", "optimizer_states",
                                                         "gradients", "weights"};

/// Bytes kept for a parameter, a group or a name, about, without their shapes.
constexpr std::size_t kParameterBytes = 256;
constexpr std::size_t kNameBytes = 256;

/// `key` of a mapping, unless it is None.
std::optional<NodeId> find_value(const Pickle& pickle, NodeId mapping, std::string_view key) {
  const auto value = pickle.find(mapping, key);
  if (!value || pickle.is_none(*value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> find_integer(const Pickle& pickle, NodeId mapping,
                                         std::string_view key) {
  const auto value = find_value(pickle, mapping, key);
  return value ? pickle.integer(*value) : std::nullopt;
}

/// The value of an enum, whichever way it was pickled: a number, a call of the class with one, or
/// getattr(class, name).
std::optional<std::int64_t> stage_of(const Pickle& pickle, NodeId node) {
  if (const auto number = pickle.integer(node)) return number;
  const auto args = pickle.items(pickle.args(node));
  if (args.size() == 1) return pickle.integer(args[0]);
  if (args.size() != 2) return std::nullopt;
  const auto name = pickle.string(args[1]);
  const auto* const at = std::find(kStageNames.begin(), kStageNames.end(), name.value_or(""));
  if (at == kStageNames.end()) return std::nullopt;
  return at - kStageNames.begin();
}

class StatesFile {
 public:
  StatesFile(ByteSource& source, FileId file) : source_(source), file_(file) {}

  Result<TorchFile> open() const {
    return TorchFile::open(source_, file_, ByteRange{0, source_.size(file_)});
  }

  const std::string& name() const { return source_.name(file_); }

  template <typename... Args>
  Failure corrupt(fmt::format_string<Args...> text, Args&&... args) const {
    return fail(ErrorCode::Corrupt, "{}: {}", name(),
                fmt::format(text, std::forward<Args>(args)...));
  }

  /// A mapping of names to shapes. A name that comes twice keeps its first place and gets its last
  /// shape, as in Python.
  Result<ParameterGroup> shapes(const Pickle& pickle, NodeId mapping, std::string_view key) const {
    if (!pickle.is_mapping(mapping)) return corrupt("{} is not a dictionary of shapes", key);
    ParameterGroup group;
    std::map<std::string_view, std::size_t> places;
    for (const DictItem& item : pickle.mapping(mapping)) {
      const auto name = pickle.string(item.key);
      if (!pickle.budget()->hold(kParameterBytes + 2 * name.value_or("").size())) break;
      const std::size_t rank = pickle.sequence(item.value).size();
      if (rank > kMaxTorchRank) {
        return corrupt("{}: {} has {} dimensions (limit {})", key, quote(name.value_or("?")), rank,
                       kMaxTorchRank);
      }
      auto shape = pickle.integers(item.value);
      const auto numel = shape ? checked_numel(*shape) : std::nullopt;
      if (!name || !numel || !nbytes(DType::F64, *numel)) {
        return corrupt("{}: {} has no possible shape", key, quote(name.value_or("?")));
      }
      NamedShape parameter{*name, std::move(*shape), *numel};
      const auto [place, is_new] = places.emplace(*name, group.size());
      if (is_new) {
        group.push_back(std::move(parameter));
      } else {
        group[place->second] = std::move(parameter);
      }
    }
    return group;
  }

  /// param_shapes: a list of mappings, or (before 0.5.4) one mapping.
  Result<std::vector<ParameterGroup>> parameters(const Pickle& pickle, NodeId node) const {
    std::vector<ParameterGroup> groups;
    if (pickle.is_mapping(node)) {
      CKFS_TRY(ParameterGroup only, shapes(pickle, node, "param_shapes"));
      groups.push_back(std::move(only));
      return groups;
    }
    if (pickle.kind(node) != NodeKind::List) return corrupt("param_shapes is not a list");
    std::set<std::string_view> names;
    for (const NodeId item : pickle.sequence(node)) {
      CKFS_TRY(ParameterGroup group, shapes(pickle, item, "param_shapes"));
      for (const NamedShape& parameter : group) {
        if (names.insert(parameter.name).second) continue;
        return corrupt("param_shapes: {} is in two groups", quote(parameter.name));
      }
      groups.push_back(std::move(group));
    }
    return groups;
  }

  /// The tensors of a list of flat groups.
  Result<std::vector<PartitionRun>> runs(const TorchFile& torch, NodeId list,
                                         std::string_view key) const {
    const Pickle& pickle = torch.pickle();
    if (pickle.kind(list) != NodeKind::List && pickle.kind(list) != NodeKind::Tuple) {
      return corrupt("{} is not a list", key);
    }
    std::vector<PartitionRun> groups;
    std::vector<std::uint32_t> storages;  // of the groups that have elements
    for (const NodeId node : pickle.sequence(list)) {
      const std::string label = fmt::format("{}[{}]", key, groups.size());
      if (!pickle.budget()->hold(kParameterBytes)) break;
      auto tensor = torch.tensor(node);
      if (!tensor) return Failure(tensor_error(tensor.error(), name(), label));
      if (tensor->shape.size() != 1 || !is_contiguous(*tensor)) {
        return corrupt("{}: not a flat vector", label);
      }
      groups.push_back({tensor->dtype, tensor->shape[0], run_of(*tensor).begin});
      if (tensor->shape[0] > 0) storages.push_back(tensor->storage);
    }
    CKFS_TRY(const std::vector<ByteRange> bytes, torch.storage_bytes(storages));
    std::size_t next = 0;
    for (PartitionRun& group : groups) {
      if (group.numel > 0) group.offset += bytes[next++].begin;
    }
    return groups;
  }

  /// partition_count: one number, or one for each group.
  Result<std::int64_t> world(const Pickle& pickle, NodeId states) const {
    const auto node = find_value(pickle, states, "partition_count");
    if (!node) return corrupt("no partition_count");
    const auto one = pickle.integer(*node);
    const auto many =
        one ? std::vector{*one} : pickle.integers(*node).value_or(std::vector<std::int64_t>{});
    if (many.empty()) return corrupt("partition_count is not a number");
    const auto [least, most] = std::minmax_element(many.begin(), many.end());
    if (*least < 1) return corrupt("partition_count {}", *least);
    if (*least != *most) {
      return fail(ErrorCode::Unsupported,
                  "{}: groups of {} and of {} partitions: experts, which ckfs cannot read", name(),
                  *least, *most);
    }
    return *most;
  }

  Result<std::vector<std::vector<std::int64_t>>> alignment(const Pickle& pickle,
                                                           NodeId states) const {
    std::vector<std::vector<std::int64_t>> groups;
    const auto node = find_value(pickle, states, "param_alignment_paddings");
    if (!node) return groups;
    for (const NodeId item : pickle.sequence(*node)) {
      if (!pickle.budget()->hold(kNameBytes)) break;
      auto paddings = pickle.integers(item);
      if (!paddings || std::any_of(paddings->begin(), paddings->end(),
                                   [](std::int64_t padding) { return padding < 0; })) {
        return corrupt("param_alignment_paddings are not numbers of elements");
      }
      groups.push_back(std::move(*paddings));
    }
    return groups;
  }

 private:
  ByteSource& source_;
  FileId file_;
};

bool says_experts(const Pickle& pickle, NodeId root) {
  if (find_value(pickle, root, "ds_autoep_layers")) return true;
  const auto count = find_value(pickle, root, "num_experts");
  if (!count) return false;
  if (const auto one = pickle.integer(*count)) return *one > 1;
  const auto many = pickle.integers(*count);
  return many && std::any_of(many->begin(), many->end(), [](std::int64_t n) { return n > 1; });
}

Result<ModelStates> model_states(const StatesFile& reader, FileId file, TorchFile torch) {
  ModelStates states{file, std::move(torch), {}, {}, {}, {}, {}, {}, 0, 0, {}, {}, false};
  const Pickle& pickle = states.torch.pickle();
  const NodeId root = pickle.root();
  if (!pickle.is_mapping(root))
    return reader.corrupt("not a DeepSpeed model state: not a dictionary");
  const auto names = find_value(pickle, root, "buffer_names");
  if (!names && !pickle.find(root, "param_shapes") && !pickle.find(root, "module")) {
    return reader.corrupt("not a DeepSpeed model state: no buffer_names, param_shapes or module");
  }

  if (const auto shapes = find_value(pickle, root, "param_shapes")) {
    CKFS_TRY(states.parameters, reader.parameters(pickle, *shapes));
  }
  if (const auto shapes = find_value(pickle, root, "frozen_param_shapes")) {
    CKFS_TRY(states.frozen, reader.shapes(pickle, *shapes, "frozen_param_shapes"));
  }
  states.frozen_fragments = find_value(pickle, root, "frozen_param_fragments");
  states.module = find_value(pickle, root, "module");
  if (names) {
    for (const NodeId name : pickle.sequence(*names)) {
      const auto text = pickle.string(name);
      if (text && pickle.budget()->hold(kNameBytes)) states.buffer_names.insert(*text);
    }
  }
  if (const auto shared = find_value(pickle, root, "shared_params")) {
    for (const DictItem& item : pickle.mapping(*shared)) {
      const auto alias = pickle.string(item.key);
      const auto origin = pickle.string(item.value);
      if (!alias || !origin || !pickle.budget()->hold(kNameBytes + alias->size())) continue;
      states.shared.emplace_back(*alias, *origin);
    }
  }
  states.world = find_integer(pickle, root, "dp_world_size").value_or(0);
  states.model_parallel = find_integer(pickle, root, "mp_world_size").value_or(0);
  if (const auto degrees = find_value(pickle, root, "checkpoint_parallel_dimensions")) {
    states.pipeline_degree = find_integer(pickle, *degrees, "pp_degree");
    states.tensor_degree = find_integer(pickle, *degrees, "tp_degree");
  }
  states.has_experts = says_experts(pickle, root);
  return states;
}

Result<OptimizerStates> optimizer_states(const StatesFile& reader, FileId file,
                                         const TorchFile& torch) {
  const Pickle& pickle = torch.pickle();
  const auto found = find_value(pickle, pickle.root(), "optimizer_state_dict");
  if (!found || !pickle.is_mapping(*found)) {
    return reader.corrupt("not a ZeRO optimizer state: no optimizer_state_dict");
  }
  OptimizerStates states;
  states.file = file;
  states.header_bytes = torch.header_bytes();
  const auto flat = find_value(pickle, *found, "single_partition_of_fp32_groups");
  const auto sharded = find_value(pickle, *found, "fp32_flat_groups");
  if (find_value(pickle, *found, "local_sub_partitions_of_fp32_groups")) {
    return fail(ErrorCode::Unsupported, "{}: ZeRO-1 of DeepSpeed 0.5.8 or older", reader.name());
  }
  if (find_value(pickle, *found, "ds_zero_partition_groups")) {
    return fail(ErrorCode::Unsupported, "{}: groups of experts (AutoEP), which ckfs cannot read",
                reader.name());
  }
  if (!flat && !sharded) {
    return reader.corrupt(
        "not a ZeRO optimizer state: no single_partition_of_fp32_groups or fp32_flat_groups");
  }

  states.stage = flat ? 1 : 3;
  if (const auto stage = find_value(pickle, *found, "zero_stage")) {
    const auto number = stage_of(pickle, *stage);
    if (!number || *number < 0 || *number > 3 || (*number == 3) != !flat) {
      return reader.corrupt("zero_stage does not fit the groups that are stored");
    }
    states.stage = std::max(1, static_cast<int>(*number));
  }
  CKFS_TRY(states.world, reader.world(pickle, *found));
  CKFS_TRY(states.alignment, reader.alignment(pickle, *found));
  CKFS_TRY(states.groups,
           reader.runs(torch, flat.value_or(sharded.value_or(NodeId{0})),
                       flat ? "single_partition_of_fp32_groups" : "fp32_flat_groups"));
  if (const auto version = find_value(pickle, pickle.root(), "ds_version")) {
    states.version = pickle.string(*version).value_or("");
  }
  return states;
}

Result<std::optional<OldShapes>> old_shapes(const StatesFile& reader, TorchFile torch) {
  OldShapes shapes{std::move(torch), {}};
  const Pickle& pickle = shapes.torch.pickle();
  auto node = find_value(pickle, pickle.root(), "param_shapes");
  if (!node) {
    const auto states = find_value(pickle, pickle.root(), "optimizer_state_dict");
    if (states) node = find_value(pickle, *states, "param_shapes");
  }
  if (!node) return std::optional<OldShapes>();
  CKFS_TRY(shapes.parameters, reader.parameters(pickle, *node));
  return std::optional(std::move(shapes));
}

}  // namespace

Result<ModelStates> read_model_states(ByteSource& source, FileId file) {
  const StatesFile reader(source, file);
  CKFS_TRY(TorchFile torch, reader.open());
  const auto budget = torch.pickle().budget();
  auto states = model_states(reader, file, std::move(torch));
  CKFS_TRY_VOID(budget->check(reader.name()));
  return states;
}

Result<OptimizerStates> read_optimizer_states(ByteSource& source, FileId file) {
  const StatesFile reader(source, file);
  CKFS_TRY(const TorchFile torch, reader.open());
  return torch.pickle().within_budget(reader.name(), optimizer_states(reader, file, torch));
}

Result<std::optional<OldShapes>> read_old_shapes(ByteSource& source, FileId file) {
  const StatesFile reader(source, file);
  CKFS_TRY(TorchFile torch, reader.open());
  const auto budget = torch.pickle().budget();
  auto shapes = old_shapes(reader, std::move(torch));
  CKFS_TRY_VOID(budget->check(reader.name()));
  return shapes;
}

}  // namespace ckfs
