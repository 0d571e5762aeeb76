// The objects are dataclasses, known by the fields they have: module paths and class names changed
// between releases of torch, fields did not. A tensor's chunks and the places of its bytes are in
// two tables, joined by (name, offsets). With a thousand ranks each has a million entries, and
// three quarters of them are the optimizer's; so unwanted entries are skipped before anything is
// built.
//
// Checks once that chunks tile the tensor: later a hole would become invented bytes.
#include "source/torch/dcp_metadata.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "format/torch_file.h"
#include "format/torch_names.h"
#include "source/box_overlap.h"
#include "source/torch/pickle_fields.h"

namespace ckfs {
namespace {

constexpr std::size_t kMaxPath = 4096;  // bytes
/// Bytes kept for a chunk, a place and a tensor, about, without coordinates and names.
constexpr std::size_t kBytes = 256;

std::uint64_t count_field(const Pickle& pickle, NodeId object, std::string_view name) {
  const auto node = field(pickle, object, name);
  const auto value = node ? pickle.integer(*node) : std::nullopt;
  return value && *value >= 0 ? static_cast<std::uint64_t>(*value) : ~std::uint64_t{0};
}

/// The entries of storage_data for one tensor: where the torch file of the chunk at some offsets
/// is.
class ChunkLocations {
 public:
  void add(std::span<const std::int64_t> offsets, NodeId info) {
    entries_.push_back({numbers_.size(), offsets.size(), info});
    numbers_.insert(numbers_.end(), offsets.begin(), offsets.end());
  }

  /// Before find(), and after the last add().
  void sort() {
    std::ranges::stable_sort(entries_, less, [this](const Entry& entry) { return offsets(entry); });
  }

  /// As in a dictionary of Python, what was added last.
  std::optional<NodeId> find(std::span<const std::int64_t> offsets) const {
    const auto [begin, end] = std::ranges::equal_range(
        entries_, offsets, less, [this](const Entry& entry) { return this->offsets(entry); });
    return begin == end ? std::nullopt : std::optional(std::prev(end)->info);
  }

 private:
  struct Entry {
    std::size_t first = 0, count = 0;  // in numbers_
    NodeId info = 0;
  };

  static bool less(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    return std::ranges::lexicographical_compare(a, b);
  }
  std::span<const std::int64_t> offsets(const Entry& entry) const {
    return std::span(numbers_).subspan(entry.first, entry.count);
  }

