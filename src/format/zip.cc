// This does only what torch files need of zip: find the directory, find a member in it, find its
// data. A general zip library would copy the directory into an object per member (a ZeRO-3 model
// file has 100,000) and wants to do the reading; here it is 24 bytes and a name per member, and the
// data are left to the caller.
//
// Three places give where a member's data lie: the directory, the local header before the data, and
// for big ones a zip64 field in each. The directory is believed, as torch and all other tools do;
// the local header only adds how long it is itself, and must name the same member.
#include "format/zip.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/text.h"
#include "format/zip_records.h"

namespace ckfs {
namespace {

using namespace zip_records;

constexpr std::size_t kHeadersAtOnce = 1024;  // local headers in one batch

std::uint16_t u16(std::span<const std::byte> bytes, std::size_t at) {
  return load_le<std::uint16_t>(bytes.subspan(at, 2));
}
std::uint32_t u32(std::span<const std::byte> bytes, std::size_t at) {
  return load_le<std::uint32_t>(bytes.subspan(at, 4));
}
std::uint64_t u64(std::span<const std::byte> bytes, std::size_t at) {
  return load_le<std::uint64_t>(bytes.subspan(at, 8));
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};  // char may alias anything
}

/// The last bytes of an archive.
struct Tail {
  std::uint64_t begin = 0;  // from the archive's begin
  std::vector<std::byte> bytes;
};

Result<Tail> read_tail(ByteSource& source, FileId file, ByteRange within, std::uint64_t wanted) {
  Tail tail;
  tail.bytes.resize(std::min(wanted, within.size()));
  tail.begin = within.size() - tail.bytes.size();
  CKFS_TRY_VOID(source.read_at(file, within.begin + tail.begin, tail.bytes));
  return tail;
}

/// Where in `tail` the end record begins. Its comment must reach to the very end.
std::optional<std::size_t> find_end(std::span<const std::byte> tail) {
  if (tail.size() < kEndSize) return std::nullopt;
  for (std::size_t at = tail.size() - kEndSize + 1; at-- > 0;) {
    if (u32(tail, at) == kEndSignature && at + kEndSize + u16(tail, at + 20) == tail.size()) {
      return at;
    }
  }
  return std::nullopt;
}

/// What the end records state about the directory.
struct Directory {
  std::uint64_t count = 0;
  std::uint64_t begin = 0;  // from the archive's begin
  std::uint64_t size = 0;
  std::uint64_t limit = 0;  // it ends before this
};

Failure many_disks(std::string_view name) {
  return fail(ErrorCode::Unsupported, "{}: a zip archive of several disks", name);
}

Result<Directory> find_directory(ByteSource& source, FileId file, ByteRange within) {
  const std::string& name = source.name(file);
  // Not a byte more than torch's end records: before them come the directory and tensor data.
  // Others may add a comment of at most 65,535 bytes.
  constexpr std::uint64_t kUsual = kEndSize + kLocator64Size + kEnd64Size;
  constexpr std::uint64_t kMost = kUsual + kFull16;
  CKFS_TRY(Tail tail, read_tail(source, file, within, kUsual));
  auto found = find_end(tail.bytes);
  // Before a long comment, the first read may find the end record but not the locator before it.
  if ((!found || *found < kLocator64Size) && within.size() > kUsual) {
    CKFS_TRY(tail, read_tail(source, file, within, kMost));
    found = find_end(tail.bytes);
  }
  if (!found) {
    return fail(ErrorCode::Corrupt, "{}: no end record of a zip archive: the file is incomplete",
                name);
  }
  const std::span end = std::span(tail.bytes).subspan(*found, kEndSize);
  const std::uint64_t end_at = tail.begin + *found;
  Directory directory{u16(end, 10), u32(end, 16), u32(end, 12), end_at};

  if (*found < kLocator64Size || u32(tail.bytes, *found - kLocator64Size) != kLocator64Signature) {
    if (u16(end, 4) != 0 || u16(end, 6) != 0 || u16(end, 8) != u16(end, 10)) {
      return many_disks(name);
    }
    return directory;
  }

  const std::span locator = std::span(tail.bytes).subspan(*found - kLocator64Size, kLocator64Size);
  const std::uint64_t locator_at = end_at - kLocator64Size;
  const std::uint64_t end64_at = u64(locator, 8);
  if (u32(locator, 4) != 0 || u32(locator, 16) > 1) return many_disks(name);
  if (locator_at < kEnd64Size || end64_at > locator_at - kEnd64Size) {
    return fail(ErrorCode::Corrupt, "{}: zip64 end record at {}, beyond its locator at {}", name,
                end64_at, locator_at);
  }
  std::array<std::byte, kEnd64Size> end64{};
  if (end64_at >= tail.begin) {
    std::copy_n(tail.bytes.begin() + static_cast<std::ptrdiff_t>(end64_at - tail.begin), kEnd64Size,
                end64.begin());
  } else {
    CKFS_TRY_VOID(source.read_at(file, within.begin + end64_at, end64));
  }
  if (u32(end64, 0) != kEnd64Signature) {
    return fail(ErrorCode::Corrupt, "{}: no zip64 end record at {}, where its locator points", name,
                end64_at);
  }
  if (u32(end64, 16) != 0 || u32(end64, 20) != 0 || u64(end64, 24) != u64(end64, 32)) {
    return many_disks(name);
  }
  const Directory directory64{u64(end64, 32), u64(end64, 48), u64(end64, 40), end64_at};
  // Readers differ in which record they believe, so an archive in which they differ is two.
  if ((directory.count != kFull16 && directory.count != directory64.count) ||
      (directory.size != kFull32 && directory.size != directory64.size) ||
      (directory.begin != kFull32 && directory.begin != directory64.begin)) {
    return fail(ErrorCode::Corrupt, "{}: end record and zip64 end record contradict each other",
                name);
  }
  return directory64;
}

}  // namespace

