// People edit both lists by hand: entries of an unknown form name nothing.
#include "source/hf/pipeline.h"

#include "format/json_tree.h"
#include "source/source_tree.h"

namespace ckfs {

Result<void> add_model_index(const std::string& text, PipelineFolders& folders) {
  CKFS_TRY(const JsonNode index, parse_json_tree(text, "model_index.json", JsonKeys::LastWins));
  for (std::size_t i = 0; i < index.keys.size(); ++i) {
    // ["diffusers", "UNet2DConditionModel"]; of one that is left out [null, null].
    const std::vector<JsonNode>& classes = index.items[i].items;
    const bool is_used = !classes.empty() && classes[0].kind == JsonNode::Kind::String;
    if (is_used) folders.emplace(index.keys[i] + "/", "");
  }
  return {};
}

Result<void> add_modules(const std::string& text, PipelineFolders& folders) {
  CKFS_TRY(const JsonNode all, parse_json_tree(fmt::format(R"({{"modules":{}}})", text),
                                               "modules.json", JsonKeys::LastWins));
  for (const JsonNode& module : all.items[0].items) {
    const JsonNode* const path = module.find("path");
    const JsonNode* const type = module.find("type");
    if (path == nullptr || path->text.empty()) continue;  // the top itself
    folders.emplace(path->text + "/", type == nullptr ? "" : type->text);
  }
  return {};
}

std::optional<bool> module_has_weights(std::string_view type) {
  if (!type.starts_with("sentence_transformers.")) return std::nullopt;
  const std::string_view name = type.substr(type.rfind('.') + 1);
  if (name == "Dense" || name == "LayerNorm" || name == "WeightedLayerPooling") return true;
  if (name == "Pooling" || name == "Normalize" || name == "Dropout") return false;
  return std::nullopt;
}

std::optional<std::string_view> folder_of_mark(std::string_view mark) {
  const std::string hub = fmt::format("{}/download/", kDownloadFolder);
  if (mark.starts_with(hub)) mark.remove_prefix(hub.size());
  const std::string_view folder = mark.substr(0, mark.rfind('/') + 1);
  const std::string_view name = mark.substr(folder.size());
  const bool is_model =
      name.starts_with("model.safetensors.") || name.starts_with("xGOKKLRSlIhH692hSVvI1-gpoa8=.");
  return is_model ? std::optional(folder) : std::nullopt;
}

}  // namespace ckfs
