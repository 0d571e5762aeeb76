// A quantizing view is another view whose weights are exchanged: each that the tool chooses for its
// codes and what belongs to them, in its place and its shard. The rest of the definition (names,
// layout of experts, side files) is that of the plain view.
#include "view/quantizing_view.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/checked.h"
#include "base/size_text.h"
#include "format/json_text.h"
#include "format/json_tree.h"
#include "view/hf_model.h"
#include "view/maxtext_tree.h"
#include "view/quantizing_rules.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

std::uint64_t new_definition() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

/// Whether it is a weight of all experts of a layer in one tensor, as llm-compressor splits them.
bool is_fused_experts(std::string_view name, std::size_t dimensions) {
  return dimensions == 3 && (name.find("gate_up_proj") != std::string_view::npos ||
                             name.find("down_proj") != std::string_view::npos);
}

bool has_fused_experts(const Catalog& catalog) {
  return std::ranges::any_of(catalog.shards(), [&](const Shard& shard) {
    return std::ranges::any_of(shard.tensors, [&](TensorId id) {
      const StoredTensor& tensor = catalog.tensor(id);
      return is_fused_experts(tensor.name, tensor.shape.size());
    });
  });
}

/// The view that shows the values before they are quantized.
ViewSpec plain_spec(const Catalog& catalog, const ViewSpec& spec, const QuantizingTool& tool) {
  ViewSpec plain{std::string(kPlainView), {}};
  for (const std::string_view key : {"experts", "max_shard", "maxtext", "unscaled"}) {
    const auto said = spec.parameters.find(key);
    if (said != spec.parameters.end()) plain.parameters.insert(*said);
  }
  if (tool.casts_all()) {
    plain.parameters["cast"] = "all";
  } else if (!catalog.is_quantized() && !is_maxtext_tree(catalog)) {
    plain.parameters["cast"] = "quantized";  // nothing: the floats of the source
  }
  if (tool.splits_experts() && !spec.parameters.contains("experts") && has_fused_experts(catalog)) {
    plain.parameters["experts"] = "linear";
  }
  return plain;
}

/// Quantizers, one for each dtype and shape.
class Quantizers {
 public:
  explicit Quantizers(const QuantizingTool& tool) : tool_(tool) {}

  Result<std::shared_ptr<const Quantizer>> of(DType from, std::span<const std::int64_t> shape) {
    const auto key = std::pair(from, std::vector<std::int64_t>(shape.begin(), shape.end()));
    if (const auto known = made_.find(key); known != made_.end()) return known->second;
    CKFS_TRY(auto quantizer, make_quantizer(tool_.form(), from, shape, tool_.granule()));
    made_.emplace(key, quantizer);
    return quantizer;
  }

 private:
  const QuantizingTool& tool_;
  std::map<std::pair<DType, std::vector<std::int64_t>>, std::shared_ptr<const Quantizer>> made_;
};

/// Whether the source stores the weight in this form already.
bool has_form(const Catalog& catalog, std::string_view name, const Quantizer& quantizer,
              QuantizedForm form) {
  // Scales that are powers of two can be made of any.
  if (form == QuantizedForm::Fp8Ue8m0) return false;
  const std::optional<TensorId> id = catalog.find(name);
  if (!id) return false;
  const Storage& storage = catalog.storage(catalog.tensor(*id));
  const std::span<const QuantizedOutput> outputs = quantizer.outputs();
  if (!storage.encoding->is_quantized() || storage.dtype != outputs[0].dtype ||
      storage.nbytes() != outputs[0].nbytes || storage.companions().empty()) {
    return false;
  }
  // A table of 16 values may be that of fp4, too: the scheme knows.
  const std::vector<QuantizedGroup>& groups = catalog.quantization_details().groups;
  if (form == QuantizedForm::Nf4 && std::ranges::none_of(groups, [](const QuantizedGroup& group) {
        return group.format.starts_with("nf4");
      })) {
    return false;
  }
  const Storage& scale = catalog.storage(storage.companions()[0]);
  return scale.numel == checked_numel(outputs[1].shape);
}

