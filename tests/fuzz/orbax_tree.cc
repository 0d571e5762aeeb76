// Fuzz target: the trees of Orbax items, _METADATA and msgpack. Arrays that msgpack is said to hold
// must lie in it.
#include <cstddef>
#include <cstdint>

#include "format/orbax_read.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = orbax::parse_item_metadata(text, "m", [](const orbax::TreeLeaf& leaf) {
    CKFS_CHECK(leaf.path.size() <= static_cast<std::size_t>(orbax::kMaxTreeDepth));
    return Result<void>();
  });
  CKFS_CHECK(read || read.error().message().find('\n') == std::string::npos);
  const auto leaves = orbax::parse_msgpack_tree(text, "c");
  if (!leaves) {
    CKFS_CHECK(leaves.error().message().find('\n') == std::string::npos);
    return 0;
  }
  for (const orbax::MsgpackLeaf& leaf : *leaves) {
    CKFS_CHECK(leaf.bytes.begin <= leaf.bytes.end && leaf.bytes.end <= size);
  }
  return 0;
}
