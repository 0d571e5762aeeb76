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

}  // namespace ckfs