ToolVerdict verdict_on(const Catalog& catalog, const QuantizingTool& tool, Quantizers& quantizers,
                       std::string_view name, DType dtype, std::span<const std::int64_t> shape,
                       std::shared_ptr<const Quantizer>& quantizer) {
  ToolVerdict verdict = tool.judge(name, shape.size());
  if (verdict.kind != ToolVerdict::Kind::Quantize) return verdict;
  auto made = quantizers.of(dtype, shape);
  if (!made) {
    return {ToolVerdict::Kind::Refuse,
            fmt::format("{} (name its module in ignore=)", made.error().message())};
  }
  if (has_form(catalog, name, **made, tool.form())) {
    return {ToolVerdict::Kind::Refuse,
            fmt::format("the source has it as {} already (see the view source/)", (*made)->text())};
  }
  quantizer = *std::move(made);
  return verdict;
}

std::string_view torch_name_of(DType dtype) {
  return dtype == DType::F16 ? "float16" : dtype == DType::F32 ? "float32" : "bfloat16";
}

/// Whether config.json says that the embeddings are the head, too.
bool ties_embeddings(const Catalog& catalog) {
  if (!catalog.model().config) return false;
  const auto tree = parse_json_tree(*catalog.model().config, "config.json", JsonKeys::LastWins);
  if (!tree) return false;
  const auto says = [](const JsonNode* object) {
    const JsonNode* node = object == nullptr ? nullptr : object->find("tie_word_embeddings");
    return node != nullptr && node->kind == JsonNode::Kind::Boolean && node->number != 0;
  };
  return says(&*tree) || says(tree->find("text_config"));
}

/// Makes the tensors of a quantizing view of those of a plain one.
class Exchange {
 public:
  Exchange(Definition& definition, const QuantizingTool& tool)
      : definition_(definition), tool_(tool), quantizers_(tool) {}

