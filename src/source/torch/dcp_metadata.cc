// The objects are dataclasses, known by the fields they have: module paths and class names changed
// between releases of torch, fields did not. A tensor's chunks and the places of its bytes are in
// two tables, joined by (name, offsets); with a thousand ranks each has a million entries, of which
// the optimizer's are three quarters, so what nobody wants is passed over before anything is built.
//
// That chunks tile the tensor is checked here, once: behind this a hole would be bytes made up.
#include "source/torch/dcp_metadata.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/checked.h"
#include "base/text.h"
#include "format/torch_file.h"
#include "format/torch_names.h"

namespace ckfs {
namespace {

/// Chunks that are compared pair by pair where they are no grid.
constexpr std::size_t kMaxIrregularChunks = 4096;
constexpr std::size_t kMaxPath = 4096;  // bytes
/// What is kept of a chunk, of a place and of a tensor, about, besides coordinates and names.
constexpr std::size_t kBytes = 256;

/// A field of a dataclass: its state is a dictionary, or with slots a pair (None, dictionary).
std::optional<NodeId> field(const Pickle& pickle, NodeId object, std::string_view name) {
  const NodeId state = pickle.state(object);
  if (const auto value = pickle.find(state, name)) return value;
  const auto parts = pickle.sequence(state);
  return parts.size() == 2 ? pickle.find(parts[1], name) : std::nullopt;
}

std::uint64_t count_field(const Pickle& pickle, NodeId object, std::string_view name) {
  const auto node = field(pickle, object, name);
  const auto value = node ? pickle.integer(*node) : std::nullopt;
  return value && *value >= 0 ? static_cast<std::uint64_t>(*value) : ~std::uint64_t{0};
}

bool overlap(const DcpChunk& a, const DcpChunk& b) {
  for (std::size_t d = 0; d < a.offsets.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) {
      return false;
    }
  }
  return true;
}

/// Whether each chunk is one cell of the grid that all their borders make: then no two overlap if
/// no two begin at the same place.
bool is_grid(std::span<const DcpChunk> chunks, std::size_t dimensions) {
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::set<std::int64_t> begins;
    for (const DcpChunk& chunk : chunks) begins.insert(chunk.offsets[d]);
    for (const DcpChunk& chunk : chunks) {
      const auto next = begins.upper_bound(chunk.offsets[d]);
      if (next != begins.end() && *next < chunk.offsets[d] + chunk.sizes[d]) return false;
    }
  }
  return true;
}

class MetadataFile {
 public:
  MetadataFile(const Pickle& pickle, const std::string& file_name,
               const std::function<bool(std::string_view)>& wanted)
      : pickle_(pickle), file_name_(file_name), wanted_(wanted) {}

  Result<DcpMetadata> read() { return pickle_.within_budget(file_name_, read_all()); }

 private:
  Result<DcpMetadata> read_all() {
    const auto tensors = field(pickle_, pickle_.root(), "state_dict_metadata");
    const auto places = field(pickle_, pickle_.root(), "storage_data");
    if (!tensors || !places || !pickle_.is_mapping(*tensors) || !pickle_.is_mapping(*places)) {
      return fail(ErrorCode::Corrupt, "{}: no state_dict_metadata and storage_data", file_name_);
    }
    index_places(*places);
    DcpMetadata metadata;
    std::set<std::string_view> names;
    for (const DictItem& item : pickle_.mapping(*tensors)) {
      const auto name = pickle_.string(item.key);
      if (!name || !wanted_(*name)) continue;
      if (!names.insert(*name).second) {
        return fail(ErrorCode::Corrupt, "{}: tensor {}: twice", file_name_, quote(*name));
      }
      if (!pickle_.budget()->hold(kBytes + name->size())) break;
      const auto chunks = field(pickle_, item.value, "chunks");
      if (!chunks) {
        metadata.others.push_back(*name);
        continue;
      }
      CKFS_TRY(DcpTensor tensor, read_tensor(*name, item.value, *chunks));
      metadata.tensors.push_back(std::move(tensor));
    }
    return metadata;
  }

  template <typename... Args>
  Failure corrupt(std::string_view tensor, fmt::format_string<Args...> text, Args&&... args) const {
    return fail(ErrorCode::Corrupt, "{}: tensor {}: {}", file_name_, quote(tensor),
                fmt::format(text, std::forward<Args>(args)...));
  }

