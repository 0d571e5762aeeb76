// Safetensors shards, byte for byte what safetensors' own writer makes of their tensors with the
// metadata {"format": "pt"}, and the index over them. A shard that mirrors one of the source has
// that one's metadata, too (Shard::metadata).
#pragma once

#include <memory>

#include "container/container.h"

namespace ckfs {

/// Errors: those of make_containers().
Result<std::shared_ptr<const Container>> make_safetensors(
    std::shared_ptr<const Definition> definition);

}  // namespace ckfs
