// Checkpoint::open() in two steps, for a program that gives up its rights between them: afterwards
// it can make no more rings of io_uring (sandbox/sandbox.h).
#pragma once

#include <filesystem>
#include <memory>

#include <ckfs/checkpoint.h>

#include "base/error.h"
#include "io/source_files.h"

namespace ckfs {

/// Makes the reader of a source's files, with that many rings, or as many of them as can be made.
/// Opens no file yet. For a location (fetch/location.h) it starts the fetcher, which keeps the
/// rights that this process has now, and logs to the descriptor `log` (-1: to stderr). Errors:
/// those of LocalFiles::create() and FetchClient::start().
Result<std::unique_ptr<SourceFiles>> prepare_source(const std::filesystem::path& source,
                                                    const OpenOptions& options, unsigned rings,
                                                    int log = -1);

/// Whether prepare_source() starts a fetcher for `source`. Else a location is looked for on this
/// machine (find_source()): the fetcher is not installed, or not to be asked.
bool is_fetched(const std::filesystem::path& source, const RemoteChoice& choice);

/// Checkpoint::open() with what prepare_source() gave for the same options. Errors: the same.
Result<Checkpoint> open_prepared(const std::filesystem::path& source, const OpenOptions& options,
                                 std::unique_ptr<SourceFiles> files);

}  // namespace ckfs