  void index_places(NodeId places) {
    for (const DictItem& item : pickle_.mapping(places)) {
      const auto name_node = field(pickle_, item.key, "fqn");
      const auto name = name_node ? pickle_.string(*name_node) : std::nullopt;
      if (!name || !wanted_(*name)) continue;
      const auto offset_node = field(pickle_, item.key, "offset");
      auto offset = offset_node ? coordinates(*offset_node) : std::nullopt;
      if (offset && pickle_.budget()->hold(kBytes))
        places_[*name].insert_or_assign(std::move(*offset), item.value);
    }
  }

  /// The integers of a list with at most as many as a tensor may have dimensions; nullopt: none, or
  /// more of them, which are not copied.
  std::optional<std::vector<std::int64_t>> coordinates(NodeId list) const {
    if (pickle_.sequence(list).size() > kMaxTorchRank) return std::nullopt;
    return pickle_.integers(list);
  }

  Result<DcpTensor> read_tensor(std::string_view name, NodeId node, NodeId chunks) {
    DcpTensor tensor;
    tensor.name = name;
    const auto size = field(pickle_, node, "size");
    const std::size_t rank = size ? pickle_.sequence(*size).size() : 0;
    if (rank > kMaxTorchRank) {
      return corrupt(name, "{} dimensions (limit {})", rank, kMaxTorchRank);
    }
    auto shape = size ? pickle_.integers(*size) : std::nullopt;
    const auto numel = shape ? checked_numel(*shape) : std::nullopt;
    if (!numel || !nbytes(DType::C128, *numel)) return corrupt(name, "no possible shape");
    tensor.shape = std::move(*shape);
    read_dtype(node, tensor);

    std::int64_t covered = 0;
    std::set<std::vector<std::int64_t>> begins;
    for (const NodeId item : pickle_.sequence(chunks)) {
      if (!pickle_.budget()->hold(kBytes)) break;
      CKFS_TRY(auto chunk, read_chunk(tensor, item));
      if (!chunk || !begins.insert(chunk->offsets).second) continue;  // empty, or a replica
      const auto sum = checked_add(covered, checked_numel(chunk->sizes).value());
      if (!sum) return corrupt(name, "more elements in chunks than there can be");
      covered = *sum;
      tensor.chunks.push_back(std::move(*chunk));
    }
    if (covered != *numel) {
      return corrupt(name, "chunks of {} elements together, its shape has {}", covered, *numel);
    }
    CKFS_TRY_VOID(check_disjoint(tensor));
    return tensor;
  }

  /// properties.dtype; the state of TensorProperties is a tuple that begins with it.
  void read_dtype(NodeId node, DcpTensor& tensor) const {
    const auto properties = field(pickle_, node, "properties");
    if (!properties) return;
    auto dtype = field(pickle_, *properties, "dtype");
    const auto parts = pickle_.sequence(pickle_.state(*properties));
    if (!dtype && !parts.empty()) dtype = parts.front();
    if (!dtype) return;
    tensor.dtype_name = pickle_.global(*dtype).name;
    tensor.dtype = torch_dtype(tensor.dtype_name);
  }

