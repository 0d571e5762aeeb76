#include "view/program_names.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "base/natural_order.h"
#include "base/text.h"
#include "encoding/plain_encoding.h"

namespace ckfs {
namespace {

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

bool has_titan_names(const Catalog& catalog) {
  return catalog.find("tok_embeddings.weight") && catalog.find("layers.0.attention_norm.weight") &&
         catalog.find("norm.weight");
}

/// The experts of a layer: no model of Hugging Face's has them under that name.
bool has_prime_names(const Catalog& catalog) {
  return std::ranges::any_of(catalog.shards(), [&](const Shard& shard) {
    return std::ranges::any_of(shard.tensors, [&](TensorId id) {
      return catalog.tensor(id).name.ends_with(".mlp.experts.w1");
    });
  });
}

/// The program whose names a DCP checkpoint has, if a config.json is there to say more.
std::string_view named_by_config(const Catalog& catalog) {
  if (catalog.kind() != "torch_dcp") return {};
  if (has_titan_names(catalog)) return kTorchTitanNames;
  return has_prime_names(catalog) ? kPrimeRlNames : std::string_view();
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

/// The rules of the model's family, with the numbers of its config.json.
Result<const ProgramRules*> find_rules(const Catalog& catalog, ConfigNumbers& config,
                                       const Recipes& recipes) {
  CKFS_TRY(config, config_numbers(catalog));
  const std::string_view program = program_of(catalog);
  if (!catalog.model().config) {
    return fail(ErrorCode::Unsupported,
                "the tensors have Megatron's names, and no config.json says which model it is and "
                "how many heads and words it has (--config DIR names the directory of a model of "
                "this kind; the view safetensors shows Megatron's names)");
  }
  const ProgramRules* const rules = recipes.find_program(program, config);
  if (rules == nullptr) {
    const std::vector<std::string> models = recipes.models(config);
    return fail(ErrorCode::Unsupported,
                "no rules lead from {0}'s names to this model ({1}; --family names another, "
                "--recipe adds rules: ckfs-recipe(5); the view safetensors shows {0}'s names)",
                shown_program(program),
                models.empty() ? "config.json has no model_type"
                               : fmt::format("model_type {}", one_line(models.front())));
  }
  for (const auto& [key, number] : rules->config) config.set_default(key, number);
  return rules;
}

Result<TensorList> huggingface_names(const Catalog& catalog, Weights weights, ConfigNumbers config,
                                     const ProgramRules& rules) {
  CKFS_TRY(TensorList list, stored_tensors(catalog, weights));
  set_layers(config, list.tensors);
  CKFS_TRY(list, apply_rules(rules.read, config, std::move(list)));
  list = without_axes(std::move(list));
  std::ranges::sort(list.tensors, natural_less, &ModelTensor::name);
  return list;
}

}  // namespace

std::string_view shown_program(std::string_view program) {
  return program == kMegatronNames ? "Megatron" : program;
}

std::string_view program_of(const Catalog& catalog) {
  if (catalog.kind() == kMegatronNames || has_megatron_names(catalog)) return kMegatronNames;
  return catalog.model().config ? named_by_config(catalog) : std::string_view();
}

void set_layers(ConfigNumbers& config, std::span<const ModelTensor> tensors) {
  constexpr std::string_view kLayers = "layers.";
  // Beginnings of names up to a number: layers may be stacked, and then no number is there.
  std::unordered_set<std::string_view> main, mtp;
  for (const ModelTensor& tensor : tensors) {
    const std::string_view name = tensor.name;
    const std::size_t at = name.find(kLayers);
    if (at == std::string_view::npos) continue;
    const std::size_t number = at + kLayers.size();
    if (number == name.size() || !is_digit(name[number])) continue;
    const bool is_mtp = name.substr(0, at).ends_with("mtp.");
    (is_mtp ? mtp : main).insert(name.substr(0, name.find('.', number)));
  }
  const double known = config.number("num_hidden_layers").value_or(0);
  config.set("view.layers",
             std::max(static_cast<double>(main.size()), known) + static_cast<double>(mtp.size()));
}

std::shared_ptr<const FoundNames> find_names(const Catalog& catalog, const Recipes& recipes) {
  ConfigNumbers config;
  const auto rules = find_rules(catalog, config, recipes);
  if (!rules) return std::make_shared<const FoundNames>(&catalog, Failure(rules.error()));
  auto list = huggingface_names(catalog, Weights::Stored, config, **rules);
  if (!list) return std::make_shared<const FoundNames>(&catalog, Failure(list.error()));
  return std::make_shared<const FoundNames>(
      &catalog, std::make_shared<const TensorList>(*std::move(list)), (*rules)->keep);
}

Result<TensorList> named_tensors(const Catalog& catalog, const NameOptions& options,
                                 const Recipes& recipes) {
  const bool known = recipes.named && recipes.named->catalog == &catalog;
  const auto found = known ? recipes.named : find_names(catalog, recipes);
  CKFS_TRY(const std::shared_ptr<const TensorList> model, found->model);
  TensorList list;
  if (options.weights == Weights::Masters) {
    ConfigNumbers config;
    CKFS_TRY(const ProgramRules* const rules, find_rules(catalog, config, recipes));
    CKFS_TRY(list, huggingface_names(catalog, Weights::Masters, config, *rules));
  } else {
    list.tensors = model->tensors;
    list.lender = model;
  }
  const auto stays = [&](const ModelTensor& tensor) {
    return tensor.role == Role::Buffer ||
           std::ranges::any_of(found->keep, [&](const std::string& ending) {
             return tensor.name.ends_with(ending);
           });
  };
  for (ModelTensor& tensor : list.tensors) {
    const bool kept = options.keep_buffers && stays(tensor);
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

std::optional<Note> name_remark(const Catalog& catalog) {
  if (catalog.model().config) return std::nullopt;
  const std::string_view program = named_by_config(catalog);
  if (program.empty()) return std::nullopt;
  return Note{"config.json",
              fmt::format("{}'s names are shown as they are; with --config MODEL (its config.json) "
                          "they are Hugging Face's",
                          program)};
}

}  // namespace ckfs
