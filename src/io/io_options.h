// The options for opening and reading the files of a source.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include <ckfs/types.h>

#include "base/parallel.h"

namespace ckfs {

struct IoOptions {
  IoEngine engine = IoEngine::Auto;
  /// Requests in flight per thread with io_uring (8 to 16 suit cold files).
  unsigned queue_depth = 16;
  /// Rings of io_uring that are made at once; others follow as threads need them.
  unsigned rings = 1;
  /// Open descriptors kept, within half of those that the process may have: a checkpoint may have
  /// thousands of files, and one MiB of a view may need some bytes of each (512 ranks).
  std::size_t max_open_files = 4096;
  /// Two requests on one file become one access when at most this many bytes lie between them, and
  /// share_access() has them do so. By default they have to touch: between two tensors may lie
  /// anything (Adam moments, a bad sector), and nothing is read that was not asked for. The
  /// engine's gathers join near pieces of one storage themselves, for they know to which tensor a
  /// gap belongs.
  std::uint64_t coalesce_gap = 0;
  /// ... and one access is at most this long; longer ones are cut, to have several in flight.
  std::uint64_t max_access = std::uint64_t{1} << 20;
  /// How often the path of a file that is being read is looked at. Not seen in between: that the
  /// path names another file now; a change of the opened file is seen at once.
  std::chrono::nanoseconds path_check_interval = std::chrono::seconds(1);
  /// A change of a file's ctime alone makes it Stale; else it is a warning in the log. Not looked
  /// at on file systems without stable inodes (file_system.h).
  bool strict = false;
  /// Whether bytes of local files that are in the page cache may be mapped (file_mappings.h). With
  /// a reader of the caller's choice they are read, always.
  bool map_cached = true;
  /// The threads that open a checkpoint.
  Parallel parallel = {};
};

/// A file to register.
struct NewFile {
  std::string name;            // what messages call it
  std::filesystem::path path;  // where it is
  /// `path` is as SourceStore::resolve() gives it, and was listed as a file: it is opened without
  /// another look.
  bool plain = false;
};

}  // namespace ckfs
