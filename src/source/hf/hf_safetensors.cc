// Which tensors a directory of safetensors files holds is decided by its index where there is one:
// uploads are repaired, re-sharded and merged in place, and stale shards or duplicates stay behind.
// Loaders that walk the files (transformers does) then load tensors by mistake. Without an index
// all files count, and the same name twice has no right answer.
//
// A download that was cut off is the commonest broken checkpoint; wherever a file is missing, the
// message says what completes it.

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <spdlog/spdlog.h>
#include <unordered_set>

#include "base/checked.h"
#include "base/name_hash.h"
#include "base/text.h"
#include "format/hf_index.h"
#include "format/json_text.h"
#include "format/quantization_config.h"
#include "source/adapters.h"
#include "source/file_role.h"
#include "source/header_loader.h"
#include "source/hf/dcp_pieces.h"
#include "source/hf/header_metadata.h"
#include "source/hf/pipeline.h"
#include "source/hf/quantization.h"
#include "source/hf/shard_names.h"
#include "source/hf/weight_folders.h"
#include "source/numbered_files.h"
#include "source/source_opener.h"

namespace ckfs {
namespace {

constexpr std::string_view kEnding = kShardEnding;
constexpr std::string_view kModel = "model.safetensors";
constexpr std::string_view kModelOptConfig = "hf_quant_config.json";
constexpr std::size_t kMaxNotesPerShard = 100;
constexpr std::size_t kMaxNotesOfFolders = 100;

class HfOpener : public SourceOpener {
 public:
  HfOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options,
           HfOpener* whole = nullptr)
      : SourceOpener(tree, files, options, kHfSafetensors.name, whole),
        is_part_(whole != nullptr),
        cost_(whole == nullptr ? own_cost_ : whole->cost_),
        metadata_bytes_(whole == nullptr ? own_metadata_bytes_ : whole->metadata_bytes_),
        metadata_(metadata_bytes_) {}

  /// Of one file beside the weights of `whole`, an opener of any kind.
  HfOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options,
           SourceOpener& whole)
      : SourceOpener(tree, files, options, kHfSafetensors.name, &whole),
        is_part_(true),
        cost_(own_cost_),
        metadata_bytes_(own_metadata_bytes_),
        metadata_(metadata_bytes_) {}

 private:
  Result<void> read() override {
    CKFS_TRY_VOID(choose_shards());
    CKFS_TRY_VOID(check_components());
    CKFS_TRY_VOID(read_index());
    CKFS_TRY_VOID(drop_others());
    CKFS_TRY_VOID(read_headers());
    index_.reset();
    index_text_ = {};
    CKFS_TRY_VOID(read_config());
    add_missing_obstacles();
    add_shards();
    metadata_.note(builder_, shards_, !pieces_.empty());
    CKFS_TRY_VOID(add_parts());
    add_side_files();
    return {};
  }

  /// Opens the folders that have weights of their own, except those that the index names. A broken
  /// folder is left out unless the pipeline names it, and so is a copy of the weights at the top.
  Result<void> add_parts() {
    if (tree_.single_file) return {};
    CKFS_TRY_VOID(add_adapters(adapters_));
    std::set<std::string_view> indexed;
    for (const std::string_view shard : shards_) {
      indexed.insert(shard.substr(0, shard.rfind('/') + 1));
    }
    std::size_t added = 0;
    std::optional<Error> first;
    for (const std::string& folder : weight_folders(tree_)) {
      if (indexed.contains(folder)) continue;
      const SourceTree tree = tree_of(tree_, folder);
      HfOpener opener(tree, files_, options_, this);
      Result<std::shared_ptr<const Catalog>> part = opener.open_part(table().below(folder));
      if (!part) {
        const Error error = in_folder(folder, part.error());
        if (!is_fault_of_source(error.code())) return Failure(error);
        CKFS_TRY_VOID(read_components());
        if (components_->contains(folder)) return Failure(error);
        if (!first) first = error;
        ++doubtful_;
        left_out_.emplace(folder, part.error().message());
        continue;
      }
      const std::size_t tensors = shown_tensors(**part);
      if (tensors == 0) {
        left_out_.emplace(folder, "no tensors in this folder");
        continue;
      }
      if (is_copy(**part)) {
        left_out_.emplace(folder, "names and shapes are those of tensors at the top");
        continue;
      }
      for (const Note& note : (*part)->notes()) builder_.add_note(folder + note.subject, note.text);
      builder_.add_fact(folder,
                        fmt::format("{} tensors of its own{}{}", tensors,
                                    (*part)->is_quantized() ? ", " : "", (*part)->quantization()));
      parts_.insert(folder);
      builder_.add_part({folder, *std::move(part)});
      ++added;
    }
    if (shards_.empty() && adapters_.empty() && added == 0 && first) return Failure(*first);
    return {};
  }

