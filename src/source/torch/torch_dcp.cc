// A tensor that is sharded along its first dimension (FSDP) is its chunks one after the other: one
// storage of as many extents, which reads like a plain file. Any other grid (tensor parallelism,
// 2-D meshes) becomes one box for each chunk.
//
// Default is what a torch file of the same dictionary shows: what lies below a usual key, else
// every tensor but the optimizer's. dcp_to_torch_save gives all of them, but no view of a model
// wants three quarters of it to be moments, and its loader wants the names of the model. The
// dictionary is stored flat; only what the planner has left in the metadata says that
// "model.norm.weight" was below "model", and is not the name that a tied model gives it.

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <tuple>

#include "base/checked.h"
#include "base/parallel.h"
#include "base/text.h"
#include "format/torch_file.h"
#include "source/adapters.h"
#include "source/model_directory.h"
#include "source/source_opener.h"
#include "source/torch/dcp_metadata.h"
#include "source/torch/torch_state_dict.h"
#include "source/torch/torch_tensors.h"

namespace ckfs {
namespace {

constexpr std::string_view kMetadata = ".metadata";

/// The prefixes of the directories, the top itself among them, that have a .metadata and parts.
std::vector<std::string> find_prefixes(const SourceTree& tree) {
  std::vector<std::string> found;
  for (const TreeFile& file : tree.files) {
    if (!file.path.ends_with(kMetadata)) continue;
    const std::string prefix = file.path.substr(0, file.path.size() - kMetadata.size());
    if (std::ranges::count(prefix, '/') > 1 || (!prefix.empty() && prefix.back() != '/')) continue;
    const bool has_parts = std::ranges::any_of(tree.files, [&](const TreeFile& other) {
      return other.path.starts_with(prefix) && other.path.ends_with(".distcp") &&
             other.path.find('/', prefix.size()) == std::string::npos;
    });
    if (has_parts) found.push_back(prefix);
  }
  return found;
}

/// Accelerate and Trainer put the optimizer into a directory of its own.
bool is_optimizer_folder(std::string_view prefix) {
  return prefix.starts_with("optimizer") || prefix.starts_with("optim");
}

/// A part of a name between dots that is a number; nullopt: any other.
std::optional<std::uint64_t> number_in(std::string_view part) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  return value;
}

/// Whether a < b where parts that are numbers count as such, and come before all others:
/// "layers.2.w" before "layers.10.w". A strict order of different names.
bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    const std::string_view x = a.substr(0, a.find('.'));
    const std::string_view y = b.substr(0, b.find('.'));
    if (x != y) {
      const auto m = number_in(x);
      const auto n = number_in(y);
      if (m && n && *m != *n) return *m < *n;
      if (m.has_value() != n.has_value()) return m.has_value();
      return x < y;
    }
    a.remove_prefix(std::min(a.size(), x.size() + 1));
    b.remove_prefix(std::min(b.size(), y.size() + 1));
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

/// A chunk's elements, read by one of several threads.
struct Part {
  FileId file = 0;
  TorchTensor tensor;
  ByteRange bytes;
  std::uint64_t header_bytes = 0;
};

/// `name`: a tensor that has it, for messages.
Result<Part> read_part(ByteSource& source, FileId file, ByteRange within, std::string_view name) {
  const std::string& file_name = source.name(file);
  CKFS_TRY(const TorchFile torch, TorchFile::open(source, file, within));
  auto tensor = torch.tensor(torch.root());
  CKFS_TRY_VOID(torch.pickle().budget()->check(file_name));
  if (!tensor) return Failure(tensor_error(tensor.error(), file_name, name));
  Part part{file, *std::move(tensor), {}, torch.header_bytes()};
  CKFS_TRY(part.bytes, torch.storage_bytes(part.tensor.storage));
  return part;
}

/// Whether the chunks, in the order of their first elements, follow each other without a break.
bool is_concatenation(const DcpTensor& tensor, std::span<const Part> parts) {
  for (const DcpChunk& chunk : tensor.chunks) {
    for (std::size_t d = 1; d < tensor.shape.size(); ++d) {
      if (chunk.sizes[d] != tensor.shape[d]) return false;
    }
  }
  return std::ranges::all_of(parts, [](const Part& part) { return is_contiguous(part.tensor); });
}

class DcpOpener : public SourceOpener {
 public:
  DcpOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options)
      : SourceOpener(tree, files, options, kTorchDcp.name), placer_(builder_) {}

