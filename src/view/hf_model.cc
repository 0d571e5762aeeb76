// A catalog as a Hugging Face model directory.
//
// Casts: a decoded tensor always takes the view's dtype, straight from the F32 value that the
// reference's program gives; other floats take it only where all are cast. Quantized sources
// (except GPTQ and AWQ, whose programs cast all) keep their other tensors by default, as DeepSeek's
// script does: a router bias in F32 is F32 for a reason. Casting everything, as MaxText and
// zero_to_fp32 do, is one parameter away, or the view's own rule.
//
// Tensors: those that the usual tool for the source would write. Frozen weights that zero_to_fp32
// drops silently are left out here, too, but always with a note.
#include "view/hf_model.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>
#include <tuple>

#include "base/size_text.h"
#include "base/text.h"
#include "format/json_text.h"
#include "tensor/integers.h"
#include "view/maxtext_tree.h"
#include "view/program_names.h"
#include "view/recipes/recipe.h"
#include "view/tree_view.h"

namespace ckfs {
namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kDefaultMaxShard = "5GB";  // of shards that do not mirror the source's

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::BF16:
      return "bfloat16";
    case DType::F16:
      return "float16";
    default:
      CKFS_CHECK(dtype == DType::F32);  // no row of the table has another
      return "float32";
  }
}

/// Whether the tensor's values are computed from codes, not stored as they are.
bool is_decoded(const Catalog& catalog, TensorId id) {
  return catalog.storage(catalog.tensor(id)).encoding->is_quantized();
}

bool has_role(const Catalog& catalog, Role role) {
  return std::ranges::any_of(catalog.shards(), [&](const Shard& shard) {
    return std::ranges::any_of(shard.tensors,
                               [&](TensorId id) { return catalog.tensor(id).role == role; });
  });
}

/// Whether the view undoes what MaxText made of the model.
bool is_tree(const Catalog& catalog, const ViewRow& row) {
  return row.dtype && is_maxtext_tree(catalog);
}

/// Whether the view has other names than the source, which a training program gave.
bool is_renamed(const Catalog& catalog, const ViewRow& row) {
  return row.dtype && !program_of(catalog).empty();
}

/// Whether the weights may be the optimizer's masters.
bool shows_masters(const ViewSpec& spec) {
  return parameter_of(spec, "master", "0") == "1";
}

/// Whether most of a plain checkpoint's floats are BF16 already. Then the others have their dtype
/// for a reason, as in a quantized one: a router's bias, a norm.
bool is_mostly_bf16(const Catalog& catalog) {
  std::uint64_t bf16 = 0, others = 0;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const DType dtype = catalog.value_dtype(id);
      if (!is_castable_float(dtype)) continue;
      (dtype == DType::BF16 ? bf16 : others) += catalog.storage(catalog.tensor(id)).nbytes();
    }
  }
  return bf16 > others;
}

/// The default of @cast in the BF16 view: as the tool for such checkpoints casts. Layouts of
/// experts follow transformers, which casts nothing of a model in BF16, as converters of Megatron's
/// names do; to_huggingface casts all. Empty: all but buffers.
std::string_view default_cast(const Catalog& catalog, const ViewSpec& spec) {
  if (!program_of(catalog).empty()) return is_mostly_bf16(catalog) ? "quantized" : "";
  if (is_maxtext_tree(catalog)) return "all";
  if (catalog.is_quantized()) {
    return catalog.quantization_details().casts_all ? "all" : "quantized";
  }
  const bool layout = parameter_of(spec, "experts", "source") != "source";
  return layout && is_mostly_bf16(catalog) ? "quantized" : "all";
}

/// Whether there is F8 without a scale, in a part or not.
bool has_unscaled(const Catalog& catalog) {
  return std::ranges::any_of(catalog.shards(),
                             [&](const Shard& shard) {
                               return std::ranges::any_of(shard.tensors, [&](TensorId id) {
                                 return is_unscaled(catalog, id);
                               });
                             }) ||
         std::ranges::any_of(catalog.parts(),
                             [](const CatalogPart& part) { return has_unscaled(*part.catalog); });
}

