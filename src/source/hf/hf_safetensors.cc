// Which tensors a directory of safetensors files holds is decided by its index where there is one:
// uploads are repaired, re-sharded and merged in place, and stale shards or duplicates stay behind.
// Loaders that walk the files (transformers does) then load what nobody meant. Without an index all
// files count, and the same name twice has no right answer.
//
// A download that was cut off is the commonest broken checkpoint; wherever a file is missing, the
// message says what completes it.

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "base/checked.h"
#include "base/name_hash.h"
#include "base/text.h"
#include "format/hf_index.h"
#include "format/json_text.h"
#include "format/json_tree.h"
#include "format/quantization_config.h"
#include "source/adapters.h"
#include "source/file_role.h"
#include "source/header_loader.h"
#include "source/hf/quantization.h"
#include "source/hf/weight_folders.h"
#include "source/numbered_files.h"
#include "source/source_opener.h"

namespace ckfs {
namespace {

constexpr std::string_view kEnding = ".safetensors";
constexpr std::string_view kModel = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kModelOptConfig = "hf_quant_config.json";
constexpr std::size_t kMaxNotesPerShard = 100;
constexpr std::size_t kMaxNotesOfFolders = 100;

bool is_top_level(std::string_view path) {
  return path.find('/') == std::string_view::npos;
}

bool is_index_name(std::string_view path) {
  return is_top_level(path) && path.ends_with(".safetensors.index.json");
}

/// "model.fp16" of "model.fp16.safetensors.index.json": a variant, as diffusers calls the same
/// weights in another dtype beside those of the plain name.
bool is_variant(std::string_view name) {
  return name.substr(0, name.find(kEnding)).find('.') != std::string_view::npos;
}

/// "model" of "model.fp16-00001-of-00002.safetensors", "model.fp16.safetensors.index.json" and
/// "model-00001-of-00002.safetensors": what a variant and the plain weights have in common.
std::string_view common_stem(std::string_view name) {
  name = name.substr(0, name.find('.'));
  const std::size_t number = name.rfind("-of-");
  return number == std::string_view::npos ? name : name.substr(0, name.rfind('-', number - 1));
}

/// The index to go by: the one of the standard name, else the only one, else the only one of no
/// variant; empty: none, or only a variant's beside the plain weights.
std::string choose_index(const SourceTree& tree) {
  if (tree.find(kIndexName) != nullptr) return std::string(kIndexName);
  std::vector<std::string> found;
  for (const TreeFile& file : tree.files) {
    if (is_index_name(file.path)) found.push_back(file.path);
  }
  if (found.size() > 1) std::erase_if(found, is_variant);
  if (found.size() != 1) return {};
  const std::string& only = found.front();
  bool plain = false, variant = false;
  for (const TreeFile& file : tree.files) {
    if (!is_top_level(file.path) || !file.path.ends_with(kEnding)) continue;
    if (common_stem(file.path) != common_stem(only)) continue;
    (is_variant(file.path) ? variant : plain) = true;
  }
  // Where no file is a variant's, the index is of the plain ones, whatever it is called.
  return is_variant(only) && plain && variant ? std::string() : only;
}

/// Drops "model.fp16.safetensors" where there is a "model.safetensors", or a series of that name.
void drop_variants(std::vector<std::string>& shards) {
  std::set<std::string, std::less<>> plain;
  for (const std::string& path : shards) {
    if (!is_variant(path)) plain.emplace(common_stem(path));
  }
  std::erase_if(shards, [&](const std::string& path) {
    return is_variant(path) && plain.contains(common_stem(path));
  });
}

/// Whether modules of this type of sentence-transformers ("sentence_transformers.models.Dense")
/// have weights; nullopt: not known.
std::optional<bool> module_has_weights(std::string_view type) {
  if (!type.starts_with("sentence_transformers.")) return std::nullopt;
  const std::string_view name = type.substr(type.rfind('.') + 1);
  if (name == "Dense" || name == "LayerNorm" || name == "WeightedLayerPooling") return true;
  if (name == "Pooling" || name == "Normalize" || name == "Dropout") return false;
  return std::nullopt;
}

/// The folder of whose model.safetensors the mark of an unfinished download is; nullopt: of another
/// file, or not known. huggingface_hub keeps the repository's folders within its own, and begins
/// the mark's name with the file's, or with the SHA-1 of "model.safetensors.metadata" in base 64.
std::optional<std::string_view> folder_of_mark(std::string_view mark) {
  constexpr std::string_view kHub = ".cache/huggingface/download/";
  if (mark.starts_with(kHub)) mark.remove_prefix(kHub.size());
  const std::string_view folder = mark.substr(0, mark.rfind('/') + 1);
  const std::string_view name = mark.substr(folder.size());
  const bool is_model =
      name.starts_with("model.safetensors.") || name.starts_with("xGOKKLRSlIhH692hSVvI1-gpoa8=.");
  return is_model ? std::optional(folder) : std::nullopt;
}

class HfOpener : public SourceOpener {
 public:
  HfOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options,
           HfOpener* whole = nullptr)
      : SourceOpener(tree, files, options, kHfSafetensors.name, whole),
        is_part_(whole != nullptr),
        cost_(whole == nullptr ? own_cost_ : whole->cost_) {}

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
    add_shards();
    CKFS_TRY_VOID(add_parts());
    add_side_files();
    return {};
  }