  Result<void> run(std::vector<Obstacle>& obstacles) {
    const std::vector<ModelTensor> plain = std::exchange(definition_.tensors, {});
    std::vector<std::shared_ptr<const Quantizer>> chosen(plain.size());
    ObstacleList refused;
    LeftNames left;
    // Room for all is made once: a mixture has 200,000 such tensors in a view.
    std::size_t tensors = 0, weights = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const ModelTensor& tensor = plain[i];
      ToolVerdict verdict = verdict_on(*definition_.catalog, tool_, quantizers_, tensor.name,
                                       tensor.expr.dtype(), tensor.expr.shape(), chosen[i]);
      if (verdict.kind == ToolVerdict::Kind::Refuse) refused.add(tensor.name, verdict.text);
      if (verdict.kind == ToolVerdict::Kind::Leave) note_left(tensor.name, verdict, left);
      tensors += chosen[i] ? chosen[i]->outputs().size() : 1;
      weights += chosen[i] ? 1 : 0;
    }
    CKFS_TRY_VOID(tool_.check());
    definition_.tensors.reserve(tensors);
    definition_.weights.reserve(weights);
    std::vector<std::uint32_t> places(plain.size(), ModelTensor::kNone);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      if (chosen[i]) {
        add_weight(plain[i], std::move(chosen[i]));
        continue;
      }
      places[i] = static_cast<std::uint32_t>(definition_.tensors.size());
      ModelTensor& same = definition_.tensors.emplace_back(plain[i]);
      if (same.same_as != ModelTensor::kNone) same.same_as = places[same.same_as];
    }
    find_sets(plain);
    find_repeated(refused);
    obstacles = refused.list();
    write_config(std::move(left));
    return {};
  }

 private:
  void note_left(std::string_view name, const ToolVerdict& verdict, LeftNames& left) {
    left.all.emplace_back(name);
    const std::string module(module_of_weight(name));
    if (verdict.by == ToolVerdict::By::Ignore) left.by_ignore.push_back(module);
    if (verdict.by == ToolVerdict::By::Only) left.by_only.push_back(module);
    if (!verdict.text.empty()) definition_.left.push_back({name, verdict.text});
  }

  /// A copy of the name that lives as long as the definition: many names in one string.
  std::string_view keep(std::string_view name) {
    constexpr std::size_t kBlock = std::size_t{64} << 10;
    if (block_ == nullptr || block_->capacity() - block_->size() < name.size()) {
      block_ = &definition_.names.emplace_back();
      block_->reserve(std::max(kBlock, name.size()));
    }
    const std::size_t at = block_->size();
    block_->append(name);
    return std::string_view(*block_).substr(at);
  }

  void add_weight(const ModelTensor& tensor, std::shared_ptr<const Quantizer> quantizer) {
    const auto number = static_cast<std::uint32_t>(definition_.weights.size());
    const std::span<const QuantizedOutput> outputs = quantizer->outputs();
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const std::string name = tool_.output_name(tensor.name, outputs[k].suffix);
      ModelTensor& made = definition_.tensors.emplace_back(tensor);
      made.name = name == tensor.name ? tensor.name : keep(name);
      made.expr = shape_only(outputs[k]);
      made.exactness = quantizer->exactness();
      made.same_as = ModelTensor::kNone;
      made.split = ModelTensor::kNone;
      made.weight = number;
      made.output = static_cast<std::uint8_t>(k);
    }
    definition_.weights.push_back({.name = tensor.name,
                                   .values = tensor.expr,
                                   .beside = nullptr,
                                   .quantizer = std::move(quantizer),
                                   .set = ModelTensor::kNone});
  }

  /// An expression of the output's dtype and shape; one for all that are alike.
  TensorExpr shape_only(const QuantizedOutput& output) {
    const auto key = std::pair(output.dtype, output.shape);
    const auto known = shapes_.find(key);
    if (known != shapes_.end()) return known->second;
    auto made = TensorExpr::zeros(output.dtype, output.shape);
    CKFS_CHECK(made.has_value());  // the quantizer has such a shape
    shapes_.emplace(key, *made);
    return *made;
  }

  void find_sets(const std::vector<ModelTensor>& plain) {
    if (definition_.weights.empty() || !definition_.weights.front().quantizer->needs_maximum()) {
      return;
    }
    std::unordered_map<std::string_view, std::uint32_t> weights;
    for (std::uint32_t i = 0; i < definition_.weights.size(); ++i) {
      weights.emplace(definition_.weights[i].name, i);
    }
    std::unordered_set<std::string_view> names;
    for (const ModelTensor& tensor : plain) names.insert(tensor.name);
    for (std::uint32_t i = 0; i < definition_.weights.size(); ++i) {
      QuantizedTensor& weight = definition_.weights[i];
      if (weight.set != ModelTensor::kNone) continue;
      std::vector<std::uint32_t> members{i};
      const std::vector<std::string> wanted = tool_.set_of(weight.name);
      const bool complete = std::ranges::all_of(
          wanted, [&](const std::string& name) { return names.contains(name); });
      if (complete) {
        for (const std::string& name : wanted) {
          const auto found = weights.find(name);
          if (found != weights.end() && found->second != i) members.push_back(found->second);
        }
      }
      for (const std::uint32_t member : members) {
        definition_.weights[member].set = static_cast<std::uint32_t>(definition_.sets.size());
      }
      definition_.sets.push_back(std::move(members));
    }
  }

  /// Names that two tensors of the view would have. They are sorted by hash before they are by
  /// name: those of a mixture are 300,000 that begin alike.
  void find_repeated(ObstacleList& refused) const {
    const std::vector<ModelTensor>& tensors = definition_.tensors;
    struct Hashed {
      std::uint32_t hash;
      std::uint32_t tensor;
    };
    std::vector<Hashed> order(tensors.size());
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      order[i] = {static_cast<std::uint32_t>(std::hash<std::string_view>{}(tensors[i].name)), i};
    }
    std::ranges::sort(order, [&](const Hashed& a, const Hashed& b) {
      if (a.hash != b.hash) return a.hash < b.hash;
      const int names = tensors[a.tensor].name.compare(tensors[b.tensor].name);
      return names != 0 ? names < 0 : a.tensor < b.tensor;
    });
    std::map<std::uint32_t, std::uint32_t> repeated;  // in the view's order
    for (std::size_t i = 1; i < order.size(); ++i) {
      const std::uint32_t before = order[i - 1].tensor, after = order[i].tensor;
      if (tensors[before].name == tensors[after].name) repeated.emplace(after, before);
    }
    for (const auto& [after, before] : repeated) {
      const ModelTensor& made =
          tensors[after].weight == ModelTensor::kNone ? tensors[before] : tensors[after];
      refused.add(made.name,
                  made.weight == ModelTensor::kNone
                      ? "comes twice"
                      : fmt::format("the source has a tensor of the name that the scale of \"{}\" "
                                    "would get (name that module in ignore=)",
                                    definition_.weights[made.weight].name));
    }
  }

  void write_config(LeftNames left) {
    const Catalog& catalog = *definition_.catalog;
    if (!catalog.model().config) return;
    // Loaders build a quantized head where nothing says otherwise, and find no codes for it.
    if (ties_embeddings(catalog) && !catalog.find("lm_head.weight")) {
      left.all.emplace_back("lm_head.weight");
    }
    // Decoded and cast values are BF16 now; other floats are those of the source.
    const bool casts = tool_.casts_all() || catalog.is_quantized() || is_maxtext_tree(catalog);
    for (TextFile& text : definition_.texts) {
      if (text.path != "config.json") continue;
      text.text =
          edit_quantized_config(*catalog.model().config, casts ? torch_name_of(DType::BF16) : "",
                                indented(tool_.configuration(left)));
    }
  }

  /// As a member of an object of the usual indent.
  static std::string indented(const std::string& json) {
    std::string text;
    for (const char c : json) {
      text += c;
      if (c == '\n') text += "  ";
    }
    return text;
  }

  Definition& definition_;
  const QuantizingTool& tool_;
  Quantizers quantizers_;
  std::map<std::pair<DType, std::vector<std::int64_t>>, TensorExpr> shapes_;
  std::string* block_ = nullptr;  // of names, with room at its end
};