Result<ZipArchive> ZipArchive::open(ByteSource& source, FileId file, ByteRange within,
                                    std::uint64_t max_directory) {
  CKFS_CHECK(within.end <= source.size(file));
  const std::string& name = source.name(file);
  CKFS_TRY(const Directory directory, find_directory(source, file, within));
  const auto end = checked_add(directory.begin, directory.size);
  if (!end || *end > directory.limit) {
    return fail(ErrorCode::Corrupt, "{}: zip directory of {} bytes at {} reaches beyond {}", name,
                directory.size, directory.begin, directory.limit);
  }
  if (directory.size > max_directory) {
    return fail(ErrorCode::Unsupported, "{}: zip directory of {} bytes (limit {})", name,
                directory.size, max_directory);
  }
  if (directory.count > directory.size / kEntrySize) {
    return fail(ErrorCode::Corrupt, "{}: {} zip members do not fit into a directory of {} bytes",
                name, directory.count, directory.size);
  }
  ZipArchive archive(source, file, within);
  archive.directory_begin_ = directory.begin;
  archive.directory_size_ = directory.size;
  std::vector<std::byte> bytes(directory.size);
  if (!bytes.empty()) {
    CKFS_TRY_VOID(source.read_at(file, within.begin + directory.begin, bytes));
  }
  CKFS_TRY_VOID(archive.parse_directory(bytes, directory.count));
  CKFS_TRY_VOID(archive.sort_names());
  return archive;
}

Result<void> ZipArchive::parse_directory(std::span<const std::byte> directory,
                                         std::uint64_t count) {
  const std::string& file_name = source_->name(file_);
  entries_.reserve(count);
  names_.reserve(directory.size() - count * kEntrySize);
  std::span<const std::byte> rest = directory;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (rest.size() < kEntrySize || u32(rest, 0) != kEntrySignature) {
      return fail(ErrorCode::Corrupt, "{}: zip directory has no entry {} of {}", file_name, i,
                  count);
    }
    const std::size_t name_size = u16(rest, 28);
    const std::size_t extra_size = u16(rest, 30);
    const std::size_t whole = kEntrySize + name_size + extra_size + u16(rest, 32);
    if (whole > rest.size()) {
      return fail(ErrorCode::Corrupt, "{}: entry {} of the zip directory reaches beyond its end",
                  file_name, i);
    }
    const std::string_view name = text_of(rest.subspan(kEntrySize, name_size));
    const std::uint16_t method = u16(rest, 10);
    std::uint64_t packed = u32(rest, 20);
    std::uint64_t size = u32(rest, 24);
    std::uint64_t header = u32(rest, 42);

    // The zip64 field has only those of the three that are saturated, in this order.
    if (size == kFull32 || packed == kFull32 || header == kFull32) {
      std::span<const std::byte> extra = rest.subspan(kEntrySize + name_size, extra_size);
      while (extra.size() >= 4 && u16(extra, 0) != 1) {
        extra = extra.subspan(std::min<std::size_t>(extra.size(), 4u + u16(extra, 2)));
      }
      std::span<const std::byte> fields;
      if (extra.size() >= 4) {
        fields = extra.subspan(4, std::min<std::size_t>(extra.size() - 4, u16(extra, 2)));
      }
      for (std::uint64_t* field : {&size, &packed, &header}) {
        if (*field != kFull32) continue;
        if (fields.size() < 8) {
          return fail(ErrorCode::Corrupt, "{}: zip member {}: its zip64 field is too short",
                      file_name, quote(name));
        }
        *field = u64(fields, 0);
        fields = fields.subspan(8);
      }
    }
    if (u16(rest, 34) != 0) return many_disks(file_name);
    if (method == 0 && packed != size) {
      return fail(ErrorCode::Corrupt, "{}: zip member {}: stored, but {} bytes became {}",
                  file_name, quote(name), size, packed);
    }
    const auto begin = checked_add<std::uint64_t>(header, kLocalSize + name_size);
    const auto end = begin ? checked_add(*begin, packed) : std::nullopt;
    if (!end || *end > directory_begin_) {
      return fail(ErrorCode::Corrupt,
                  "{}: zip member {}: {} bytes at {} reach into the directory at {}", file_name,
                  quote(name), packed, header, directory_begin_);
    }
    entries_.push_back({.size = size,
                        .header = header,
                        .name = static_cast<std::uint32_t>(names_.size()),
                        .name_size = static_cast<std::uint16_t>(name_size),
                        .method = static_cast<std::uint8_t>(std::min<unsigned>(method, kOther)),
                        .encrypted = (u16(rest, 8) & 1) != 0});
    names_ += name;
    rest = rest.subspan(whole);
  }
  if (!rest.empty()) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes after the last entry of the zip directory",
                file_name, rest.size());
  }
  names_.shrink_to_fit();
  return {};
}

