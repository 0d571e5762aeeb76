#include "engine/source_ranges.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace ckfs {
namespace {

/// Ranges of a hint that are at most this far apart become one.
constexpr std::uint64_t kNearRanges = 4_KiB;

}  // namespace

Failure decode_failure(const Catalog& catalog, const ByteSource& source, StorageId storage,
                       const Error& error) {
  return Failure(error.within(source.name(catalog.storage(storage).extents.front().file)));
}

std::vector<FileId> sorted_once(std::vector<FileId> files) {
  std::ranges::sort(files);
  const auto repeated = std::ranges::unique(files);
  files.erase(repeated.begin(), repeated.end());
  return files;
}

std::vector<FileId> files_of(std::span<const FileRange> ranges) {
  std::vector<FileId> files;
  for (const FileRange& range : ranges) {
    if (files.empty() || files.back() != range.file) files.push_back(range.file);
  }
  return sorted_once(std::move(files));
}

std::vector<FileRange> joined(std::vector<FileRange> ranges) {
  std::ranges::sort(ranges, {}, [](const FileRange& r) { return std::pair(r.file, r.offset); });
  std::vector<FileRange> result;
  for (const FileRange& range : ranges) {
    if (!result.empty()) {
      FileRange& last = result.back();
      const std::uint64_t end = last.offset + last.size;
      if (last.file == range.file && range.offset <= end + kNearRanges) {
        last.size = std::max(end, range.offset + range.size) - last.offset;
        continue;
      }
    }
    result.push_back(range);
  }
  return result;
}

}  // namespace ckfs
