// A tensor that is sharded along its first dimension (FSDP) is its chunks one after the other: one
// storage of as many extents, which reads like a plain file. Any other grid (tensor parallelism,
// 2-D meshes) becomes one box for each chunk.
//
// By default this shows the same as a torch file of the same dictionary: the tensors below a usual
// key, else every tensor but the optimizer's. dcp_to_torch_save gives all of them, but in a model's
// view three quarters would then be moments, and a loader wants the names of the model. The
// dictionary is stored flat; only the planner's data in the metadata says that "model.norm.weight"
// was below "model", and is not the name that a tied model gives it.
//
// Of Megatron's checkpoints, whose names say what each entry is (megatron.h), the tensors are the
// model's weights, and beside them the masters that the optimizer keeps. No item of a master is
// opened before it is read: nearly all mounts show none.

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/natural_order.h"
#include "base/parallel.h"
#include "base/text.h"
#include "format/dcp_item.h"
#include "source/adapters.h"
#include "source/model_directory.h"
#include "source/orbax/orbax_layout.h"
#include "source/source_opener.h"
#include "source/torch/dcp_metadata.h"
#include "source/torch/megatron.h"
#include "source/torch/torch_state_dict.h"
#include "source/torch/torch_tensors.h"

namespace ckfs {
namespace {

constexpr std::string_view kMetadata = ".metadata";
/// A name that torchtitan's models have, and where it keeps the state of its training beside them.
constexpr std::string_view kTitanEmbedding = "tok_embeddings.weight";
constexpr std::string_view kTitanState = "train_state";

/// The prefixes of the directories, the top itself among them, that have a .metadata and parts.
std::vector<std::string> find_prefixes(const SourceTree& tree) {
  std::vector<std::string> found;
  for (const TreeFile& file : tree.files) {
    if (!file.path.ends_with(kMetadata)) continue;
    const std::string prefix = file.path.substr(0, file.path.size() - kMetadata.size());
    if (std::ranges::count(prefix, '/') > 1 || (!prefix.empty() && prefix.back() != '/')) continue;
    auto other = std::ranges::lower_bound(tree.files, prefix, {}, &TreeFile::path);
    for (; other != tree.files.end() && other->path.starts_with(prefix); ++other) {
      if (!other->path.ends_with(".distcp")) continue;
      if (other->path.find('/', prefix.size()) != std::string::npos) continue;
      found.push_back(prefix);
      break;
    }
  }
  return found;
}

/// Accelerate and Trainer put the optimizer into a directory of its own.
bool is_optimizer_folder(std::string_view prefix) {
  return prefix.starts_with("optimizer") || prefix.starts_with("optim");
}

/// Whether the chunks, in the order of their first elements, follow each other without a break.
bool is_concatenation(const DcpTensor& tensor) {
  if (tensor.shape.empty()) return true;
  const auto inner = std::span(tensor.shape).subspan(1);
  return std::ranges::all_of(tensor.chunks, [&](const DcpChunk& chunk) {
    return std::ranges::equal(tensor.sizes(chunk).subspan(1), inner);
  });
}

class DcpOpener : public SourceOpener {
 public:
  /// `megatron`: where it was found, if it is Megatron's; the tree is that directory then.
  DcpOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options,
            std::optional<MegatronPlace> megatron = std::nullopt)
      : SourceOpener(tree, files, options, megatron ? kMegatron.name : kTorchDcp.name),
        placer_(builder_),
        megatron_(std::move(megatron)) {}

 private:
  Result<void> read() override {
    CKFS_TRY_VOID(choose());
    // Two iterations may agree in all that is seen of their files.
    if (megatron_ && !megatron_->directory.empty()) {
      builder_.saw_file(megatron_->directory, 0, 0);
    }
    CKFS_TRY_VOID(read_metadata());
    CKFS_TRY_VOID(
        add_model(prefix_.empty() ? std::optional(directory_above(tree_)) : std::nullopt));
    builder_.add_only_shard(std::move(order_));
    return {};
  }

