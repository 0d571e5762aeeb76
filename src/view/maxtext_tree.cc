#include "view/maxtext_tree.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "base/name_hash.h"
#include "base/text.h"
#include "encoding/plain_encoding.h"
#include "tensor/shape.h"
#include "view/maxtext_rules.h"

namespace ckfs {
namespace {

// What every tree of MaxText has.
constexpr std::string_view kAlways = "decoder.decoder_norm.scale";
constexpr std::string_view kCollections = "params.";
constexpr std::string_view kParameters = "params.params.";
constexpr std::string_view kMtp = "params.params.mtp_block.";
constexpr std::array<std::string_view, 2> kEncoders{"params.params.vision_encoder.",
                                                    "params.params.audio_encoder."};

/// How a tree calls its parameters: before and behind their paths.
struct Form {
  std::string_view before, behind;
};
constexpr std::array<Form, 8> kForms{{{"params.params.", ""},
                                      {"params.params.", ".value"},
                                      {"params.", ""},
                                      {"params.", ".value"},
                                      {"base.", ""},
                                      {"base.", ".value"},
                                      {"", ""},
                                      {"", ".value"}}};

std::optional<Form> form_of(const Catalog& catalog) {
  for (const Form& form : kForms) {
    if (catalog.find(fmt::format("{}{}{}", form.before, kAlways, form.behind))) return form;
  }
  return std::nullopt;
}

bool is_number(std::string_view part) {
  return !part.empty() && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; });
}

/// The name, in a tree of Linen, for that path in a collection: NNX has lists where Linen has
/// numbers in names.
std::string linen_name(std::string_view collection, std::string_view path) {
  std::string name = fmt::format("{}{}", kCollections, collection);
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    name += is_number(part) ? '_' : '.';
    name += part;
    if (dot == std::string_view::npos) return name;
    path.remove_prefix(dot + 1);
  }
}

/// What a training state has beside a bare tree of parameters.
bool is_training_state(std::string_view path) {
  constexpr std::array<std::string_view, 4> kBeside{"step", "opt_state", "optimizer", "rngs"};
  return std::ranges::find(kBeside, path.substr(0, path.find('.'))) != kBeside.end();
}

/// Whether a key of the path is one below which NNX keeps the state of random number generators, as
/// MaxText's extract_nnx_weights() has it: "to_nnx__rngs", "dropout_rngs". No weight lies there.
bool is_random_state(std::string_view path) {
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string_view key = path.substr(0, dot);
    if (key == "rngs" || key.ends_with("_rngs")) return true;
    if (dot == std::string_view::npos) return false;
    path.remove_prefix(dot + 1);
  }
}

/// Arrays that are typed random keys, wherever in a tree they lie.
std::unordered_set<TensorId> random_keys(const Catalog& catalog) {
  std::unordered_set<TensorId> keys;
  const ItemTree* const tree = catalog.tree();
  if (tree == nullptr) return keys;
  for (const auto& [leaf, kind] : tree->key_kinds) keys.insert(tree->leaves[leaf].tensor);
  return keys;
}

/// An array of a tree.
struct TreeArray {
  std::uint32_t shard = 0;
  TensorId id = 0;
  std::string_view collection;  // "params", or one beside it, which Linen alone has
  std::string_view path;        // below that
  bool random = false;          // the state of a random number generator
};

/// What the name of an array in a tree of Linen has between kCollections and the next dot. Empty:
/// there is no such dot.
std::string_view collection_of(std::string_view name) {
  if (!name.starts_with(kCollections)) return {};
  name.remove_prefix(kCollections.size());
  const std::size_t dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
}

/// Calls `take` with each array below what the form has before its parameters, and in collections
/// beside them. Errors: those of `take`, which end it.
template <typename Take>
Result<void> for_each_below(const Catalog& catalog, const Form& form, Take take) {
  const std::unordered_set<TensorId> keys = random_keys(catalog);
  for (std::uint32_t shard = 0; shard < catalog.shards().size(); ++shard) {
    for (const TensorId id : catalog.shards()[shard].tensors) {
      std::string_view path = catalog.tensor(id).name;
      std::string_view collection = "params";
      if (form.before == kParameters) {
        collection = collection_of(path);
        if (collection.empty()) continue;
        path.remove_prefix(kCollections.size() + collection.size() + 1);
      } else if (path.starts_with(form.before)) {
        path.remove_prefix(form.before.size());
      } else {
        continue;
      }
      // What else lies there is refused where the rules do not know it.
      if (form.before.empty() && is_training_state(path)) continue;
      CKFS_TRY_VOID(
          take(TreeArray{shard, id, collection, path, keys.contains(id) || is_random_state(path)}));
    }
  }
  return {};
}