/// Drops parameters that say what this source gets anyway.
ViewSpec without_defaults(ViewSpec spec, const Catalog& catalog) {
  const auto drop_if = [&](std::string_view key, std::string_view value) {
    const auto found = spec.parameters.find(key);
    if (found != spec.parameters.end() && found->second == value) spec.parameters.erase(found);
  };
  // A part may have another default: then stating the parameter is not the same as leaving it out.
  const std::string_view cast = default_cast(catalog, spec);
  const ViewSpec bare{spec.view, {}};
  if (std::ranges::all_of(catalog.parts(), [&](const CatalogPart& part) {
        return default_cast(*part.catalog, bare) == cast;
      })) {
    drop_if("cast", cast);
  }
  const std::string_view experts = parameter_of(spec, "experts", "source");
  const bool mirrors = mirrors_source(catalog, spec.view) && experts == "source";
  if (!mirrors && experts != "fused") drop_if("max_shard", kDefaultMaxShard);
  if (!has_unscaled(catalog)) spec.parameters.erase("unscaled");
  const bool module = has_role(catalog, Role::FrozenModule);
  if (!module && !has_role(catalog, Role::Frozen)) drop_if("exclude_frozen", "1");
  if (!module || spec.parameters.contains("exclude_frozen")) drop_if("frozen", "module");
  return spec;
}

bool casts_all(const Catalog& catalog, const ViewRow& row, const ViewSpec& spec) {
  if (!row.dtype) return false;
  if (row.dtype != DType::BF16) return true;
  return parameter_of(spec, "cast", default_cast(catalog, spec)) != "quantized";
}

/// Which of a catalog's tensors a view has.
struct Selection {
  bool frozen = true;    // weights recorded as not trained
  bool module = false;   // untrained weights known from the module's state alone
  bool complex = false;  // C128
  bool unscaled = true;  // F8 without a scale

  bool has(const Catalog& catalog, TensorId id) const {
    if (!complex && catalog.value_dtype(id) == DType::C128) return false;
    if (!unscaled && is_unscaled(catalog, id)) return false;
    const Role role = catalog.tensor(id).role;
    return role == Role::Frozen ? frozen : role != Role::FrozenModule || module;
  }
};

Selection selection(const ViewSpec& spec, ContainerKind container) {
  const bool frozen = parameter_of(spec, "exclude_frozen", "0") == "0";
  return {.frozen = frozen,
          .module = frozen && parameter_of(spec, "frozen", "tool") == "module",
          .complex = container == ContainerKind::TorchZip,
          .unscaled = unscaled_of(spec) != Unscaled::Drop};
}

/// "a", or "a" and how many more.
struct Group {
  std::size_t count = 0;
  std::string_view first;

  void add(std::string_view name) {
    if (count++ == 0) first = name;
  }
  /// `text` of the first, and `more` of the others ("{}" is their number).
  Note note(std::string text, fmt::format_string<std::size_t> more) const {
    if (count > 1) text += fmt::format(more, count - 1);
    return {std::string(first), std::move(text)};
  }
};

/// Marks those of the view's tensors that are other names of one before them. `ids`: where each
/// came from.
void share_bytes(const Catalog& catalog, std::span<const TensorId> ids,
                 std::vector<ModelTensor>& tensors) {
  // An alias has its source's very shape and boxes; another tensor may have the same bytes in
  // another shape.
  using TensorIdentity = std::tuple<StorageId, const StorageBox*, const std::int64_t*, std::size_t>;
  const auto place_of = [&](TensorId id) {
    const StoredTensor& tensor = catalog.tensor(id);
    return TensorIdentity{tensor.storage, tensor.boxes.data(), tensor.shape.data(),
                          tensor.shape.size()};
  };
  // The original of an alias may come after it: then the first in the view takes its role.
  std::map<TensorIdentity, std::uint32_t> sources;
  for (const TensorId id : ids) {
    if (catalog.tensor(id).alias) sources.emplace(place_of(id), ModelTensor::kNone);
  }
  if (sources.empty()) return;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const auto source = sources.find(place_of(ids[i]));
    if (source == sources.end()) continue;
    if (source->second == ModelTensor::kNone) {
      source->second = i;
    } else {
      tensors[i].same_as = source->second;
    }
  }
}

/// The index by which the source's loader finds the shards that a view mirrors: a component of a
/// pipeline has its own. Empty: the container's, which a variant's loader finds when it asks for
/// none.
std::string mirrored_index(const Catalog& catalog) {
  const std::string& index = catalog.model().index;
  const std::string_view stem = std::string_view(index).substr(0, index.find(".safetensors"));
  return stem.find('.') == std::string_view::npos ? index : std::string();
}