  Result<void> choose() {
    if (megatron_) return {};
    std::vector<std::string> prefixes = find_prefixes(tree_);
    if (std::ranges::find(prefixes, "") != prefixes.end()) return {};
    if (prefixes.size() > 1) {
      std::erase_if(prefixes, [this](const std::string& prefix) {
        if (!is_optimizer_folder(prefix)) return false;
        builder_.add_note(prefix,
                          "the optimizer's checkpoint; left out (it opens by its own name, with "
                          "--key optimizer as Accelerate saves it)");
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

  /// With a key, the tensors below it; else all but those that only resuming a training needs.
  bool wanted(std::string_view name) const {
    if (megatron_) {
      const MegatronEntry entry = megatron_entry(name);
      if (entry == MegatronEntry::Master) return key_.empty();
      if (entry != MegatronEntry::Weight) return false;
      if (key_.empty()) return true;
    }
    if (!key_.empty()) return name.starts_with(key_) && name.substr(key_.size()).starts_with('.');
    const std::string_view top = name.substr(0, name.find('.'));
    return !is_training_state(top) && !(is_titan_ && top == kTitanState);
  }

  std::string_view shown_name(std::string_view name) const {
    return key_.empty() ? name : name.substr(key_.size() + 1);
  }

  /// The first usual key that has tensors, at the top or else in a dictionary there that the saver
  /// had around all ("app"); empty: none has.
  static std::string_view usual_key(std::span<const DcpEntry> entries) {
    for (const std::string_view usual : usual_keys()) {
      const bool has_tensors = std::ranges::any_of(
          entries, [&](const DcpEntry& entry) { return entry.tensor && entry.key == usual; });
      if (has_tensors) return usual;
    }
    for (const std::string_view usual : usual_keys()) {
      const auto found = std::ranges::find_if(entries, [&](const DcpEntry& entry) {
        return entry.tensor && !entry.inner_key.empty() && !is_training_state(entry.key) &&
               entry.inner_key.substr(entry.key.size() + 1) == usual;
      });
      if (found != entries.end()) return found->inner_key;
    }
    return {};
  }

  /// Without an option: the tensors below the usual key.
  Result<void> choose_key(const Pickle& pickle, const std::string& path) {
    key_ = options_.key;
    if (!key_.empty()) return {};
    CKFS_TRY(const std::vector<DcpEntry> entries, list_dcp_entries(pickle, path));
    if (megatron_) {
      note_megatron(entries);
      return {};
    }
    is_titan_ = std::ranges::any_of(
        entries, [](const DcpEntry& entry) { return entry.name == kTitanEmbedding; });
    key_ = usual_key(entries);
    if (!key_.empty()) builder_.add_fact("key", key_);
    note_unwanted(entries);
    return {};
  }

  /// Names what the views leave out, by the first parts of names: an optimizer has one for each
  /// tensor of the model, and more.
  void note_unwanted(std::span<const DcpEntry> entries) {
    std::map<std::string_view, std::pair<std::size_t, std::size_t>> groups;  // tensors, and all
    const std::string_view around = std::string_view(key_).substr(0, key_.rfind('.') + 1);
    for (const DcpEntry& entry : entries) {
      if (wanted(entry.name)) continue;
      const bool beside = entry.name.starts_with(around);
      auto& [tensors, all] =
          groups[entry.name.substr(0, entry.name.find('.', beside ? around.size() : 0))];
      tensors += entry.tensor ? 1 : 0;
      ++all;
    }
    std::size_t noted = 0;
    for (const auto& [group, counts] : groups) {
      if (counts.first > 0 && left_out_.empty()) left_out_ = group;
      if (noted++ == kMaxNotes) break;
      builder_.add_note(
          std::string(group),
          counts.first > 0
              ? fmt::format("{} tensors beside the model's; left out (--key {} shows them)",
                            counts.first, group)
              : fmt::format("{} values that are not tensors; left out", counts.second));
    }
  }

  /// Counts what the views leave out of Megatron's checkpoint, by kind.
  void note_megatron(std::span<const DcpEntry> entries) {
    std::map<MegatronEntry, std::pair<std::size_t, std::size_t>> counts;  // tensors, others
    for (const DcpEntry& entry : entries) {
      auto& [tensors, others] = counts[megatron_entry(entry.name)];
      ++(entry.tensor ? tensors : others);
    }
    const auto note = [&](MegatronEntry kind, std::string_view subject, std::string_view what) {
      const auto found = counts.find(kind);
      if (found == counts.end()) return;
      const auto& [tensors, others] = found->second;
      builder_.add_note(
          std::string(subject),
          fmt::format("{}: {} tensors, {} other values; left out", what, tensors, others));
    };
    note(MegatronEntry::Optimizer, "optimizer", "its state beside masters");
    note(MegatronEntry::ExtraState, "_extra_state", "what modules keep beside weights");
    note(MegatronEntry::RandomState, "rng_state", "random generators, and iterations run again");
    note(MegatronEntry::Common, "common_state", "arguments of the run");
    if (counts.contains(MegatronEntry::Optimizer) && !counts.contains(MegatronEntry::Master)) {
      masters_.absence =
          "the optimizer's state is in flat buffers, without tensors' names (Megatron saves names "
          "with --dist-ckpt-optim-fully-reshardable)";
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
    CKFS_TRY(DcpMetadata metadata, parse_metadata());
    if (!megatron_) note_prefix(metadata.tensors);
    for (std::size_t i = 0; i < std::min(metadata.others.size(), kMaxNotes); ++i) {
      builder_.add_note(metadata.others[i], "not a tensor; left out");
    }
    std::ranges::sort(metadata.tensors, [](const DcpTensor& a, const DcpTensor& b) {
      return natural_less(a.name, b.name);
    });
    if (megatron_) choose_masters(metadata);
    CKFS_TRY_VOID(read_parts(metadata));
    add_facts(metadata);
    return {};
  }

  bool is_master(const DcpTensor& tensor) const {
    return megatron_ && megatron_entry(tensor.name) == MegatronEntry::Master;
  }

  /// Puts masters behind the weights; or takes all of them out, where one is not the whole of a
  /// weight or its file is not there.
  void choose_masters(DcpMetadata& metadata) {
    std::map<std::string_view, std::span<const std::int64_t>> weights;
    for (const DcpTensor& tensor : metadata.tensors) {
      if (!is_master(tensor)) weights.emplace(tensor.name, tensor.shape);
    }
    std::set<std::string_view> seen;
    for (const DcpTensor& tensor : metadata.tensors) {
      if (!is_master(tensor)) continue;
      const auto weight = weights.find(weight_of_master(tensor.name));
      if (!masters_.absence.empty()) break;
      if (weight == weights.end() || tensor.dtype != DType::F32 ||
          !std::ranges::equal(weight->second, tensor.shape)) {
        masters_.absence =
            fmt::format("{}: is {} [{}], which is not the whole of a weight in F32",
                        quote(tensor.name), tensor.dtype_name, fmt::join(tensor.shape, ", "));
      } else if (!seen.insert(weight->first).second) {
        masters_.absence = fmt::format("{}: has two masters", quote(weight->first));
      }
      for (const DcpChunk& chunk : tensor.chunks) {
        const std::string& path = metadata.paths[chunk.path];
        if (find(prefix_ + path) || !masters_.absence.empty()) continue;
        masters_.absence = fmt::format("{}: missing, but {} has a part of {} there", path,
                                       kMetadata, quote(tensor.name));
      }
    }
    if (seen.empty() && masters_.absence.empty()) {
      masters_.absence = "the checkpoint has no state of an optimizer";
    }
    const bool none = !masters_.absence.empty();
    std::erase_if(metadata.tensors,
                  [&](const DcpTensor& tensor) { return none && is_master(tensor); });
    std::ranges::stable_partition(metadata.tensors,
                                  [this](const DcpTensor& tensor) { return !is_master(tensor); });
  }

  Result<DcpMetadata> parse_metadata() {
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
      if (options_.key.empty() && !left_out_.empty()) {
        return fail(
            ErrorCode::Unsupported,
            "{}: the checkpoint of an optimizer or a training's state, without a model's "
            "tensors: open the model's directory beside it (or --key {} shows what is here)",
            path, left_out_);
      }
      if (options_.key.empty()) return fail(ErrorCode::Unsupported, "{}: no tensors in it", path);
      return fail(ErrorCode::InvalidArgument, "{}: no tensors below the key {}", path,
                  quote(options_.key));
    }
    return metadata;
  }

  /// Of each tensor one item is opened, the largest. If it is in row-major order, so are the
  /// others, as a rule; where they are not, reading them is slow (inner_files.h). Else all are
  /// opened now: their boxes have to say how their elements lie.
  Result<void> read_parts(DcpMetadata& metadata) {
    std::vector<DcpTensor>& tensors = metadata.tensors;
    std::erase_if(tensors, [this](const DcpTensor& tensor) {
      if (tensor.dtype) return false;
      builder_.add_note(std::string(shown_name(tensor.name)),
                        fmt::format("left out: safetensors cannot hold {}", tensor.dtype_name));
      return true;
    });
    CKFS_TRY_VOID(find_places(metadata));
    CKFS_TRY_VOID(sort_places());
    std::vector<ChunkFile*> wanted;
    for_each_tensor(tensors, [&](std::span<ChunkFile> places) {
      if (!is_master(*places.front().tensor)) wanted.push_back(&largest(places));
    });
    CKFS_TRY_VOID(open_items(std::exchange(wanted, {})));
    for_each_tensor(tensors, [&](std::span<ChunkFile> places) {
      const ChunkFile& opened = largest(places);
      const bool row_major = opened.item == nullptr || is_contiguous(opened.item->tensor);
      for (ChunkFile& place : places) {
        if (!row_major || !has_usual_length(place)) wanted.push_back(&place.own());
      }
    });
    CKFS_TRY_VOID(open_items(std::move(wanted)));
    CKFS_TRY_VOID(number_inner_files());
    std::span<ChunkFile> rest = places_;
    for (const DcpTensor& tensor : tensors) {
      CKFS_TRY_VOID(add(tensor, rest.first(tensor.chunks.size())));
      rest = rest.subspan(tensor.chunks.size());
    }
    return {};
  }

  /// The torch file of a chunk.
  struct ChunkFile {
    FileId file = 0;
    ByteRange bytes;
    const DcpTensor* tensor = nullptr;
    const DcpChunk* chunk = nullptr;
    ChunkFile* same = nullptr;                 // the same bytes, of a tensor before; it has:
    std::unique_ptr<const DcpItem> item = {};  // where it was opened
    FileId inner = 0;                          // where it was not

    ChunkFile& own() { return same != nullptr ? *same : *this; }
    bool is_inner() const { return same == nullptr && item == nullptr; }
    std::span<const std::int64_t> sizes() const { return tensor->sizes(*chunk); }
    std::uint64_t nbytes() const {
      return *ckfs::nbytes(*tensor->dtype, checked_numel(sizes()).value());
    }
  };

  /// The places of each tensor that has elements.
  template <typename Use>
  void for_each_tensor(std::span<const DcpTensor> tensors, const Use& use) {
    std::span<ChunkFile> rest = places_;
    for (const DcpTensor& tensor : tensors) {
      if (!tensor.chunks.empty()) use(rest.first(tensor.chunks.size()));
      rest = rest.subspan(tensor.chunks.size());
    }
  }

  static ChunkFile& largest(std::span<ChunkFile> places) {
    return std::ranges::max_element(places, {}, &ChunkFile::nbytes)->own();
  }

  /// Whether it need not be opened to find its elements: its length is what torch writes around
  /// that many.
  static bool has_usual_length(const ChunkFile& place) {
    const std::uint64_t elements = place.nbytes();
    return place.bytes.size() > elements && place.bytes.size() - elements <= kMostAroundElements;
  }

  /// Opens those that were not, several at a time.
  Result<void> open_items(std::vector<ChunkFile*> places) {
    // By the place, too: one of no bytes may begin where another does.
    std::ranges::sort(places, {}, [](const ChunkFile* place) {
      return std::tuple(place->file, place->bytes.begin, place);
    });
    const auto same = std::ranges::unique(places);  // those of tied tensors
    places.erase(same.begin(), same.end());
    return run_parallel(
        places.size(),
        [&](std::size_t i) -> Result<void> {
          ChunkFile& place = *places[i];
          if (place.item != nullptr) return {};
          CKFS_TRY(DcpItem item, open_dcp_item(files_, place.file, place.bytes, place.tensor->name,
                                               *place.tensor->dtype, place.sizes()));
          CKFS_TRY_VOID(repeated_.add(place.file, item.header_bytes));
          place.item = std::make_unique<const DcpItem>(std::move(item));
          return {};
        },
        files_.parallel());
  }

  /// In the order of the files: a reader in the order of numbers reads each file from start to end.
  Result<void> number_inner_files() {
    InnerFiles& inner = builder_.inner_files();
    std::vector<InnerFiles::TensorNumber> numbers(places_.size());
    std::map<std::vector<std::int64_t>, InnerFiles::TensorNumber> of_shapes;  // of one tensor
    const ChunkFile* last = nullptr;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const ChunkFile& place = places_[i];
      if (!place.is_inner()) continue;
      const ChunkFile* const before = std::exchange(last, &place);
      if (before == nullptr || before->tensor != place.tensor) {
        of_shapes.clear();
      } else if (std::ranges::equal(before->sizes(), place.sizes())) {
        numbers[i] = numbers[before - places_.data()];
        continue;
      }
      const std::vector<std::int64_t> shape(place.sizes().begin(), place.sizes().end());
      const auto [known, added] = of_shapes.try_emplace(shape);
      if (added) {
        const DcpTensor& tensor = *place.tensor;
        known->second = inner.add_tensor({tensor.name, *tensor.dtype, shape, place.nbytes()});
      }
      numbers[i] = known->second;
    }
    for (const std::uint32_t at : order_in_files_) {
      ChunkFile& place = places_[at];
      if (!place.is_inner()) continue;
      CKFS_TRY(place.inner,
               inner.add(numbers[at], {place.file, place.bytes.begin, place.bytes.size()}));
    }
    return {};
  }

  Result<void> find_places(const DcpMetadata& metadata) {
    std::vector<std::optional<FileId>> files;
    for (const std::string& path : metadata.paths) files.push_back(find(prefix_ + path));
    std::size_t count = 0;
    for (const DcpTensor& tensor : metadata.tensors) count += tensor.chunks.size();
    places_.reserve(count);
    for (const DcpTensor& tensor : metadata.tensors) {
      for (const DcpChunk& chunk : tensor.chunks) {
        const auto file = files[chunk.path];
        if (!file) {
          return fail(ErrorCode::NotFound,
                      "{}{}: missing, but {} has a part of tensor {} there (each node writes the "
                      "parts of its own ranks: copy those of all nodes into one directory)",
                      prefix_, metadata.paths[chunk.path], kMetadata, quote(tensor.name));
        }
        const ByteRange bytes{chunk.offset, chunk.offset + chunk.length};
        if (bytes.end > files_.size(*file)) {
          return fail(ErrorCode::Corrupt,
                      "{}: tensor {}: bytes {} beyond the end of the file at {}",
                      files_.name(*file), quote(tensor.name), bytes, files_.size(*file));
        }
        places_.push_back({*file, bytes, &tensor, &chunk});
      }
    }
    return {};
  }

  /// No byte of a file may be in two torch files: reading them would then cost more than the file
  /// has.
  Result<void> sort_places() {
    order_in_files_.resize(places_.size());
    std::iota(order_in_files_.begin(), order_in_files_.end(), std::uint32_t{0});
    std::ranges::stable_sort(order_in_files_, {}, [this](std::uint32_t at) {
      const ChunkFile& place = places_[at];
      return std::tuple(place.file, place.bytes.begin, place.bytes.end);
    });
    for (std::size_t i = 1; i < order_in_files_.size(); ++i) {
      ChunkFile& before = places_[order_in_files_[i - 1]];
      ChunkFile& place = places_[order_in_files_[i]];
      if (before.file != place.file || before.bytes.end <= place.bytes.begin) continue;
      if (before.bytes == place.bytes) {
        place.same = &before.own();
        continue;
      }
      return fail(ErrorCode::Corrupt, "{}: tensor {}: its bytes {} overlap those of tensor {}, {}",
                  files_.name(before.file), quote(place.tensor->name), place.bytes,
                  quote(before.tensor->name), before.bytes);
    }
    return {};
  }

  /// Two tensors whose chunks are one item agree in what it is.
  Result<void> check_shared(const DcpTensor& tensor, const DcpChunk& chunk,
                            const ChunkFile& place) const {
    const auto sizes = tensor.sizes(chunk);
    if (place.tensor->dtype == tensor.dtype && std::ranges::equal(place.sizes(), sizes)) return {};
    return fail(
        ErrorCode::Corrupt, "{}: tensor {}: a chunk of {} [{}], but that of tensor {}, {} [{}]",
        files_.name(place.file), quote(tensor.name), tensor.dtype_name, fmt::join(sizes, ", "),
        quote(place.tensor->name), place.tensor->dtype_name, fmt::join(place.sizes(), ", "));
  }

  Result<void> add(const DcpTensor& tensor, std::span<ChunkFile> places) {
    PlacedTensor placed{tensor.shape, 0, {}};
    bool joined = is_concatenation(tensor);
    for (ChunkFile& place : places) {
      const ChunkFile& own = place.own();
      CKFS_TRY_VOID(check_shared(tensor, *place.chunk, own));
      joined = joined && (own.item == nullptr || is_contiguous(own.item->tensor));
      if (!is_master(tensor)) bytes_ += extent_of(own).nbytes;
    }
    if (joined) {
      std::vector<Extent> extents;
      for (ChunkFile& place : places) extents.push_back(extent_of(place.own()));
      placed.storage =
          builder_.add_storage(*tensor.dtype, checked_numel(tensor.shape).value(), extents);
    } else {
      for (ChunkFile& place : places) placed.boxes.push_back(box_of(place));
      placed.storage = placed.boxes.front().storage;
    }
    const TensorId id = builder_.add_tensor(shown_name(tensor.name), placed.shape, placed.storage,
                                            std::move(placed.boxes));
    if (is_master(tensor)) {
      const auto weight = weights_.find(weight_of_master(tensor.name));
      if (weight != weights_.end()) masters_.pairs.push_back({weight->second, id});
      return {};
    }
    order_.push_back(id);
    if (!megatron_) return {};
    weights_.emplace(tensor.name, id);
    return {};
  }

  static Extent extent_of(const ChunkFile& place) {
    if (place.item == nullptr) return {place.inner, 0, place.nbytes()};
    const ByteRange run = place.item->run();
    return {place.file, run.begin, run.size()};
  }

  StorageBox box_of(ChunkFile& place) {
    const ChunkFile& own = place.own();
    const auto offsets = place.tensor->offsets(*place.chunk);
    const auto sizes = place.sizes();
    StorageBox box{0, 0, {offsets.begin(), offsets.end()}, {sizes.begin(), sizes.end()}, {}};
    if (own.item != nullptr) {
      box.storage = placer_.place(own.item->tensor, own.file, own.item->storage).storage;
      box.stride = own.item->tensor.stride;
      return box;
    }
    const Extent all = extent_of(own);
    std::int64_t stride = 1;
    box.stride.resize(box.count.size());
    for (std::size_t d = box.stride.size(); d-- > 0;) {
      box.stride[d] = stride;
      stride *= box.count[d];
    }
    box.storage = builder_.add_storage(*own.tensor->dtype, stride, std::span(&all, 1));
    return box;
  }

  void add_facts(const DcpMetadata& metadata) {
    if (!prefix_.empty()) builder_.add_fact("directory", prefix_);
    if (megatron_) {
      add_megatron_facts();
    } else {
      builder_.add_fact("tensors", std::to_string(metadata.tensors.size()));
    }
    builder_.add_fact("other values", std::to_string(metadata.others.size()));
    add_byte_facts(bytes_, bytes_of(prefix_, ".distcp"));
  }

  void add_megatron_facts() {
    const MegatronPlace& place = *megatron_;
    if (!place.directory.empty()) {
      builder_.add_fact("directory", place.chosen.empty()
                                         ? place.directory
                                         : fmt::format("{} ({})", place.directory, place.chosen));
    }
    if (!place.iteration.empty()) builder_.add_fact("iteration", place.iteration);
    builder_.add_fact("tensors", std::to_string(order_.size()));
    builder_.add_fact("optimizer's masters",
                      masters_.absence.empty() ? fmt::format("of {} tensors", masters_.pairs.size())
                                               : "none: " + masters_.absence);
    builder_.set_masters(std::move(masters_));
  }

  TensorPlacer placer_;
  std::optional<MegatronPlace> megatron_;
  Masters masters_;
  std::map<std::string_view, TensorId> weights_;  // of Megatron's, provisional ids; in the metadata
  std::string prefix_;                            // of the checkpoint's directory in the tree
  std::string key_;                               // what the shown names have lost; empty: nothing
  bool is_titan_ = false;                         // the model has torchtitan's names
  std::string left_out_;                       // a key of tensors that are not shown; empty: none
  std::vector<TensorId> order_;                // provisional ids
  std::vector<ChunkFile> places_;              // of all chunks of one tensor after the other
  std::vector<std::uint32_t> order_in_files_;  // indices of places_
  std::uint64_t bytes_ = 0;
};

bool recognizes_dcp(const SourceTree& tree, const SourceFiles& /*files*/,
                    const OpenCheckpointOptions& /*options*/) {
  return !tree.single_file && !find_prefixes(tree).empty();
}

bool recognizes_top(const SourceTree& tree, const SourceFiles& /*files*/,
                    const OpenCheckpointOptions& /*options*/) {
  if (tree.single_file) return false;
  const std::vector<std::string> prefixes = find_prefixes(tree);
  return std::ranges::find(prefixes, "") != prefixes.end();
}

Result<std::shared_ptr<const Catalog>> open_dcp(const SourceTree& tree, SourceFiles& files,
                                                const OpenCheckpointOptions& options) {
  if (!options.tag.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: only DeepSpeed checkpoints have tags", tree.name);
  }
  return DcpOpener(tree, files, options).open();
}

bool recognizes_megatron(const SourceTree& tree, const SourceFiles& files,
                         const OpenCheckpointOptions& /*options*/) {
  return is_megatron(tree, files);
}

Result<std::shared_ptr<const Catalog>> open_megatron(const SourceTree& tree, SourceFiles& files,
                                                     const OpenCheckpointOptions& options) {
  if (!options.tag.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: only DeepSpeed checkpoints have tags", tree.name);
  }
  CKFS_TRY(const MegatronPlace place, choose_megatron(tree, files, options));
  if (place.directory.empty()) return DcpOpener(tree, files, options, place).open();
  // Other iterations come and go while a training runs: they are not part of the source.
  const SourceTree iteration = subtree(tree, place.directory);
  return DcpOpener(iteration, files, options, place).open();
}

}  // namespace

const Adapter kTorchDcpTop{"torch_dcp", recognizes_top, open_dcp};
const Adapter kTorchDcp{"torch_dcp", recognizes_dcp, open_dcp};
const Adapter kMegatron{"megatron", recognizes_megatron, open_megatron};

}  // namespace ckfs
