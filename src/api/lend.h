// ViewFile::read() for callers that give every result back before they wait for anything: the
// mount, an export, a comparison. Their results are not counted, and always are of the budget,
// whatever the number of readers.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ckfs/checkpoint.h>

namespace ckfs {

/// Errors: those of ViewFile::read(). Requires: the results that are kept at a time, of all
/// threads, are fewer than Engine::read() allows; a thread that has one does not wait for another.
Result<Bytes> lend(const ViewFile& file, std::uint64_t offset, std::size_t size);

}  // namespace ckfs
