// A catalog as a Hugging Face model directory.
//
// What is cast: a decoded tensor always takes the view's dtype, straight from the F32 value that
// the reference's program gives; other floats take it only where all are cast. Quantized sources
// keep their other tensors by default, as DeepSeek's script does: a router bias in F32 is F32 for a
// reason. Casting everything, as MaxText does, is one parameter away.
//
// Shards mirror the source's by default. Packing them anew would read no better, and equal names
// let people compare with a conversion that they already have.
#include "view/hf_model.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/checked.h"
#include "format/json_text.h"

namespace ckfs {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr std::size_t kMaxFiles = 100'000;

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

bool is_decoded(const Catalog& catalog, TensorId id) {
  return catalog.storage(catalog.tensor(id)).encoding != nullptr;
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

std::string numbered(std::size_t number, std::size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

/// Shards of the source that keep a tensor.
std::vector<const Shard*> kept_shards(const Catalog& catalog) {
  std::vector<const Shard*> kept;
  for (const Shard& shard : catalog.shards()) {
    if (!shard.tensors.empty()) kept.push_back(&shard);
  }
  return kept;
}

/// Loaders prefer a model.safetensors to an index beside it and would miss the other shards
/// (transformers, modeling_utils.py); so no directory may have both.
bool must_rename(std::span<const Shard* const> shards) {
  return shards.size() > 1 &&
         std::ranges::any_of(shards, [](const Shard* shard) { return shard->path == kSingleFile; });
}

std::vector<TensorFile> mirror(const Catalog& catalog) {
  const std::vector<const Shard*> shards = kept_shards(catalog);
  const bool rename = must_rename(shards);
  std::vector<TensorFile> files;
  std::uint32_t next = 0;
  for (const Shard* shard : shards) {
    TensorFile& file = files.emplace_back();
    file.path = rename ? numbered(files.size(), shards.size()) : shard->path;
    file.tensors.reserve(shard->tensors.size());
    for (std::size_t i = 0; i < shard->tensors.size(); ++i) file.tensors.push_back(next++);
  }
  return files;
}

/// huggingface_hub's split_torch_state_dict_into_shards: greedy in the given order; a tensor that
/// is larger than `max_bytes` becomes a shard of its own before the one that is open.
std::vector<TensorFile> split(std::span<const ViewTensor> tensors, std::uint64_t max_bytes) {
  std::vector<TensorFile> files;
  TensorFile open;
  std::uint64_t open_bytes = 0;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = tensors[i].expr.nbytes();
    if (bytes > max_bytes) {
      files.push_back({{}, {i}});
      continue;
    }
    if (bytes > max_bytes - open_bytes) {
      files.push_back(std::move(open));
      open = {};
      open_bytes = 0;
    }
    open.tensors.push_back(i);
    open_bytes += bytes;
  }
  if (!open.tensors.empty()) files.push_back(std::move(open));
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].path = files.size() == 1 ? std::string(kSingleFile) : numbered(i + 1, files.size());
  }
  return files;
}

/// Drops a parameter that says what this source gets anyway.
ViewSpec without_defaults(ViewSpec spec, const Catalog& catalog) {
  const auto cast = spec.parameters.find("cast");
  if (cast != spec.parameters.end() &&
      cast->second == (catalog.is_quantized() ? "quantized" : "all")) {
    spec.parameters.erase(cast);
  }
  return spec;
}

bool casts_all(const Catalog& catalog, const ViewRow& row, const ViewSpec& spec) {
  if (row.dtype != DType::BF16) return true;
  const auto cast = spec.parameters.find("cast");
  return cast != spec.parameters.end() ? cast->second == "all" : !catalog.is_quantized();
}

}  // namespace

std::vector<Obstacle> hf_model_obstacles(const Catalog& catalog) {
  std::vector<Obstacle> obstacles(catalog.obstacles().begin(), catalog.obstacles().end());
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
  struct Group {
    std::size_t count = 0;
    std::string_view first;
  };
  std::map<DType, Group> unchanged;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const DType dtype = catalog.value_dtype(id);
      if (is_decoded(catalog, id) || is_castable_float(dtype) || is_integer(dtype)) continue;
      Group& group = unchanged[dtype];
      if (group.count++ == 0) group.first = catalog.tensor(id).name;
    }
  }
  remarks.reserve(unchanged.size() + 2);
  for (const auto& [dtype, group] : unchanged) {
    remarks.push_back({std::string(group.first),
                       group.count == 1 ? fmt::format("{} passes unchanged", name(dtype))
                                        : fmt::format("{} passes unchanged; so do {} more tensors",
                                                      name(dtype), group.count - 1)});
  }
  if (!catalog.model().config) remarks.push_back({"config.json", "absent in the source"});
  if (row.placement == Placement::Mirrored) {
    const std::vector<const Shard*> shards = kept_shards(catalog);
    if (must_rename(shards)) {
      remarks.push_back({std::string(kSingleFile),
                         fmt::format("shards are named {} and so on: loaders take a file of this "
                                     "name for the whole model",
                                     numbered(1, shards.size()))});
    }
  }
  return remarks;
}

Result<std::shared_ptr<const Definition>> define_hf_model(std::shared_ptr<const Catalog> catalog,
                                                          const ViewRow& row,
                                                          const ViewSpec& spec) {
  auto definition = std::make_shared<Definition>();
  definition->spec = without_defaults(spec, *catalog);
  definition->container = Container::Safetensors;

  const bool all = casts_all(*catalog, row, spec);
  std::size_t count = 0;
  for (const Shard& shard : catalog->shards()) count += shard.tensors.size();
  definition->tensors.reserve(count);
  for (const Shard& shard : catalog->shards()) {
    for (const TensorId id : shard.tensors) {
      const std::string_view tensor = catalog->tensor(id).name;
      const bool decoded = is_decoded(*catalog, id);
      const DType from = catalog->value_dtype(id);
      const DType to = decoded || (all && is_castable_float(from)) ? row.dtype : from;
      Result<TensorExpr> expr = TensorExpr::stored(*catalog, id).cast(to);
      if (!expr) return Failure(expr.error().within(fmt::format("{}: \"{}\"", row.name, tensor)));
      definition->tensors.push_back({tensor, std::move(*expr), exactness_of(decoded, from, to)});
    }
  }

  const auto parameter = spec.parameters.find("max_shard");
  if (parameter != spec.parameters.end() || row.placement == Placement::Split) {
    std::string_view text = "5GB";
    if (parameter != spec.parameters.end()) text = parameter->second;
    CKFS_TRY(const std::uint64_t max_bytes, parse_size(text));
    definition->files = split(definition->tensors, max_bytes);
  } else {
    definition->files = mirror(*catalog);
  }
  const std::vector<TensorFile>& files = definition->files;
  if (files.size() > kMaxFiles) {
    return fail(ErrorCode::InvalidArgument, "{}: {} shards ({})", definition->spec.canonical(),
                files.size(), kMaxFiles);
  }
  // A lone shard with another name than loaders look for is found through an index, too.
  if (files.size() > 1 || (files.size() == 1 && files[0].path != kSingleFile)) {
    definition->index = kIndexFile;
  }

  const ModelDirectory& model = catalog->model();
  if (model.config) {
    CKFS_TRY(std::string config, dense_config(*model.config, torch_name(row.dtype), "config.json"));
    definition->texts.push_back({"config.json", std::move(config)});
  }
  definition->side_files = model.side_files;
  definition->catalog = std::move(catalog);
  return definition;
}

}  // namespace ckfs
