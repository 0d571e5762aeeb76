// Where bytes of storages lie in source files, and which files and ranges some reads touch.
#pragma once

#include <span>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"

namespace ckfs {

/// Calls `use(file, offset, inside)` for the pieces of bytes `range` of a storage, in order:
/// `inside` is where in the range a piece lies. Requires: range lies within the storage.
template <typename Use>
void for_each_extent(const Storage& storage, ByteRange range, Use use) {
  for (const Extent& extent : storage.extents_in(range)) {
    const ByteRange here = range.intersect({extent.begin, extent.begin + extent.nbytes});
    if (here.empty()) continue;
    use(extent.file, extent.offset + (here.begin - extent.begin),
        ByteRange{here.begin - range.begin, here.end - range.begin});
  }
}

/// An error of decoding a storage, within the name of the file it begins in.
Failure decode_failure(const Catalog& catalog, const ByteSource& source, StorageId storage,
                       const Error& error);

/// `files` in order, each once.
std::vector<FileId> sorted_once(std::vector<FileId> files);

/// The files that reads touch, in order, each once: a result depends on these.
std::vector<FileId> files_of(std::span<const FileRange> ranges);

/// `ranges` by file and offset; those that are at most a page apart are joined, so that a hint
/// names no page twice.
std::vector<FileRange> joined(std::vector<FileRange> ranges);

}  // namespace ckfs