  static bool is_fault_of_source(ErrorCode code) {
    return code == ErrorCode::Corrupt || code == ErrorCode::Unsupported ||
           code == ErrorCode::NotFound;
  }

  static Error in_folder(const std::string& folder, const Error& error) {
    const bool named = error.message().starts_with(folder);
    return named ? error : error.within(folder.substr(0, folder.size() - 1));
  }

  /// Reads the lists of folders that a pipeline has, once.
  Result<void> read_components() {
    if (components_) return {};
    components_.emplace();
    if (const auto file = find("model_index.json")) {
      CKFS_TRY(const std::string text, read_once(*file, kMaxConfig));
      CKFS_TRY_VOID(add_model_index(text, *components_));
    }
    if (const auto file = find("modules.json")) {
      CKFS_TRY(const std::string text, read_once(*file, kMaxConfig));
      CKFS_TRY_VOID(add_modules(text, *components_));
    }
    return {};
  }

  /// Finds folders whose weights may be missing from an unfinished download. Nothing else would
  /// miss them: a folder without weights is not a part. Many modules never have any, so it is an
  /// error only where there must be some.
  Result<void> check_components() {
    if (is_part_ || tree_.single_file || tree_.incomplete.empty()) return {};
    if (const Result<void> listed = read_components(); !listed) {
      components_.reset();  // where a part is broken, add_parts() says why it cannot be read
      if (listed.error().code() != ErrorCode::Corrupt) return listed;
      ++doubtful_;
      builder_.add_note(
          tree_.incomplete.front(),
          fmt::format("which folders have weights is not known: {}", listed.error().message()));
      return {};
    }
    std::map<std::string_view, bool> weights;  // folders that have some; whether safetensors
    const auto take = [&](std::string_view path) {
      const FileRole role = role_of(path);
      if (role != FileRole::Weights && role != FileRole::Adapter) return;
      weights[path.substr(0, path.rfind('/') + 1)] |= path.ends_with(kEnding);
    };
    for (const TreeFile& file : tree_.files) take(file.path);
    for (const std::string& path : tree_.dangling) take(path);
    std::map<std::string_view, std::string_view> marks;  // by folder
    for (const std::string& mark : tree_.incomplete) {
      if (const auto folder = folder_of_mark(mark)) marks.emplace(*folder, mark);
    }
    for (const auto& [folder, type] : *components_) {
      const auto own = weights.find(folder);
      if (own != weights.end() && own->second) continue;
      const std::optional<bool> wanted = module_has_weights(type);
      if (wanted.has_value() && !*wanted) continue;
      const auto mark = marks.find(folder);
      // Without it the folder may be a link to a directory, or its path one of another spelling.
      const bool is_here = find(folder + "config.json").has_value();
      if (own == weights.end() && is_here && (wanted.has_value() || mark != marks.end())) {
        return fail(ErrorCode::Unsupported,
                    "{}: no weights, and {} is a download that was not finished{}",
                    folder.substr(0, folder.size() - 1),
                    mark != marks.end() ? mark->second : tree_.incomplete.front(), hint());
      }
      if (++doubtful_ > kMaxNotesOfFolders) continue;
      builder_.add_note(folder, "no *.safetensors here, and a download was not finished");
    }
    return {};
  }

  static std::size_t shown_tensors(const Catalog& catalog) {
    std::size_t count = 0;
    for (const Shard& shard : catalog.shards()) count += shard.tensors.size();
    return count;
  }