/// Whether the tensor is FP4 with powers of two for 32 values, as DeepSeek-V4 stores its experts.
bool is_fp4(const Catalog& catalog, const StoredTensor& tensor) {
  const Storage& storage = catalog.storage(tensor);
  return storage.encoding->is_quantized() && storage.dtype == DType::I8 &&
         storage.companions().size() == 1 &&
         catalog.storage(storage.companions()[0]).dtype == DType::F8E8M0;
}

/// exact=1: the FP4 of the source as FP8, and every other tensor, codes and scales too, as it is
/// stored.
Result<std::shared_ptr<Definition>> define_exact(std::shared_ptr<const Catalog> held,
                                                 const ViewRow& row, const ViewSpec& spec,
                                                 std::vector<Obstacle>& obstacles) {
  constexpr std::string_view kWith[] = {"max_shard", "exact"};
  for (const auto& [key, value] : spec.parameters) {
    if (std::ranges::find(kWith, key) != std::ranges::end(kWith)) continue;
    return fail(ErrorCode::InvalidArgument,
                "{}: exact=1 goes with max_shard= alone, not with {}=", row.name, key);
  }
  const Catalog& catalog = *held;
  auto definition = std::make_shared<Definition>();
  definition->spec = spec;
  definition->serial = new_definition();
  definition->tool = "miles (pull request 2717) on CPU, without a change of a value";
  const bool mirrors = catalog.mirrors_shards() && !spec.parameters.contains("max_shard");
  definition->packaging = {.container = row.container,
                           .placement = mirrors ? Placement::Mirrored : Placement::Split,
                           .index = mirrors ? catalog.model().index : std::string()};
  if (!mirrors) {
    CKFS_TRY(definition->packaging.max_shard, parse_size(parameter_of(spec, "max_shard", "5GB")));
  }
  const auto shard_of = [&](const StoredTensor& tensor) {
    const Storage& storage = catalog.storage(tensor);
    const auto found = std::ranges::find_if(catalog.shards(), [&](const Shard& shard) {
      return !storage.extents.empty() && shard.file == storage.extents[0].file;
    });
    return found == catalog.shards().end()
               ? std::uint32_t{0}
               : static_cast<std::uint32_t>(found - catalog.shards().begin());
  };
  std::unordered_set<StorageId> scales;  // that are made anew
  for (const StoredTensor& tensor : catalog.tensors()) {
    if (is_fp4(catalog, tensor)) scales.insert(catalog.storage(tensor).companions()[0]);
  }
  ObstacleList refused;
  if (scales.empty()) refused.add("source", "exact=1: it has no FP4 with F8_E8M0 scales");
  std::unordered_map<StorageId, TensorId> by_storage;
  for (TensorId id = 0; id < catalog.tensors().size(); ++id) {
    by_storage.emplace(catalog.tensor(id).storage, id);
  }
  std::map<std::vector<std::int64_t>, std::shared_ptr<const Quantizer>> quantizers;
  for (TensorId id = 0; id < catalog.tensors().size(); ++id) {
    const StoredTensor& tensor = catalog.tensor(id);
    const Storage& storage = catalog.storage(tensor);
    if (scales.contains(tensor.storage)) continue;
    ModelTensor shown{.name = tensor.name,
                      .expr = TensorExpr::stored(catalog, id),
                      .role = tensor.role,
                      .shard = shard_of(tensor)};
    if (!storage.encoding->is_quantized()) {
      // Codes that look like FP4 and were not understood must not pass as they are.
      const auto beside = catalog.find(fmt::format("{}.scale", module_of_weight(tensor.name)));
      if (storage.dtype == DType::I8 && beside && catalog.value_dtype(*beside) == DType::F8E8M0) {
        refused.add(tensor.name, "exact=1: I8 beside F8_E8M0 scales that do not fit FP4");
      }
      definition->tensors.push_back(std::move(shown));
      continue;
    }
    if (!is_fp4(catalog, tensor)) {
      auto as_stored = TensorExpr::zeros(storage.dtype, tensor.shape);
      if (!as_stored || as_stored->nbytes() != storage.nbytes() || !tensor.boxes.empty()) {
        refused.add(tensor.name, "exact=1: quantized, and neither FP4 nor FP8");
        continue;
      }
      shown.expr = *std::move(as_stored);
      shown.stored = tensor.storage;
      definition->tensors.push_back(std::move(shown));
      continue;
    }
    const std::vector<std::int64_t> shape(tensor.shape.begin(), tensor.shape.end());
    std::shared_ptr<const Quantizer>& quantizer = quantizers[shape];
    if (quantizer == nullptr) {
      auto made = make_quantizer(QuantizedForm::Fp4AsFp8, DType::BF16, shape, {});
      if (!made) {
        refused.add(tensor.name, made.error().message());
        continue;
      }
      quantizer = *std::move(made);
    }
    const TensorId scale = by_storage.at(storage.companions()[0]);
    for (std::size_t k = 0; k < quantizer->outputs().size(); ++k) {
      const QuantizedOutput& output = quantizer->outputs()[k];
      CKFS_TRY(TensorExpr expr, TensorExpr::zeros(output.dtype, output.shape));
      definition->tensors.push_back(
          {.name = k == 0 ? tensor.name : catalog.tensor(scale).name,
           .expr = std::move(expr),
           .exactness = quantizer->exactness(),
           .role = tensor.role,
           .output = static_cast<std::uint8_t>(k),
           .shard = k == 0 ? shown.shard : shard_of(catalog.tensor(scale)),
           .weight = static_cast<std::uint32_t>(definition->weights.size())});
    }
    CKFS_TRY(TensorExpr values, shown.expr.cast(DType::BF16));
    definition->weights.push_back(
        {.name = tensor.name,
         .values = std::move(values),
         .beside = std::make_shared<const TensorExpr>(TensorExpr::stored(catalog, scale)),
         .quantizer = quantizer,
         .set = ModelTensor::kNone});
  }
  obstacles = refused.list();
  const ModelDirectory& model = catalog.model();
  if (model.config) {
    definition->texts.push_back(
        {"config.json", edit_without_member(*model.config, "expert_dtype")});
  }
  definition->side_files = model.side_files;
  definition->catalog = std::move(held);
  return definition;
}

}  // namespace

