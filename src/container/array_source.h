// Where the elements of a tensor come from, dimension by dimension; used to choose chunks.
#pragma once

#include "catalog/catalog.h"
#include "container/chunking.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// Costs a look at each box. Requires: the tensor has elements.
ArraySource array_source(const Catalog& catalog, const TensorExpr& expr);

}  // namespace ckfs
