#include "view/program_names.h"

#include <algorithm>
#include <unordered_map>

#include "base/natural_order.h"
#include "base/text.h"
#include "encoding/plain_encoding.h"

namespace ckfs {
namespace {

constexpr std::string_view kMegatron = "megatron";

/// The role of a stored tensor. A router's bias is moved to balance experts, not trained, so the
/// optimizer keeps no master of it.
Role role_of(const StoredTensor& tensor) {
  return tensor.name.ends_with(".router.expert_bias") ? Role::Buffer : tensor.role;
}

/// What every model of Megatron's has, below nothing or a wrapper.
bool has_megatron_names(const Catalog& catalog) {
  return std::ranges::any_of(std::array{"", "module."}, [&](std::string_view prefix) {
    return catalog.find(fmt::format("{}embedding.word_embeddings.weight", prefix)) &&
           catalog.find(fmt::format("{}decoder.final_layernorm.weight", prefix));
  });
}

/// The masters of weights, by weight. A weight in F32 without one is its own, and so is a buffer.
/// Errors: a weight has none.
Result<std::unordered_map<TensorId, TensorId>> masters_of(const Catalog& catalog) {
  const Masters* const masters = catalog.masters();
  if (masters == nullptr || !masters->absence.empty()) {
    return fail(ErrorCode::Unsupported, "master=1: {}",
                masters == nullptr ? "the source is not a checkpoint with an optimizer's masters"
                                   : masters->absence);
  }
  std::unordered_map<TensorId, TensorId> found;
  for (const Masters::Pair& pair : masters->pairs) found.emplace(pair.tensor, pair.master);
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const DType dtype = catalog.value_dtype(id);
      const bool own = dtype == DType::F32 || !is_castable_float(dtype);
      if (found.contains(id) || own || role_of(catalog.tensor(id)) == Role::Buffer) continue;
      return fail(ErrorCode::Unsupported, "master=1: the optimizer keeps no master of {}",
                  quote(catalog.tensor(id).name));
    }
  }
  return found;
}

/// All tensors by the names that are stored.
Result<TensorList> stored_tensors(const Catalog& catalog, Weights weights) {
  std::unordered_map<TensorId, TensorId> masters;
  if (weights == Weights::Masters) {
    CKFS_TRY(masters, masters_of(catalog));
  }
  TensorList list;
  for (std::uint32_t shard = 0; shard < catalog.shards().size(); ++shard) {
    for (const TensorId id : catalog.shards()[shard].tensors) {
      const auto master = masters.find(id);
      const TensorId shown = master == masters.end() ? id : master->second;
      list.tensors.push_back({.name = catalog.tensor(id).name,
                              .expr = TensorExpr::stored(catalog, shown),
                              .exactness = exactness_of(catalog, shown, catalog.value_dtype(shown)),
                              .role = role_of(catalog.tensor(id)),
                              .shard = shard});
    }
  }
  return list;
}

Result<TensorList> huggingface_names(const Catalog& catalog, Weights weights,
                                     const Recipes& recipes) {
  CKFS_TRY(ConfigNumbers config, config_numbers(catalog));
  if (!catalog.model().config) {
    return fail(ErrorCode::Unsupported,
                "the tensors have Megatron's names, and no config.json says which model it is and "
                "how many heads and words it has (--config DIR names the directory of a model of "
                "this kind; the view safetensors shows Megatron's names)");
  }
  const ProgramRules* const rules = recipes.find_program(program_of(catalog), config);
  if (rules == nullptr) {
    const std::vector<std::string> models = recipes.models(config);
    return fail(ErrorCode::Unsupported,
                "no rules lead from Megatron's names to this model ({}; --family names another, "
                "--recipe adds rules: ckfs-recipe(5); the view safetensors shows Megatron's names)",
                models.empty() ? "config.json has no model_type"
                               : fmt::format("model_type {}", one_line(models.front())));
  }
  for (const auto& [key, number] : rules->config) config.set_default(key, number);
  CKFS_TRY(TensorList list, stored_tensors(catalog, weights));
  CKFS_TRY(list, apply_rules(rules->read, config, std::move(list)));
  list = without_axes(std::move(list));
  std::ranges::sort(list.tensors, natural_less, &ModelTensor::name);
  return list;
}

}  // namespace

std::string_view program_of(const Catalog& catalog) {
  return catalog.kind() == kMegatron || has_megatron_names(catalog) ? kMegatron
                                                                    : std::string_view();
}

std::shared_ptr<const FoundNames> find_names(const Catalog& catalog, const Recipes& recipes) {
  auto list = huggingface_names(catalog, Weights::Stored, recipes);
  if (!list) return std::make_shared<const FoundNames>(&catalog, Failure(list.error()));
  return std::make_shared<const FoundNames>(&catalog,
                                            std::make_shared<const TensorList>(*std::move(list)));
}

Result<TensorList> named_tensors(const Catalog& catalog, const NameOptions& options,
                                 const Recipes& recipes) {
  TensorList list;
  if (options.weights == Weights::Masters) {
    CKFS_TRY(list, huggingface_names(catalog, Weights::Masters, recipes));
  } else {
    const bool known = recipes.named && recipes.named->catalog == &catalog;
    const auto found = known ? recipes.named : find_names(catalog, recipes);
    CKFS_TRY(const std::shared_ptr<const TensorList> model, found->model);
    list.tensors = model->tensors;
    list.lender = model;
  }
  for (ModelTensor& tensor : list.tensors) {
    const bool kept = options.keep_buffers && tensor.role == Role::Buffer;
    if (!options.dtype || kept || !is_castable_float(tensor.expr.dtype())) continue;
    tensor.exactness = exactness_of(catalog, tensor.expr, *options.dtype);
    CKFS_TRY(tensor.expr, tensor.expr.cast(*options.dtype));
  }
  return list;
}

std::vector<Obstacle> name_obstacles(const Catalog& catalog, const Recipes& recipes) {
  const bool known = recipes.named && recipes.named->catalog == &catalog;
  const auto found = known ? recipes.named : find_names(catalog, recipes);
  if (found->model) return {};
  return {{"source", found->model.error().message()}};
}

}  // namespace ckfs
