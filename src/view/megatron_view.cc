// Megatron asks for the names that the checkpoint's content_metadata says: with numbered layers it
// finds the tensors of any model there, whatever its own configuration would stack. Releases before
// 0.13 do not read it, and stack layers that are all alike; layers=stacked is for them.
//
// A loader reads chunks, each whole where it needs a part. So chunks are one layer's, and one
// expert's.
#include "view/megatron_view.h"

#include <algorithm>

#include "base/natural_order.h"
#include "base/text.h"
#include "format/torch_zip_writer.h"
#include "view/dcp_view.h"
#include "view/hf_model.h"
#include "view/maxtext_tree.h"

namespace ckfs {
namespace {

constexpr std::string_view kDirectory = "release/";
constexpr std::string_view kLayerPrefix = "decoder.layers.";
constexpr std::string_view kRouterBias = ".e_score_correction_bias";

/// The view of the model that the rules begin with.
ViewSpec model_view(const ViewSpec& spec, const ProgramRules& rules) {
  const std::string_view dtype = parameter_of(spec, "dtype", "bf16");
  ViewSpec model{fmt::format("{}-safetensors", dtype), {}};
  if (!rules.experts.empty()) model.parameters.emplace("experts", rules.experts);
  const auto unscaled = spec.parameters.find("unscaled");
  if (unscaled != spec.parameters.end()) model.parameters.insert(*unscaled);
  return model;
}

Result<const ProgramRules*> find_rules(const ConfigNumbers& config, const Recipes& recipes) {
  const ProgramRules* const rules = recipes.find_program("megatron", config);
  if (rules != nullptr && !rules->write.rules.empty()) return rules;
  const std::vector<std::string> models = recipes.models(config);
  return fail(ErrorCode::Unsupported,
              "no rules lead from this model to Megatron's names ({}; --family names another, "
              "--recipe adds rules: ckfs-recipe(5))",
              models.empty() ? "config.json has no model_type"
                             : fmt::format("model_type {}", one_line(models.front())));
}

/// Whether the layers of the tensor are its first dimension.
bool is_stacked(std::string_view name) {
  return name.starts_with(kLayerPrefix) && name.size() > kLayerPrefix.size() &&
         !is_digit(name[kLayerPrefix.size()]);
}

/// The leading dimensions that number layers and experts.
std::size_t numbering_dimensions(const ModelTensor& tensor) {
  const bool experts = tensor.name.find(".experts.experts.") != std::string_view::npos;
  return (is_stacked(tensor.name) ? 1 : 0) + (experts ? 1 : 0);
}

/// common.pt: what torch.save writes of {"checkpoint_version": 3.0, "iteration": 0,
/// "content_metadata": {...}}, of plain types alone.
std::string common_file(bool stacked) {
  std::string pickle("\x80\x02}(", 4);
  const auto word = [&](std::string_view text) {
    pickle += 'X';
    for (int i = 0; i < 4; ++i) pickle += static_cast<char>(text.size() >> (8 * i));
    pickle += text;
  };
  word("checkpoint_version");
  pickle += std::string_view("G\x40\x08\0\0\0\0\0\0", 9);  // 3.0
  word("iteration");
  pickle += std::string_view("K\0", 2);
  word("content_metadata");
  pickle += "}(";
  word("singleton_local_shards");
  pickle += "\x89";
  word("non_homogeneous_layers");
  pickle += stacked ? "\x89" : "\x88";
  pickle += "uu.";
  const auto archive = torch_zip::TorchArchive::plan("common", pickle.size(), {});
  CKFS_CHECK(archive);  // a small file
  std::string file = archive->render_head();
  file += pickle;
  return file + archive->render_tail();
}

void add_files(Definition& definition, bool stacked) {
  definition.side_files = {};
  definition.texts.clear();
  const auto add = [&](std::string_view directory, std::string_view name, std::string text) {
    definition.texts.push_back({fmt::format("{}{}", directory, name), std::move(text)});
  };
  add("", "latest_checkpointed_iteration.txt", "release");
  // Releases up to 0.16 want all four fields, and no other.
  add(kDirectory, "metadata.json",
      R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
      R"("common_backend": "torch", "common_backend_version": 1})");
  add(kDirectory, "common.pt", common_file(stacked));
}

/// Routers' biases in F32 again, where the source has them so and the view casts.
Result<void> keep_router_biases(const std::shared_ptr<const Catalog>& catalog,
                                std::vector<ModelTensor>& tensors) {
  for (ModelTensor& tensor : tensors) {
    if (!tensor.name.ends_with(kRouterBias) || tensor.expr.dtype() == DType::F32) continue;
    const auto stored = catalog->find(tensor.name);
    if (!stored || catalog->value_dtype(*stored) != DType::F32) continue;
    tensor.expr = TensorExpr::stored(*catalog, *stored);
    tensor.exactness = exactness_of(*catalog, *stored, DType::F32);
  }
  return {};
}

}  // namespace

MegatronView find_megatron_view(const std::shared_ptr<const Catalog>& catalog,
                                const Recipes& recipes) {
  MegatronView view;
  view.obstacles =
      hf_model_obstacles(*catalog, *find_view_row("bf16-safetensors"), Unscaled::Unsaid);
  if (view.obstacles.empty()) view.obstacles = part_obstacles(*catalog);
  if (!view.obstacles.empty()) return view;
  auto made = define_megatron(catalog, {std::string(kMegatronView), {}}, recipes);
  if (made) {
    view.definition = *std::move(made);
  } else {
    view.obstacles = {{"source", made.error().message()}};
  }
  return view;
}

Result<std::shared_ptr<Definition>> define_megatron(std::shared_ptr<const Catalog> catalog,
                                                    const ViewSpec& spec, const Recipes& recipes) {
  const bool stacked = parameter_of(spec, "layers", "numbered") == "stacked";
  CKFS_TRY(ConfigNumbers config, config_numbers(*catalog));
  CKFS_TRY(const ProgramRules* const rules, find_rules(config, recipes));
  for (const auto& [key, number] : rules->config) config.set_default(key, number);
  config.set("view.stacked", stacked ? 1 : 0);
  const ViewSpec model = model_view(spec, *rules);
  const ViewRow& row = *find_view_row(model.view);
  if (!hf_model_obstacles(*catalog, row, unscaled_of(spec)).empty()) {
    return fail(ErrorCode::Unsupported, "{}: the source does not give {}", kMegatronView,
                model.view);
  }
  CKFS_TRY(std::shared_ptr<Definition> definition, define_hf_model(catalog, row, model, recipes));
  CKFS_TRY_VOID(keep_router_biases(catalog, definition->tensors));
  TensorList list{.names = std::move(definition->names),
                  .tensors = std::move(definition->tensors),
                  .lender = std::move(definition->lender)};
  auto made = apply_rules(rules->write, config, std::move(list));
  if (!made) return Failure(made.error().within(std::string(kMegatronView)));
  list = without_axes(*std::move(made));
  // The same files, whatever order the source has.
  std::ranges::sort(list.tensors, natural_less, &ModelTensor::name);
  if (stacked) {
    for (const ModelTensor& tensor : list.tensors) {
      if (!tensor.name.starts_with(kLayerPrefix) || is_stacked(tensor.name)) continue;
      return fail(ErrorCode::Unsupported,
                  "{}: layers=stacked: \"{}\": not all layers are alike (Megatron numbers them "
                  "itself)",
                  kMegatronView, one_line(tensor.name));
    }
  }
  definition->names = std::move(list.names);
  definition->tensors = std::move(list.tensors);
  definition->lender = std::move(list.lender);
  definition->spec = spec;
  cut_leading(*definition, numbering_dimensions);
  definition->packaging = {.container = ContainerKind::Dcp,
                           .placement = Placement::Split,
                           .dcp = {.directory = std::string(kDirectory)}};
  add_files(*definition, stacked);
  return definition;
}

}  // namespace ckfs