/// Whether the arrays of a collection are a family's.
bool has_collection(const MaxTextTrees& trees, std::string_view collection) {
  return collection == "params" ||
         std::ranges::find(trees.collections, collection) != trees.collections.end();
}

/// The arrays without those of collections that the family's rules do not know: those are not a
/// part of the model.
TensorList without_others(TensorList list, const MaxTextTrees& trees) {
  std::erase_if(list.tensors, [&](const ModelTensor& tensor) {
    return !has_collection(trees, collection_of(tensor.name));
  });
  return list;
}

/// The arrays of all collections.
Result<TensorList> parameters(const Catalog& catalog, std::optional<DType> dtype) {
  const std::optional<Form> form = form_of(catalog);
  CKFS_CHECK(form.has_value());
  TensorList list;
  const auto add = [&](const TreeArray& array) -> Result<void> {
    std::string_view path = array.path;
    if (array.random || !path.ends_with(form->behind) || path.size() <= form->behind.size()) {
      return {};
    }
    path.remove_suffix(form->behind.size());
    const StoredTensor& tensor = catalog.tensor(array.id);
    TensorExpr expr = TensorExpr::stored(catalog, array.id);
    const DType to = dtype && is_castable_float(expr.dtype()) ? *dtype : expr.dtype();
    auto cast = expr.cast(to);
    if (!cast) return Failure(cast.error().within(quote(tensor.name)));
    list.tensors.push_back({.name = list.names.emplace_back(linen_name(array.collection, path)),
                            .expr = std::move(*cast),
                            .exactness = exactness_of(catalog, array.id, to),
                            .role = tensor.role,
                            .shard = array.shard});
    return {};
  };
  CKFS_TRY_VOID(for_each_below(catalog, *form, add));
  std::unordered_set<std::string_view, NameHash> names;
  for (const ModelTensor& tensor : list.tensors) {
    if (names.insert(tensor.name).second) continue;
    return fail(ErrorCode::Unsupported, "\"{}\": two arrays of this name in a tree of Linen",
                one_line(tensor.name));
  }
  return list;
}

bool is_mtp(const ModelTensor& tensor) {
  return tensor.name.starts_with(kMtp);
}

bool is_encoder(const ModelTensor& tensor) {
  return std::ranges::any_of(
      kEncoders, [&](std::string_view prefix) { return tensor.name.starts_with(prefix); });
}

/// The tree that the arrays are, of that release.
MaxTextChoice choice_of(const TensorList& list, std::string_view release) {
  return {.mtp = std::ranges::any_of(list.tensors, is_mtp),
          .multimodal = std::ranges::any_of(list.tensors, is_encoder),
          .release = release};
}

/// The tree with the parameters of each layer by itself, and the rules' numbers that it shows.
Result<Undone> unscanned(const MaxTextRules& rules, TensorList list) {
  if (!has_results(rules.trees().scanned, list)) return Undone{std::move(list), rules.config};
  return undo_rules(rules.trees().scanned, rules.config, std::move(list));
}

Result<Undone> huggingface(const MaxTextRules& rules, TensorList list) {
  CKFS_TRY(Undone stacked, unscanned(rules, without_others(std::move(list), rules.trees())));
  CKFS_TRY(Undone undone,
           undo_rules(rules.trees().unscanned, std::move(stacked.config), std::move(stacked.list)));
  undone.does_values = undone.does_values || stacked.does_values;
  if (undone.left_out.count == 0) undone.left_out = stacked.left_out;
  for (const ModelTensor& tensor : undone.list.tensors) {
    const std::string_view collection = collection_of(tensor.name);
    if (collection.empty() || !has_collection(rules.trees(), collection)) continue;
    return fail(ErrorCode::Unsupported, "{}: \"{}\" is not an array that the rules know",
                rules.trees().unscanned.file, one_line(tensor.name));
  }
  return undone;
}

