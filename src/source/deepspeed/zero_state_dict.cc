// zero_to_fp32 builds a Python dict, and everything about its files follows from that dict's order:
// the split into shards, the place of a tied weight. So the order is kept exactly, with a map
// beside the list of entries for the one thing a list cannot do: find a name.
#include "source/deepspeed/zero_state_dict.h"

#include <algorithm>
#include <set>

#include "base/checked.h"
#include "base/parallel.h"
#include "base/text.h"
#include "source/deepspeed/zero_layout.h"

namespace ckfs {
namespace {

constexpr std::size_t kEntryBytes = 384;  // kept for a tensor in all, about, without its name

/// One rank's part of each frozen parameter.
Result<std::vector<PartitionRun>> fragments_of(const TorchFile& torch, const std::string& file_name,
                                               std::span<const NamedShape> frozen) {
  const Pickle& pickle = torch.pickle();
  const auto fragments = pickle.find(pickle.root(), "frozen_param_fragments");
  const auto nodes = fragments ? pickle.find_all(*fragments) : std::map<std::string_view, NodeId>();
  std::vector<PartitionRun> runs;
  std::vector<std::uint32_t> storages;  // of the fragments that have elements
  for (const NamedShape& parameter : frozen) {
    const auto node = nodes.find(parameter.name);
    CKFS_TRY_VOID(pickle.budget()->check(file_name));
    if (node == nodes.end()) {
      return fail(ErrorCode::Corrupt, "{}: frozen parameter {} has no part here", file_name,
                  quote(parameter.name));
    }
    auto tensor = torch.tensor(node->second);
    CKFS_TRY_VOID(pickle.budget()->check(file_name));
    if (!tensor) return Failure(tensor_error(tensor.error(), file_name, parameter.name));
    if (!is_contiguous(*tensor)) {
      return fail(ErrorCode::Corrupt, "{}: frozen parameter {}: its part is not a flat vector",
                  file_name, quote(parameter.name));
    }
    const ByteRange run = run_of(*tensor);
    const auto numel = static_cast<std::int64_t>(run.size() * 8) / bits(tensor->dtype);
    runs.push_back({tensor->dtype, numel, run.begin});
    if (numel > 0) storages.push_back(tensor->storage);
  }
  CKFS_TRY(const std::vector<ByteRange> bytes, torch.storage_bytes(storages));
  std::size_t next = 0;
  for (PartitionRun& run : runs) {
    if (run.numel > 0) run.offset += bytes[next++].begin;
  }
  return runs;
}

}  // namespace

std::size_t ZeroStateDict::set(Entry entry) {
  const auto [place, is_new] = places_.emplace(entry.name, entries_.size());
  if (is_new) {
    entries_.push_back(std::move(entry));
  } else {
    leave_sharers(place->second);
    entries_[place->second] = std::move(entry);
  }
  return place->second;
}

void ZeroStateDict::leave_sharers(std::size_t entry) {
  if (entries_[entry].sharers == kAlone) return;
  Sharers& sharers = sharers_[entries_[entry].sharers];
  if (sharers.source != entry) {
    sharers.aliases.erase(entry);
  } else if (!sharers.aliases.empty()) {
    sharers.source = *sharers.aliases.begin();
    sharers.aliases.erase(sharers.aliases.begin());
  }
}

Result<void> ZeroStateDict::add_buffers(const ModelStates& states) {
  if (!states.module) return {};
  for (const DictItem& item : states.torch.pickle().mapping(*states.module)) {
    const auto name = states.torch.pickle().string(item.key);
    if (!name || !states.buffer_names.contains(*name)) continue;
    if (!states.torch.pickle().budget()->hold(kEntryBytes + 3 * name->size())) break;
    CKFS_TRY(PlacedTensor tensor,
             placer_.place(states.torch, item.value, *name, states.file, files_.name(states.file)));
    set({std::string(*name), std::move(tensor), Role::Buffer});
  }
  return states.torch.pickle().budget()->check(files_.name(states.file));
}

Result<void> ZeroStateDict::add_frozen(const ModelStates& states) {
  const std::string& file = files_.name(states.file);
  const Pickle& pickle = states.torch.pickle();
  const auto nodes = states.frozen_fragments ? pickle.find_all(*states.frozen_fragments)
                                             : std::map<std::string_view, NodeId>();
  CKFS_TRY_VOID(pickle.budget()->check(file));
  for (const NamedShape& parameter : states.frozen) {
    const auto node = nodes.find(parameter.name);
    if (node == nodes.end()) {
      return fail(ErrorCode::Corrupt, "{}: frozen parameter {}: its tensor is missing", file,
                  quote(parameter.name));
    }
    CKFS_TRY(PlacedTensor tensor,
             placer_.place(states.torch, node->second, parameter.name, states.file, file));
    if (tensor.shape != parameter.shape) {
      return fail(ErrorCode::Corrupt,
                  "{}: frozen parameter {}: shape [{}], but frozen_param_shapes says [{}]", file,
                  quote(parameter.name), fmt::join(tensor.shape, ", "),
                  fmt::join(parameter.shape, ", "));
    }
    set({std::string(parameter.name), std::move(tensor), Role::Frozen});
  }
  return {};
}

Result<void> ZeroStateDict::add_partitioned_frozen(const ModelStates& states,
                                                   std::span<const FileId> ranks) {
  std::vector<std::vector<PartitionRun>> parts(ranks.size());
  CKFS_TRY_VOID(run_parallel(
      ranks.size(),
      [&](std::size_t rank) -> Result<void> {
        const FileId file = ranks[rank];
        const std::string& file_name = files_.name(file);
        if (file == states.file) {
          CKFS_TRY(parts[rank], fragments_of(states.torch, file_name, states.frozen));
          return {};
        }
        CKFS_TRY(const TorchFile torch,
                 TorchFile::open(files_, file, ByteRange{0, files_.size(file)}));
        auto paid = repeated_.add(file, torch.header_bytes());
        if (!paid) return paid;
        CKFS_TRY(parts[rank], fragments_of(torch, file_name, states.frozen));
        return {};
      },
      files_.parallel()));
  for (std::size_t i = 0; i < states.frozen.size(); ++i) {
    const NamedShape& parameter = states.frozen[i];
    const DType dtype = parts.front()[i].dtype;
    const auto world = static_cast<std::int64_t>(ranks.size());
    const std::int64_t expected = partition_numel(parameter.numel, world);
    std::vector<RankPiece> pieces;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const PartitionRun& part = parts[rank][i];
      const std::string& file = files_.name(ranks[rank]);
      if (part.dtype == DType::I8) {
        return fail(ErrorCode::Unsupported,
                    "{}: frozen parameter {} is quantized to int8 and its scale is not stored",
                    file, quote(parameter.name));
      }
      if (part.dtype != dtype) {
        return fail(ErrorCode::Corrupt, "{}: frozen parameter {} is {}, on rank 0 {}", file,
                    quote(parameter.name), name(part.dtype), name(dtype));
      }
      if (part.numel != expected) {
        return fail(part.numel == 0 ? ErrorCode::Unsupported : ErrorCode::Corrupt,
                    "{}: frozen parameter {}: {} elements here (1/{} of {} are {}){}", file,
                    quote(parameter.name), part.numel, world, parameter.numel, expected,
                    part.numel == 0 ? ": offloaded, not in the checkpoint" : "");
      }
      pieces.push_back({ranks[rank], part.offset, part.numel});
    }
    std::vector<Extent> extents;
    append_partitioned(pieces, static_cast<std::uint64_t>(bits(dtype)) / 8, 0, parameter.numel,
                       extents);
    extent_budget_.add_files(pieces);
    CKFS_TRY_VOID(extent_budget_.take(parameter.name, pieces.size(), extents.size()));
    const StorageId storage = builder_.add_storage(dtype, parameter.numel, extents);
    set({std::string(parameter.name), {parameter.shape, storage, {}}, Role::Frozen});
  }
  return {};
}