 private:
  Result<void> read() override {
    CKFS_TRY_VOID(choose());
    CKFS_TRY_VOID(read_metadata());
    CKFS_TRY_VOID(
        add_model(prefix_.empty() ? std::optional(directory_above(tree_)) : std::nullopt));
    builder_.add_only_shard(std::move(order_));
    return {};
  }

  Result<void> choose() {
    std::vector<std::string> prefixes = find_prefixes(tree_);
    if (std::ranges::find(prefixes, "") != prefixes.end()) return {};
    if (prefixes.size() > 1) {
      std::erase_if(prefixes, [this](const std::string& prefix) {
        if (!is_optimizer_folder(prefix)) return false;
        builder_.add_note(prefix,
                          "the optimizer's checkpoint; left out (it opens by its own name)");
        return true;
      });
    }
    if (prefixes.size() != 1) {
      return fail(ErrorCode::Unsupported, "{}: several DCP checkpoints: {}; open one of them",
                  tree_.name, fmt::join(find_prefixes(tree_), ", "));
    }
    prefix_ = prefixes.front();
    return {};
  }

  /// With a key, what lies below it; else everything but what only a training goes on from.
  bool wanted(std::string_view name) const {
    if (!key_.empty()) return name.starts_with(key_) && name.substr(key_.size()).starts_with('.');
    return !is_training_state(name.substr(0, name.find('.')));
  }

  std::string_view shown_name(std::string_view name) const {
    return key_.empty() ? name : name.substr(key_.size() + 1);
  }

  /// Without an option: what is below the first usual key that has tensors.
  Result<void> choose_key(const Pickle& pickle, const std::string& path) {
    key_ = options_.key;
    if (!key_.empty()) return {};
    CKFS_TRY(const std::vector<DcpEntry> entries, list_dcp_entries(pickle, path));
    for (const std::string_view usual : usual_keys()) {
      const bool has_tensors = std::ranges::any_of(
          entries, [&](const DcpEntry& entry) { return entry.tensor && entry.key == usual; });
      if (!has_tensors) continue;
      key_ = usual;
      builder_.add_fact("key", key_);
      break;
    }
    note_unwanted(entries);
    return {};
  }

  /// Names what the views leave out, by the first parts of names: an optimizer has one for each
  /// tensor of the model, and more.
  void note_unwanted(std::span<const DcpEntry> entries) {
    std::map<std::string_view, std::pair<std::size_t, std::size_t>> groups;  // tensors, and all
    for (const DcpEntry& entry : entries) {
      if (wanted(entry.name)) continue;
      auto& [tensors, all] = groups[entry.name.substr(0, entry.name.find('.'))];
      tensors += entry.tensor ? 1 : 0;
      ++all;
    }
    std::size_t noted = 0;
    for (const auto& [group, counts] : groups) {
      if (noted++ == kMaxNotes) break;
      builder_.add_note(
          std::string(group),
          counts.first > 0
              ? fmt::format("{} tensors beside the model's; left out (--key shows them)",
                            counts.first)
              : fmt::format("{} values that are no tensors; left out", counts.second));
    }
  }

  /// A wrapper that no list knows ("_orig_mod", "app") is in every name.
  void note_prefix(std::span<const DcpTensor> tensors) {
    if (tensors.size() < 2) return;
    const std::string_view first = shown_name(tensors.front().name);
    const std::string_view prefix = first.substr(0, first.find('.') + 1);
    if (prefix.empty() || !std::ranges::all_of(tensors, [&](const DcpTensor& tensor) {
          return shown_name(tensor.name).starts_with(prefix);
        })) {
      return;
    }
    const std::string bare(prefix.substr(0, prefix.size() - 1));
    builder_.add_note(bare, fmt::format("all names begin with it; --key {}{}{} shows them without",
                                        key_, key_.empty() ? "" : ".", bare));
  }