/// Whether a rule that not all releases have gives one of the arrays.
bool releases_differ(const MaxTextTrees& trees, const TensorList& list) {
  const auto is_of_release = [](const Rule& rule) {
    return std::ranges::any_of(rule.when, [](const Condition& condition) {
      return condition.unknowns(ConfigNumbers()).contains("view.maxtext");
    });
  };
  return std::ranges::any_of(std::array{&trees.unscanned, &trees.scanned}, [&](const auto* rules) {
    return std::ranges::any_of(rules->rules, [&](const Rule& rule) {
      return is_of_release(rule) && has_results(rule, list);
    });
  });
}

/// The model by the rules that a family has for a release.
Result<TreeModel> model_of_release(const ModelFamily& family, ConfigNumbers config, TensorList list,
                                   std::string_view release) {
  const MaxTextChoice choice = choice_of(list, release);
  CKFS_TRY(Undone undone, huggingface(rules_of(family, config, choice), std::move(list)));
  std::ranges::sort(undone.list.tensors, {}, &ModelTensor::name);
  return TreeModel{.family = &family,
                   .release = release,
                   .given = std::move(config),
                   .config = std::move(undone.config),
                   .does_values = undone.does_values,
                   .left_out = std::move(undone.left_out),
                   .list = std::move(undone.list),
                   .others = {}};
}

/// The model by the rules of a family. Which release's tree it is, its arrays say by the names and
/// shapes that they have; the last dimensions may be equal, and then they fit several.
Result<TreeModel> model_of(const ModelFamily& family, const ConfigNumbers& config,
                           const TensorList& list) {
  const MaxTextTrees& trees = *family.maxtext;
  std::optional<TreeModel> model;
  std::vector<std::string> refusals;
  bool differ = releases_differ(trees, list);
  for (const std::string_view release : releases_of(trees)) {
    auto made = model_of_release(family, config, list, release);
    if (!made) {
      if (made.error().code() != ErrorCode::Unsupported) return Failure(made.error());
      differ = true;
      if (std::ranges::find(refusals, made.error().message()) == refusals.end()) {
        refusals.push_back(made.error().message());
      }
    } else if (model) {
      model->others.push_back(std::make_shared<const TreeModel>(*std::move(made)));
    } else {
      model = *std::move(made);
      if (!differ) break;
    }
  }
  if (model) {
    model->release_matters =
        differ || (!trees.releases.empty() && trees.releases.size() < kMaxTextReleases.size());
    return *std::move(model);
  }
  if (refusals.size() == 1) return fail(ErrorCode::Unsupported, "{}", refusals.front());
  return fail(ErrorCode::Unsupported, "fits no release of MaxText ({}): {}",
              fmt::join(releases_of(trees), ", "), fmt::join(refusals, "; "));
}

/// Where only its names and shapes say what model the tree is of.
Result<TreeModel> model_by_names(const TensorList& list, const Recipes& recipes) {
  std::optional<TreeModel> model;
  std::string stems;
  std::size_t fitting = 0;
  for (const auto& known : recipes.families) {
    if (!known->has("maxtext")) continue;
    const ModelFamily& family = known->rules.get();
    if (family.maxtext->by_config) continue;
    auto made = model_of(family, {}, list);
    if (!made) continue;
    if (++fitting == 1) {
      model = *std::move(made);
    } else {
      model.reset();
    }
    for (const std::string& stem : known->stems) {
      stems += fmt::format("{}{}", stems.empty() ? "" : ", ", stem);
    }
  }
  if (fitting == 1) return *std::move(model);
  return fail(ErrorCode::Unsupported,
              "MaxText's tree of parameters fits {} ({}--config DIR or --family NAME says what "
              "model it is)",
              fitting == 0 ? "no family of models" : "several families",
              stems.empty() ? "" : stems + "; ");
}

Result<std::shared_ptr<const TreeModel>> find_model(const Catalog& catalog,
                                                    const Recipes& recipes) {
  CKFS_TRY(TensorList list, parameters(catalog, std::nullopt));
  if (!catalog.model().config && recipes.family.empty()) {
    CKFS_TRY(TreeModel model, model_by_names(list, recipes));
    return std::make_shared<const TreeModel>(std::move(model));
  }
  // An encoder that the family does not know is refused by its arrays' names.
  MaxTextChoice choice = choice_of(list, {});
  choice.multimodal = false;
  CKFS_TRY(MaxTextRules rules, find_rules(catalog, choice, recipes));
  CKFS_TRY(TreeModel model, model_of(*rules.family, rules.config, list));
  return std::make_shared<const TreeModel>(std::move(model));
}