Result<void> ZeroStateDict::add_module_frozen(const TorchFile& torch, FileId file, NodeId module,
                                              const std::string& prefix, const KnownTensor& known) {
  std::set<std::string_view> here;  // of this mapping, in which a name may come twice
  for (const DictItem& item : torch.pickle().mapping(module)) {
    const auto name = torch.pickle().string(item.key);
    if (!name || !torch.is_tensor(item.value)) continue;
    CKFS_TRY_VOID(torch.pickle().budget()->check(files_.name(file)));
    if (!torch.pickle().budget()->hold(kEntryBytes + 3 * name->size())) break;
    std::string full = prefix + std::string(*name);
    if (known(full, item.value) || (contains(full) && !here.contains(*name))) continue;
    here.insert(*name);
    auto tensor = placer_.place(torch, item.value, *name, file, files_.name(file));
    if (!tensor && tensor.error().code() == ErrorCode::Unsupported) {
      builder_.add_note(full, tensor.error().message());
      continue;
    }
    if (!tensor) return Failure(std::move(tensor).error());
    set({std::move(full), *std::move(tensor), Role::FrozenModule});
  }
  return torch.pickle().budget()->check(files_.name(file));
}

void ZeroStateDict::add_parameter(std::string_view name, std::span<const std::int64_t> shape,
                                  StorageId storage) {
  add_parameter(name, PlacedTensor{{shape.begin(), shape.end()}, storage, {}});
}