  Result<void> read_metadata() {
    const std::string path = prefix_ + std::string(kMetadata);
    const FileId file = id(path);
    const std::uint64_t size = files_.size(file);
    if (size > kMaxPickle) {
      return fail(ErrorCode::Unsupported, "{}: {} bytes (limit {})", path, size, kMaxPickle);
    }
    std::vector<std::byte> text(size);
    CKFS_TRY_VOID(files_.read_at(file, 0, text));
    CKFS_TRY(const Pickle pickle, parse_pickle(text, path));
    CKFS_TRY_VOID(choose_key(pickle, path));
    CKFS_TRY(DcpMetadata metadata, read_dcp_metadata(pickle, path, [this](std::string_view name) {
               return wanted(name);
             }));
    if (metadata.tensors.empty()) {
      if (options_.key.empty()) return fail(ErrorCode::Unsupported, "{}: no tensors in it", path);
      return fail(ErrorCode::InvalidArgument, "{}: no tensors below the key {}", path,
                  quote(options_.key));
    }
    note_prefix(metadata.tensors);
    for (std::size_t i = 0; i < std::min(metadata.others.size(), kMaxNotes); ++i) {
      builder_.add_note(std::string(metadata.others[i]), "no tensor; left out");
    }
    std::ranges::sort(metadata.tensors, [](const DcpTensor& a, const DcpTensor& b) {
      return natural_less(a.name, b.name);
    });
    CKFS_TRY_VOID(read_parts(metadata.tensors));
    add_facts(metadata);
    return {};
  }

  Result<void> read_parts(std::vector<DcpTensor>& tensors) {
    std::erase_if(tensors, [this](const DcpTensor& tensor) {
      if (tensor.dtype && *tensor.dtype != DType::C128) return false;
      builder_.add_note(std::string(shown_name(tensor.name)),
                        fmt::format("left out: safetensors cannot hold {}", tensor.dtype_name));
      return true;
    });
    std::vector<Place> places;
    for (DcpTensor& tensor : tensors) {
      std::ranges::sort(tensor.chunks, {}, &DcpChunk::offsets);
      for (const DcpChunk& chunk : tensor.chunks) {
        CKFS_TRY(const Place place, place_of(tensor, chunk));
        places.push_back(place);
      }
    }
    CKFS_TRY_VOID(sort_places(places));
    std::vector<Part> read(places.size());
    CKFS_TRY_VOID(run_parallel(
        places.size(),
        [&](std::size_t i) -> Result<void> {
          CKFS_TRY(read[i],
                   read_part(files_, places[i].file, places[i].bytes, places[i].tensor->name));
          return repeated_.add(places[i].file, read[i].header_bytes);
        },
        files_.parallel()));
    std::vector<Part> parts;
    for (const DcpTensor& tensor : tensors) {
      parts.clear();
      for (const DcpChunk& chunk : tensor.chunks) {
        CKFS_TRY(const Place place, place_of(tensor, chunk));
        const auto at = std::ranges::lower_bound(places, place, same_bytes_less);
        parts.push_back(read[static_cast<std::size_t>(at - places.begin())]);
        CKFS_TRY_VOID(check_part(tensor, chunk, parts.back()));
      }
      add(tensor, parts);
    }
    return {};
  }

  /// The torch file of a chunk; the tensor is for messages.
  struct Place {
    FileId file = 0;
    ByteRange bytes;
    const DcpTensor* tensor = nullptr;
  };

  static bool same_bytes_less(const Place& a, const Place& b) {
    return std::tuple(a.file, a.bytes.begin, a.bytes.end) <
           std::tuple(b.file, b.bytes.begin, b.bytes.end);
  }

  Result<Place> place_of(const DcpTensor& tensor, const DcpChunk& chunk) const {
    const std::string path = prefix_ + std::string(chunk.path);
    const auto file = find(path);
    if (!file) {
      return fail(ErrorCode::NotFound, "{}: missing, but {} has a part of tensor {} there", path,
                  kMetadata, quote(tensor.name));
    }
    const ByteRange bytes{chunk.offset, chunk.offset + chunk.length};
    if (bytes.end > files_.size(*file)) {
      return fail(ErrorCode::Corrupt, "{}: tensor {}: bytes {} beyond the end of the file at {}",
                  path, quote(tensor.name), bytes, files_.size(*file));
    }
    return Place{*file, bytes, &tensor};
  }

