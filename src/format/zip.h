// A zip archive as torch.save writes it: a directory of stored (uncompressed) members, whose bytes
// are then read where they lie. zip64 or not, at any alignment, in a whole file or in a part of
// one.
//
// Refused: several disks, encryption, compression, a name twice, whatever reaches over its limits.
// Nothing is ever extracted, so what a name looks like ("../x") does not matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"

namespace ckfs {

inline constexpr std::uint64_t kMaxZipDirectory = std::uint64_t{256} << 20;  // bytes

/// A member as the central directory lists it.
struct ZipMember {
  std::string_view name;     // valid as long as the archive, until that is moved
  std::uint64_t size = 0;    // bytes of its data
  std::uint64_t header = 0;  // absolute offset of its local header
  std::uint16_t method = 0;  // 0: stored
  bool encrypted = false;
};

/// The directory of an archive: about 40 bytes a member. Immutable; safe for concurrent use. The
/// source must outlive it.
class ZipArchive {
 public:
  /// Reads the end records and the central directory of the archive that fills the bytes `within`
  /// of `file`, which has them. Errors: Corrupt, Unsupported (a directory of more than
  /// `max_directory` bytes...), and those of the source.
  static Result<ZipArchive> open(ByteSource& source, FileId file, ByteRange within,
                                 std::uint64_t max_directory = kMaxZipDirectory);

  /// Members in the order of the directory.
  std::size_t size() const { return entries_.size(); }
  /// Bytes of its directory, with whatever its entries have beside names.
  std::uint64_t directory_size() const { return directory_size_; }
  ZipMember operator[](std::size_t index) const;
  std::optional<ZipMember> find(std::string_view name) const;

  /// The bytes of a member's data in the file (absolute). Reads its local header, because only that
  /// shows where the data begin. Errors: Unsupported (compressed or encrypted), Corrupt (the local
  /// header contradicts the directory), and those of the source.
  Result<ByteRange> data(const ZipMember& member) const;
  /// The same for many, with one batch of reads for each thousand.
  Result<std::vector<ByteRange>> data(const std::vector<ZipMember>& members) const;

  /// The data themselves. Errors: as data(), and Unsupported above `limit` bytes.
  Result<std::vector<std::byte>> read(const ZipMember& member, std::uint64_t limit) const;

 private:
  struct Entry {
    std::uint64_t size = 0;
    std::uint64_t header = 0;  // from within_.begin
    std::uint32_t name = 0;    // offset in names_
    std::uint16_t name_size = 0;
    std::uint8_t method = 0;  // kOther: more than a byte
    bool encrypted = false;
  };
  static constexpr std::uint8_t kOther = 255;

  ZipArchive(ByteSource& source, FileId file, ByteRange within)
      : source_(&source), file_(file), within_(within) {}

  std::string_view name_of(const Entry& entry) const;
  Result<void> parse_directory(std::span<const std::byte> directory, std::uint64_t count);
  Result<void> sort_names();
  Result<void> check_stored(const ZipMember& member) const;
  Result<ByteRange> check_local(const ZipMember& member, std::span<const std::byte> header) const;

  ByteSource* source_;
  FileId file_;
  ByteRange within_;
  std::uint64_t directory_begin_ = 0;  // from within_.begin; members end before it
  std::uint64_t directory_size_ = 0;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> by_name_;  // indices of entries_
  std::string names_;
};

}  // namespace ckfs
