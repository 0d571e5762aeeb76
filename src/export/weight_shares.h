// How a view that quantizes is cut into the parts that several processes write. A pure function of
// the view and the number of processes, as split.h is.
//
// A range of a file would not do: the scales of all weights come before all codes, so one process
// would make the scales and another the codes of the same values. And a largest value that several
// weights share would be found by each process that writes some of them. So the unit is a set of
// weights: all that is made of it, wherever it lies. Other bytes are cut into runs of a file. The
// units are ordered by the place of their first codes, and each process gets neighbours.
//
// A few bytes of scales may then share a page of a file with those of another process. None of
// these processes writes such a page: each keeps its bytes of it in its record (fleet.h), and the
// process that finishes the export puts them together.
#pragma once

#include <optional>
#include <vector>

#include <ckfs/checkpoint.h>

#include "base/byte_range.h"
#include "export/source_order.h"

namespace ckfs {

struct WeightShares {
  /// What each process writes. Together the steps cover every byte of the view once.
  std::vector<SourceOrder> ranks;
  /// The pages of each file (kSplitUnit, or up to its end) where several processes have bytes.
  /// Ascending.
  std::vector<std::vector<ByteRange>> shared;
};

/// nullopt: the view is better cut by ranges. It quantizes nothing; its source has chunks; a
/// process would get twice the mean, because one set of weights costs so much; or processes would
/// keep more than kMostKept bytes. Requires: parts > 0.
std::optional<WeightShares> weight_shares(const View& view, unsigned parts);

/// The most bytes of shared pages in one record.
inline constexpr std::uint64_t kMostKept = 1_MiB;

/// A piece of a step without its bytes in shared pages, which are at its ends. Empty where all of
/// them are.
ByteRange own_bytes(const WeightShares& shares, const ExportStep& piece);

}  // namespace ckfs
