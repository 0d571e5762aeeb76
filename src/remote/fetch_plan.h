// From ranges that are wanted of objects to requests: near ranges become one request, long ones
// several. Unlike accesses to a disk (io/coalesce.h) a request brings all of its range to one
// place, from which the parts are copied; so ranges may overlap, and bytes between them need no
// place.
//
// Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_range.h"

namespace ckfs {

struct WantedRange {
  std::uint64_t object = 0;  // the caller's number for it
  std::uint64_t object_size = 0;
  std::uint64_t offset = 0;
  std::span<std::byte> out;
  /// Requests begin and end at multiples of this, or at the object's end: what a cache keeps as a
  /// whole. At least 1; the same for all of an object.
  std::uint64_t unit = 1;
};

struct FetchPlanOptions {
  std::uint64_t gap = 0;      // bytes between two ranges that are fetched with them
  std::uint64_t longest = 1;  // no request is longer; at least two units
};

struct PlannedFetch {
  std::uint64_t object = 0;
  ByteRange range;
  std::size_t first_part = 0;
  std::size_t part_count = 0;
};

/// Bytes of the object from `offset` on go to `out`.
struct FetchPart {
  std::uint64_t offset = 0;
  std::span<std::byte> out;
};

struct FetchPlan {
  std::vector<PlannedFetch> fetches;  // by object, then offset
  std::vector<FetchPart> parts;

  std::span<const FetchPart> parts_of(const PlannedFetch& fetch) const {
    return std::span(parts).subspan(fetch.first_part, fetch.part_count);
  }
};

/// Wanted bytes of length 0 need no request. Requires: each range lies in its object.
FetchPlan plan_fetches(std::vector<WantedRange> wanted, const FetchPlanOptions& options);

}  // namespace ckfs
