// A catalog as a Hugging Face model directory.
//
// What is cast: a decoded tensor always takes the view's dtype, straight from the F32 value that
// the reference's program gives; other floats take it only where all are cast. Quantized sources
// keep their other tensors by default, as DeepSeek's script does: a router bias in F32 is F32 for a
// reason. Casting everything, as MaxText and zero_to_fp32 do, is one parameter away, or the view's
// own rule.
//
// What is shown: what the tool that people use for the source would write. Frozen weights that
// zero_to_fp32 drops without a word are left out here, too, but never without one.
#include "view/hf_model.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/checked.h"
#include "base/text.h"
#include "format/json_text.h"
#include "format/torch_zip_writer.h"
#include "view/shards.h"

namespace ckfs {
namespace {

constexpr std::size_t kMaxFiles = 100'000;
constexpr std::string_view kDefaultMaxShard = "5GB";  // of what is not mirrored

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
  return !catalog.storage(catalog.tensor(id)).encoding->is_plain();
}

bool is_integer(DType dtype) {
  switch (dtype) {
    case DType::Bool:
    case DType::U8:
    case DType::I8:
    case DType::I16:
    case DType::U16:
    case DType::I32:
    case DType::U32:
    case DType::I64:
    case DType::U64:
      return true;
    default:
      return false;
  }
}

bool has_role(const Catalog& catalog, Role role) {
  return std::ranges::any_of(catalog.shards(), [&](const Shard& shard) {
    return std::ranges::any_of(shard.tensors,
                               [&](TensorId id) { return catalog.tensor(id).role == role; });
  });
}

std::string_view parameter(const ViewSpec& spec, std::string_view key, std::string_view otherwise) {
  const auto found = spec.parameters.find(key);
  return found == spec.parameters.end() ? otherwise : std::string_view(found->second);
}

/// Drops parameters that say what this source gets anyway.
ViewSpec without_defaults(ViewSpec spec, const Catalog& catalog) {
  const auto drop_if = [&](std::string_view key, std::string_view value) {
    const auto found = spec.parameters.find(key);
    if (found != spec.parameters.end() && found->second == value) spec.parameters.erase(found);
  };
  drop_if("cast", catalog.is_quantized() ? "quantized" : "all");
  if (!catalog.mirrors_shards()) drop_if("max_shard", kDefaultMaxShard);
  const bool module = has_role(catalog, Role::FrozenModule);
  if (!module && !has_role(catalog, Role::Frozen)) drop_if("exclude_frozen", "1");
  if (!module || spec.parameters.contains("exclude_frozen")) drop_if("frozen", "module");
  return spec;
}

bool casts_all(const Catalog& catalog, const ViewRow& row, const ViewSpec& spec) {
  if (!row.dtype) return false;
  if (row.dtype != DType::BF16) return true;
  return parameter(spec, "cast", catalog.is_quantized() ? "quantized" : "all") == "all";
}

/// Which of a catalog's tensors a view has.
struct Selection {
  bool frozen = true;    // what was not trained and is recorded as such
  bool module = false;   // what was not trained and is known from the module's state alone
  bool complex = false;  // C128

  bool has(const Catalog& catalog, TensorId id) const {
    if (!complex && catalog.value_dtype(id) == DType::C128) return false;
    const Role role = catalog.tensor(id).role;
    return role == Role::Frozen ? frozen : role != Role::FrozenModule || module;
  }
};

Selection selection(const ViewSpec& spec, Container container) {
  const bool frozen = parameter(spec, "exclude_frozen", "0") == "0";
  return {.frozen = frozen,
          .module = frozen && parameter(spec, "frozen", "tool") == "module",
          .complex = container == Container::TorchZip};
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

/// Marks the aliases among the view's tensors. `ids`: where each came from.
void share_bytes(const Catalog& catalog, std::span<const TensorId> ids,
                 std::vector<ViewTensor>& tensors) {
  // An alias has its source's very shape and boxes; another tensor may have the same bytes in
  // another shape.
  using Place = std::tuple<StorageId, const StorageBox*, const std::int64_t*, std::size_t>;
  const auto place_of = [&](TensorId id) {
    const StoredTensor& tensor = catalog.tensor(id);
    return Place{tensor.storage, tensor.boxes.data(), tensor.shape.data(), tensor.shape.size()};
  };
  // The source of an alias comes before it; so what is looked for is known before the second pass.
  std::map<Place, std::uint32_t> sources;
  for (const TensorId id : ids) {
    if (catalog.tensor(id).alias) sources.emplace(place_of(id), ViewTensor::kOwnBytes);
  }
  if (sources.empty()) return;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const auto source = sources.find(place_of(ids[i]));
    if (source == sources.end()) continue;
    if (source->second == ViewTensor::kOwnBytes) {
      source->second = i;
    } else if (catalog.tensor(ids[i]).alias) {
      tensors[i].same_as = source->second;
    }
  }
}

/// The files of `definition`, whose tensors are complete.
Result<void> place(Definition& definition, const Catalog& catalog, const ViewRow& row) {
  const FileNames& names =
      definition.container == Container::TorchZip ? kTorchNames : kSafetensorsNames;
  const bool mirrored = row.placement == Placement::Mirrored && catalog.mirrors_shards() &&
                        !definition.spec.parameters.contains("max_shard");
  if (mirrored) {
    definition.files = mirror_shards(catalog);
  } else {
    CKFS_TRY(const std::uint64_t max_bytes,
             parse_size(parameter(definition.spec, "max_shard", kDefaultMaxShard)));
    definition.files = split_by_size(definition.tensors, max_bytes, names);
  }
  const std::vector<TensorFile>& files = definition.files;
  if (files.size() > kMaxFiles) {
    return fail(ErrorCode::InvalidArgument, "{}: {} shards ({})", definition.spec.canonical(),
                files.size(), kMaxFiles);
  }
  // A lone shard with another name than loaders look for is found through an index, too.
  if (files.size() > 1 || (files.size() == 1 && files[0].path != names.single())) {
    definition.index = names.index();
  }
  return {};
}

}  // namespace

