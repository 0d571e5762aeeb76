// Fuzz target: a recipe, on the tensors of a small model of experts. Rules are read and done, or
// refused in one line; what they make has one name each.
#include "view/recipes/recipe.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <string_view>

#include "catalog/catalog.h"
#include "fuzz/work_limit.h"

namespace ckfs {
namespace {

constexpr std::string_view kConfig =
    R"({"hidden_size": 4, "moe_intermediate_size": 2, "num_experts": 2, "nan": NaN,
        "layer_types": ["full", "local"], "ratios": [4, 128],
        "text_config": {"model_type": "m", "num_heads": 2}})";

std::shared_ptr<const Catalog> make_catalog() {
  CatalogBuilder builder("safetensors");
  Shard shard{"model.safetensors", 0, {}};
  std::uint64_t offset = 0;
  const auto add = [&](std::string_view name, const std::vector<std::int64_t>& shape,
                       DType dtype = DType::F32) {
    std::int64_t numel = 1;
    for (const std::int64_t extent : shape) numel *= extent;
    const Extent extent{0, offset, bytes_of(dtype, numel)};
    offset += extent.nbytes;
    const StorageId storage = builder.add_storage(dtype, numel, std::span(&extent, 1));
    shard.tensors.push_back(builder.add_tensor(name, shape, storage));
  };
  for (int layer = 0; layer < 2; ++layer) {
    for (int expert = 0; expert < 2; ++expert) {
      const std::string prefix = fmt::format("layers.{}.mlp.experts.{}.", layer, expert);
      add(prefix + "gate_proj.weight", {2, 4});
      add(prefix + "up_proj.weight", {2, 4});
      add(prefix + "down_proj.weight", {4, 2});
    }
    add(fmt::format("layers.{}.norm", layer), {4});
  }
  add("embed", {8, 4});
  add("table", {8, 2}, DType::I64);
  add("empty", {0, 4});
  add("scalar", {});
  builder.add_shard(std::move(shard));
  return std::move(builder).build();
}

void apply(const Catalog& catalog, const RuleList& rules, const ConfigNumbers& config) {
  TensorList list;
  for (const TensorId id : catalog.shards()[0].tensors) {
    list.tensors.push_back(
        {.name = catalog.tensor(id).name, .expr = TensorExpr::stored(catalog, id), .shard = 0});
  }
  const auto made = apply_rules(rules, config, std::move(list));
  if (!made) {
    CKFS_CHECK(made.error().message().find('\n') == std::string::npos);
    return;
  }
  std::set<std::string_view> names;
  for (const ModelTensor& tensor : made->tensors) {
    CKFS_CHECK(!tensor.name.empty() && names.insert(tensor.name).second);
    std::int64_t elements = 0;
    for (const Box& box : tensor.expr.boxes()) elements += box.numel();
    CKFS_CHECK(elements == tensor.expr.numel());
    if (tensor.split == ModelTensor::kNone) continue;
    CKFS_CHECK(made->axes[tensor.split].size() == tensor.expr.shape().size());
  }
}

}  // namespace
}  // namespace ckfs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  static const std::shared_ptr<const Catalog> catalog = make_catalog();
  static const ConfigNumbers config = [] {
    ConfigNumbers numbers = *ConfigNumbers::parse(kConfig, "config.json");
    numbers.set_text("view.dtype", "BF16");
    return numbers;
  }();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto recipes = add_recipe(Recipes(), text, "recipe.json");
  if (!recipes) {
    CKFS_CHECK(recipes.error().message().find('\n') == std::string::npos);
    return 0;
  }
  for (const RecipeView& view : recipes->views) apply(*catalog, view.rules, config);
  for (const auto& known : recipes->families) {
    const ModelFamily& family = *known;
    for (const auto& [layout, rules] : family.layouts) apply(*catalog, rules, config);
    if (!family.maxtext) continue;
    RuleList both = family.maxtext->unscanned;
    std::ranges::copy(family.maxtext->scanned.rules, std::back_inserter(both.rules));
    apply(*catalog, both, config);
  }
  return 0;
}
