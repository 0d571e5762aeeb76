// The records of a zip archive, which src/format both reads (zip.cc) and writes
// (torch_zip_writer.cc): PKWARE's APPNOTE, 4.3 and 4.5.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckfs::zip_records {

inline constexpr std::uint32_t kLocalSignature = 0x04034b50;
inline constexpr std::uint32_t kEntrySignature = 0x02014b50;
inline constexpr std::uint32_t kEndSignature = 0x06054b50;
inline constexpr std::uint32_t kEnd64Signature = 0x06064b50;
inline constexpr std::uint32_t kLocator64Signature = 0x07064b50;

// Bytes, without the names, extra fields and comments that follow.
inline constexpr std::size_t kLocalSize = 30;
inline constexpr std::size_t kEntrySize = 46;
inline constexpr std::size_t kEndSize = 22;
inline constexpr std::size_t kEnd64Size = 56;
inline constexpr std::size_t kLocator64Size = 20;

/// In a field of 16 or 32 bits: the number is in the zip64 field or record.
inline constexpr std::uint16_t kFull16 = 0xffff;
inline constexpr std::uint32_t kFull32 = 0xffffffff;

}  // namespace ckfs::zip_records
