// The table of views, and what follows from a row alone: which views a catalog can give, and whose
// code defines one.
//
// Rows are data, not a class for each view: the views of this table differ in a dtype and in how
// tensors are placed into files, and parsing, listing and the docs want to read both. A view that
// no kind of source can give yet has no row.
#include "view/view.h"

#include <algorithm>
#include <array>
#include <new>

#include "base/parallel.h"
#include "base/size_text.h"
#include "view/dcp_view.h"
#include "view/hf_model.h"
#include "view/maxtext.h"
#include "view/maxtext_tree.h"
#include "view/megatron_view.h"
#include "view/program_names.h"
#include "view/quantizing_view.h"
#include "view/recipes/recipe.h"
#include "view/tree_view.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

constexpr std::array<std::string_view, 2> kCasts{"quantized", "all"};
constexpr std::array<std::string_view, 4> kExperts{"source", "linear", "fused", "packed"};
constexpr std::array<std::string_view, 2> kFormats{"safetensors", "bin"};
constexpr std::array<std::string_view, 2> kSwitch{"0", "1"};
constexpr std::array<std::string_view, 2> kFrozen{"tool", "module"};

constexpr std::array<std::string_view, 3> kUnscaled{"one", "keep", "drop"};

// `cast`, `unscaled` and `max_shard` of mirrored views have no default here: it depends on the
// source (define_view() leaves it out then).
// So does whose tree a tree of MaxText's is.
constexpr std::array<ParameterRow, 5> kBf16Parameters{{{"cast", kCasts, ""},
                                                       {"experts", kExperts, "source"},
                                                       {"max_shard", {}, ""},
                                                       {"maxtext", kMaxTextReleases, ""},
                                                       {"unscaled", kUnscaled, ""}}};
constexpr std::array<ParameterRow, 4> kModelParameters{{{"experts", kExperts, "source"},
                                                        {"max_shard", {}, ""},
                                                        {"maxtext", kMaxTextReleases, ""},
                                                        {"unscaled", kUnscaled, ""}}};
constexpr std::array<ParameterRow, 5> kFp32Parameters{{{"experts", kExperts, "source"},
                                                       {"master", kSwitch, "0"},
                                                       {"max_shard", {}, ""},
                                                       {"maxtext", kMaxTextReleases, ""},
                                                       {"unscaled", kUnscaled, ""}}};
constexpr std::array<ParameterRow, 1> kStoredParameters{{{"max_shard", {}, "5GB"}}};
constexpr std::array<std::string_view, 3> kStorages{"ocdbt", "zarr3", "zarr2"};
constexpr std::array<ParameterRow, 1> kOrbaxParameters{{{"storage", kStorages, "ocdbt"}}};
constexpr std::array<ParameterRow, 7> kConsolidatedParameters{{{"exclude_frozen", kSwitch, "0"},
                                                               {"format", kFormats, "safetensors"},
                                                               {"frozen", kFrozen, "tool"},
                                                               {"master", kSwitch, "0"},
                                                               {"max_shard", {}, "5GB"},
                                                               {"maxtext", kMaxTextReleases, ""},
                                                               {"unscaled", kUnscaled, ""}}};

constexpr std::array<std::string_view, 4> kDtypes{"bf16", "fp16", "fp32", "source"};
constexpr std::array<ParameterRow, 3> kTreeParameters{
    {{"dtype", kDtypes, "source"}, {"max_chunk", {}, "64MiB"}, {"storage", kStorages, "ocdbt"}}};
constexpr std::array<std::string_view, 1> kSteps{"0"};
constexpr std::uint64_t kMaxDevices = 1 << 20;  // along an axis of a mesh
constexpr std::array<ParameterRow, 10> kMaxTextParameters{
    {{"dtype", kDtypes, "bf16"},
     {"ep", {}, "1", kMaxDevices},
     {"fsdp", {}, "1", kMaxDevices},
     {"maxtext", kMaxTextReleases, kNewestMaxText},
     {"mtp", kSwitch, "0"},
     {"multimodal", kSwitch, "0"},
     {"step", kSteps, "0"},
     {"storage", kStorages, "ocdbt"},
     {"tp", {}, "1", kMaxDevices},
     {"unscaled", kUnscaled, ""}}};

constexpr std::array<std::string_view, 3> kCastDtypes{"bf16", "fp16", "fp32"};
constexpr std::array<std::string_view, 2> kLayerForms{"numbered", "stacked"};
constexpr std::array<ParameterRow, 3> kMegatronParameters{{{"dtype", kCastDtypes, "bf16"},
                                                           {"layers", kLayerForms, "numbered"},
                                                           {"unscaled", kUnscaled, ""}}};