/// The model that the arrays are by the rules of `release`. nullptr: they do not fit these.
std::shared_ptr<const TreeModel> of_release(const std::shared_ptr<const TreeModel>& model,
                                            std::string_view release) {
  if (!model->release_matters || model->release == release) return model;
  const auto other = std::ranges::find_if(
      model->others, [&](const auto& known) { return known->release == release; });
  return other == model->others.end() ? nullptr : *other;
}

/// The model's tensors with their floats cast, as the views show them if no rule changes values.
Result<TensorList> cast_tensors(const Catalog& catalog, std::shared_ptr<const TreeModel> model,
                                std::optional<DType> dtype) {
  TensorList list{.tensors = model->list.tensors};
  list.lender = std::move(model);
  for (ModelTensor& tensor : list.tensors) {
    if (!dtype || !is_castable_float(tensor.expr.dtype())) continue;
    tensor.exactness = exactness_of(catalog, tensor.expr, *dtype);
    CKFS_TRY(tensor.expr, tensor.expr.cast(*dtype));
  }
  return list;
}

/// The array that the way back left out first.
std::string_view name_of(const Catalog& catalog, const DroppedArrays& dropped) {
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const StoredTensor& tensor = catalog.tensor(id);
      const bool has_first = tensor.storage == dropped.first ||
                             std::ranges::any_of(tensor.boxes, [&](const StorageBox& box) {
                               return box.storage == dropped.first;
                             });
      if (has_first) return tensor.name;
    }
  }
  return "an array without elements";
}

/// The tree that another release than the one that it is of would have.
Result<TensorList> tree_of_release(const Catalog& catalog, std::shared_ptr<const TreeModel> model,
                                   std::optional<DType> dtype, const TreeOptions& options) {
  const auto error = [&](std::string_view why) {
    return fail(ErrorCode::Unsupported, "maxtext={}: the arrays are a tree of MaxText {}: {}",
                options.release, model->release, why);
  };
  const ModelFamily& family = *model->family;
  const std::span<const std::string_view> known = releases_of(*family.maxtext);
  if (std::ranges::find(known, options.release) == known.end()) {
    return error(fmt::format("{} has no rules for the other", family.file));
  }
  if (model->does_values) return error("on the way to the other values would be rounded");
  if (model->left_out.count > 0) {
    return error(fmt::format("on the way to the other \"{}\" would be lost",
                             one_line(name_of(catalog, model->left_out))));
  }
  const auto has = [&](std::string_view key) { return model->config.number(key) == 1.0; };
  const MaxTextRules rules = rules_of(family, model->config,
                                      {.dtype = dtype,
                                       .mtp = options.mtp && has("view.mtp"),
                                       .multimodal = options.multimodal && has("view.multimodal"),
                                       .release = options.release});
  CKFS_TRY(TensorList list, cast_tensors(catalog, model, dtype));
  auto made = apply_rules(rules.trees().unscanned, rules.config, std::move(list));
  if (made && options.scanned) {
    made = scan(rules, *std::move(made));
  }
  if (!made) return error(made.error().message());
  return made;
}

}  // namespace

bool is_maxtext_tree(const Catalog& catalog) {
  return form_of(catalog).has_value();
}

std::shared_ptr<const FoundTree> find_tree(const Catalog& catalog, const Recipes& recipes) {
  return std::make_shared<const FoundTree>(&catalog, find_model(catalog, recipes));
}

Result<std::shared_ptr<const TreeModel>> tree_model(const Catalog& catalog,
                                                    const Recipes& recipes) {
  const bool known = recipes.tree && recipes.tree->catalog == &catalog;
  return known ? recipes.tree->model : find_model(catalog, recipes);
}

Result<TensorList> huggingface_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                       std::string_view release, const Recipes& recipes) {
  CKFS_TRY(const auto found, tree_model(catalog, recipes));
  auto model = release.empty() ? found : of_release(found, release);
  if (model == nullptr) {
    return fail(ErrorCode::Unsupported, "maxtext={}: the arrays are a tree of MaxText {}", release,
                found->release);
  }
  if (!dtype || !model->does_values) return cast_tensors(catalog, std::move(model), dtype);
  // Rules change values in the view's dtype.
  CKFS_TRY(TensorList list, parameters(catalog, dtype));
  const MaxTextChoice choice = choice_of(list, model->release);
  CKFS_TRY(Undone undone,
           huggingface(rules_of(*model->family, model->given, choice), std::move(list)));
  std::ranges::sort(undone.list.tensors, {}, &ModelTensor::name);
  return std::move(undone.list);
}