  /// Whether every tensor of the part is one of those at the top, by name and shape.
  bool is_copy(const Catalog& part) {
    if (shown_.empty()) {
      for (const std::vector<TensorId>& shard : tensors_) {
        for (const TensorId id : shard) {
          if (companions_[id]) continue;
          const StoredTensor& tensor = builder_.tensor(id);
          shown_.emplace(tensor.name, tensor.shape);
        }
      }
    }
    return std::ranges::all_of(part.shards(), [&](const Shard& shard) {
      return std::ranges::all_of(shard.tensors, [&](TensorId id) {
        const auto twin = shown_.find(part.tensor(id).name);
        return twin != shown_.end() && std::ranges::equal(twin->second, part.tensor(id).shape);
      });
    });
  }

  /// What to append to a message about a file that is not there.
  std::string hint() const { return download_hint(tree_); }

  /// Finds what can be found by listing: the index's name, or the shards without one.
  Result<void> choose_shards() {
    if (tree_.single_file) {
      if (!tree_.incomplete.empty()) return refuse_unfinished(tree_);
      shards_.push_back(tree_.files.front().path);
      return is_part_ ? Result<void>() : refuse_slice(tree_, files_);
    }
    if (!is_part_) choose_adapters();
    index_name_ = choose_index(tree_);
    for (const std::string& path : tree_.dangling) {
      const bool is_shard = is_top_level(path) && path.ends_with(kEnding) && index_name_.empty();
      if (!is_shard && !is_index_name(path) && path != "config.json") continue;
      return refuse_dangling(tree_, path, files_);
    }
    if (!index_name_.empty()) return {};

    for (const TreeFile& file : tree_.files) {
      if (is_top_level(file.path) && file.path.ends_with(kEnding) && !is_adapter(file.path)) {
        shards_.push_back(file.path);
      }
    }
    // Files beside the folders of a diffusers pipeline hold its weights a second time, in one file.
    if (is_pipeline(tree_)) shards_.clear();
    // Mistral ships its own format beside the one of transformers: the same weights again.
    const auto is_consolidated = [](const std::string& path) {
      return path.starts_with("consolidated");
    };
    if (!std::all_of(shards_.begin(), shards_.end(), is_consolidated)) {
      std::erase_if(shards_, is_consolidated);
    }
    drop_variants(shards_);
    CKFS_TRY_VOID(drop_slices());
    if (!tree_.incomplete.empty() && (shards_.empty() || !looks_whole())) {
      return refuse_unfinished(tree_);
    }
    return check_series(series_of(shards_), kEnding, hint());
  }

  /// The files of adapters in the whole tree, but those that an index has for shards.
  void choose_adapters() {
    std::vector<std::string_view> paths;
    for (const TreeFile& file : tree_.files) paths.push_back(file.path);
    adapters_ = shown_adapters(paths);
  }

  static bool is_adapter(std::string_view path) { return role_of(path) == FileRole::Adapter; }

  /// Leaves out what is slices of ranks where there is a model beside them.
  Result<void> drop_slices() {
    const auto slices = find_slices(shards_);
    const auto is_slice = [&](const std::string& path) { return slices.contains(path); };
    if (slices.empty()) return {};
    if (std::ranges::all_of(shards_, is_slice)) {
      return refuse_slices(slices.begin()->first, slices.begin()->second);
    }
    for (const auto& [path, text] : slices) left_out_files_.emplace(path, text);
    std::erase_if(shards_, is_slice);
    return {};
  }

  /// Whether the shards' names say by themselves that none is missing.
  bool looks_whole() const {
    const auto is_numbered = [](const std::string& path) {
      return parse_numbered(path, kEnding).has_value();
    };
    return (shards_.size() == 1 && shards_.front() == kModel) ||
           std::all_of(shards_.begin(), shards_.end(), is_numbered);
  }

  Result<void> read_index() {
    if (index_name_.empty()) return {};
    CKFS_TRY(index_text_, read_once(id(index_name_), kMaxIndex));
    CKFS_TRY(index_, parse_hf_index(index_text_, index_name_));
    shards_.assign(index_->files().begin(), index_->files().end());
    std::erase_if(adapters_, [&](const std::string& path) {
      return std::ranges::binary_search(shards_, path);
    });
    const auto missing =
        std::ranges::find_if(shards_, [&](const std::string& shard) { return !find(shard); });
    if (missing == shards_.end()) return {};
    if (!is_stale()) {
      return fail(ErrorCode::NotFound, "{}: names {}, which is absent{}", index_name_,
                  quote(*missing), hint().empty() ? " (is the download finished?)" : hint());
    }
    builder_.add_note(index_name_, fmt::format("names {}, which is absent; {} is read instead",
                                               quote(*missing), kModel));
    shards_ = {std::string(kModel)};
    index_.reset();
    index_text_ = {};
    index_name_.clear();
    return {};
  }

