// Computes any range of a tensor from its boxes: the strided case, and the general one.
//
// Sources are read in runs that are as long as the staging allows and as dense as is worth while,
// in source order, decoded there, and copied to their places in the target.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"
#include "expr/tensor_expr.h"
#include "tensor/kernel.h"

namespace ckfs {

/// How a tensor that needs tiles is cut: tile k holds the elements [k * elements, (k + 1) *
/// elements), the last one fewer.
struct TileGeometry {
  std::int64_t elements = 0;
  std::size_t staging = 0;  // bytes that gather() wants beside the tile
};

/// Tiles of at most about `tile_bytes`: whole trailing dimensions, as many as fit, so that a matrix
/// that fits is one tile and each of its source bytes is read once.
TileGeometry tile_geometry(const Catalog& catalog, const TensorExpr& expr,
                           std::uint64_t tile_bytes);

/// Writes target elements [begin, end) to `out`, with `staging` to work in. Adds the files it read
/// to `files`. Requires: out.size() is that of the elements; staging.size() is at least
/// tile_geometry().staging; the dtype has whole bytes.
Result<void> gather(const Catalog& catalog, ByteSource& source, const TensorExpr& expr,
                    std::int64_t begin, std::int64_t end, std::span<std::byte> out,
                    std::span<std::byte> staging, KernelSet kernels);

}  // namespace ckfs
