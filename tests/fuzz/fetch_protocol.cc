// Fuzz target: what a fetcher that was taken over may write. What is accepted is packed to the
// same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fetch/protocol.h"
#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto objects = unpack_objects(bytes)) {
    const PackedObjects again = pack_objects(*objects, size);
    CKFS_CHECK(again.count == objects->size() && again.bytes == bytes);
    for (const RemoteObject& object : *objects) {
      CKFS_CHECK(!object_name_fault(object.name) && pack(object).size() <= kLeastPlace);
    }
  }
  if (const auto head = unpack_head(bytes)) CKFS_CHECK(unpack_head(pack_head(*head)).has_value());
  if (const auto request = unpack_attach(bytes)) {
    CKFS_CHECK(unpack_attach(pack(*request)).has_value());
  }
  (void)unpack_stats(bytes);
  return 0;
}
