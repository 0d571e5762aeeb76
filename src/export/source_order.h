// Export in the order of the source. The files of a view may need each compressed chunk again and
// again: an array with the layers inside gives a little of each chunk to every layer. Such a view
// is written chunk by chunk instead of file by file.
//
// The view is cut into pieces: tensors, or rows of a tensor where rows come from different chunks.
// Pieces that share a chunk, directly or through others, form a group. A step is a group, or
// several small ones, in the order of the source. While a step is written, each of its chunks is
// decoded once and kept; afterwards it is not needed any more. Bytes between the pieces (headers,
// tensors of other sources) are written last, file by file.
//
// A transpose across all chunks of an array is one group. The alternative was to write each chunk's
// share of it by itself: no two runs of its bytes would fill a page, and every step would write all
// pages of the array again.
//
// A view that quantizes is written weight by weight, codes before scales, because the engine makes
// both of one read of the values. In the files the scales of all weights come first.
//
// The order is a pure function of the view: not of the budget, of threads, or of the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ckfs/checkpoint.h>

#include "base/byte_range.h"
#include "base/error.h"
#include "base/units.h"
#include "container/file_layout.h"
#include "export/split.h"

namespace ckfs {

struct OrderLimits {
  /// The least budget keeps so many bytes of chunks decoded. A view that needs no more of them in
  /// several places is written in the order of its files.
  std::uint64_t kept = 16_MiB;
  /// Small groups are joined up to so many bytes of chunks.
  std::uint64_t step = 64_MiB;
  /// A tensor is cut into pieces of at least so many bytes (the last may have fewer), and into
  /// 65,536 of them at most.
  std::uint64_t piece = 1_MiB;
};

struct SourceStep {
  /// In the order in which they are written. Each is a run of whole rows of one tensor.
  std::vector<ExportStep> pieces;
  std::vector<FileId> chunks;  // all that they need, ascending
  std::uint64_t decoded = 0;   // bytes of these
  /// One thread writes its pieces, one after another. Scales are made with the codes and kept for
  /// the others.
  bool in_turn = false;
};

struct SourceOrder {
  std::vector<SourceStep> steps;
  /// Identifies the pieces and their order, for records count steps.
  std::uint64_t id = 0;

  bool empty() const { return steps.empty(); }
};

/// SourceOrder::id of these steps.
std::uint64_t order_id(std::span<const SourceStep> steps);

/// The order for a view. Without steps where the order of its files is best. Costs some 200 bytes a
/// piece, and for a while as much for each chunk that a piece needs.
SourceOrder source_order(const View& view, const OrderLimits& limits = {});

/// The bytes of `whole` in `range`, as a file of its own. Requires: `range` begins and ends between
/// segments, or between rows of a tensor. Errors: those of TensorExpr::slice().
Result<std::shared_ptr<const FileLayout>> part_of(const FileLayout& whole, ByteRange range);

}  // namespace ckfs
