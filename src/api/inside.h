// What the rest of ckfs asks of an open checkpoint beside the public API. The mount, exports and
// comparisons include this header and no implementation of a class (tests/lint/layers).
//
// All functions are safe for concurrent use. References that they give live as long as the view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include <ckfs/checkpoint.h>

#include "base/error.h"

namespace ckfs {

class ChunkSource;
class Engine;
struct Definition;
struct StreamOptions;

/// Errors: InvalidArgument: this is a forked child of the process that opened the checkpoint.
Result<void> check_process(const View& view);

/// The view's files with their layouts, by the indices of View::files().
const ViewFiles& view_files_of(const View& view);

const Definition& definition_of(const View& view);

/// It reads files that the view does not have: parts of its own.
Engine& engine_of(const View& view);

/// nullptr: no chunk of the source is compressed.
ChunkSource* chunk_source_of(const View& view);

/// Bytes of memory that the checkpoint may use.
std::uint64_t budget_of(const View& view);

/// The path that the checkpoint was opened with.
const std::filesystem::path& opened_path(const View& view);

/// Where the files of the source are on this machine, canonical: all that is ever opened of it
/// here.
std::vector<std::filesystem::path> source_paths(const Checkpoint& checkpoint);

/// An inode number for a file: a stable hash of view, parameters and path; never 0 or 1. Requires:
/// file < view.files().size(). Throws nothing.
std::uint64_t file_inode(const View& view, std::size_t file) noexcept;

/// View::open() by the file's index, for a reader that bytes are delivered to ahead of it. Errors:
/// the same.
Result<ViewFile> open_stream(const View& view, std::size_t file, StreamOptions options);

/// ViewFile::read() for callers that give every result back before they wait for anything: the
/// mount, an export, a comparison. Their results are not counted, and always are of the budget,
/// whatever the number of readers. Errors: those of ViewFile::read(). Requires: the results that
/// are kept at a time, of all threads, are fewer than Engine::read() allows; a thread that has one
/// does not wait for another.
Result<Bytes> lend(const ViewFile& file, std::uint64_t offset, std::size_t size);

}  // namespace ckfs
