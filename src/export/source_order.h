// Export in the order of the source: a view of compressed chunks that its files need again and
// again (an array with the layers inside gives a little of each chunk to every layer) is written
// chunk by chunk instead of file by file.
//
// What is written is cut into pieces: tensors, or rows of one where these come from other chunks.
// Pieces that share a chunk, directly or through others, make a group; a step is a group, or
// several small ones, by the source's order. While a step is written its chunks are decoded, each
// once, and kept; afterwards nothing of them is needed any more. What lies between the pieces
// (headers, tensors of other sources) is written afterwards, file by file.
//
// A transpose across all chunks of an array is one group. To write each chunk's part of it by
// itself was the alternative: no two runs of its bytes would fill a page, and every step would
// write all pages of the array once more.
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
  /// So many bytes of chunks stay decoded in the least budget: a view that needs no more in several
  /// places is written in the order of its files.
  std::uint64_t kept = 16_MiB;
  /// Small groups are put together up to so many bytes of chunks.
  std::uint64_t step = 64_MiB;
  /// A tensor is cut into pieces of at least so many bytes, the last apart; into no more than
  /// 65,536 of them.
  std::uint64_t piece = 1_MiB;
};

struct SourceStep {
  /// In the order in which they are best written. Each is a run of whole rows of one tensor.
  std::vector<ExportStep> pieces;
  std::vector<FileId> chunks;  // all that they need, ascending
  std::uint64_t decoded = 0;   // bytes of these
};

struct SourceOrder {
  std::vector<SourceStep> steps;
  /// Names the pieces and their order: steps are counted in records.
  std::uint64_t id = 0;

  bool empty() const { return steps.empty(); }
};

/// No steps: the view is best written in the order of its files. Costs some 200 bytes a piece, and
/// for a while as much for each chunk that it needs.
SourceOrder source_order(const View& view, const OrderLimits& limits = {});

/// What of `whole` lies in `range`, as a file of its own. Requires: `range` begins and ends between
/// segments, or between rows of a tensor. Errors: those of TensorExpr::slice().
Result<std::shared_ptr<const FileLayout>> part_of(const FileLayout& whole, ByteRange range);

}  // namespace ckfs