  /// Each place once. No byte of a file may be in two torch files: reading them would then cost
  /// more than the file has.
  Result<void> sort_places(std::vector<Place>& places) const {
    std::ranges::sort(places, same_bytes_less);
    const auto same = std::ranges::unique(places, [](const Place& a, const Place& b) {
      return a.file == b.file && a.bytes == b.bytes;
    });
    places.erase(same.begin(), same.end());
    for (std::size_t i = 1; i < places.size(); ++i) {
      const Place& before = places[i - 1];
      if (before.file != places[i].file || before.bytes.end <= places[i].bytes.begin) continue;
      return fail(ErrorCode::Corrupt, "{}: tensor {}: its bytes {} overlap those of tensor {}, {}",
                  files_.name(before.file), quote(places[i].tensor->name), places[i].bytes,
                  quote(before.tensor->name), before.bytes);
    }
    return {};
  }

  Result<void> check_part(const DcpTensor& tensor, const DcpChunk& chunk, const Part& part) const {
    if (part.tensor.shape == chunk.sizes && part.tensor.dtype == tensor.dtype) return {};
    return fail(ErrorCode::Corrupt, "{}: tensor {}: a chunk of {} [{}], but {} says {} [{}]",
                files_.name(part.file), quote(tensor.name), name(part.tensor.dtype),
                fmt::join(part.tensor.shape, ", "), kMetadata, tensor.dtype_name,
                fmt::join(chunk.sizes, ", "));
  }

  void add(const DcpTensor& tensor, std::span<const Part> parts) {
    PlacedTensor placed{tensor.shape, 0, {}};
    if (is_concatenation(tensor, parts)) {
      std::vector<Extent> extents;
      for (const Part& part : parts) {
        const ByteRange run = run_of(part.tensor);
        extents.push_back({part.file, part.bytes.begin + run.begin, run.size()});
      }
      placed.storage =
          builder_.add_storage(*tensor.dtype, checked_numel(tensor.shape).value(), extents);
    } else {
      add_boxes(tensor, parts, placed);
    }
    for (const Part& part : parts) bytes_ += run_of(part.tensor).size();
    order_.push_back(builder_.add_tensor(shown_name(tensor.name), placed.shape, placed.storage,
                                         std::move(placed.boxes)));
  }

  void add_boxes(const DcpTensor& tensor, std::span<const Part> parts, PlacedTensor& placed) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const DcpChunk& chunk = tensor.chunks[i];
      const PlacedTensor part = placer_.place(parts[i].tensor, parts[i].file, parts[i].bytes);
      placed.boxes.push_back({part.storage, 0, chunk.offsets, chunk.sizes, parts[i].tensor.stride});
    }
    placed.storage = placed.boxes.front().storage;
  }

  void add_facts(const DcpMetadata& metadata) {
    if (!prefix_.empty()) builder_.add_fact("directory", prefix_);
    builder_.add_fact("tensors", std::to_string(metadata.tensors.size()));
    builder_.add_fact("other values", std::to_string(metadata.others.size()));
    add_byte_facts(bytes_, bytes_of(prefix_, ".distcp"));
  }

  TensorPlacer placer_;
  std::string prefix_;           // of the checkpoint's directory in the tree
  std::string key_;              // what the shown names have lost; empty: nothing
  std::vector<TensorId> order_;  // provisional ids
  std::uint64_t bytes_ = 0;
};

bool recognizes(const SourceTree& tree, const SourceFiles& /*files*/,
                const OpenCheckpointOptions& /*options*/) {
  return !tree.single_file && !find_prefixes(tree).empty();
}

bool recognizes_top(const SourceTree& tree, const SourceFiles& files,
                    const OpenCheckpointOptions& options) {
  return tree.find(kMetadata) != nullptr && recognizes(tree, files, options);
}

Result<std::shared_ptr<const Catalog>> open(const SourceTree& tree, SourceFiles& files,
                                            const OpenCheckpointOptions& options) {
  if (!options.tag.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: only DeepSpeed checkpoints have tags", tree.name);
  }
  return DcpOpener(tree, files, options).open();
}

}  // namespace

const Adapter kTorchDcpTop{"torch_dcp", recognizes_top, open};
const Adapter kTorchDcp{"torch_dcp", recognizes, open};

}  // namespace ckfs