constexpr std::array<std::string_view, 2> kDcpNames{kHuggingFaceNames, kTorchTitanNames};
constexpr std::array<ParameterRow, 4> kDcpParameters{{{"dtype", kCastDtypes, "bf16"},
                                                      {"experts", kExperts, "source"},
                                                      {"names", kDcpNames, kHuggingFaceNames},
                                                      {"unscaled", kUnscaled, ""}}};

constexpr std::array<std::string_view, 2> kBlocks{"channel", "tensor"};
constexpr std::array<std::string_view, 2> kScales{"f32", "ue8m0"};
constexpr std::array<ParameterRow, 9> kFp8Parameters{
    {{"block", kBlocks, "128x128", 0, ParameterForm::Block},
     {"exact", kSwitch, "0"},
     {"experts", kExperts, "source"},
     {"ignore", {}, "", 0, ParameterForm::Modules},
     {"max_shard", {}, ""},
     {"maxtext", kMaxTextReleases, ""},
     {"only", {}, "", 0, ParameterForm::Modules},
     {"scale", kScales, "f32"},
     {"unscaled", kUnscaled, ""}}};
constexpr std::array<std::string_view, 1> kFuse{"experts"};
constexpr std::uint64_t kMostGroup = 1 << 20;
constexpr std::array<ParameterRow, 9> kCtParameters{{{"experts", kExperts, "source"},
                                                     {"fuse", kFuse, ""},
                                                     {"group", {}, "128", kMostGroup},
                                                     {"ignore", {}, "", 0, ParameterForm::Modules},
                                                     {"max_shard", {}, ""},
                                                     {"maxtext", kMaxTextReleases, ""},
                                                     {"only", {}, "", 0, ParameterForm::Modules},
                                                     {"scheme", kCtSchemes, kCtSchemes[0]},
                                                     {"unscaled", kUnscaled, ""}}};
constexpr std::array<ParameterRow, 6> kNf4Parameters{{{"experts", kExperts, "source"},
                                                      {"ignore", {}, "", 0, ParameterForm::Modules},
                                                      {"max_shard", {}, ""},
                                                      {"maxtext", kMaxTextReleases, ""},
                                                      {"only", {}, "", 0, ParameterForm::Modules},
                                                      {"unscaled", kUnscaled, ""}}};

constexpr std::array<ViewRow, 14> kViews{{
    {"bf16-safetensors", "Hugging Face model directory, weights in BF16",
     ContainerKind::Safetensors, Placement::Mirrored, DType::BF16, kBf16Parameters},
    {"fp16-safetensors", "Hugging Face model directory, weights in F16", ContainerKind::Safetensors,
     Placement::Mirrored, DType::F16, kModelParameters},
    {"fp32-safetensors", "Hugging Face model directory, weights in F32", ContainerKind::Safetensors,
     Placement::Mirrored, DType::F32, kFp32Parameters},
    {kFp8View, "weights quantized to FP8, as slime does", ContainerKind::Safetensors,
     Placement::Mirrored, std::nullopt, kFp8Parameters, true},
    {kCtView, "weights quantized to FP8, INT8 or 4 bits, as llm-compressor does",
     ContainerKind::Safetensors, Placement::Mirrored, std::nullopt, kCtParameters, true},
    {kNf4View, "weights quantized to nf4, as bitsandbytes does", ContainerKind::Safetensors,
     Placement::Mirrored, std::nullopt, kNf4Parameters, true},
    {"safetensors", "tensors as they are stored, in safetensors files", ContainerKind::Safetensors,
     Placement::Split, std::nullopt, kStoredParameters},
    {"fp32-consolidated", "F32 weights in the files that zero_to_fp32 writes",
     ContainerKind::Safetensors, Placement::Split, DType::F32, kConsolidatedParameters},
    {"maxtext-unscanned",
     "checkpoint of MaxText 0.2.5 (0/items), a tree of each layer's parameters",
     ContainerKind::Orbax, Placement::Split, std::nullopt, kMaxTextParameters},
    {"maxtext-scanned",
     "checkpoint of MaxText 0.2.5 (0/items), the parameters of all layers stacked",
     ContainerKind::Orbax, Placement::Split, std::nullopt, kMaxTextParameters},
    {kMegatronView, "checkpoint of Megatron-Core (torch_dist), for --load", ContainerKind::Dcp,
     Placement::Split, std::nullopt, kMegatronParameters},
    {kDcpView, "checkpoint of torch.distributed.checkpoint, for dcp.load", ContainerKind::Dcp,
     Placement::Split, std::nullopt, kDcpParameters},
    {kTreeView, "Orbax item: the source's tree and arrays, uncompressed, in chunks",
     ContainerKind::Orbax, Placement::Split, std::nullopt, kTreeParameters},
    {"source",
     "the source directory as it is",
     ContainerKind::None,
     Placement::Split,
     std::nullopt,
     {}},
}};