void ZeroStateDict::add_parameter(std::string_view name, PlacedTensor tensor) {
  set({std::string(name), std::move(tensor), Role::Weight});
}

Result<void> ZeroStateDict::add_shared(const ModelStates& states) {
  WorkBudget& budget = *states.torch.pickle().budget();
  for (const auto& [alias, origin] : states.shared) {
    const auto found = places_.find(origin);
    if (found == places_.end() || alias == origin) continue;
    const std::size_t source = source_of(found->second);
    // An alias of an alias of this name would lead in a circle.
    const auto mine = places_.find(alias);
    if (mine != places_.end() && mine->second == source) continue;
    // Tensors that only the module's state has are not in the tool's dictionary, and replace
    // nothing there.
    if (mine != places_.end() && entries_[source].role == Role::FrozenModule &&
        entries_[mine->second].role != Role::FrozenModule) {
      continue;
    }
    const PlacedTensor& tensor = entries_[source].tensor;
    const std::size_t numbers = tensor.shape.size() * (1 + 3 * tensor.boxes.size());
    if (!budget.hold(kEntryBytes + numbers * sizeof(std::int64_t))) break;
    const std::size_t entry = set({std::string(alias), tensor, entries_[source].role});
    std::size_t& sharers = entries_[source].sharers;
    if (sharers == kAlone) {
      sharers = sharers_.size();
      sharers_.push_back({source, {}});
    }
    sharers_[sharers].aliases.insert(entry);
    entries_[entry].sharers = sharers;
  }
  return budget.check(files_.name(states.file));
}

ZeroCounts ZeroStateDict::finish() && {
  ZeroCounts counts;
  std::vector<TensorId> ids(entries_.size());
  std::set<StorageId> counted;                // equal buffers of many layers may be one
  for (const bool aliases : {false, true}) {  // an alias may come before its original
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      if ((source_of(i) != i) != aliases) continue;
      if (aliases) {
        ids[i] = builder_.add_alias(entry.name, ids[source_of(i)]);
        if (entry.role != Role::FrozenModule) ++counts.aliases;
        continue;
      }
      const std::int64_t numel = *checked_numel(entry.tensor.shape);
      if (entry.role != Role::FrozenModule && counted.insert(entry.tensor.storage).second) {
        const Storage& storage = builder_.storage(entry.tensor.storage);
        for (const Extent& extent : storage.extents) counts.bytes += extent.nbytes;
      }
      ids[i] = builder_.add_tensor(entry.name, entry.tensor.shape, entry.tensor.storage,
                                   std::move(entry.tensor.boxes));
      builder_.set_role(ids[i], entry.role);
      switch (entry.role) {
        case Role::Weight:
          ++counts.parameters;
          // There may be any number of elements with strides of 0; SourceOpener refuses too many.
          counts.parameter_numel =
              checked_add(counts.parameter_numel, numel).value_or(counts.parameter_numel);
          break;
        case Role::Frozen:
          ++counts.frozen;
          break;
        case Role::FrozenModule:
          counts.module_frozen.push_back(entry.name);
          break;
        case Role::Buffer:
          ++counts.buffers;
          break;
      }
    }
  }
  builder_.add_only_shard(std::move(ids));
  return counts;
}

void add_count_facts(CatalogBuilder& builder, const ZeroCounts& counts) {
  builder.add_fact("parameters",
                   fmt::format("{} ({} elements)", counts.parameters, counts.parameter_numel));
  builder.add_fact("frozen", std::to_string(counts.frozen));
  builder.add_fact("shared", std::to_string(counts.aliases));
  builder.add_fact("buffers", std::to_string(counts.buffers));
  if (!counts.module_frozen.empty()) {
    builder.add_fact("in the module's state only", std::to_string(counts.module_frozen.size()));
  }
  for (const std::string& name : counts.module_frozen) {
    builder.add_note(name, "in the module's state only; zero_to_fp32 drops it; @frozen=module");
  }
}

}  // namespace ckfs