Result<TensorList> tree_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                const TreeOptions& options, const Recipes& recipes) {
  // Runs all rules, so that a tree that does not fit is refused, and numbers are known.
  CKFS_TRY(const auto found, tree_model(catalog, recipes));
  const auto model = of_release(found, options.release);
  if (model == nullptr) return tree_of_release(catalog, found, dtype, options);
  CKFS_TRY(TensorList list, parameters(catalog, dtype));
  list = without_others(std::move(list), *model->family->maxtext);
  MaxTextChoice choice = choice_of(list, options.release);
  choice.dtype = dtype;
  const MaxTextRules rules = rules_of(*model->family, model->config, choice);
  TensorList axes;
  if (options.axes) {
    CKFS_TRY(axes, cast_tensors(catalog, model, dtype));
    CKFS_TRY(axes, apply_rules(rules.trees().unscanned, rules.config, std::move(axes)));
    if (options.scanned) {
      CKFS_TRY(axes, scan(rules, std::move(axes)));
    }
  }
  const bool is_scanned = has_results(rules.trees().scanned, list);
  if (is_scanned && !options.scanned) {
    CKFS_TRY(Undone undone, unscanned(rules, std::move(list)));
    list = std::move(undone.list);
  } else if (!is_scanned && options.scanned) {
    CKFS_TRY(list, scan(rules, std::move(list)));
  }
  if (!options.mtp) std::erase_if(list.tensors, is_mtp);
  if (!options.multimodal) std::erase_if(list.tensors, is_encoder);
  std::unordered_map<std::string_view, const ModelTensor*, NameHash> made;
  for (const ModelTensor& tensor : axes.tensors) made.emplace(tensor.name, &tensor);
  for (ModelTensor& tensor : list.tensors) {
    const auto known = made.find(tensor.name);
    tensor.split = known == made.end() ? ModelTensor::kNone : known->second->split;
    if (tensor.split == ModelTensor::kNone) continue;
    // A rule may say of its way back what does not lead there again.
    const auto shape = tensor.expr.shape(), again = known->second->expr.shape();
    if (shape.size() == again.size()) continue;
    return fail(
        ErrorCode::Unsupported, "{}: \"{}\": shape {}, but what the rules undo and do again has {}",
        rules.trees().unscanned.file, one_line(tensor.name), shape_text(shape), shape_text(again));
  }
  list.axes = std::move(axes.axes);
  return list;
}

std::optional<Note> maxtext_tree_remark(const Catalog& catalog) {
  const std::optional<Form> form = form_of(catalog);
  if (!form) return std::nullopt;
  std::size_t count = 0;
  std::string_view first;
  const auto look = [&](const TreeArray& array) -> Result<void> {
    const bool counts = array.random && array.collection == "params";
    if (counts && count++ == 0) first = catalog.tensor(array.id).name;
    return {};
  };
  if (!for_each_below(catalog, *form, look) || count == 0) return std::nullopt;
  std::string text = "left out: the state of a random number generator, not a weight";
  if (count > 1) text += fmt::format("; so are {} more arrays", count - 1);
  return Note{std::string(first), std::move(text)};
}

std::optional<Note> maxtext_model_remark(const Catalog& catalog, const Recipes& recipes) {
  const auto model = tree_model(catalog, recipes);
  if (!model || (*model)->left_out.count == 0) return std::nullopt;
  const DroppedArrays& left_out = (*model)->left_out;
  std::string text = "left out: the model has no such tensor";
  if (left_out.count > 1) text += fmt::format("; so are {} more arrays", left_out.count - 1);
  return Note{std::string(name_of(catalog, left_out)), std::move(text)};
}

std::vector<Obstacle> maxtext_tree_obstacles(const Catalog& catalog, const Recipes& recipes) {
  const auto model = tree_model(catalog, recipes);
  if (model) return {};
  return {{"source", model.error().message()}};
}

}  // namespace ckfs