  Result<std::optional<DcpChunk>> read_chunk(const DcpTensor& tensor, NodeId node) const {
    const auto offsets_node = field(pickle_, node, "offsets");
    const auto sizes_node = field(pickle_, node, "sizes");
    auto offsets = offsets_node ? coordinates(*offsets_node) : std::nullopt;
    auto sizes = sizes_node ? coordinates(*sizes_node) : std::nullopt;
    if (!offsets || !sizes || offsets->size() != tensor.shape.size() ||
        sizes->size() != tensor.shape.size()) {
      return corrupt(tensor.name, "a chunk without offsets and sizes in each of {} dimensions",
                     tensor.shape.size());
    }
    bool empty = false;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      const std::int64_t begin = (*offsets)[d];
      const std::int64_t count = (*sizes)[d];
      if (begin < 0 || count < 0 || begin > tensor.shape[d] || count > tensor.shape[d] - begin) {
        return corrupt(tensor.name, "a chunk at {} of {} in a dimension of {}", begin, count,
                       tensor.shape[d]);
      }
      empty = empty || count == 0;
    }
    if (empty) return std::optional<DcpChunk>();
    DcpChunk chunk{std::move(*offsets), std::move(*sizes), {}, 0, 0};
    CKFS_TRY_VOID(find_place(tensor, chunk));
    return std::optional(std::move(chunk));
  }

  Result<void> find_place(const DcpTensor& tensor, DcpChunk& chunk) const {
    const auto known = places_.find(tensor.name);
    const bool has_any = known != places_.end();
    const auto place =
        has_any ? known->second.find(chunk.offsets) : decltype(known->second.end())();
    if (!has_any || place == known->second.end()) {
      return corrupt(tensor.name, "storage_data does not say where its chunk at [{}] is",
                     fmt::join(chunk.offsets, ", "));
    }
    const NodeId info = place->second;
    const auto path = field(pickle_, info, "relative_path");
    chunk.path = path ? pickle_.string(*path).value_or("") : "";
    chunk.offset = count_field(pickle_, info, "offset");
    chunk.length = count_field(pickle_, info, "length");
    if (chunk.path.empty() || chunk.path.size() > kMaxPath ||
        !checked_add(chunk.offset, chunk.length)) {
      return corrupt(tensor.name, "its chunk at [{}] is nowhere", fmt::join(chunk.offsets, ", "));
    }
    const auto transforms = field(pickle_, info, "transform_descriptors");
    if (transforms && !pickle_.is_none(*transforms) && !pickle_.sequence(*transforms).empty()) {
      return fail(ErrorCode::Unsupported, "{}: tensor {}: compressed", file_name_,
                  quote(tensor.name));
    }
    return {};
  }

  /// Together with the sum of their elements: chunks that do not overlap leave no hole.
  Result<void> check_disjoint(const DcpTensor& tensor) const {
    if (!pickle_.budget()->spend(tensor.chunks.size() * (1 + tensor.shape.size()))) return {};
    if (is_grid(tensor.chunks, tensor.shape.size())) return {};
    if (tensor.chunks.size() > kMaxIrregularChunks) {
      return fail(ErrorCode::Unsupported, "{}: tensor {}: {} chunks that are no grid (limit {})",
                  file_name_, quote(tensor.name), tensor.chunks.size(), kMaxIrregularChunks);
    }
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      if (!pickle_.budget()->spend(i)) return {};
      for (std::size_t j = 0; j < i; ++j) {
        if (!overlap(tensor.chunks[i], tensor.chunks[j])) continue;
        return corrupt(tensor.name, "chunks at [{}] and [{}] overlap",
                       fmt::join(tensor.chunks[j].offsets, ", "),
                       fmt::join(tensor.chunks[i].offsets, ", "));
      }
    }
    return {};
  }

  const Pickle& pickle_;
  const std::string& file_name_;
  const std::function<bool(std::string_view)>& wanted_;
  std::map<std::string_view, std::map<std::vector<std::int64_t>, NodeId>> places_;
};

Result<std::vector<DcpEntry>> list_entries(const Pickle& pickle, const std::string& file_name) {
  const auto tensors = field(pickle, pickle.root(), "state_dict_metadata");
  if (!tensors || !pickle.is_mapping(*tensors)) {
    return fail(ErrorCode::Corrupt, "{}: no state_dict_metadata and storage_data", file_name);
  }
  // What the planner that flattened the dictionary has left: name -> the keys that led there.
  std::map<std::string_view, std::string_view> keys;
  const auto planner = field(pickle, pickle.root(), "planner_data");
  if (planner && pickle.is_mapping(*planner)) {
    for (const DictItem& item : pickle.mapping(*planner)) {
      const auto name = pickle.string(item.key);
      const std::span<const NodeId> path = pickle.sequence(item.value);
      const auto key = path.size() < 2 ? std::nullopt : pickle.string(path.front());
      if (!name || !key) continue;
      if (!pickle.budget()->hold(kBytes)) break;
      keys.insert_or_assign(*name, *key);
    }
  }
  std::vector<DcpEntry> entries;
  for (const DictItem& item : pickle.mapping(*tensors)) {
    const auto name = pickle.string(item.key);
    if (!name) continue;
    if (!pickle.budget()->hold(kBytes)) break;
    const auto key = keys.find(*name);
    // One that does not begin the name is not what --key could name.
    const bool begins = key != keys.end() && name->starts_with(key->second) &&
                        name->substr(key->second.size()).starts_with('.');
    entries.push_back({*name, begins ? key->second : std::string_view(),
                       field(pickle, item.value, "chunks").has_value()});
  }
  return entries;
}

}  // namespace

Result<std::vector<DcpEntry>> list_dcp_entries(const Pickle& pickle, const std::string& file_name) {
  return pickle.within_budget(file_name, list_entries(pickle, file_name));
}

Result<DcpMetadata> read_dcp_metadata(const Pickle& pickle, const std::string& file_name,
                                      const std::function<bool(std::string_view)>& wanted) {
  return MetadataFile(pickle, file_name, wanted).read();
}

}  // namespace ckfs
