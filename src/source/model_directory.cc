// A training run puts config.json where its framework likes: beside the tag (Trainer), beside the
// one file, or nowhere. Only the directory itself is looked at, never folders below: below a
// training run's output lie other checkpoints. Without config.json nothing is shown, because then
// the directory is not a model's and its other files may be private.
#include "source/model_directory.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <utility>

#include "base/checked.h"
#include "format/json_text.h"
#include "format/json_tree.h"
#include "format/quantization_config.h"
#include "source/file_role.h"
#include "source/header_loader.h"
#include "source/hub_cache.h"
#include "source/source_name.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kAdapterConfig = "adapter_config.json";
constexpr std::size_t kMaxSideFiles = 1000;

/// Files that trainers leave beside a model, and that are not part of it.
constexpr std::array<std::string_view, 6> kTrainingFiles = {
    "latest",           "latest_universal",   "zero_to_fp32.py",
    "zero_to_torch.py", "trainer_state.json", "latest_checkpointed_iteration.txt"};

bool is_side_file(std::string_view name) {
  return !name.starts_with('.') && !name.ends_with(".pkl") && role_of(name) == FileRole::Side &&
         std::find(kTrainingFiles.begin(), kTrainingFiles.end(), name) == kTrainingFiles.end();
}

/// Names that a model's files have, apart from code. Only these are shown: the other files of a
/// training run's directory may be private.
bool is_known_model_file(std::string_view name) {
  constexpr std::array<std::string_view, 17> kNames = {"generation_config.json",
                                                       "vocab.json",
                                                       "vocab.txt",
                                                       "merges.txt",
                                                       "special_tokens_map.json",
                                                       "added_tokens.json",
                                                       "chat_template.json",
                                                       "chat_template.jinja",
                                                       "preprocessor_config.json",
                                                       "video_preprocessor_config.json",
                                                       "processor_config.json",
                                                       "feature_extractor_config.json",
                                                       "spiece.model",
                                                       "sentencepiece.bpe.model",
                                                       "README.md",
                                                       "NOTICE",
                                                       "USE_POLICY.md"};
  const auto is_one_of = [&](std::initializer_list<std::string_view> endings) {
    return std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
  };
  return std::ranges::find(kNames, name) != kNames.end() || name.starts_with("LICENSE") ||
         (name.starts_with("tokenizer") && is_one_of({".json", ".model", ".txt"})) ||
         name.ends_with(".tiktoken");
}

/// The files of code that `auto_map` of a config.json names: "AutoModel": "modeling_x.XModel".
std::set<std::string> code_files(const std::string& config) {
  std::set<std::string> files;
  const auto tree = parse_json_tree(config, kConfig, JsonKeys::LastWins);
  const JsonNode* const map = tree ? tree->find("auto_map") : nullptr;
  const auto add = [&](const JsonNode& node) {
    const std::size_t dot = node.text.find('.');
    if (node.kind != JsonNode::Kind::String || dot == std::string::npos) return;
    files.insert(node.text.substr(0, dot) + ".py");
  };
  if (map == nullptr || map->kind != JsonNode::Kind::Object) return files;
  for (const JsonNode& item : map->items) {
    add(item);
    if (item.kind != JsonNode::Kind::List) continue;
    for (const JsonNode& one : item.items) add(one);  // a slow and a fast tokenizer
  }
  return files;
}

/// Whether converted views show the file of that name, if it lies beside config.json.
bool is_shown(const std::string& name, const std::set<std::string>& code) {
  return name.find('/') == std::string::npos && is_side_file(name) &&
         (is_known_model_file(name) || code.contains(name));
}

/// config.json and the possible side files directly in a directory; by name.
Result<std::vector<TreeFile>> list_model_files(const fs::path& directory, const std::string& shown,
                                               const SourceFiles& files) {
  CKFS_TRY(std::vector<TreeFile> found,
           list_files(directory, shown, files, [](std::string_view name) {
             return name == kConfig ||
                    (is_side_file(name) && (is_known_model_file(name) || name.ends_with(".py")));
           }));
  return found;
}

class ModelDirectoryFinder {
 public:
  ModelDirectoryFinder(SourceFiles& files, CatalogBuilder& builder)
      : files_(files), builder_(builder) {}

  Result<ModelDirectory> in_tree(const SourceTree& tree, const FileTable& table) {
    std::set<std::string> code;
    if (const auto config = table.find(kConfig)) {
      CKFS_TRY_VOID(take_config(*config, kConfig));
      code = code_files(*model_.config);
    }
    for (const TreeFile& file : tree.files) {
      if (!is_shown(file.path, code)) continue;
      model_.side_files.push_back({file.path, table.find(file.path).value()});
    }
    return std::move(model_);
  }

