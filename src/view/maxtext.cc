// A catalog as MaxText's tree of parameters.
//
// The values are those of MaxText's own converters, each rounding in its place: what to_maxtext
// does to every tensor before the rules (its --save_dtype) is done here, everything else is a step
// of a rule. Quantized sources go through a copy in BF16 there, so here the decoded values are
// rounded to BF16 first, whatever the view's dtype.
#include "view/maxtext.h"

#include <algorithm>
#include <array>

#include "base/size_text.h"
#include "base/text.h"
#include "encoding/plain_encoding.h"
#include "view/maxtext_rules.h"
#include "view/maxtext_tree.h"
#include "view/mesh.h"
#include "view/program_names.h"

namespace ckfs {
namespace {

// Its tensors are decoded by the script that writes MaxText's tree; there is no copy that has all
// tensors in BF16.
constexpr std::string_view kDecodedInPlace = "pack-quantized";

/// What becomes of a tensor's values before the rules.
class DtypePolicy {
 public:
  /// `resharded`: as reshard_checkpoint leaves a checkpoint in the source's dtypes.
  DtypePolicy(const Catalog& catalog, std::string_view dtype, bool resharded, Unscaled unscaled)
      : catalog_(catalog), target_(dtype_named(dtype)), resharded_(resharded), unscaled_(unscaled) {
    copied_ = std::ranges::any_of(
        catalog.quantization_details().groups,
        [](const QuantizedGroup& group) { return group.scheme != kDecodedInPlace; });
  }

  Result<TensorExpr> apply(TensorId id) const {
    TensorExpr expr = TensorExpr::stored(catalog_, id);
    if (is_at_one(id)) {
      CKFS_TRY(expr, expr.at_scale_one());
    }
    if (is_castable_float(expr.dtype()) && rounds_to_bf16(id)) {
      CKFS_TRY(expr, expr.cast(DType::BF16));
      return target_ ? expr.cast(*target_) : expr;
    }
    return apply(std::move(expr));
  }

  /// The same of values that are stored as they are.
  Result<TensorExpr> apply(TensorExpr expr) const {
    const DType from = expr.dtype();
    if (!is_castable_float(from)) return expr;
    if (target_ == DType::BF16 && from == DType::BF16 && !resharded_) return expr.then(detour_);
    if (target_ == DType::F16) return expr.then(halved_);
    return target_ ? expr.cast(*target_) : expr;
  }

  Exactness exactness(TensorId id) const {
    const DType from = is_at_one(id) ? DType::F32 : catalog_.value_dtype(id);
    const DType first = rounds_to_bf16(id) ? DType::BF16 : target_.value_or(from);
    Exactness label = exactness_of(catalog_, id, is_castable_float(from) ? first : from);
    if (target_ && is_castable_float(from) && first != *target_) {
      label = std::max(label, plain_encoding(first).exactness(*target_));
    }
    return label;
  }

  /// The same of an expression without steps, of plain values.
  Exactness exactness(const TensorExpr& expr) const {
    const DType from = expr.dtype();
    return exactness_of(catalog_, expr, is_castable_float(from) ? target_.value_or(from) : from);
  }

  /// Whether a view has the tensor.
  bool has(TensorId id) const { return unscaled_ != Unscaled::Drop || !is_unscaled(catalog_, id); }

 private:
  /// F8 that is shown with a scale of 1 counts as quantized.
  bool is_at_one(TensorId id) const {
    return unscaled_ == Unscaled::One && is_unscaled(catalog_, id);
  }
  bool rounds_to_bf16(TensorId id) const {
    return is_at_one(id) || catalog_.storage(catalog_.tensor(id)).encoding->is_quantized() ||
           (copied_ && target_);
  }