  /// Whether an index that names absent files is of an earlier model: save_pretrained() removes the
  /// shards when it writes one file in their place, and not the index, which transformers does not
  /// look at where there is model.safetensors.
  bool is_stale() const {
    const auto is_shard = [](const std::string& path) { return path.ends_with(kEnding); };
    return find(kModel) && !std::ranges::binary_search(shards_, kModel) &&
           tree_.incomplete.empty() && !tree_.whole_is_incomplete &&
           std::ranges::none_of(tree_.dangling, is_shard);
  }

  /// Where two files have a tensor of one name and there is no index, transformers loads
  /// model.safetensors and nothing else (open_clip_pytorch_model.safetensors is beside it, say).
  Result<void> drop_others() {
    if (!index_name_.empty() || shards_.size() < 2 ||
        std::ranges::find(shards_, kModel) == shards_.end()) {
      return {};
    }
    std::unordered_set<std::string, NameHash> names;
    bool twice = false;
    CKFS_TRY_VOID(load_headers(
        files_, ids_of_shards(),
        [&](FileId file, std::uint64_t bytes) { return searched_.add(file, bytes); },
        [&](std::size_t, const LoadedHeader& loaded) -> Result<void> {
          for (std::size_t i = 0; i < loaded.header.size() && !twice; ++i) {
            twice = !names.emplace(loaded.header[i].name).second;
          }
          return {};
        },
        files_.parallel()));
    if (twice) shards_ = {std::string(kModel)};
    return {};
  }

  std::vector<FileId> ids_of_shards() const {
    std::vector<FileId> ids;
    for (const std::string& shard : shards_) ids.push_back(id(shard));
    return ids;
  }

  Result<void> read_headers() {
    const std::vector<FileId> ids = ids_of_shards();
    CKFS_TRY_VOID(load_headers(
        files_, ids, [&](FileId file, std::uint64_t bytes) { return repeated_.add(file, bytes); },
        [&](std::size_t i, const LoadedHeader& loaded) {
          return add_tensors(static_cast<std::uint32_t>(i), ids[i], loaded.header);
        },
        files_.parallel()));
    CKFS_TRY_VOID(join_pieces());
    names_.emplace(builder_);
    if (const auto twins = names_->twins()) {
      const auto [first, second] = *twins;
      if (!pieces_.empty()) {
        return fail(ErrorCode::Corrupt, "{}: tensor {}: whole in one file, and slices in others",
                    tree_.name, quote(builder_.tensor(first).name));
      }
      return fail(ErrorCode::Corrupt, "{}: tensor {}: also in {}, and no index decides",
                  shards_[shard_of(second)], quote(builder_.tensor(first).name),
                  shards_[shard_of(first)]);
    }
    if (index_ && names_->size() != index_->size()) return take_missing();
    return {};
  }

  /// Tensors that ranks saved in slices; a view then does not mirror the files.
  Result<void> join_pieces() {
    if (pieces_.empty()) return {};
    CKFS_TRY(tensors_.emplace_back(), pieces_.join(builder_));
    const auto cut = std::ranges::find_if(
        tensors_.back(), [&](TensorId id) { return !builder_.tensor(id).boxes.empty(); });
    if (cut != tensors_.back().end() && !builder_.has_only_plain_matrices()) {
      return fail(ErrorCode::Unsupported,
                  "tensor {}: slices that are not cut along the first dimension, in a checkpoint "
                  "with codes; ckfs does not join such",
                  quote(builder_.tensor(*cut).name));
    }
    builder_.add_fact("slices", fmt::format("{} in {} files, joined to {} tensors", pieces_.size(),
                                            pieces_.files(), tensors_.back().size()));
    builder_.add_note(shards_.front(),
                      fmt::format("{} files have slices of tensors, which are joined; nothing says "
                                  "of how many ranks there must be files",
                                  pieces_.files()));
    return {};
  }

