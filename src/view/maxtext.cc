// A catalog as MaxText's tree of parameters.
//
// The values are those of MaxText's own converters, each rounding in its place: what to_maxtext
// does to every tensor before the rules (its --save_dtype) is done here, everything else is a step
// of a rule. Quantized sources go through a copy in BF16 there, so here the decoded values are
// rounded to BF16 first, whatever the view's dtype.
#include "view/maxtext.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "encoding/plain_encoding.h"
#include "view/mesh.h"

namespace ckfs {
namespace {

// Its tensors are decoded by the script that writes MaxText's tree; there is no copy that has all
// tensors in BF16.
constexpr std::string_view kDecodedInPlace = "pack-quantized";

std::string_view parameter(const ViewSpec& spec, std::string_view key, std::string_view otherwise) {
  const auto found = spec.parameters.find(key);
  return found == spec.parameters.end() ? otherwise : std::string_view(found->second);
}

/// What becomes of a tensor's values before the rules.
class DtypePolicy {
 public:
  DtypePolicy(const Catalog& catalog, std::string_view dtype) : catalog_(catalog) {
    if (dtype == "bf16") target_ = DType::BF16;
    if (dtype == "fp16") target_ = DType::F16;
    if (dtype == "fp32") target_ = DType::F32;
    copied_ = std::ranges::any_of(
        catalog.quantization_details().groups,
        [](const QuantizedGroup& group) { return group.scheme != kDecodedInPlace; });
  }

  Result<TensorExpr> apply(TensorId id) const {
    TensorExpr expr = TensorExpr::stored(catalog_, id);
    const DType from = expr.dtype();
    if (!is_castable_float(from)) return expr;
    if (rounds_to_bf16(id)) {
      CKFS_TRY(expr, expr.cast(DType::BF16));
      return target_ ? expr.cast(*target_) : expr;
    }
    // MaxText converts by way of F32 even what is BF16 already, which gives its NaNs other bits.
    if (target_ == DType::BF16 && from == DType::BF16) return expr.then(canonical_);
    return target_ ? expr.cast(*target_) : expr;
  }

  Exactness exactness(TensorId id) const {
    const DType from = catalog_.value_dtype(id);
    const DType first = rounds_to_bf16(id) ? DType::BF16 : target_.value_or(from);
    Exactness label = exactness_of(catalog_, id, is_castable_float(from) ? first : from);
    if (target_ && is_castable_float(from) && first != *target_) {
      label = std::max(label, plain_encoding(first).exactness(*target_));
    }
    return label;
  }

 private:
  bool rounds_to_bf16(TensorId id) const {
    return !catalog_.storage(catalog_.tensor(id)).encoding->is_plain() || (copied_ && target_);
  }