constexpr ViewRow kRecipeView{
    "", "", ContainerKind::Safetensors, Placement::Split, std::nullopt, kStoredParameters};
constexpr ViewRow kOrbaxRecipeView{
    "", "", ContainerKind::Orbax, Placement::Split, std::nullopt, kOrbaxParameters};

// An error is one line for a terminal or a log; `ckfs inspect` has more.
constexpr std::size_t kObstaclesInMessage = 3;

Failure unsupported(const ViewRow& row, const std::vector<Obstacle>& obstacles) {
  std::string text;
  for (const Obstacle& obstacle :
       std::span(obstacles).first(std::min(kObstaclesInMessage, obstacles.size()))) {
    text += fmt::format("{}\"{}\": {}", text.empty() ? "" : "; ", obstacle.tensor, obstacle.reason);
  }
  const std::size_t count = count_obstacles(obstacles);
  if (count > kObstaclesInMessage) {
    text += fmt::format("; and {} more (see ckfs inspect)", count - kObstaclesInMessage);
  }
  return fail(ErrorCode::Unsupported, "{}: the source cannot give this view: {}", row.name, text);
}

/// A view of the table, still open to changes.
Result<std::shared_ptr<Definition>> define_row(std::shared_ptr<const Catalog> catalog,
                                               const ViewRow& row, const ViewSpec& spec,
                                               const Recipes& recipes) {
  if (row.container == ContainerKind::None) {
    auto definition = std::make_shared<Definition>();
    definition->spec = spec;
    definition->side_files = catalog->files();
    definition->catalog = std::move(catalog);
    return definition;
  }
  if (row.name == kTreeView) {
    if (const auto obstacles = tree_obstacles(*catalog); !obstacles.empty()) {
      return unsupported(row, obstacles);
    }
    return define_tree(std::move(catalog), row, spec);
  }
  if (row.name == kDcpView || row.name == kMegatronView) {
    const ViewRow& model = dcp_model_row(spec);
    auto obstacles = row.name == kDcpView ? dcp_obstacles(*catalog, model, unscaled_of(spec))
                                          : hf_model_obstacles(*catalog, model, unscaled_of(spec));
    if (obstacles.empty()) obstacles = part_obstacles(*catalog);
    if (!obstacles.empty()) return unsupported(row, obstacles);
    if (row.name == kDcpView) return define_dcp(std::move(catalog), spec, recipes);
    return define_megatron(std::move(catalog), spec, recipes);
  }
  const bool maxtext = row.container == ContainerKind::Orbax;
  if (row.quantizes) {
    std::vector<Obstacle> found;
    if (!is_exact(spec)) {
      found = hf_model_obstacles(*catalog, *find_view_row(kPlainView), unscaled_of(spec));
    }
    if (found.empty()) {
      auto made = define_quantizing_view(std::move(catalog), row, spec, recipes, found);
      if (found.empty()) return made;
    }
    return unsupported(row, found);
  }
  const std::vector<Obstacle> obstacles =
      maxtext ? catalog_obstacles(*catalog, unscaled_of(spec))
              : hf_model_obstacles(*catalog, row, unscaled_of(spec));
  if (!obstacles.empty()) return unsupported(row, obstacles);
  if (maxtext) return define_maxtext(std::move(catalog), row, spec, recipes);
  return define_hf_model(std::move(catalog), row, spec, recipes);
}