/// What the row and the parameters say of the view's container.
Result<Packaging> packaging(const Catalog& catalog, const ViewRow& row, const ViewSpec& spec) {
  Packaging packaging{.container = row.container, .placement = row.placement};
  if (parameter_of(spec, "format", "") == "bin") packaging.container = ContainerKind::TorchZip;
  const std::string_view experts = parameter_of(spec, "experts", "source");
  const bool mirrors = mirrors_source(catalog, row.name) && experts == "source";
  if (spec.parameters.contains("max_shard") || (!mirrors && experts != "fused")) {
    packaging.placement = Placement::Split;
  } else if (experts == "fused") {
    packaging.placement = Placement::ByLayer;
  }
  if (packaging.placement == Placement::Split) {
    CKFS_TRY(packaging.max_shard, parse_size(parameter_of(spec, "max_shard", kDefaultMaxShard)));
  }
  if (packaging.placement == Placement::Mirrored) packaging.index = mirrored_index(catalog);
  return packaging;
}

/// The view's tensors with the experts in another layout: as the source's family says.
Result<TensorList> lay_out_experts(const Catalog& catalog, std::string_view layout,
                                   const Recipes& recipes, TensorList list) {
  CKFS_TRY(const ConfigNumbers config, config_numbers(catalog));
  const std::vector<std::string> models = recipes.models(config);
  const ModelFamily* family = recipes.find_layouts(config);
  if (family == nullptr) {
    return fail(ErrorCode::Unsupported,
                "experts={}: no layout of experts is known for this model ({})", layout,
                models.empty() ? "config.json has no model_type"
                               : fmt::format("model_type {}", one_line(models.front())));
  }
  const auto rules = family->layouts.find(layout);
  if (rules == family->layouts.end()) {
    return fail(ErrorCode::Unsupported, "experts={}: {} has {} only", layout, family->file,
                fmt::join(std::views::keys(family->layouts), " and "));
  }
  auto made = apply_rules(rules->second, config, std::move(list));
  if (!made) return Failure(made.error().within(fmt::format("experts={}", layout)));
  return without_axes(*std::move(made));
}

}  // namespace

Result<ConfigNumbers> config_numbers(const Catalog& catalog) {
  const std::optional<std::string>& config = catalog.model().config;
  if (!config) return ConfigNumbers();
  return ConfigNumbers::parse(*config, "config.json");
}

namespace {

/// Whether the model's dense weights lie as [inputs, outputs] (transformers' Conv1D).
bool has_turned_weights(const Catalog& catalog) {
  constexpr std::array<std::string_view, 4> kModels{"gpt2", "openai-gpt", "imagegpt",
                                                    "decision_transformer"};
  const Result<ConfigNumbers> config = config_numbers(catalog);
  if (!config) return false;
  const std::optional<std::string> model = config->text("model_type");
  return model && std::ranges::find(kModels, *model) != kModels.end();
}

/// The quantized weights of modules that are Conv1D: quantizers turn these before they pack them,
/// and nothing in the file says so.
std::vector<Obstacle> turned_weights(const Catalog& catalog) {
  if (!catalog.is_quantized() || !has_turned_weights(catalog)) return {};
  ObstacleList found;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const StoredTensor& tensor = catalog.tensor(id);
      const bool is_conv1d = std::ranges::any_of(
          std::array{".c_attn.weight", ".c_proj.weight", ".c_fc.weight", ".q_attn.weight"},
          [&](std::string_view ending) { return tensor.name.ends_with(ending); });
      if (!is_conv1d || !is_decoded(catalog, id)) continue;
      found.add(tensor.name,
                "quantized Conv1D weights are stored transposed, which is not supported");
    }
  }
  return found.list();
}

std::vector<Obstacle> obstacles_of_tensors(const Catalog& catalog, const ViewRow& row,
                                           Unscaled unscaled);

}  // namespace

std::vector<Obstacle> hf_model_obstacles(const Catalog& catalog, const ViewRow& row,
                                         Unscaled unscaled) {
  if (!row.dtype && catalog.mirrors_shards()) {
    return {{"source", "has its tensors in safetensors files already"}};
  }
  return obstacles_of_tensors(catalog, row, unscaled);
}

