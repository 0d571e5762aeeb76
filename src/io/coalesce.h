// From requests to accesses: near requests on one file become one vectored access, long ones
// several. A pure function: it changes how many accesses there are, never which bytes land where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <sys/uio.h>
#include <vector>

#include "base/byte_source.h"

namespace ckfs {

struct CoalesceOptions {
  /// The most bytes that are read to join requests which share_access(), into a sink, and thrown
  /// away.
  std::uint64_t gap = kMostBetween;
  /// No access is longer than this. At least 1.
  std::uint64_t max_access = std::uint64_t{1} << 20;
  /// No access has more parts than this (the kernel's IOV_MAX). At least 1.
  std::size_t max_parts = 1024;
};

/// Bytes [offset, offset + size) of `file`, scattered over parts [first_part, first_part +
/// part_count) of the plan.
struct PlannedAccess {
  FileId file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::size_t first_part = 0;
  std::size_t part_count = 0;
};

struct AccessPlan {
  std::vector<PlannedAccess> accesses;  // by file, then offset, of the requests they begin with
  std::vector<iovec> parts;
  /// Where the bytes between requests go; no reader looks at it. Null where there are none.
  std::unique_ptr<std::byte[]> sink;

  std::span<const iovec> parts_of(const PlannedAccess& access) const {
    return std::span(parts).subspan(access.first_part, access.part_count);
  }
};

/// Requests of length 0 need no access. Requests that overlap each other are read by accesses of
/// their own, since one access has one place for each byte.
AccessPlan coalesce(std::span<const ReadRequest> batch, const CoalesceOptions& options);

}  // namespace ckfs
