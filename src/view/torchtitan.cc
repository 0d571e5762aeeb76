// The casts come after the rules, because only Hugging Face's names say which tensors keep their
// dtype: the bias of a router is F32 in every release of DeepSeek-V3, also where all else is BF16.
#include "view/torchtitan.h"

#include <algorithm>

#include "base/text.h"

namespace ckfs {

bool is_titan_tree(const Catalog& catalog) {
  return catalog.kind() == "torch_dcp" && catalog.find("tok_embeddings.weight") &&
         catalog.find("layers.0.attention_norm.weight") && catalog.find("norm.weight");
}

bool reads_titan_names(const Catalog& catalog, const Recipes& recipes) {
  if (!is_titan_tree(catalog)) return false;
  return catalog.model().config.has_value() || !recipes.family.empty();
}

Result<TensorList> titan_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                 const Recipes& recipes) {
  CKFS_TRY(const ConfigNumbers config, config_numbers(catalog));
  const ModelFamily* const family = recipes.find_torchtitan(config);
  if (family == nullptr) {
    const std::vector<std::string> models = recipes.models(config);
    return fail(ErrorCode::Unsupported,
                "torchtitan's names, for which no rules are known for this model ({}); the view "
                "safetensors shows them",
                models.empty() ? "config.json has no model_type"
                               : fmt::format("model_type {}", one_line(models.front())));
  }
  TensorList list;
  for (std::uint32_t shard = 0; shard < catalog.shards().size(); ++shard) {
    for (const TensorId id : catalog.shards()[shard].tensors) {
      list.tensors.push_back({.name = catalog.tensor(id).name,
                              .expr = TensorExpr::stored(catalog, id),
                              .exactness = Exactness::BitExact,
                              .role = catalog.tensor(id).role,
                              .shard = shard});
    }
  }
  const TrainerNames& names = *family->torchtitan;
  CKFS_TRY(list, apply_rules(names.read, config, std::move(list)));
  for (ModelTensor& tensor : list.tensors) {
    const DType from = tensor.expr.dtype();
    const bool kept =
        dtype == DType::BF16 && std::ranges::any_of(names.keep, [&](const std::string& ending) {
          return tensor.name.ends_with(ending);
        });
    const DType to = dtype && is_castable_float(from) && !kept ? *dtype : from;
    tensor.exactness = exactness_of(catalog, tensor.expr, to);
    auto cast = tensor.expr.cast(to);
    if (!cast) return Failure(cast.error().within(quote(tensor.name)));
    tensor.expr = *std::move(cast);
  }
  return without_axes(std::move(list));
}

std::vector<Obstacle> titan_obstacles(const Catalog& catalog, const Recipes& recipes) {
  const auto list = titan_tensors(catalog, std::nullopt, recipes);
  if (list) return {};
  return {{"source", list.error().message()}};
}

std::optional<Note> titan_remark(const Catalog& catalog, const Recipes& recipes) {
  if (!is_titan_tree(catalog)) return std::nullopt;
  if (reads_titan_names(catalog, recipes)) {
    const auto config = config_numbers(catalog);
    const ModelFamily* const family = config ? recipes.find_torchtitan(*config) : nullptr;
    if (family == nullptr) return std::nullopt;
    return Note{"tok_embeddings.weight",
                fmt::format("torchtitan's names, read as Hugging Face's by {}", family->file)};
  }
  return Note{"tok_embeddings.weight",
              "torchtitan's names are shown as they are; with --config MODEL (its config.json) "
              "they are Hugging Face's"};
}

}  // namespace ckfs
