// Computes any range of a tensor from its boxes: the strided case, and the general one.
//
// The work on a range is a plan of independent batches. A batch reads source bytes, decodes them in
// a staging buffer of its own and copies them to places of the target that no other batch writes;
// so batches may run on any threads in any order, each with its own staging. The batches of one box
// read each of the source's bytes once (except companions, granules and gaps at borders), and are
// numbered in the order of these bytes. The rest of a loop that does not divide into runs counts as
// a box of its own. Boxes are ordered by their first byte. A range that begins or ends within a row
// has up to two boxes more for each dimension, which read the same gaps again.
//
// A plan is a pure function of its arguments and costs memory for each box and batch, never for
// each run of source bytes: those are enumerated when their batch runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"
#include "engine/source_bytes.h"
#include "expr/tensor_expr.h"
#include "tensor/kernel.h"

namespace ckfs {

/// How a tensor that needs tiles is cut: tile k holds the elements [k * elements, (k + 1) *
/// elements), the last one fewer.
struct TileGeometry {
  std::int64_t elements = 0;
};

/// Bytes of a tile: a good size, and the most that is possible.
struct TileBytes {
  std::uint64_t good = 0;
  std::uint64_t most = 0;
};

/// Whole trailing dimensions. A matrix of at most `most` bytes is in one tile, so that each of its
/// source bytes is read once; several small ones share a tile. A larger one is cut into equal parts
/// where its dimensions allow it, so that no tile has the end of one matrix and the start of the
/// next.
TileGeometry tile_geometry(const TensorExpr& expr, TileBytes bytes);

/// The least staging with which every tensor of the catalog can be gathered: the bytes of one
/// element and its companions. A few KiB for block scales; a multiple of 64.
std::size_t least_staging(const Catalog& catalog);

/// How the elements [begin, end) of a tensor are computed. Immutable and safe for concurrent use;
/// refers to the catalog, and keeps the parts of the expression that it needs.
class GatherPlan {
 public:
  /// Batches that need at most `staging_bytes` each. Less makes more of them, and reads granules
  /// and companions at their borders more often; 1 to 4 MiB stay in a CPU's cache.
  /// Requires: staging_bytes >= least_staging(catalog); the dtype has whole bytes; the range lies
  /// in the tensor.
  static GatherPlan make(const Catalog& catalog, const TensorExpr& expr, std::int64_t begin,
                         std::int64_t end, std::size_t staging_bytes);

  std::size_t batches() const { return batches_.size(); }
  /// The most that a batch needs, a multiple of 64: at most the staging_bytes of make().
  std::size_t staging() const { return staging_; }

  /// Computes one batch into its places of `out`, which holds the whole range; constants are
  /// written by the batch they belong to. Gives the files that it read, sorted, each once; files
  /// that the tensor lies in and this batch did not read are not among them. Requires: batch <
  /// batches(); out.size() is that of the range; staging.size() >= staging(), and it begins at a
  /// multiple of kBufferAlignment. Errors: those of the source; Corrupt (a companion that
  /// contradicts itself).
  Result<std::vector<FileId>> run(std::size_t batch, ByteSource& source,
                                  std::span<std::byte> staging, std::span<std::byte> out,
                                  KernelSet kernels) const;

  /// The source bytes that a batch will read, by file and offset, near ones joined: for a hint
  /// (ByteSource::will_need).
  std::vector<FileRange> ranges(std::size_t batch) const;

 private:
  /// A box whose loops are split into those within a run, which is read as a whole, and those that
  /// enumerate runs. Run r begins at the element that the digits of r (outer loops, the first the
  /// most significant) say.
  struct BoxRuns {
    StorageId source = Box::kConstant;
    std::shared_ptr<const Program> program;
    std::int64_t source_offset = 0;
    std::int64_t target_offset = 0;  // from the start of the range
    std::vector<Loop> outer;         // by the size of source_stride, largest first
    std::vector<Loop> inner;         // the same
    std::vector<Loop> repeated;      // source_stride 0: one element, many places
    std::int64_t span = 1;           // elements of a run
    std::int64_t shift = 0;  // how far into the run all inner indices are 0: loops may go down
    std::int64_t count = 1;  // runs
  };
  /// Runs [first, first + count) of a box.
  struct Item {
    std::size_t box = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
  };
  struct SpacedRuns;
  class Splitter;

  explicit GatherPlan(const Catalog& catalog) : catalog_(&catalog) {}
  std::int64_t up_to_border(const BoxRuns& box, std::int64_t first, std::int64_t count) const;
  std::span<const Item> items(std::size_t batch) const;
  template <typename Use>
  void for_each_run(const Item& item, Use use) const;
  /// Elements of a storage in memory, from number `first` on; nullptr: they are not in memory.
  struct Mapped {
    const std::byte* data = nullptr;
    std::int64_t first = 0;
  };
  Mapped map(const Item& item, SourceBytes& bytes) const;
  void fill(const BoxRuns& box, std::span<std::byte> out, KernelSet kernels) const;

  const Catalog* catalog_;
  std::size_t width_ = 1;  // bytes of a target element
  std::size_t staging_ = 0;
  std::vector<BoxRuns> boxes_;
  std::vector<Item> items_;
  std::vector<std::size_t> batches_;  // where in items_ each begins
};

}  // namespace ckfs
