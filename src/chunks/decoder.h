// One chunk, decoded from its beginning to its end: the stages of its codecs over its stored bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/codec_chain.h"
#include "chunks/byte_stream.h"

namespace ckfs {

/// Where a chunk is stored: in a file of `source`, or in memory (`source` is nullptr).
struct StoredBytes {
  ByteSource* source = nullptr;
  FileRange range = {};
  std::span<const std::byte> bytes = {};
  bool once = false;  // ByteSource::read_once()
};

/// What of a chain is decoded.
enum class Stages : std::uint8_t {
  All,
  /// The stages up to the last checksum: reading them to the end checks all sums before any byte is
  /// given out. (A stream shows a wrong sum only after the bytes that it sums up.)
  Sums,
};

/// A stream through the stages of `codecs`. Its memory is `space`, which must outlive it, as must
/// what `stored` refers to. `nbytes`: the bytes that all stages must make, if known. A header that
/// says another number gets no memory for it. A stage that makes far more for the next one than
/// coding so many bytes gives is Corrupt. Unsupported: undecodable() codecs, and blocks of blosc in
/// such an order that the stage behind begins anew again and again. Other errors: as
/// ByteStream::read().
Result<std::unique_ptr<ByteStream>> open_stream(const StoredBytes& stored, const CodecChain& codecs,
                                                Stages stages, WorkSpace& space,
                                                std::optional<std::uint64_t> nbytes = {});

/// The work space that open_stream() needs for most chunks: a first guess.
std::uint64_t usual_work_space(const CodecChain& codecs, std::uint64_t stored_bytes);

/// Whether a chain has checksums.
bool has_sums(const CodecChain& codecs);

}  // namespace ckfs