std::vector<Obstacle> hf_model_obstacles(const Catalog& catalog, const ViewRow& row) {
  if (!row.dtype && catalog.mirrors_shards()) {
    return {{"source", "has its tensors in safetensors files already"}};
  }
  std::vector<Obstacle> obstacles(catalog.obstacles().begin(), catalog.obstacles().end());
  // Elsewhere these are left out.
  if (!catalog.mirrors_shards()) return obstacles;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      if (catalog.value_dtype(id) != DType::C128) continue;
      obstacles.push_back({std::string(catalog.tensor(id).name), "C128 has no safetensors dtype"});
    }
  }
  return obstacles;
}

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
                 !is_integer(dtype)) {
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
    remarks.push_back(
        complex.note("left out: safetensors has no C128 (fp32-consolidated@format=bin "
                     "shows it)",
                     "; so are {} more tensors"));
  }
  if (dropped.count > 0) {
    remarks.push_back(
        dropped.note("left out, as zero_to_fp32 does: frozen, and recorded in the "
                     "module's state only (fp32-consolidated@frozen=module shows it)",
                     "; so are {} more tensors"));
  }
  if (!catalog.model().config) remarks.push_back({"config.json", "absent in the source"});
  if (row.placement == Placement::Mirrored && catalog.mirrors_shards()) {
    const std::vector<const Shard*> shards = kept_shards(catalog);
    if (must_rename(shards)) {
      remarks.push_back({kSafetensorsNames.single(),
                         fmt::format("shards are named {} and so on: loaders take a file of this "
                                     "name for the whole model",
                                     kSafetensorsNames.numbered(1, shards.size()))});
    }
  }
  return remarks;
}

Result<std::shared_ptr<const Definition>> define_hf_model(std::shared_ptr<const Catalog> catalog,
                                                          const ViewRow& row,
                                                          const ViewSpec& spec) {
  auto definition = std::make_shared<Definition>();
  definition->spec = without_defaults(spec, *catalog);
  definition->container = parameter(spec, "format", "safetensors") == "bin"
                              ? Container::TorchZip
                              : Container::Safetensors;

  const bool all = casts_all(*catalog, row, spec);
  const Selection selected = selection(spec, definition->container);
  std::vector<TensorId> ids;
  for (const Shard& shard : catalog->shards()) {
    for (const TensorId id : shard.tensors) {
      if (selected.has(*catalog, id)) ids.push_back(id);
    }
  }
  definition->tensors.reserve(ids.size());
  for (const TensorId id : ids) {
    const std::string_view tensor = catalog->tensor(id).name;
    const bool decoded = is_decoded(*catalog, id);
    const DType from = catalog->value_dtype(id);
    const DType to = row.dtype && (decoded || (all && is_castable_float(from))) ? *row.dtype : from;
    if (definition->container == Container::TorchZip && !torch_zip::can_hold(to)) {
      return fail(ErrorCode::Unsupported, "{}: \"{}\": torch has no dtype {}",
                  definition->spec.canonical(), tensor, name(to));
    }
    // A pickle can hold lone surrogates; JSON, and so a safetensors header, cannot.
    if (definition->container == Container::Safetensors && !is_utf8(tensor)) {
      return fail(ErrorCode::Unsupported, "{}: {}: a name that is not UTF-8",
                  definition->spec.canonical(), quote(tensor));
    }
    Result<TensorExpr> expr = TensorExpr::stored(*catalog, id).cast(to);
    if (!expr) return Failure(expr.error().within(fmt::format("{}: \"{}\"", row.name, tensor)));
    definition->tensors.push_back({tensor, std::move(*expr), exactness_of(*catalog, id, to)});
  }
  if (definition->container == Container::TorchZip) {
    share_bytes(*catalog, ids, definition->tensors);
  }
  CKFS_TRY_VOID(place(*definition, *catalog, row));

  const ModelDirectory& model = catalog->model();
  if (model.config) {
    std::string config = *model.config;
    if (row.dtype) {
      CKFS_TRY(config, dense_config(config, torch_name(*row.dtype), "config.json"));
    }
    definition->texts.push_back({"config.json", std::move(config)});
  }
  definition->side_files = model.side_files;
  definition->catalog = std::move(catalog);
  return definition;
}

}  // namespace ckfs