  Result<void> add_tensors(std::uint32_t shard, FileId file, const safetensors::Header& header) {
    tensors_.emplace_back();
    metadata_.add(header);
    if (std::string fault = comfy_fault(header); !fault.empty()) {
      builder_.add_obstacle(shards_[shard], std::move(fault));
    }
    if (TensorPieces::are_in(header)) {
      const char* const fault = tree_.single_file ? "open the directory that has those of all ranks"
                                : index_          ? "the index cannot say where they lie"
                                                  : nullptr;
      if (fault == nullptr) return pieces_.add(shards_[shard], file, header);
      return fail(ErrorCode::Unsupported,
                  "{}: slices of tensors, as one rank saved them (DCP_SHARDING_INFO); {}",
                  shards_[shard], fault);
    }
    std::size_t left_out = 0;
    std::size_t near = 0;  // in the index: neighbours have nearly the same name
    for (std::size_t i = 0; i < header.size(); ++i) {
      const safetensors::HeaderTensor tensor = header[i];
      if (index_ && index_->find(tensor.name, near) != shard) {
        if (near < index_->size() && (*index_)[near].name == tensor.name) {
          misplaced_.emplace((*index_)[near].name, shard);
        }
        if (left_out++ < kMaxNotesPerShard) note_left_out(tensor.name, shard);
        continue;
      }
      const Extent extent{file, header.data_offset() + tensor.begin, tensor.end - tensor.begin};
      const auto numel = checked_numel(tensor.shape);
      CKFS_CHECK(numel.has_value());
      const StorageId storage = builder_.add_storage(
          tensor.dtype, *numel, std::span(&extent, extent.nbytes == 0 ? 0 : 1));
      tensors_.back().push_back(builder_.add_tensor(tensor.name, tensor.shape, storage));
    }
    if (left_out > kMaxNotesPerShard) {
      builder_.add_note(shards_[shard], fmt::format("{} more tensors are not in the index",
                                                    left_out - kMaxNotesPerShard));
    }
    return {};
  }

  void note_left_out(std::string_view name, std::uint32_t shard) {
    std::size_t near = 0;
    const auto other = index_->find(name, near);
    builder_.add_note(std::string(name),
                      other ? fmt::format("left out of {}: the index maps it to {}", shards_[shard],
                                          shards_[*other])
                            : fmt::format("left out of {}: not in the index", shards_[shard]));
  }

  std::size_t shard_of(TensorId id) const {
    std::size_t shard = 0;
    while (!std::binary_search(tensors_[shard].begin(), tensors_[shard].end(), id)) ++shard;
    return shard;
  }

  /// The headers are complete, so a tensor that only the index names was never there. Views show
  /// the others, with an index without the missing one. Refused where that would be a guess: a file
  /// with none of its tensors is another model's; or the tensor lies in another file than the index
  /// says.
  Result<void> take_missing() {
    for (std::size_t i = 0; i < index_->size(); ++i) {
      const HfIndex::Entry entry = (*index_)[i];
      if (names_->find(entry.name)) continue;
      const auto elsewhere = misplaced_.find(entry.name);
      if (elsewhere != misplaced_.end()) {
        return fail(ErrorCode::Corrupt, "{}: tensor {}: in {}, not in the file, but in {}{}",
                    shards_[entry.file], quote(entry.name), index_name_, shards_[elsewhere->second],
                    hint());
      }
      if (tensors_[entry.file].empty()) {
        return fail(ErrorCode::Corrupt, "{}: none of the tensors that {} says are in it{}",
                    shards_[entry.file], index_name_, hint());
      }
      if (missing_.size() < kMaxNotes) {
        builder_.add_note(std::string(entry.name),
                          fmt::format("missing: {} says that it is in {}; no view has it",
                                      index_name_, shards_[entry.file]));
      }
      missing_.emplace_back(entry.name);
    }
    const std::string text = fmt::format("{} that {} names are in no file, the first of them {}",
                                         missing_.size(), index_name_, quote(missing_.front()));
    builder_.add_fact("missing tensors", text);
    spdlog::warn("{}: tensors are missing: {}", tree_.name, text);
    return {};
  }

  /// A missing part of a quantized weight, a zero point say, would change its values.
  void add_missing_obstacles() {
    if (missing_.empty()) return;
    const auto module_of = [](std::string_view name) {
      return name.substr(0, name.rfind('.') + 1);
    };
    std::set<std::string_view> quantized;
    for (TensorId id = 0; id < builder_.tensor_count(); ++id) {
      const StoredTensor& tensor = builder_.tensor(id);
      if (builder_.storage(tensor.storage).encoding->is_quantized()) {
        quantized.insert(module_of(tensor.name));
      }
    }
    for (const std::string& name : missing_) {
      if (!quantized.contains(module_of(name))) continue;
      builder_.add_obstacle(name, "missing, and its module is quantized");
    }
  }

