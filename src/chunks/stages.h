// The stages of a chunk's decoder, one for each codec; for decoder.cc and tests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "chunks/byte_stream.h"

namespace ckfs {

using StreamResult = Result<std::unique_ptr<ByteStream>>;

/// One or several zstd frames in a row, with any window up to 128 MiB that the work space holds. A
/// frame that claims more than `most` bytes, if that is given, is Corrupt.
StreamResult open_zstd_stream(std::unique_ptr<ByteStream> from, WorkSpace& space,
                              std::optional<std::uint64_t> most);

enum class DeflateForm : std::uint8_t { Gzip, Zlib };

/// A zlib stream, or the members of a gzip file.
StreamResult open_inflate_stream(std::unique_ptr<ByteStream> from, DeflateForm form,
                                 WorkSpace& space);

/// One or several bz2 streams in a row.
StreamResult open_bz2_stream(std::unique_ptr<ByteStream> from, WorkSpace& space);

/// A blosc (version 1) chunk. Blocks are decoded one by one: seek() decodes none in between.
/// Corrupt: the blocks are not `nbytes` together, or are more than `most`, if these are given.
/// Unsupported: more than 2^20 blocks. Blocks may lie in any order. Where going back in `from`
/// means beginning anew, reading all blocks one after another may make at most `most_made` bytes of
/// `from` in all passes together; else Unsupported.
StreamResult open_blosc_stream(std::unique_ptr<ByteStream> from, WorkSpace& space,
                               std::optional<std::uint64_t> nbytes,
                               std::optional<std::uint64_t> most,
                               std::optional<std::uint64_t> most_made);

/// Gives all but the last four bytes, which are the CRC-32C of the others. Checks it at the end of
/// the stream, if it was read without a jump. Reading after a jump beyond the end is Corrupt.
StreamResult open_crc32c_stream(std::unique_ptr<ByteStream> from, WorkSpace& space);

/// How many bytes zstd, deflate and bz2 read from the stage before at a time.
inline constexpr std::size_t kStageInput = std::size_t{256} << 10;

/// Memory of libzstd for a frame of that window.
std::uint64_t zstd_work_space(std::uint64_t window);

}  // namespace ckfs