  /// Opens the folders that have weights of their own, and none of those that the index names. One
  /// that is broken is left out unless the pipeline names it, as are copies of what is at the top.
  Result<void> add_parts() {
    if (tree_.single_file) return {};
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
    if (shards_.empty() && added == 0 && first) return Failure(*first);
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

  /// The folders that a pipeline's own list names: those of diffusers are its keys, of
  /// sentence-transformers its paths, beside the types of their modules.
  Result<void> read_components() {
    if (components_) return {};
    components_.emplace();
    if (const auto file = find("model_index.json")) {
      CKFS_TRY(const std::string text, read_once(*file, kMaxConfig));
      CKFS_TRY(const JsonNode index, parse_json_tree(text, "model_index.json", JsonKeys::LastWins));
      for (std::size_t i = 0; i < index.keys.size(); ++i) {
        // ["diffusers", "UNet2DConditionModel"]; of one that is left out [null, null].
        const std::vector<JsonNode>& classes = index.items[i].items;
        const bool is_used = !classes.empty() && classes[0].kind == JsonNode::Kind::String;
        if (is_used) components_->emplace(index.keys[i] + "/", "");
      }
    }
    if (const auto file = find("modules.json")) {
      CKFS_TRY(const std::string text, read_once(*file, kMaxConfig));
      CKFS_TRY(const JsonNode all, parse_json_tree(fmt::format(R"({{"modules":{}}})", text),
                                                   "modules.json", JsonKeys::LastWins));
      for (const JsonNode& module : all.items[0].items) {
        const JsonNode* const path = module.find("path");
        const JsonNode* const type = module.find("type");
        if (path == nullptr || path->text.empty()) continue;  // the top itself
        components_->emplace(path->text + "/", type == nullptr ? "" : type->text);
      }
    }
    return {};
  }

  /// Finds folders whose weights an unfinished download may lack. Nothing else would miss them: a
  /// folder without weights is no part. Many modules never have any, so it is an error only where
  /// there must be some.
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
      if (role_of(path) != FileRole::Weights) return;
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
      return {};
    }
    index_name_ = choose_index(tree_);
    for (const std::string& path : tree_.dangling) {
      const bool is_shard = is_top_level(path) && path.ends_with(kEnding) && index_name_.empty();
      if (!is_shard && !is_index_name(path) && path != "config.json") continue;
      return fail(ErrorCode::NotFound, "{}: a link to a file that is absent or out of reach{}",
                  path, hint());
    }
    if (!index_name_.empty()) return {};

    for (const TreeFile& file : tree_.files) {
      if (is_top_level(file.path) && file.path.ends_with(kEnding)) shards_.push_back(file.path);
    }
    // What stands beside the folders of a diffusers pipeline is its weights once more, in one file.
    if (is_pipeline(tree_)) shards_.clear();
    // Mistral ships its own format beside the one of transformers: the same weights again.
    const auto is_consolidated = [](const std::string& path) {
      return path.starts_with("consolidated");
    };
    if (!std::all_of(shards_.begin(), shards_.end(), is_consolidated)) {
      std::erase_if(shards_, is_consolidated);
    }
    drop_variants(shards_);
    if (!tree_.incomplete.empty() && (shards_.empty() || !looks_whole())) {
      return refuse_unfinished(tree_);
    }
    return check_series(shards_, kEnding, hint());
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
    const auto missing =
        std::ranges::find_if(shards_, [&](const std::string& shard) { return !find(shard); });
    if (missing == shards_.end()) return {};
    if (!is_stale()) {
      return fail(ErrorCode::NotFound, "{}: names {}, which is absent{}", index_name_,
                  quote(*missing), hint());
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
  /// model.safetensors and nothing else (open_clip_pytorch_model.safetensors stands beside it,
  /// say).
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
    names_.emplace(builder_);
    if (const auto twins = names_->twins()) {
      const auto [first, second] = *twins;
      return fail(ErrorCode::Corrupt, "{}: tensor {}: also in {}, and no index decides",
                  shards_[shard_of(second)], quote(builder_.tensor(first).name),
                  shards_[shard_of(first)]);
    }
    if (index_ && names_->size() != index_->size()) return missing_tensor();
    return {};
  }