namespace {

/// Those of the tensors themselves, and of the parts'.
std::vector<Obstacle> obstacles_of_tensors(const Catalog& catalog, const ViewRow& row,
                                           Unscaled unscaled) {
  if (row.dtype && catalog.tree() != nullptr && !is_maxtext_tree(catalog)) {
    return {{"source", "is an Orbax tree, whose arrays have no Hugging Face names"}};
  }
  std::vector<Obstacle> obstacles = catalog_obstacles(catalog, unscaled);
  std::ranges::move(turned_weights(catalog), std::back_inserter(obstacles));
  for (const CatalogPart& part : catalog.parts()) {
    for (Obstacle& obstacle : obstacles_of_tensors(*part.catalog, row, unscaled)) {
      obstacle.tensor.insert(0, part.directory);
      obstacles.push_back(std::move(obstacle));
    }
  }
  bool has_others = !catalog.parts().empty();
  ObstacleList complex;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      if (catalog.value_dtype(id) != DType::C128) {
        has_others = true;
        continue;
      }
      complex.add(catalog.tensor(id).name, "C128 has no safetensors dtype");
    }
  }
  // Unless shards mirror the source's, such tensors are left out, if others remain.
  if (catalog.mirrors_shards() || !has_others) {
    std::ranges::move(complex.list(), std::back_inserter(obstacles));
  }
  return obstacles;
}

}  // namespace

std::vector<Note> hf_model_remarks(const Catalog& catalog, const ViewRow& row) {
  std::vector<Note> remarks;
  std::map<DType, Group> unchanged;
  Group dropped, complex;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const DType dtype = catalog.value_dtype(id);
      const std::string_view tensor = catalog.tensor(id).name;
      if (catalog.tensor(id).role == Role::FrozenModule) {
        dropped.add(tensor);
      } else if (dtype == DType::C128) {
        complex.add(tensor);
      } else if (row.dtype && !is_decoded(catalog, id) && !is_castable_float(dtype) &&
                 !is_integer(dtype) && dtype != DType::Bool) {
        unchanged[dtype].add(tensor);
      }
    }
  }
  remarks.reserve(unchanged.size() + 2);
  for (const auto& [dtype, group] : unchanged) {
    remarks.push_back(
        group.note(fmt::format("{} passes unchanged", name(dtype)), "; so do {} more tensors"));
  }
  if (complex.count > 0) {
    remarks.push_back(complex.note(
        fmt::format("left out: safetensors has no C128 ({} shows it)",
                    catalog.tree() != nullptr ? kTreeView : "fp32-consolidated@format=bin"),
        "; so are {} more tensors"));
  }
  if (dropped.count > 0) {
    remarks.push_back(
        dropped.note("left out, as zero_to_fp32 does: frozen, and recorded in the "
                     "module's state only (fp32-consolidated@frozen=module shows it)",
                     "; so are {} more tensors"));
  }
  for (const CatalogPart& part : catalog.parts()) {
    for (Note& remark : hf_model_remarks(*part.catalog, row)) {
      if (remark.subject == kConfigName) continue;  // many folders have none
      remark.subject.insert(0, part.directory);
      remarks.push_back(std::move(remark));
    }
  }
  // An adapter by itself has a configuration of its own.
  const bool is_adapter = std::ranges::any_of(
      catalog.model().side_files,
      [](const SourceFile& file) { return file.path == "adapter_config.json"; });
  if (!catalog.model().config && !is_adapter) {
    remarks.push_back({std::string(kConfigName), "absent in the source"});
  }
  return remarks;
}

