// Target files of Container::Safetensors: shards and the index over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "container/file_layout.h"
#include "view/view.h"

namespace ckfs {

/// Shard number `file` of the definition: byte for byte what safetensors' own writer makes of its
/// tensors with the metadata {"format": "pt"}. Path, size, segments and exactness; no inode.
/// Errors: Unsupported (a header over the format's limit, a size beyond 2^63).
Result<FileLayout> lay_out_shard(const std::shared_ptr<const Definition>& definition,
                                 std::size_t file);

/// The tensors of that shard as its header and data have them: numbers in definition.tensors.
std::vector<std::uint32_t> canonical_order(const Definition& definition, std::size_t file);

/// The index over all shards, in whatever container. Requires: definition->index is not empty.
FileLayout lay_out_index(const std::shared_ptr<const Definition>& definition);

}  // namespace ckfs