  const Catalog& catalog_;
  std::optional<DType> target_;  // nullopt: what the source has
  bool copied_ = false;          // tensors that are not quantized are rounded to BF16, too
  std::shared_ptr<const Program> canonical_ = std::make_shared<const Program>(
      Program{{Step::Kind::Cast, DType::F32, 0}, {Step::Kind::Cast, DType::BF16, 0}});
};

Result<std::int64_t> mesh_axis(const ViewSpec& spec, std::string_view key) {
  CKFS_TRY(const std::uint64_t size, parse_size(parameter(spec, key, "1")));
  return static_cast<std::int64_t>(size);
}

/// Cuts every tensor as the mesh of `spec` does.
Result<void> cut(Definition& definition, const std::vector<std::vector<std::string>>& axes) {
  Mesh mesh;
  CKFS_TRY(mesh.fsdp, mesh_axis(definition.spec, "fsdp"));
  CKFS_TRY(mesh.expert, mesh_axis(definition.spec, "ep"));
  CKFS_TRY(mesh.tensor, mesh_axis(definition.spec, "tp"));
  for (ModelTensor& tensor : definition.tensors) {
    const std::uint32_t known = std::exchange(tensor.split, ModelTensor::kNone);
    if (known == ModelTensor::kNone || mesh.is_one_device()) continue;
    auto parts = parts_of(axes[known], tensor.expr.shape(), mesh);
    if (!parts) return Failure(parts.error().within(quote(tensor.name)));
    const auto same = std::ranges::find(definition.splits, *parts);
    tensor.split = static_cast<std::uint32_t>(same - definition.splits.begin());
    if (same == definition.splits.end()) definition.splits.push_back(std::move(*parts));
  }
  return {};
}

Result<void> define(Definition& definition, const Recipes& recipes, bool scanned) {
  const Catalog& catalog = *definition.catalog;
  CKFS_TRY(ConfigNumbers config, config_numbers(catalog));
  const ModelFamily* family = recipes.find_maxtext(config);
  if (family == nullptr) {
    const std::vector<std::string> models = recipes.models(config);
    return fail(ErrorCode::Unsupported,
                "no rules are known for this model ({}; --family names another, --recipe adds "
                "rules: ckfs-recipe(5))",
                models.empty() ? "config.json has no model_type"
                               : fmt::format("model_type {}", one_line(models.front())));
  }
  const MaxTextTrees& trees = *family->maxtext;
  const bool mtp = parameter(definition.spec, "mtp", "0") == "1";
  if (mtp && !trees.mtp) {
    return fail(ErrorCode::Unsupported, "mtp=1: {} has no rules for such layers", family->file);
  }
  config.set("view.mtp", mtp ? 1 : 0);
  for (const auto& [key, number] : trees.config) config.set_default(key, number);

  const DtypePolicy policy(catalog, parameter(definition.spec, "dtype", "bf16"));
  TensorList list;
  for (std::uint32_t shard = 0; shard < catalog.shards().size(); ++shard) {
    for (const TensorId id : catalog.shards()[shard].tensors) {
      if (catalog.tensor(id).role == Role::FrozenModule) continue;
      CKFS_TRY(TensorExpr expr, policy.apply(id));
      list.tensors.push_back({.name = catalog.tensor(id).name,
                              .expr = std::move(expr),
                              .exactness = policy.exactness(id),
                              .role = catalog.tensor(id).role,
                              .shard = shard});
    }
  }
  CKFS_TRY(list, apply_rules(trees.unscanned, config, std::move(list)));
  if (scanned) {
    CKFS_TRY(list, apply_rules(trees.scanned, config, std::move(list)));
  }
  definition.names = std::move(list.names);
  definition.tensors = std::move(list.tensors);
  return cut(definition, list.axes);
}

}  // namespace

std::vector<Obstacle> maxtext_obstacles(const std::shared_ptr<const Catalog>& catalog,
                                        const ViewRow& row, const Recipes& recipes) {
  if (!catalog->obstacles().empty()) {
    return {catalog->obstacles().begin(), catalog->obstacles().end()};
  }
  const auto definition = define_maxtext(catalog, row, {std::string(row.name), {}}, recipes);
  if (definition) return {};
  return {{"source", definition.error().message()}};
}

Result<std::shared_ptr<Definition>> define_maxtext(std::shared_ptr<const Catalog> catalog,
                                                   const ViewRow& row, const ViewSpec& spec,
                                                   const Recipes& recipes) {
  auto definition = std::make_shared<Definition>();
  definition->spec = spec;
  definition->catalog = std::move(catalog);
  const bool scanned = row.name == "maxtext-scanned";
  definition->packaging = {
      .container = row.container,
      .placement = row.placement,
      .orbax = {.storage = storage_of(spec),
                .directory = "0/items/",
                .custom_metadata = fmt::format(R"({{"scan_layers": {}}})", scanned),
                .step = true,
                .empty_dicts = {"opt_state"}}};
  const Result<void> done = define(*definition, recipes, scanned);
  if (!done) return Failure(done.error().within(std::string(row.name)));
  return definition;
}

}  // namespace ckfs