namespace {

/// All of it but its parts.
Result<std::shared_ptr<Definition>> define_directory(std::shared_ptr<const Catalog> catalog,
                                                     const ViewRow& row, const ViewSpec& spec,
                                                     const Recipes& recipes, WithoutDtype without) {
  auto definition = std::make_shared<Definition>();
  definition->spec = without_defaults(spec, *catalog);
  CKFS_TRY(definition->packaging, packaging(*catalog, row, definition->spec));

  const bool all = casts_all(*catalog, row, spec);
  const Selection selected = selection(spec, definition->packaging.container);
  std::vector<TensorId> ids;
  std::vector<std::uint32_t> shards;
  for (std::uint32_t shard = 0; shard < catalog->shards().size(); ++shard) {
    for (const TensorId id : catalog->shards()[shard].tensors) {
      if (!selected.has(*catalog, id)) continue;
      ids.push_back(id);
      shards.push_back(shard);
    }
  }
  const std::string_view release = parameter_of(spec, "maxtext", "");
  if (shows_masters(spec) && !is_renamed(*catalog, row)) {
    return fail(ErrorCode::Unsupported,
                "{}: master=1: the source is not a checkpoint of Megatron's", row.name);
  }
  if (is_renamed(*catalog, row)) {
    const bool keep_buffers = row.dtype == DType::BF16 && parameter_of(spec, "cast", "") != "all";
    auto list = named_tensors(*catalog,
                              {.weights = shows_masters(spec) ? Weights::Masters : Weights::Stored,
                               .dtype = all ? row.dtype : std::nullopt,
                               .keep_buffers = keep_buffers},
                              recipes);
    if (!list) return Failure(list.error().within(std::string(row.name)));
    definition->names = std::move(list->names);
    definition->lender = std::move(list->lender);
    definition->tensors = std::move(list->tensors);
    ids.clear();
  }
  if (is_tree(*catalog, row)) {
    auto list = huggingface_tensors(*catalog, all ? row.dtype : std::nullopt, release, recipes);
    if (!list) return Failure(list.error().within(std::string(row.name)));
    if (!release.empty()) {
      CKFS_TRY(const auto model, tree_model(*catalog, recipes));
      if (release == model->release || !model->release_matters) {
        definition->spec.parameters.erase("maxtext");
      }
    }
    definition->names = std::move(list->names);
    definition->lender = std::move(list->lender);
    definition->tensors = std::move(list->tensors);
    ids.clear();
  } else if (!release.empty()) {
    return fail(ErrorCode::Unsupported, "{}: maxtext={}: the source is not a tree of MaxText",
                row.name, release);
  }
  definition->tensors.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const TensorId id = ids[i];
    const std::string_view tensor = catalog->tensor(id).name;
    const bool decoded = is_decoded(*catalog, id);
    const DType from = catalog->value_dtype(id);
    const bool at_one = is_unscaled(*catalog, id) && unscaled_of(spec) == Unscaled::One;
    const DType to =
        row.dtype && (decoded || at_one || (all && is_castable_float(from))) ? *row.dtype : from;
    Result<TensorExpr> expr = TensorExpr::stored(*catalog, id);
    if (at_one) expr = expr->at_scale_one();
    if (expr) expr = expr->cast(to);
    if (!expr) return Failure(expr.error().within(fmt::format("{}: \"{}\"", row.name, tensor)));
    definition->tensors.push_back({.name = tensor,
                                   .expr = std::move(*expr),
                                   .exactness = exactness_of(*catalog, id, to),
                                   .role = catalog->tensor(id).role,
                                   .shard = shards[i]});
  }
  share_bytes(*catalog, ids, definition->tensors);
  if (const std::string_view layout = parameter_of(spec, "experts", "source"); layout != "source") {
    auto list = lay_out_experts(*catalog, layout, recipes,
                                {std::move(definition->names), std::move(definition->tensors)});
    if (!list) return Failure(list.error().within(std::string(row.name)));
    definition->names = std::move(list->names);
    definition->tensors = std::move(list->tensors);
  }

  const ModelDirectory& model = catalog->model();
  if (model.config) {
    definition->texts.push_back(
        {std::string(kConfigName),
         row.dtype ? edit_dense_config(*model.config, torch_name(*row.dtype), without)
                   : *model.config});
  }
  definition->side_files = model.side_files;
  definition->catalog = std::move(catalog);
  return definition;
}

/// A part's loader knows its files by their names, so they are those of the source, whatever the
/// rest of the view is packed in; and a module's configuration is the arguments of its constructor,
/// which takes no dtype more.
Result<std::shared_ptr<const Definition>> define_part(const CatalogPart& part, const ViewRow& row,
                                                      const ViewSpec& spec,
                                                      const Recipes& recipes) {
  ViewSpec own{spec.view, {}};
  for (const std::string_view key : {"cast", "unscaled"}) {
    const auto said = spec.parameters.find(key);
    if (said != spec.parameters.end()) own.parameters.insert(*said);
  }
  auto made = define_directory(part.catalog, row, own, recipes, WithoutDtype::Kept);
  if (!made) return Failure(made.error().within(part.directory));
  const bool mirrors = part.catalog->mirrors_shards();  // not those joined of slices
  (*made)->packaging = {.container = ContainerKind::Safetensors,
                        .placement = mirrors ? Placement::Mirrored : Placement::Split,
                        .index = part.catalog->model().index};
  if (!mirrors) {
    CKFS_TRY((*made)->packaging.max_shard, parse_size(kDefaultMaxShard));
  }
  return *std::move(made);
}

}  // namespace

Result<std::shared_ptr<Definition>> define_hf_model(std::shared_ptr<const Catalog> catalog,
                                                    const ViewRow& row, const ViewSpec& spec,
                                                    const Recipes& recipes) {
  CKFS_TRY(std::shared_ptr<Definition> definition,
           define_directory(std::move(catalog), row, spec, recipes, WithoutDtype::Filled));
  for (const CatalogPart& part : definition->catalog->parts()) {
    CKFS_TRY(auto made, define_part(part, row, spec, recipes));
    definition->parts.push_back({part.directory, std::move(made)});
  }
  return definition;
}

}  // namespace ckfs