  Result<void> add_tensors(std::uint32_t shard, FileId file, const safetensors::Header& header) {
    tensors_.emplace_back();
    std::size_t left_out = 0;
    std::size_t near = 0;  // in the index: what lies together has nearly one name
    for (std::size_t i = 0; i < header.size(); ++i) {
      const safetensors::HeaderTensor tensor = header[i];
      if (index_ && index_->find(tensor.name, near) != shard) {
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

  Failure missing_tensor() const {
    std::size_t missing = 0;
    HfIndex::Entry first;
    for (std::size_t i = 0; i < index_->size(); ++i) {
      if (names_->find((*index_)[i].name)) continue;
      if (missing++ == 0) first = (*index_)[i];
    }
    return fail(ErrorCode::Corrupt, "{}: tensor {}: in {}, not in the file{}{}",
                shards_[first.file], quote(first.name), index_name_,
                missing > 1 ? fmt::format(" (and {} more)", missing - 1) : "", hint());
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
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      std::string path = shards_[i];
      // A blob of a cache, say: a view's file needs a name that loaders know.
      if (tree_.single_file && !path.ends_with(kEnding)) path = "model.safetensors";
      Shard shard{std::move(path), id(shards_[i]), {}};
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
                                    "folders lack");
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
      case FileRole::Weights:
        if (left_out != left_out_.end() && path.ends_with(kEnding)) {
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
  std::string index_name_;  // empty: none
  std::string index_text_;
  std::optional<HfIndex> index_;
  std::vector<std::string> shards_;  // in byte order, as the index's files are

  std::vector<std::vector<TensorId>> tensors_;  // by shard, provisional ids
  std::optional<TensorNames> names_;            // from read_headers() to read_config()
  std::vector<bool> companions_;
  ModelDirectory model_;

  // Folders, and the types of modules, where they are said; in read_components().
  std::optional<std::map<std::string, std::string>> components_;
  std::size_t doubtful_ = 0;     // folders whose weights an unfinished download may lack
  std::set<std::string> parts_;  // folders
  std::map<std::string, std::string> left_out_;  // folders with weights, and why
  std::map<std::string_view, std::span<const std::int64_t>> shown_;  // in is_copy()
};

bool recognizes_safetensors(const SourceTree& tree, const SourceFiles& /*files*/,
                            const OpenCheckpointOptions& /*options*/) {
  if (tree.single_file) return true;
  const auto is_weights = [](const std::string& path) {
    return is_top_level(path) && path.ends_with(kEnding);
  };
  const auto counts = [&](const TreeFile& file) {
    return is_weights(file.path) || is_index_name(file.path);
  };
  return std::any_of(tree.files.begin(), tree.files.end(), counts) || is_pipeline(tree) ||
         std::any_of(tree.dangling.begin(), tree.dangling.end(), is_weights) ||
         !tree.incomplete.empty();
}

Result<std::shared_ptr<const Catalog>> open_safetensors(const SourceTree& tree, SourceFiles& files,
                                                        const OpenCheckpointOptions& options) {
  if (!options.tag.empty() || !options.key.empty() || options.config) {
    // What is still to come may take them.
    if (!tree.incomplete.empty()) return refuse_unfinished(tree);
    return fail(ErrorCode::InvalidArgument,
                "{}: a checkpoint of safetensors takes no tag, key or configuration", tree.name);
  }
  return HfOpener(tree, files, options).open();
}

}  // namespace

const Adapter kHfSafetensors{"safetensors", recognizes_safetensors, open_safetensors};

}  // namespace ckfs