  /// `directory` as SourceStore::resolve() gives it.
  /// `by`: why it is taken from there, for people.
  Result<ModelDirectory> outside(const fs::path& directory, const std::string& shown,
                                 std::string_view by) {
    CKFS_TRY(std::vector<TreeFile> found, list_model_files(directory, shown, files_));
    const auto config = std::ranges::find(found, kConfig, &TreeFile::path);
    if (config == found.end()) return std::move(model_);
    // config.json before the others: it says which of them are its code; no other code is opened.
    const auto named = [&](std::string_view path) { return fmt::format("{}/{}", shown, path); };
    std::vector<NewFile> added{{named(kConfig), directory / kConfig, !config->is_link}};
    CKFS_TRY(const FileId config_file, files_.add(std::exchange(added, {})));
    CKFS_TRY_VOID(take_config(config_file, named(kConfig)));
    const std::set<std::string> code = code_files(*model_.config);
    std::erase_if(found, [&](const TreeFile& file) {
      return file.path != kConfig && !is_shown(file.path, code);
    });
    const std::size_t others = found.size() - 1;
    if (others > kMaxSideFiles) {
      return fail(ErrorCode::Unsupported, "{}: {} files beside config.json (limit {})", shown,
                  others, kMaxSideFiles);
    }
    for (const TreeFile& file : found) {
      if (file.path == kConfig) continue;
      added.push_back({named(file.path), directory / file.path, !file.is_link});
    }
    FileId next = config_file;
    if (!added.empty()) {
      CKFS_TRY(next, files_.add(std::move(added)));
    }
    CKFS_TRY(const fs::path boundary, link_boundary(directory, files_.store()));
    std::vector<std::string_view> taken;
    std::uint64_t total = 0;
    for (const TreeFile& file : found) {
      const std::string& name = file.path;
      const FileId id = name == kConfig ? config_file : next++;
      if (!lies_in(files_.path(id), boundary)) {
        builder_.add_fact(
            std::string(kOutsideLinks),
            fmt::format("{} -> {}", (directory / name).string(), files_.path(id).string()));
      }
      const Fingerprint& fingerprint = files_.fingerprint(id);
      const auto sum = checked_add(total, fingerprint.size);
      if (!sum || *sum > kMaxSourceBytes) {
        return fail(ErrorCode::Unsupported, "{}/{}: {} bytes, and {} in those before it (limit {})",
                    shown, name, fingerprint.size, total, kMaxSourceBytes);
      }
      total = *sum;
      builder_.saw_file(seen_name(name, fingerprint), fingerprint.size, fingerprint.mtime_ns);
      if (name != kConfig) model_.side_files.push_back({name, id});
      taken.push_back(name);
    }
    builder_.add_fact("beside the source",
                      fmt::format("{} taken from {}{}", fmt::join(taken, ", "), shown, by));
    return std::move(model_);
  }

  /// `file` alone is config.json.
  Result<ModelDirectory> config_alone(const fs::path& file, const std::string& shown) {
    CKFS_TRY(const FileId id, files_.add({{shown, file, false}}));
    CKFS_TRY_VOID(take_config(id, shown));
    const Fingerprint& fingerprint = files_.fingerprint(id);
    // However it is spelled: the fingerprint must not depend on that.
    builder_.saw_file(seen_name(kConfig, fingerprint), fingerprint.size, fingerprint.mtime_ns);
    builder_.add_fact("beside the source",
                      fmt::format("config.json taken from {} (--config)", shown));
    return std::move(model_);
  }

 private:
  /// `shown` is what messages call it.
  Result<void> take_config(FileId file, std::string_view shown) {
    CKFS_TRY(model_.config, read_text(files_, file, kMaxConfig));
    model_.config_file = file;
    // The view's edit can fail where reading cannot (a key twice); better now than at a read.
    CKFS_TRY_VOID(dense_config(*model_.config, "bfloat16", shown));
    CKFS_TRY(const auto quantization, find_quantization(*model_.config, shown));
    if (!quantization) return {};
    // A fine-tuned state of a quantized release has its config and plain floats.
    if (builder_.has_only_plain_matrices()) {
      builder_.add_note(
          std::string(shown),
          fmt::format("says quantized by {}, but no tensor here is", quantization->method));
    } else {
      builder_.add_obstacle(std::string(shown),
                            fmt::format("quantized by {}, which is decoded only from safetensors",
                                        quantization->method));
    }
    return {};
  }

  SourceFiles& files_;
  CatalogBuilder& builder_;
  ModelDirectory model_;
};

/// `path`, or the snapshot that a repository of the hub's cache stands for.
Result<fs::path> snapshot_of(const fs::path& path, SourceStore& store) {
  const auto whole = store.resolve(path);
  if (!whole) return path;  // to look at it says why
  CKFS_TRY(const auto snapshot, find_hub_snapshot(*whole, store));
  return snapshot ? snapshot->directory : path;
}

}  // namespace

Result<ModelDirectory> find_model_directory(const SourceTree& tree, const FileTable& table,
                                            SourceFiles& files, CatalogBuilder& builder,
                                            const OpenCheckpointOptions& options,
                                            const std::optional<fs::path>& beside) {
  ModelDirectoryFinder finder(files, builder);
  if (options.config) {
    const std::string shown = options.config->string();
    CKFS_TRY(const fs::path found, find_source(*options.config, files.store()));
    CKFS_TRY(const auto snapshot, snapshot_of(found, files.store()));
    const auto directory = files.store().resolve(snapshot);
    if (!directory) return system_failure(directory.error(), shown, "cannot list");
    const auto status = files.store().look(*directory);
    if (status && status->kind == FileKind::File) return finder.config_alone(*directory, shown);
    CKFS_TRY(ModelDirectory model, finder.outside(*directory, shown, " (--config)"));
    if (!model.config) return fail(ErrorCode::NotFound, "{}: it has no {}", shown, kConfig);
    return model;
  }
  if (!tree.single_file && tree.find(kConfig) != nullptr) return finder.in_tree(tree, table);
  // Beside an adapter alone lies its own configuration, and no model's.
  const bool has_adapter = !tree.single_file && tree.find(kAdapterConfig) != nullptr;
  if (!beside) return has_adapter ? finder.in_tree(tree, table) : ModelDirectory{};
  const fs::path path = *beside / kConfig;
  const auto config = files.store().look(path);
  if (!config && !is_out_of_reach(config.error())) {
    return system_failure(config.error(), path.string(), "cannot look at");
  }
  if (!config || config->kind != FileKind::File) return ModelDirectory{};
  return finder.outside(*beside, beside->string(), "");
}

fs::path directory_above(const SourceTree& tree) {
  return tree.root.parent_path();
}

}  // namespace ckfs
