// Both forms have the item's small files, and differ in where chunks lie. Nothing is kept for a
// chunk or a key: grids are arithmetic, and a node's keys are enumerated when it is measured or
// read, 4,096 at a time.
#include "container/orbax.h"

#include "container/ocdbt_item.h"
#include "container/orbax_files.h"
#include "container/zarr_item.h"

namespace ckfs {

Result<std::shared_ptr<const Container>> make_orbax(std::shared_ptr<const Definition> definition) {
  const std::string view = definition->spec.canonical();
  const ArrayStorage storage = definition->packaging.orbax.storage;
  const zarr::Version version =
      storage == ArrayStorage::Zarr2 ? zarr::Version::V2 : zarr::Version::V3;
  auto arrays = ItemArrays::make(std::move(definition), version);
  if (!arrays) return Failure(arrays.error().within(view));
  auto container = storage == ArrayStorage::Ocdbt ? make_ocdbt_item(*std::move(arrays))
                                                  : make_zarr_item(*std::move(arrays));
  if (!container) return Failure(container.error().within(view));
  return container;
}

}  // namespace ckfs