  const Catalog& catalog_;
  std::optional<DType> target_;  // nullopt: what the source has
  bool copied_ = false;          // tensors that are not quantized are rounded to BF16, too
  bool resharded_ = false;
  Unscaled unscaled_ = Unscaled::Unsaid;
  /// to_maxtext converts by way of F32 even what is BF16 already, which gives its NaNs other bits.
  std::shared_ptr<const Program> detour_ = std::make_shared<const Program>(
      Program{{Step::Kind::Cast, DType::F32, 0}, {Step::Kind::Cast, DType::BF16, 0}});
  std::shared_ptr<const Program> halved_ =
      std::make_shared<const Program>(Program{{Step::Kind::CastKeepingNan, DType::F16, 0}});
};

Result<Mesh> mesh_of(const ViewSpec& spec) {
  const auto axis = [&](std::string_view key) -> Result<std::int64_t> {
    CKFS_TRY(const std::uint64_t size, parse_size(parameter_of(spec, key, "1")));
    return static_cast<std::int64_t>(size);
  };
  Mesh mesh;
  CKFS_TRY(mesh.fsdp, axis("fsdp"));
  CKFS_TRY(mesh.expert, axis("ep"));
  CKFS_TRY(mesh.tensor, axis("tp"));
  return mesh;
}

/// Cuts every tensor as the mesh does.
Result<void> cut(Definition& definition, const std::vector<std::vector<std::string>>& axes,
                 const Mesh& mesh) {
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

/// The tree with a layer's parameters each.
Result<TensorList> unscanned(const Catalog& catalog, const DtypePolicy& policy,
                             const MaxTextRules& rules, const Recipes& recipes) {
  TensorList list;
  if (!program_of(catalog).empty()) {
    CKFS_TRY(list, named_tensors(catalog, {}, recipes));
    for (ModelTensor& tensor : list.tensors) {
      tensor.exactness = policy.exactness(tensor.expr);
      CKFS_TRY(tensor.expr, policy.apply(std::move(tensor.expr)));
    }
    return apply_rules(rules.trees().unscanned, rules.config, std::move(list));
  }
  for (std::uint32_t shard = 0; shard < catalog.shards().size(); ++shard) {
    for (const TensorId id : catalog.shards()[shard].tensors) {
      if (catalog.tensor(id).role == Role::FrozenModule || !policy.has(id)) continue;
      if (catalog.value_dtype(id) == DType::C128) continue;  // no weight, and safetensors has none
      CKFS_TRY(TensorExpr expr, policy.apply(id));
      list.tensors.push_back({.name = catalog.tensor(id).name,
                              .expr = std::move(expr),
                              .exactness = policy.exactness(id),
                              .role = catalog.tensor(id).role,
                              .shard = shard});
    }
  }
  return apply_rules(rules.trees().unscanned, rules.config, std::move(list));
}

/// The view of a row before it has tensors.
std::shared_ptr<Definition> empty_view(std::shared_ptr<const Catalog> catalog,
                                       const ViewSpec& spec) {
  auto definition = std::make_shared<Definition>();
  definition->spec = spec;
  definition->catalog = std::move(catalog);
  definition->packaging = {.container = ContainerKind::Orbax,
                           .placement = Placement::Split,
                           .orbax = {.storage = storage_of(spec),
                                     .directory = "0/items/",
                                     .step = true,
                                     .empty_dicts = {"opt_state"}}};
  return definition;
}

Result<void> fill(Definition& definition, TensorList list, const Mesh& mesh) {
  definition.names = std::move(list.names);
  definition.lender = std::move(list.lender);
  definition.tensors = std::move(list.tensors);
  return cut(definition, list.axes, mesh);
}

Result<void> define(Definition& definition, const Recipes& recipes, bool scanned) {
  const Catalog& catalog = *definition.catalog;
  const std::string_view dtype = parameter_of(definition.spec, "dtype", "bf16");
  const bool mtp = parameter_of(definition.spec, "mtp", "0") == "1";
  const bool multimodal = parameter_of(definition.spec, "multimodal", "0") == "1";
  const std::string_view release = parameter_of(definition.spec, "maxtext", kNewestMaxText);
  CKFS_TRY(const Mesh mesh, mesh_of(definition.spec));
  TensorList list;
  if (is_maxtext_tree(catalog)) {
    CKFS_TRY(list, tree_tensors(catalog, dtype_named(dtype),
                                {.scanned = scanned,
                                 .mtp = mtp,
                                 .multimodal = multimodal,
                                 .axes = !mesh.is_one_device(),
                                 .release = release},
                                recipes));
  } else {
    CKFS_TRY(
        const MaxTextRules rules,
        find_rules(
            catalog,
            {.dtype = dtype_named(dtype), .mtp = mtp, .multimodal = multimodal, .release = release},
            recipes));
    const DtypePolicy policy(catalog, dtype, !mesh.is_one_device(), unscaled_of(definition.spec));
    CKFS_TRY(list, unscanned(catalog, policy, rules, recipes));
    if (scanned) {
      CKFS_TRY(list, scan(rules, std::move(list)));
    }
  }
  return fill(definition, std::move(list), mesh);
}

}  // namespace

MaxTextViews find_maxtext_views(const std::shared_ptr<const Catalog>& catalog,
                                const Recipes& recipes) {
  const auto none = [](const std::vector<Obstacle>& obstacles) {
    return MaxTextViews{{obstacles, nullptr}, {obstacles, nullptr}};
  };
  const auto obstacle = [](const Error& error) {
    return std::vector<Obstacle>{{"source", error.message()}};
  };
  if (auto obstacles = catalog_obstacles(*catalog, Unscaled::Unsaid); !obstacles.empty()) {
    return none(obstacles);
  }
  if (is_maxtext_tree(*catalog)) return none(maxtext_tree_obstacles(*catalog, recipes));
  const auto rules = find_rules(*catalog, {.dtype = DType::BF16}, recipes);
  if (!rules) return none(obstacle(rules.error()));
  auto list =
      unscanned(*catalog, DtypePolicy(*catalog, "bf16", false, Unscaled::Unsaid), *rules, recipes);
  if (!list) return none(obstacle(list.error()));

  MaxTextViews views;
  const auto first = empty_view(catalog, {"maxtext-unscanned", {}});
  const auto names = std::make_shared<const std::list<std::string>>(std::move(list->names));
  list->lender = names;
  TensorList stacked{.tensors = list->tensors, .axes = list->axes, .lender = names};
  CKFS_CHECK(fill(*first, *std::move(list), {}));  // one device divides everything
  views.unscanned.definition = first;
  auto scanned = scan(*rules, std::move(stacked));
  if (!scanned) {
    views.scanned.obstacles = obstacle(scanned.error());
    return views;
  }
  const auto second = empty_view(catalog, {"maxtext-scanned", {}});
  CKFS_CHECK(fill(*second, *std::move(scanned), {}));
  views.scanned.definition = second;
  return views;
}

std::vector<Note> maxtext_remarks(const Catalog& catalog, const Recipes& recipes) {
  if (!is_maxtext_tree(catalog)) {
    const auto rules = find_rules(catalog, {.release = {}}, recipes);
    if (!rules || rules->trees().releases.size() < 2) return {};
    return {{"maxtext", fmt::format("releases of MaxText differ here: @maxtext= is one of {}",
                                    fmt::join(rules->trees().releases, ", "))}};
  }
  const auto found = tree_model(catalog, recipes);
  if (!found || !(*found)->release_matters) return {};
  const TreeModel& model = **found;
  if (model.others.empty()) {
    return {{"maxtext", fmt::format("the source is a tree of MaxText {}", model.release)}};
  }
  std::string others;
  for (const auto& other : model.others) {
    others += fmt::format("{}{}", others.empty() ? "" : ", ", other->release);
  }
  return {
      {"maxtext", fmt::format("the source fits MaxText {} and {} alike, and is taken for a tree "
                              "of {}, unless @maxtext= says another",
                              model.release, others, model.release)}};
}

Result<std::shared_ptr<Definition>> define_maxtext(std::shared_ptr<const Catalog> catalog,
                                                   const ViewRow& row, const ViewSpec& spec,
                                                   const Recipes& recipes) {
  const bool scanned = is_scanned(row);
  auto definition = empty_view(std::move(catalog), spec);
  const Result<void> done = define(*definition, recipes, scanned);
  if (!done) return Failure(done.error().within(std::string(row.name)));
  return definition;
}

}  // namespace ckfs