  std::vector<Entry> entries_;
  std::vector<std::int64_t> numbers_;
};

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
        metadata_.others.emplace_back(*name);
        continue;
      }
      CKFS_TRY(DcpTensor tensor, read_tensor(*name, item.value, *chunks));
      metadata_.tensors.push_back(std::move(tensor));
      places_.erase(*name);
    }
    return std::move(metadata_);
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
      const auto offset = offset_node ? coordinates(*offset_node) : std::nullopt;
      if (offset && pickle_.budget()->hold(kBytes)) places_[*name].add(*offset, item.value);
    }
    for (auto& [name, of_tensor] : places_) of_tensor.sort();
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

    for (const NodeId item : pickle_.sequence(chunks)) {
      if (!pickle_.budget()->hold(kBytes)) break;
      CKFS_TRY_VOID(read_chunk(tensor, item));
    }
    const auto offsets = [&](const DcpChunk& chunk) { return tensor.offsets(chunk); };
    std::ranges::stable_sort(
        tensor.chunks, [](auto a, auto b) { return std::ranges::lexicographical_compare(a, b); },
        offsets);
    const auto replicas = std::ranges::unique(
        tensor.chunks, [](auto a, auto b) { return std::ranges::equal(a, b); }, offsets);
    tensor.chunks.erase(replicas.begin(), replicas.end());
    tensor.chunks.shrink_to_fit();
    tensor.boxes.shrink_to_fit();
    std::int64_t covered = 0;
    for (const DcpChunk& chunk : tensor.chunks) {
      const auto sum = checked_add(covered, checked_numel(tensor.sizes(chunk)).value());
      if (!sum) return corrupt(name, "more elements in chunks than there can be");
      covered = *sum;
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

  /// Adds the chunk, if it has elements.
  Result<void> read_chunk(DcpTensor& tensor, NodeId node) {
    const auto offsets_node = field(pickle_, node, "offsets");
    const auto sizes_node = field(pickle_, node, "sizes");
    const auto offsets = offsets_node ? coordinates(*offsets_node) : std::nullopt;
    const auto sizes = sizes_node ? coordinates(*sizes_node) : std::nullopt;
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
    if (empty) return {};
    CKFS_TRY(DcpChunk chunk, find_place(tensor.name, *offsets));
    chunk.box = static_cast<std::uint32_t>(tensor.chunks.size());
    tensor.boxes.insert(tensor.boxes.end(), offsets->begin(), offsets->end());
    tensor.boxes.insert(tensor.boxes.end(), sizes->begin(), sizes->end());
    tensor.chunks.push_back(chunk);
    return {};
  }

  Result<DcpChunk> find_place(std::string_view tensor, std::span<const std::int64_t> offsets) {
    const auto known = places_.find(tensor);
    const auto info = known == places_.end() ? std::nullopt : known->second.find(offsets);
    if (!info) {
      return corrupt(tensor, "storage_data does not say where its chunk at [{}] is",
                     fmt::join(offsets, ", "));
    }
    const auto path_node = field(pickle_, *info, "relative_path");
    const auto path = path_node ? pickle_.string(*path_node) : std::nullopt;
    const std::uint64_t offset = count_field(pickle_, *info, "offset");
    const std::uint64_t length = count_field(pickle_, *info, "length");
    if (!path || path->empty() || path->size() > kMaxPath || !checked_add(offset, length)) {
      return corrupt(tensor, "its chunk at [{}] has no place in a file", fmt::join(offsets, ", "));
    }
    const auto transforms = field(pickle_, *info, "transform_descriptors");
    if (transforms && !pickle_.is_none(*transforms) && !pickle_.sequence(*transforms).empty()) {
      return fail(ErrorCode::Unsupported, "{}: tensor {}: compressed", file_name_, quote(tensor));
    }
    return DcpChunk{number_of(*path), 0, offset, length};
  }

  std::uint32_t number_of(std::string_view path) {
    const auto next = static_cast<std::uint32_t>(metadata_.paths.size());
    const auto [known, added] = path_numbers_.try_emplace(path, next);
    if (added && pickle_.budget()->hold(kBytes + path.size())) metadata_.paths.emplace_back(path);
    return known->second;
  }

  /// Together with the sum of their elements: chunks that do not overlap leave no hole.
  Result<void> check_disjoint(const DcpTensor& tensor) const {
    const auto box = [&](std::uint32_t i) {
      return BoxView{tensor.offsets(tensor.chunks[i]), tensor.sizes(tensor.chunks[i])};
    };
    const auto [found, irregular] =
        find_overlap(tensor.chunks.size(), tensor.shape.size(), box,
                     [&](std::uint64_t steps) { return pickle_.budget()->spend(steps); });
    if (irregular > 0) {
      return fail(ErrorCode::Unsupported, "{}: tensor {}: {} chunks that form no grid (limit {})",
                  file_name_, quote(tensor.name), irregular, kMaxIrregular);
    }
    if (!found) return {};
    return corrupt(tensor.name, "chunks at [{}] and [{}] overlap",
                   fmt::join(box(found->first).begin, ", "),
                   fmt::join(box(found->second).begin, ", "));
  }

  const Pickle& pickle_;
  const std::string& file_name_;
  const std::function<bool(std::string_view)>& wanted_;
  DcpMetadata metadata_;
  std::map<std::string_view, ChunkLocations> places_;
  std::map<std::string_view, std::uint32_t> path_numbers_;
};

/// The name up to and with `key`, which begins at `at` and has more below it. Empty where that is
/// not so: then the key is not what --key could name.
std::string_view below(std::string_view name, std::string_view key, std::size_t at) {
  if (key.empty() || at >= name.size() || !name.substr(at).starts_with(key)) return {};
  const std::size_t end = at + key.size();
  return name.substr(end).starts_with('.') ? name.substr(0, end) : std::string_view();
}

Result<std::vector<DcpEntry>> list_entries(const Pickle& pickle, const std::string& file_name) {
  const auto tensors = field(pickle, pickle.root(), "state_dict_metadata");
  if (!tensors || !pickle.is_mapping(*tensors)) {
    return fail(ErrorCode::Corrupt, "{}: no state_dict_metadata and storage_data", file_name);
  }
  // The data of the planner that flattened the dictionary: name -> the keys that led there.
  std::map<std::string_view, std::array<std::string_view, 2>> keys;
  const auto planner = field(pickle, pickle.root(), "planner_data");
  if (planner && pickle.is_mapping(*planner)) {
    for (const DictItem& item : pickle.mapping(*planner)) {
      const auto name = pickle.string(item.key);
      const std::span<const NodeId> path = pickle.sequence(item.value);
      const auto key = path.size() < 2 ? std::nullopt : pickle.string(path.front());
      const auto inner = path.size() < 3 ? std::nullopt : pickle.string(path[1]);
      if (!name || !key) continue;
      if (!pickle.budget()->hold(kBytes)) break;
      keys.insert_or_assign(*name, std::array{*key, inner.value_or(std::string_view())});
    }
  }
  std::vector<DcpEntry> entries;
  for (const DictItem& item : pickle.mapping(*tensors)) {
    const auto name = pickle.string(item.key);
    if (!name) continue;
    if (!pickle.budget()->hold(kBytes)) break;
    DcpEntry entry{.name = *name, .tensor = field(pickle, item.value, "chunks").has_value()};
    if (const auto known = keys.find(*name); known != keys.end()) {
      const auto& [key, inner] = known->second;
      entry.key = below(*name, key, 0);
      if (!entry.key.empty()) entry.inner_key = below(*name, inner, key.size() + 1);
    }
    entries.push_back(entry);
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
