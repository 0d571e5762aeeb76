// Nothing of the checkpoint says how a loader shards its model, and dcp.load cuts chunks as it
// needs them. So a chunk is a whole tensor, except tensors of many experts, which are cut by
// expert, and large ones.
#include "view/dcp_view.h"

#include <algorithm>

#include "format/torch_names.h"
#include "view/hf_model.h"
#include "view/program_model.h"

namespace ckfs {
namespace {

/// Whether the tensor has an expert for each index of its first dimension.
std::size_t has_experts(const ModelTensor& tensor) {
  return tensor.name.find("experts.") != std::string_view::npos && tensor.expr.shape().size() > 2
             ? 1
             : 0;
}

/// The model under the names that `names` says.
Result<std::shared_ptr<Definition>> define_tensors(std::shared_ptr<const Catalog> catalog,
                                                   const ViewSpec& spec, const Recipes& recipes) {
  const std::string_view names = parameter_of(spec, "names", kHuggingFaceNames);
  const auto experts = spec.parameters.find("experts");
  if (names != kHuggingFaceNames) {
    if (experts != spec.parameters.end()) {
      return fail(ErrorCode::InvalidArgument,
                  "{}: names={} has a layout of experts of its own (leave experts={} out)",
                  kDcpView, names, experts->second);
    }
    return define_program_model(std::move(catalog), {.program = names, .spec = spec}, recipes);
  }
  const ViewRow& row = dcp_model_row(spec);
  ViewSpec model{std::string(row.name), {}};
  for (const std::string_view key : {"experts", "unscaled"}) {
    const auto said = spec.parameters.find(key);
    if (said != spec.parameters.end()) model.parameters.insert(*said);
  }
  CKFS_TRY(std::shared_ptr<Definition> definition,
           define_hf_model(std::move(catalog), row, model, recipes));
  definition->spec = spec;
  return definition;
}

}  // namespace

void cut_leading(Definition& definition, std::size_t (*dimensions)(const ModelTensor&)) {
  definition.splits.clear();
  for (ModelTensor& tensor : definition.tensors) {
    tensor.split = ModelTensor::kNone;
    const auto shape = tensor.expr.shape();
    const std::size_t leading = std::min(dimensions(tensor), shape.size());
    if (leading == 0) continue;
    std::vector<std::int64_t> parts(shape.size(), 1);
    for (std::size_t d = 0; d < leading; ++d) parts[d] = std::max<std::int64_t>(shape[d], 1);
    const auto same = std::ranges::find(definition.splits, parts);
    tensor.split = static_cast<std::uint32_t>(same - definition.splits.begin());
    if (same == definition.splits.end()) definition.splits.push_back(std::move(parts));
  }
}

const ViewRow& dcp_model_row(const ViewSpec& spec) {
  return *find_view_row(fmt::format("{}-safetensors", parameter_of(spec, "dtype", "bf16")));
}

std::vector<Obstacle> part_obstacles(const Catalog& catalog) {
  std::vector<Obstacle> obstacles;
  for (const CatalogPart& part : catalog.parts()) {
    obstacles.push_back({part.directory, "weights of their own, which this view has no place for"});
  }
  return obstacles;
}

std::vector<Obstacle> dcp_obstacles(const Catalog& catalog, const ViewRow& row, Unscaled unscaled) {
  std::vector<Obstacle> obstacles = hf_model_obstacles(catalog, row, unscaled);
  if (!obstacles.empty()) return obstacles;
  obstacles = part_obstacles(catalog);
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const DType dtype = catalog.value_dtype(id);
      if (!torch_dtype_name(dtype).empty()) continue;
      obstacles.push_back({std::string(catalog.tensor(id).name),
                           fmt::format("torch has no dtype {}", name(dtype))});
    }
  }
  return obstacles;
}

Result<std::shared_ptr<Definition>> define_dcp(std::shared_ptr<const Catalog> catalog,
                                               const ViewSpec& spec, const Recipes& recipes) {
  CKFS_TRY(std::shared_ptr<Definition> definition,
           define_tensors(std::move(catalog), spec, recipes));
  definition->packaging = {
      .container = ContainerKind::Dcp, .placement = Placement::Split, .dcp = {.planner = true}};
  cut_leading(*definition, has_experts);
  return definition;
}

}  // namespace ckfs
