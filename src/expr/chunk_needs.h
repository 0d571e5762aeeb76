// Which compressed chunks a piece of a view is made of: computed from boxes, no byte is read.
#pragma once

#include <map>
#include <span>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "catalog/catalog.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// By chunk, from the first byte that is needed of it to the last.
using ChunkNeeds = std::map<FileId, ByteRange>;

/// The ranges that `boxes` need of chunks that have to be decoded. Costs a few steps for each
/// chunk, however many elements a box has.
ChunkNeeds chunk_needs(const Catalog& catalog, std::span<const Box> boxes);

}  // namespace ckfs
