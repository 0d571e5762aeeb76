// Checkpoint::open() in two steps, for a program that gives up its rights between them: afterwards
// it cannot make io_uring rings (fuse/sandbox.h).
#pragma once

#include <filesystem>
#include <memory>

#include <ckfs/checkpoint.h>

#include "base/error.h"
#include "io/source_files.h"

namespace ckfs {

/// Makes the reader of a source's files, with that many rings, or as many of them as can be made.
/// Opens no file yet. Errors: those of SourceFiles::create().
Result<std::unique_ptr<SourceFiles>> prepare_source(const OpenOptions& options, unsigned rings);

/// Checkpoint::open() with what prepare_source() gave for the same options. Errors: the same.
Result<Checkpoint> open_prepared(const std::filesystem::path& source, const OpenOptions& options,
                                 std::unique_ptr<SourceFiles> files);

}  // namespace ckfs
