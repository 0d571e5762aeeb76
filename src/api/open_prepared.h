// Checkpoint::open() in two steps, for a program that gives up its rights between them: afterwards
// it can make no more rings of io_uring (sandbox/sandbox.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <ckfs/checkpoint.h>

#include "base/error.h"
#include "io/source_files.h"

namespace ckfs {

/// Makes the reader of a source's files, with that many rings, or as many of them as can be made.
/// Opens no file yet. For a location (fetch/location.h) it starts the fetcher, which keeps the
/// rights that this process has now. Its log goes to stderr, or with `relays_log` into the log
/// of this process, once that has asked it something. Errors:
/// those of LocalFiles::create(), open_remote_cache() and FetchClient::start().
Result<std::unique_ptr<SourceFiles>> prepare_source(const std::filesystem::path& source,
                                                    const OpenOptions& options, unsigned rings,
                                                    bool relays_log = false);

/// Whether prepare_source() opens `source` as one of another machine: it starts a fetcher, or no
/// server is to be asked and the disk cache has its listing. Else a location is looked for on this
/// machine (find_source()).
bool is_far(const std::filesystem::path& source, const OpenOptions& options);

/// Waits until the disk cache has been given all that was fetched (Resources::fill_cache).
void finish_cache(const Checkpoint& checkpoint);

/// Options that no user needs.
struct TestOptions {
  /// Bytes of a tile. 0: chosen from the budget.
  std::uint64_t tile_bytes = 0;
};

/// Checkpoint::open() with what prepare_source() gave for the same options. Errors: the same.
Result<Checkpoint> open_prepared(const std::filesystem::path& source, const OpenOptions& options,
                                 std::unique_ptr<SourceFiles> files, const TestOptions& tests = {});

/// Checkpoint::open() with what only the program and tests choose. Errors: the same.
Result<Checkpoint> open_for_tests(const std::filesystem::path& source, const OpenOptions& options,
                                  const TestOptions& tests);

}  // namespace ckfs
