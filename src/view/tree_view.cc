#include "view/tree_view.h"

#include <algorithm>
#include <optional>

#include "base/size_text.h"

namespace ckfs {

std::vector<Obstacle> tree_obstacles(const Catalog& catalog) {
  const ItemTree* tree = catalog.tree();
  if (tree == nullptr)
    return {{"source", "is not in Orbax' format; this view is for sources that are"}};
  if (std::ranges::none_of(tree->leaves,
                           [](const TreeLeaf& leaf) { return leaf.tensor != TreeLeaf::kNone; })) {
    return {{"source", "has no array"}};
  }
  return {catalog.obstacles().begin(), catalog.obstacles().end()};
}

Result<std::shared_ptr<Definition>> define_tree(std::shared_ptr<const Catalog> catalog,
                                                const ViewRow& row, const ViewSpec& spec) {
  auto definition = std::make_shared<Definition>();
  definition->spec = spec;
  const std::optional<DType> target = dtype_named(parameter_of(spec, "dtype", "source"));
  for (const TreeLeaf& leaf : catalog->tree()->leaves) {
    if (leaf.tensor == TreeLeaf::kNone) continue;
    const DType from = catalog->value_dtype(leaf.tensor);
    const DType to = target && leaf.element.empty() && is_castable_float(from) ? *target : from;
    CKFS_TRY(TensorExpr expr, TensorExpr::stored(*catalog, leaf.tensor).cast(to));
    definition->tensors.push_back({.name = catalog->tensor(leaf.tensor).name,
                                   .expr = std::move(expr),
                                   .exactness = exactness_of(*catalog, leaf.tensor, to)});
  }
  definition->packaging = {.container = row.container,
                           .placement = row.placement,
                           .orbax = {.storage = storage_of(spec), .whole_tree = true}};
  const auto max_chunk = spec.parameters.find("max_chunk");
  if (max_chunk != spec.parameters.end()) {
    CKFS_TRY(definition->packaging.orbax.max_chunk, parse_size(max_chunk->second));
  }
  definition->catalog = std::move(catalog);
  return definition;
}

}  // namespace ckfs