  Result<void> read_config() {
    std::optional<QuantizationConfig> quantization;
    const auto config = tree_.single_file ? std::nullopt : find("config.json");
    if (config) {
      CKFS_TRY(model_.config, read_once(*config, kMaxConfig));
      model_.config_file = *config;
      CKFS_TRY(quantization, find_quantization(*model_.config, "config.json"));
      // The view's edit can fail where finding cannot (a key twice); better now than at a read.
      CKFS_TRY_VOID(dense_config(*model_.config, "bfloat16", "config.json"));
    }
    if (const auto beside = find(kModelOptConfig); beside && !tree_.single_file && !quantization) {
      CKFS_TRY(const std::string text, read_once(*beside, kMaxConfig));
      CKFS_TRY(quantization, parse_modelopt(text, kModelOptConfig));
    }
    for (const auto& [name, method] :
         {std::pair("quantize_config.json", "gptq"), std::pair("quant_config.json", "awq")}) {
      const auto file = tree_.single_file || quantization ? std::nullopt : find(name);
      if (!file) continue;
      CKFS_TRY(const std::string text, read_once(*file, kMaxConfig));
      CKFS_TRY(quantization, parse_quantization_file(text, name, method));
    }
    CKFS_TRY(companions_, apply_quantization(builder_, *names_, quantization, files_, cost_));
    names_.reset();
    return {};
  }

  void add_shards() {
    if (!pieces_.empty()) {
      std::vector<TensorId> all;
      for (const std::vector<TensorId>& shard : tensors_) {
        std::ranges::copy_if(shard, std::back_inserter(all),
                             [&](TensorId id) { return !companions_[id]; });
      }
      builder_.add_only_shard(std::move(all));
      return;
    }
    std::shared_ptr<const HeaderMetadata> from, plain;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      if (metadata_.of(i) != from) {
        from = metadata_.of(i);
        plain = builder_.is_quantized() ? without_quantization(from) : from;
      }
      std::string path = shards_[i];
      // A blob of a cache, say: a view's file needs a name that loaders know.
      if (tree_.single_file && !path.ends_with(kEnding)) path = "model.safetensors";
      Shard shard{std::move(path), id(shards_[i]), {}, plain};
      for (const TensorId id : tensors_[i]) {
        if (!companions_[id]) shard.tensors.push_back(id);
      }
      builder_.add_shard(std::move(shard));
    }
  }

  void add_side_files() {
    if (!tree_.single_file) {
      for (const TreeFile& file : tree_.files) add_side_file(file.path);
    }
    for (const std::string& path : tree_.incomplete) {
      builder_.add_note(path, doubtful_ == 0
                                  ? "a download that was not finished; nothing here needs it"
                                  : "a download that was not finished; it may be of weights that "
                                    "folders need");
    }
    model_.index = index_name_;
    builder_.set_model(std::move(model_));
  }

  void add_side_file(const std::string& path) {
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    if (parts_.contains(folder)) return;
    const auto left_out = left_out_.find(folder);
    switch (role_of(path)) {
      case FileRole::Side:
        model_.side_files.push_back({path, id(path)});
        return;
      case FileRole::AdapterConfig:
        if (has_adapter(folder)) {
          model_.side_files.push_back({path, id(path)});
        } else {
          builder_.add_note(path, "of an adapter that is not here; converted views leave it out");
        }
        return;
      case FileRole::Adapter:
        if (std::ranges::binary_search(shards_, path) ||
            std::ranges::binary_search(adapters_, path)) {
          return;
        }
        builder_.add_note(path, "other weights; converted views leave it out");
        return;
      case FileRole::Weights:
        if (const auto slice = left_out_files_.find(path); slice != left_out_files_.end()) {
          builder_.add_note(path, fmt::format("{}; converted views leave it out", slice->second));
        } else if (left_out != left_out_.end() && path.ends_with(kEnding)) {
          builder_.add_note(path, fmt::format("left out: {}", left_out->second));
        } else if (!std::ranges::binary_search(shards_, path)) {
          builder_.add_note(path, index_name_.empty() || !path.ends_with(kEnding)
                                      ? "other weights; converted views leave it out"
                                      : "not in the index; converted views leave it out");
        }
        return;
      case FileRole::Quantization:
        builder_.add_note(path, "describes the quantization; converted views leave it out");
        return;
      case FileRole::Config:
      case FileRole::Index:
      case FileRole::Hidden:
        return;
    }
  }

  const bool is_part_;
  QuantizationCost own_cost_;
  QuantizationCost& cost_;
  std::uint64_t own_metadata_bytes_ = 0;
  std::uint64_t& metadata_bytes_;
  std::string index_name_;  // empty: none
  std::string index_text_;
  std::optional<HfIndex> index_;
  std::vector<std::string> shards_;  // in byte order, as the index's files are

  std::vector<std::string> adapters_;                  // by path
  std::map<std::string, std::string> left_out_files_;  // files at the top, and why

  std::vector<std::vector<TensorId>> tensors_;  // by shard, provisional ids; then those of slices
  TensorPieces pieces_;
  ShardMetadata metadata_;
  std::map<std::string_view, std::uint32_t> misplaced_;  // names of the index, by another shard
  std::vector<std::string> missing_;                     // tensors that only the index names
  std::optional<TensorNames> names_;                     // from read_headers() to read_config()
  std::vector<bool> companions_;
  ModelDirectory model_;

  // Folders, and the types of modules, where they are said; in read_components().
  std::optional<PipelineFolders> components_;
  std::size_t doubtful_ = 0;     // folders whose weights an unfinished download may be missing
  std::set<std::string> parts_;  // folders
  std::map<std::string, std::string> left_out_;  // folders with weights, and why
  std::map<std::string_view, std::span<const std::int64_t>> shown_;  // in is_copy()
};

