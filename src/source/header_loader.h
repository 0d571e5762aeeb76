// The headers of many safetensors files, read and parsed by several threads, handed out in order.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/byte_source.h"
#include "format/safetensors.h"

namespace ckfs {

/// A header and the text its names are slices of.
struct LoadedHeader {
  std::string text;
  safetensors::Header header;
};

/// The whole of a text file. Errors: Corrupt (longer than `limit`), Io, Stale.
Result<std::string> read_text(ByteSource& source, FileId file, std::uint64_t limit);

/// Reads and parses one header; no byte behind it is read. Errors: Corrupt, Unsupported, Io, Stale.
Result<std::unique_ptr<LoadedHeader>> load_header(ByteSource& source, FileId file);

/// For one thread; the workers are its own and end with it.
class HeaderLoader {
 public:
  /// `source` and `files` must outlive the loader.
  HeaderLoader(ByteSource& source, std::span<const FileId> files);
  ~HeaderLoader();
  HeaderLoader(const HeaderLoader&) = delete;
  HeaderLoader& operator=(const HeaderLoader&) = delete;

  /// The header of the next file, in the order given. Requires: called at most once for each file.
  Result<std::unique_ptr<LoadedHeader>> next();

 private:
  using Slot = std::optional<Result<std::unique_ptr<LoadedHeader>>>;

  void work();

  ByteSource& source_;
  std::span<const FileId> files_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::size_t claimed_ = 0;   // files that a worker has taken
  std::size_t consumed_ = 0;  // files that next() has given
  bool stopping_ = false;

  std::vector<std::thread> workers_;
};

}  // namespace ckfs
