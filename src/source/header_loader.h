// The headers of safetensors files, read by several threads and handed out in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/byte_source.h"
#include "base/error.h"
#include "base/parallel.h"
#include "format/safetensors.h"

namespace ckfs {

/// A header and the text its names are slices of.
struct LoadedHeader {
  std::string text;
  safetensors::Header header;
};

/// The whole of a text file. Errors: Corrupt (longer than `limit`), Io, Stale.
Result<std::string> read_text(ByteSource& source, FileId file, std::uint64_t limit);

/// Asked before a header of so many bytes is read; an error is the loader's. Called concurrently.
using PayForHeader = std::function<Result<void>(FileId, std::uint64_t)>;

/// Reads and parses one header; no byte behind it is read. Errors: Corrupt, Io, Stale, those of
/// `pay`.
Result<std::unique_ptr<LoadedHeader>> load_header(ByteSource& source, FileId file,
                                                  const PayForHeader& pay = {});

using TakeHeader = std::function<Result<void>(std::size_t, const LoadedHeader&)>;

/// Calls `take` with the position of each of `files` and its header, in this order and in the
/// calling thread. Errors: those of load_header() and of `take`, the one of the first file;
/// OutOfMemory.
Result<void> load_headers(ByteSource& source, std::span<const FileId> files,
                          const PayForHeader& pay, const TakeHeader& take,
                          const Parallel& how = {});

}  // namespace ckfs