bool recognizes_safetensors(const SourceTree& tree, const SourceFiles& files,
                            const OpenCheckpointOptions& /*options*/) {
  if (tree.single_file) return true;
  const auto is_adapter = [](const std::string& path) {
    return is_top_level(path) && path.ends_with(kEnding) && role_of(path) == FileRole::Adapter;
  };
  const auto is_weights = [&](const std::string& path) {
    return is_top_level(path) && path.ends_with(kEnding) && !is_adapter(path);
  };
  const auto counts = [&](const TreeFile& file) {
    return is_weights(file.path) || is_index_name(file.path);
  };
  return std::any_of(tree.files.begin(), tree.files.end(), counts) || is_pipeline(tree) ||
         std::any_of(tree.dangling.begin(), tree.dangling.end(), is_weights) ||
         !tree.incomplete.empty() ||
         // An adapter beside a model of torch is that one's.
         ((std::ranges::any_of(tree.files, is_adapter, &TreeFile::path) ||
           std::ranges::any_of(tree.dangling, is_adapter)) &&
          !kTorchFiles.recognizes(tree, files, {}));
}

Result<std::shared_ptr<const Catalog>> open_safetensors(const SourceTree& tree, SourceFiles& files,
                                                        const OpenCheckpointOptions& options) {
  if (!options.tag.empty() || !options.key.empty() || options.config) {
    // The files still to come may take these options.
    if (!tree.incomplete.empty()) return refuse_unfinished(tree);
    if (options.config) {
      return fail(ErrorCode::InvalidArgument,
                  "{}: --config does not go with a safetensors checkpoint, which has its own "
                  "config.json (leave the option out)",
                  tree.name);
    }
    return fail(ErrorCode::InvalidArgument,
                "{}: --{} does not go with a safetensors checkpoint, whose tensors are all at one "
                "place (leave the option out)",
                tree.name, options.tag.empty() ? "key" : "tag");
  }
  return HfOpener(tree, files, options).open();
}

Result<std::shared_ptr<const Catalog>> open_safetensors_file(const SourceTree& tree,
                                                             SourceFiles& files,
                                                             SourceOpener& whole,
                                                             const FileTable& table) {
  const OpenCheckpointOptions options;
  return HfOpener(tree, files, options, whole).open_part(table);
}

}  // namespace

const Adapter kHfSafetensors{"safetensors", recognizes_safetensors, open_safetensors,
                             open_safetensors_file};

}  // namespace ckfs
