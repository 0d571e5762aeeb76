#include <algorithm>

#include "view/view.h"

namespace ckfs {

Exactness exactness_of(const Catalog& catalog, TensorId id, DType to) {
  const StoredTensor& tensor = catalog.tensor(id);
  Exactness least = catalog.storage(tensor.storage).encoding->exactness(to);
  for (const StorageBox& box : tensor.boxes) {
    least = std::max(least, catalog.storage(box.storage).encoding->exactness(to));
  }
  return least;
}

Exactness exactness_of(const Catalog& catalog, const TensorExpr& expr, DType to) {
  if (const auto whole = expr.whole()) {
    return catalog.storage(whole->storage).encoding->exactness(to);
  }
  Exactness least = Exactness::BitExact;
  for (const Box& box : expr.box_list()) {
    if (box.is_constant()) continue;
    least = std::max(least, catalog.storage(box.source).encoding->exactness(to));
  }
  return least;
}

}  // namespace ckfs