Result<void> ZipArchive::sort_names() {
  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::uint32_t{0});
  const auto name_at = [&](std::uint32_t i) { return name_of(entries_[i]); };
  std::sort(by_name_.begin(), by_name_.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name_at(a) < name_at(b); });
  const auto twice = std::adjacent_find(
      by_name_.begin(), by_name_.end(),
      [&](std::uint32_t a, std::uint32_t b) { return name_at(a) == name_at(b); });
  if (twice == by_name_.end()) return {};
  return fail(ErrorCode::Corrupt, "{}: zip member {} twice", source_->name(file_),
              quote(name_at(*twice)));
}

std::string_view ZipArchive::name_of(const Entry& entry) const {
  return std::string_view(names_).substr(entry.name, entry.name_size);
}

ZipMember ZipArchive::operator[](std::size_t index) const {
  const Entry& entry = entries_[index];
  return {name_of(entry), entry.size, within_.begin + entry.header, entry.method, entry.encrypted};
}

std::optional<ZipMember> ZipArchive::find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](std::uint32_t i, std::string_view x) { return name_of(entries_[i]) < x; });
  if (found == by_name_.end() || name_of(entries_[*found]) != name) return std::nullopt;
  return (*this)[*found];
}

Result<void> ZipArchive::check_stored(const ZipMember& member) const {
  if (member.method == 0 && !member.encrypted) return {};
  return fail(ErrorCode::Unsupported, "{}: zip member {} is {}; torch stores members as they are",
              source_->name(file_), quote(member.name),
              member.encrypted ? "encrypted" : "compressed");
}

Result<ByteRange> ZipArchive::check_local(const ZipMember& member,
                                          std::span<const std::byte> header) const {
  const bool same = u32(header, 0) == kLocalSignature && u16(header, 8) == 0 &&
                    (u16(header, 6) & 1) == 0 && u16(header, 26) == member.name.size() &&
                    text_of(header.subspan(kLocalSize, member.name.size())) == member.name;
  if (!same) {
    return fail(ErrorCode::Corrupt, "{}: zip member {}: its local header at {} does not match it",
                source_->name(file_), quote(member.name), member.header);
  }
  // Neither sum can overflow: the directory lies behind the header, in the file.
  const std::uint64_t begin = member.header + kLocalSize + member.name.size() + u16(header, 28);
  const std::uint64_t limit = within_.begin + directory_begin_;
  if (begin > limit || member.size > limit - begin) {
    return fail(ErrorCode::Corrupt, "{}: zip member {}: {} bytes at {} reach into the directory",
                source_->name(file_), quote(member.name), member.size, begin);
  }
  return ByteRange{begin, begin + member.size};
}

Result<ByteRange> ZipArchive::data(const ZipMember& member) const {
  CKFS_TRY(const std::vector<ByteRange> ranges, data(std::vector{member}));
  return ranges.front();
}

Result<std::vector<ByteRange>> ZipArchive::data(const std::vector<ZipMember>& members) const {
  std::vector<ByteRange> ranges;
  ranges.reserve(members.size());
  std::vector<std::byte> headers;
  std::vector<ReadRequest> batch;
  for (std::size_t first = 0; first < members.size(); first += kHeadersAtOnce) {
    const std::span some =
        std::span(members).subspan(first, std::min(kHeadersAtOnce, members.size() - first));
    std::size_t bytes = 0;
    for (const ZipMember& member : some) {
      CKFS_TRY_VOID(check_stored(member));
      bytes += kLocalSize + member.name.size();
    }
    headers.resize(bytes);
    batch.clear();
    std::span<std::byte> room = headers;
    for (const ZipMember& member : some) {
      const std::size_t size = kLocalSize + member.name.size();
      batch.push_back({file_, member.header, room.first(size)});
      room = room.subspan(size);
    }
    CKFS_TRY_VOID(source_->read(batch));
    for (std::size_t i = 0; i < some.size(); ++i) {
      CKFS_TRY(const ByteRange range, check_local(some[i], batch[i].out));
      ranges.push_back(range);
    }
  }
  return ranges;
}

Result<std::vector<std::byte>> ZipArchive::read(const ZipMember& member,
                                                std::uint64_t limit) const {
  CKFS_TRY(const ByteRange range, data(member));
  if (range.size() > limit) {
    return fail(ErrorCode::Unsupported, "{}: zip member {} has {} bytes (limit {})",
                source_->name(file_), quote(member.name), range.size(), limit);
  }
  std::vector<std::byte> bytes(range.size());
  if (!bytes.empty()) CKFS_TRY_VOID(source_->read_at(file_, range.begin, bytes));
  return bytes;
}

}  // namespace ckfs
