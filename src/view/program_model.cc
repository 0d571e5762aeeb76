// The rules move the tensors of the view that casts, so that each value is rounded once. What a
// program keeps in F32 is taken from the source again.
#include "view/program_model.h"

#include <algorithm>
#include <unordered_map>

#include "base/natural_order.h"
#include "base/text.h"
#include "view/hf_model.h"
#include "view/program_names.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

constexpr std::string_view kRouterBias = ".e_score_correction_bias";

Result<const ProgramRules*> write_rules(std::string_view program, const ConfigNumbers& config,
                                        const Recipes& recipes) {
  const ProgramRules* const rules = recipes.find_program(program, config);
  if (rules != nullptr && !rules->write.rules.empty()) return rules;
  const std::vector<std::string> models = recipes.models(config);
  return fail(ErrorCode::Unsupported,
              "no rules lead from this model to {}'s names ({}; --family names another, --recipe "
              "adds rules: ckfs-recipe(5))",
              shown_program(program),
              models.empty() ? "config.json has no model_type"
                             : fmt::format("model_type {}", one_line(models.front())));
}

/// The view of the model that the rules begin with.
ViewSpec model_view(const ViewSpec& spec, const ProgramRules& rules) {
  ViewSpec model{fmt::format("{}-safetensors", parameter_of(spec, "dtype", "bf16")), {}};
  if (!rules.experts.empty()) model.parameters.emplace("experts", rules.experts);
  const auto unscaled = spec.parameters.find("unscaled");
  if (unscaled != spec.parameters.end()) model.parameters.insert(*unscaled);
  return model;
}

/// Gives tensors their F32 again that are to keep it, where the source has them so and the view
/// casts.
Result<void> keep_f32(const Catalog& catalog, const ProgramRules& rules, const Recipes& recipes,
                      std::vector<ModelTensor>& tensors) {
  std::vector<ModelTensor*> cast;
  for (ModelTensor& tensor : tensors) {
    const bool kept = tensor.name.ends_with(kRouterBias) ||
                      std::ranges::any_of(rules.keep, [&](const std::string& ending) {
                        return tensor.name.ends_with(ending);
                      });
    if (kept && tensor.expr.dtype() != DType::F32) cast.push_back(&tensor);
  }
  if (cast.empty()) return {};
  TensorList named;
  if (!program_of(catalog).empty()) {
    CKFS_TRY(named, named_tensors(catalog, {}, recipes));
  }
  std::unordered_map<std::string_view, const ModelTensor*> by_name;
  for (const ModelTensor& tensor : named.tensors) by_name.emplace(tensor.name, &tensor);
  for (ModelTensor* const tensor : cast) {
    const auto same = by_name.find(tensor->name);
    const auto stored = same == by_name.end() ? catalog.find(tensor->name) : std::nullopt;
    if (same != by_name.end() && same->second->expr.dtype() == DType::F32) {
      tensor->expr = same->second->expr;
      tensor->exactness = same->second->exactness;
    } else if (stored && catalog.value_dtype(*stored) == DType::F32) {
      tensor->expr = TensorExpr::stored(catalog, *stored);
      tensor->exactness = exactness_of(catalog, *stored, DType::F32);
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Definition>> define_program_model(std::shared_ptr<const Catalog> catalog,
                                                         const ProgramModelOptions& options,
                                                         const Recipes& recipes) {
  CKFS_TRY(ConfigNumbers config, config_numbers(*catalog));
  CKFS_TRY(const ProgramRules* const rules, write_rules(options.program, config, recipes));
  for (const auto& [key, number] : rules->config) config.set_default(key, number);
  for (const auto& [key, number] : options.numbers) config.set(key, number);
  const ViewSpec model = model_view(options.spec, *rules);
  const ViewRow& row = *find_view_row(model.view);
  CKFS_TRY(std::shared_ptr<Definition> definition, define_hf_model(catalog, row, model, recipes));
  CKFS_TRY_VOID(keep_f32(*catalog, *rules, recipes, definition->tensors));
  set_layers(config, definition->tensors);
  TensorList list{.names = std::move(definition->names),
                  .tensors = std::move(definition->tensors),
                  .lender = std::move(definition->lender)};
  auto made = apply_rules(rules->write, config, std::move(list));
  if (!made) return Failure(made.error().within(options.spec.view));
  list = without_axes(*std::move(made));
  // The same files, whatever order the source has.
  std::ranges::sort(list.tensors, natural_less, &ModelTensor::name);
  definition->names = std::move(list.names);
  definition->tensors = std::move(list.tensors);
  definition->lender = std::move(list.lender);
  definition->spec = options.spec;
  return definition;
}

}  // namespace ckfs
