// The view that is the source's own tree as an Orbax item: same paths and arrays, in chunks that
// can be read at random.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {

inline constexpr std::string_view kTreeView = "orbax";

/// Why the catalog cannot be shown so; empty: it can.
std::vector<Obstacle> tree_obstacles(const Catalog& catalog);

/// Requires: no obstacles; `spec` is normalized and of `row`.
Result<std::shared_ptr<Definition>> define_tree(std::shared_ptr<const Catalog> catalog,
                                                const ViewRow& row, const ViewSpec& spec);

}  // namespace ckfs