bool is_exact(const ViewSpec& spec) {
  return parameter_of(spec, "exact", "0") == "1";
}

std::vector<Obstacle> quantizing_obstacles(const Catalog& catalog, const ViewRow& row,
                                           const Recipes& recipes) {
  const ViewSpec spec{std::string(row.name), {}};
  const auto tool = quantizing_tool(spec);
  CKFS_CHECK(tool.has_value());  // the defaults go together
  if (is_maxtext_tree(catalog)) return {};
  const bool splits = (*tool)->splits_experts() && has_fused_experts(catalog);
  if (splits) {
    const auto config = config_numbers(catalog);
    const ModelFamily* family = config ? recipes.find_layouts(*config) : nullptr;
    if (family == nullptr || !family->layouts.contains("linear")) {
      return {{"source", "its experts are fused in a layout that no recipe knows"}};
    }
  }
  Quantizers quantizers(**tool);
  ObstacleList refused;
  std::size_t chosen = 0;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      const StoredTensor& tensor = catalog.tensor(id);
      if (splits && is_fused_experts(tensor.name, tensor.shape.size())) {
        ++chosen;
        continue;
      }
      const Storage& storage = catalog.storage(tensor);
      const DType stored = catalog.value_dtype(id);
      const bool is_cast =
          storage.encoding->is_quantized() || ((*tool)->casts_all() && is_castable_float(stored));
      std::shared_ptr<const Quantizer> quantizer;
      const ToolVerdict verdict =
          verdict_on(catalog, **tool, quantizers, tensor.name, is_cast ? DType::BF16 : stored,
                     tensor.shape, quantizer);
      if (verdict.kind == ToolVerdict::Kind::Refuse) refused.add(tensor.name, verdict.text);
      if (verdict.kind == ToolVerdict::Kind::Quantize) ++chosen;
    }
  }
  std::vector<Obstacle> obstacles = refused.list();
  if (obstacles.empty() && chosen == 0) {
    return {{"source", fmt::format("has no tensor that {} would quantize", (*tool)->text())}};
  }
  return obstacles;
}