/// What a recipe makes of the built-in view that it names.
Result<std::shared_ptr<const Definition>> define_recipe(std::shared_ptr<const Catalog> catalog,
                                                        const RecipeView& recipe,
                                                        const ViewSpec& spec,
                                                        const Recipes& recipes) {
  CKFS_TRY(const ViewSpec from, parse_view_spec(recipe.from));
  const ViewRow& row = *find_view_row(from.view);
  if (row.container != ContainerKind::Safetensors) {
    return fail(ErrorCode::Unsupported, "{}: view {}: from {}, which has no tensors in safetensors",
                recipe.rules.file, recipe.name, recipe.from);
  }
  if (row.quantizes) {
    return fail(ErrorCode::Unsupported,
                "{}: view {}: from {}, whose codes no rule may move (take bf16-safetensors)",
                recipe.rules.file, recipe.name, recipe.from);
  }
  CKFS_TRY(std::shared_ptr<Definition> definition,
           define_row(std::move(catalog), row, from, recipes));
  CKFS_TRY(const ConfigNumbers config, config_numbers(*definition->catalog));
  CKFS_TRY(TensorList list,
           apply_rules(recipe.rules, config,
                       {std::move(definition->names), std::move(definition->tensors)}));
  list = without_axes(std::move(list));
  definition->names = std::move(list.names);
  definition->tensors = std::move(list.tensors);
  definition->spec = spec;
  definition->packaging = {.container = recipe.container, .placement = Placement::Split};
  if (recipe.container == ContainerKind::Orbax) {
    definition->packaging.orbax.storage = storage_of(spec);
    // The directory is an item, and Orbax looks at all that lies in one.
    definition->texts.clear();
    definition->side_files = {};
    definition->parts.clear();
    return definition;
  }
  CKFS_TRY(definition->packaging.max_shard,
           parse_size(parameter_of(spec, "max_shard", kStoredParameters[0].default_value)));
  return definition;
}

}  // namespace

std::span<const ViewRow> view_table() {
  return kViews;
}

const ViewRow& recipe_view_row(ContainerKind container) {
  return container == ContainerKind::Orbax ? kOrbaxRecipeView : kRecipeView;
}

std::string_view parameter_of(const ViewSpec& spec, std::string_view key,
                              std::string_view otherwise) {
  const auto found = spec.parameters.find(key);
  return found == spec.parameters.end() ? otherwise : std::string_view(found->second);
}

Unscaled unscaled_of(const ViewSpec& spec) {
  const std::string_view said = parameter_of(spec, "unscaled", "");
  if (said == "one") return Unscaled::One;
  if (said == "keep") return Unscaled::Keep;
  return said == "drop" ? Unscaled::Drop : Unscaled::Unsaid;
}

std::vector<Obstacle> catalog_obstacles(const Catalog& catalog, Unscaled unscaled) {
  std::vector<Obstacle> all(catalog.obstacles().begin(), catalog.obstacles().end());
  if (unscaled != Unscaled::Unsaid) return all;
  all.insert(all.end(), catalog.unscaled().begin(), catalog.unscaled().end());
  std::ranges::stable_sort(all, {}, &Obstacle::tensor);
  return all;
}

bool is_unscaled(const Catalog& catalog, TensorId id) {
  return is_f8(catalog.value_dtype(id)) &&
         !catalog.storage(catalog.tensor(id)).encoding->is_quantized();
}

ArrayStorage storage_of(const ViewSpec& spec) {
  const std::string_view storage = parameter_of(spec, "storage", "ocdbt");
  if (storage == "ocdbt") return ArrayStorage::Ocdbt;
  return storage == "zarr3" ? ArrayStorage::Zarr3 : ArrayStorage::Zarr2;
}

std::optional<DType> dtype_named(std::string_view name) {
  if (name == "bf16") return DType::BF16;
  if (name == "fp16") return DType::F16;
  if (name == "fp32") return DType::F32;
  return std::nullopt;
}

const ViewRow* find_view_row(std::string_view name) {
  const auto* const row = std::ranges::find(kViews, name, &ViewRow::name);
  return row == kViews.end() ? nullptr : row;
}