std::vector<Note> quantizing_remarks(const Catalog& catalog, const ViewRow& row) {
  const auto tool = quantizing_tool({std::string(row.name), {}});
  CKFS_CHECK(tool.has_value());
  std::vector<Note> remarks;
  if (row.name == kFp8View) {
    for (const Shard& shard : catalog.shards()) {
      for (const TensorId id : shard.tensors) {
        const StoredTensor& tensor = catalog.tensor(id);
        if (catalog.value_dtype(id) != DType::F16) continue;
        if ((*tool)->judge(tensor.name, tensor.shape.size()).kind != ToolVerdict::Kind::Quantize) {
          continue;
        }
        return {{std::string(tensor.name),
                 "F16: a block of zeros gets the scale 0 and codes that are NaN, as the tool "
                 "writes them"}};
      }
    }
  }
  return remarks;
}

Result<std::shared_ptr<Definition>> define_quantizing_view(std::shared_ptr<const Catalog> catalog,
                                                           const ViewRow& row, const ViewSpec& spec,
                                                           const Recipes& recipes,
                                                           std::vector<Obstacle>& obstacles) {
  if (is_exact(spec)) {
    return define_exact(std::move(catalog), row, spec, obstacles);
  }
  CKFS_TRY(const std::unique_ptr<const QuantizingTool> tool, quantizing_tool(spec));
  const ViewSpec plain = plain_spec(*catalog, spec, *tool);
  const ViewRow& plain_row = *find_view_row(kPlainView);
  auto made = define_hf_model(std::move(catalog), plain_row, plain, recipes);
  if (!made) return Failure(made.error().within(std::string(row.name)));
  Definition& definition = **made;
  // Those of the plain view's parameters that say what the source gets anyway are gone.
  ViewSpec canonical = spec;
  for (const std::string_view key : {"experts", "max_shard", "maxtext", "unscaled"}) {
    const auto said = canonical.parameters.find(key);
    if (said != canonical.parameters.end() && !definition.spec.parameters.contains(key)) {
      canonical.parameters.erase(said);
    }
  }
  definition.spec = std::move(canonical);
  definition.serial = new_definition();
  definition.tool =
      fmt::format("{} on CPU{}", tool->text(),
                  definition.catalog->is_quantized() ? ", of the values decoded to BF16" : "");
  Exchange exchange(definition, *tool);
  CKFS_TRY_VOID(exchange.run(obstacles));
  return made;
}

}  // namespace ckfs