std::vector<ViewSummary> list_views(const std::shared_ptr<const Catalog>& held,
                                    const Recipes& recipes, std::size_t many) {
  const Catalog& catalog = *held;
  std::vector<ViewSummary> summaries;
  MaxTextViews maxtext;
  MegatronView megatron;
  // These are most of the work of opening a large model.
  std::size_t tensors = catalog.tensors().size();
  if (recipes.named && recipes.named->model) {
    tensors = std::max(tensors, (*recipes.named->model)->tensors.size());
  }
  const std::size_t threads = tensors < many ? 1 : 2;
  const auto found = run_parallel(2,
                                  [&](std::size_t which) -> Result<void> {
                                    if (which == 0) maxtext = find_maxtext_views(held, recipes);
                                    if (which == 1) megatron = find_megatron_view(held, recipes);
                                    return {};
                                  },
                                  {.few = threads, .most = threads});
  if (!found) throw std::bad_alloc();  // nothing else fails
  std::vector<Note> maxtext_notes = maxtext_remarks(catalog, recipes);
  if (const std::optional<Note> left_out = maxtext_tree_remark(catalog)) {
    maxtext_notes.push_back(*left_out);
  }
  const std::optional<Note> name_note = name_remark(catalog);
  for (const ViewRow& row : kViews) {
    ViewSummary& summary = summaries.emplace_back();
    summary.name = row.name;
    summary.description = row.description;
    if (row.container == ContainerKind::None) continue;
    if (row.name == kTreeView) {
      summary.obstacles = tree_obstacles(catalog);
      continue;
    }
    if (row.name == kMegatronView) {
      summary.obstacles = std::move(megatron.obstacles);
      summary.definition = std::move(megatron.definition);
      summary.remarks = summaries.front().remarks;  // of bf16-safetensors, whose tensors it has
      continue;
    }
    if (row.name == kDcpView) {
      summary.obstacles =
          dcp_obstacles(catalog, *find_view_row("bf16-safetensors"), Unscaled::Unsaid);
      if (summary.obstacles.empty()) summary.obstacles = summaries.front().obstacles;
      summary.remarks = summaries.front().remarks;
      continue;
    }
    if (row.container == ContainerKind::Orbax) {
      const MaxTextView& view = is_scanned(row) ? maxtext.scanned : maxtext.unscanned;
      summary.obstacles = view.obstacles;
      summary.definition = view.definition;
      summary.remarks = maxtext_notes;
      continue;
    }
    if (row.quantizes) {
      const ViewRow& plain = *find_view_row(kPlainView);
      summary.obstacles = hf_model_obstacles(catalog, plain, Unscaled::Unsaid);
      if (summary.obstacles.empty()) {
        summary.obstacles = quantizing_obstacles(catalog, row, recipes);
      }
      if (is_maxtext_tree(catalog) && catalog.obstacles().empty()) {
        std::ranges::copy(maxtext.unscanned.obstacles, std::back_inserter(summary.obstacles));
      }
      if (!program_of(catalog).empty() && catalog.obstacles().empty()) {
        std::ranges::copy(name_obstacles(catalog, recipes), std::back_inserter(summary.obstacles));
      }
      summary.remarks = hf_model_remarks(catalog, plain);
      std::ranges::copy(quantizing_remarks(catalog, row), std::back_inserter(summary.remarks));
      continue;
    }
    summary.obstacles = hf_model_obstacles(catalog, row, Unscaled::Unsaid);
    // An obstacle of the catalog is one of either already.
    if (row.dtype && is_maxtext_tree(catalog) && catalog.obstacles().empty()) {
      std::ranges::copy(maxtext.unscanned.obstacles, std::back_inserter(summary.obstacles));
    }
    if (row.dtype && !program_of(catalog).empty() && catalog.obstacles().empty()) {
      std::ranges::copy(name_obstacles(catalog, recipes), std::back_inserter(summary.obstacles));
    }
    summary.remarks = hf_model_remarks(catalog, row);
    if (row.dtype && name_note) summary.remarks.push_back(*name_note);
    if (row.dtype && is_maxtext_tree(catalog)) {
      std::ranges::copy(maxtext_notes, std::back_inserter(summary.remarks));
      if (auto left_out = maxtext_model_remark(catalog, recipes)) {
        summary.remarks.push_back(*std::move(left_out));
      }
    }
  }
  for (const RecipeView& recipe : recipes.views) {
    ViewSummary& summary = summaries.emplace_back();
    summary.name = recipe.name;
    summary.description = recipe.description.empty()
                              ? fmt::format("{} by the recipe {}", recipe.from, recipe.rules.file)
                              : recipe.description;
  }
  return summaries;
}

bool mirrors_source(const Catalog& catalog, std::string_view view) {
  const ViewRow* row = find_view_row(view);
  return row != nullptr && row->container != ContainerKind::None &&
         row->placement == Placement::Mirrored && catalog.mirrors_shards() &&
         !is_maxtext_tree(catalog) && program_of(catalog).empty();
}

Result<std::shared_ptr<const Definition>> define_view(std::shared_ptr<const Catalog> catalog,
                                                      const ViewSpec& spec,
                                                      const Recipes& recipes) {
  if (const RecipeView* recipe = recipes.find_view(spec.view)) {
    return define_recipe(std::move(catalog), *recipe, spec, recipes);
  }
  const ViewRow* row = find_view_row(spec.view);
  if (row == nullptr) return fail(ErrorCode::NotFound, "{}: no such view", spec.view);
  return define_row(std::move(catalog), *row, spec, recipes);
}

}  // namespace ckfs
