// Not chosen: one sparse file for each object, with a map beside it, and holes punched to make
// room. It needs fewer files, but a hole may be punched under a reader, so each must look at the
// map again after it has read; and a block's last use has no place. A file that is unlinked stays
// as it was for readers that have it open, and its time says when it was used last.
//
// Blocks hold cells because reads at random must not fetch a whole block for a tensor of 4 KiB, and
// because ranges that overlap must share what they have in common.
#include "cache/block_cache.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/load_le.h"
#include "format/crc32c.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kTextMagic = 0x3154585453464B43;  // "CKFSTXT1"
constexpr std::uint64_t kLongestCachedText = std::uint64_t{256} << 20;

std::string block_text(const CacheObject& object) {
  return fmt::format("{}:{}{}", object.name.size(), object.name, object.version);
}

void add_missing(std::vector<ByteRange>& missing, ByteRange range) {
  if (range.empty()) return;
  if (!missing.empty() && missing.back().end == range.begin) {
    missing.back().end = range.end;
  } else {
    missing.push_back(range);
  }
}

/// What a text of that key is kept behind: magic, CRC-32C and size of the text, size of the key.
struct TextHead {
  std::uint64_t magic = kTextMagic;
  std::uint64_t sum = 0;
  std::uint64_t text_size = 0;
  std::uint64_t key_size = 0;

  bool operator==(const TextHead&) const = default;
};

std::string key_name(std::string_view key) {
  return cache_name_of(stable_hash(key));
}

}  // namespace

Result<std::filesystem::path> default_cache_directory() {
  const auto from = [](const char* variable) -> std::filesystem::path {
    const char* const value = std::getenv(variable);
    return value == nullptr ? "" : value;
  };
  // Relative ones are to be ignored, says the XDG Base Directory Specification.
  if (const auto caches = from("XDG_CACHE_HOME"); caches.is_absolute()) return caches / "ckfs";
  if (const auto home = from("HOME"); home.is_absolute()) return home / ".cache/ckfs";
  return fail(ErrorCode::NotFound,
              "cache: neither XDG_CACHE_HOME nor HOME is set (name a directory with --cache-dir)");
}

Result<std::unique_ptr<BlockCache>> BlockCache::open(const std::filesystem::path& directory,
                                                     CacheOptions options) {
  CKFS_TRY(auto opened, CacheDirectory::open(directory, std::move(options)));
  return std::unique_ptr<BlockCache>(new BlockCache(std::move(opened)));
}

ByteRange BlockCache::widened(ByteRange range, std::uint64_t object_size) {
  const std::uint64_t begin = range.begin / kCacheCell * kCacheCell;
  const std::uint64_t above = (kCacheCell - range.end % kCacheCell) % kCacheCell;
  return {begin, above < object_size - range.end ? range.end + above : object_size};
}

// ---- Reading

void BlockCache::get_of_block(const Source& source, const BlockName& name, ByteRange wanted,
                              std::span<std::byte> out, std::vector<ByteRange>& missing) {
  const std::uint64_t base = name.range().begin;
  const auto add = [&](ByteRange of_block) {
    const ByteRange range = of_block.intersect(wanted);
    if (!range.empty()) add_missing(missing, {base + range.begin, base + range.end});
  };
  BlockFile file(BlockFile::open(source, name), name);
  if (file.state() != BlockFile::State::Valid) return add(wanted);
  std::vector<std::byte> whole_cell;  // of a cell that is not wanted as a whole
  bool is_used = false;
  for (std::size_t cell = wanted.begin / kCacheCell; cell * kCacheCell < wanted.end; ++cell) {
    const ByteRange range = name.cell(cell);
    if (!file.has(cell)) {
      add(range);
      continue;
    }
    const ByteRange part = range.intersect(wanted);
    const std::span<std::byte> place = out.subspan(part.begin - wanted.begin, part.size());
    std::span<std::byte> bytes = place;
    if (part != range) {
      whole_cell.resize(range.size());
      bytes = whole_cell;
    }
    if (!file.read(range, bytes) || !file.is_right(cell, bytes)) {
      file.forget(*directory_, cell);
      add(range);
      continue;
    }
    if (part != range) {
      std::memcpy(place.data(), bytes.data() + (part.begin - range.begin), place.size());
    }
    is_used = true;
  }
  if (is_used) file.touch(*directory_);
}

std::vector<ByteRange> BlockCache::get(const Source& source, const CacheObject& object,
                                       std::uint64_t offset, std::span<std::byte> out) {
  CKFS_CHECK(out.size() <= object.size && offset <= object.size - out.size());
  std::vector<ByteRange> missing;
  BlockName name{.text = block_text(object), .size = object.size};
  const ByteRange all{offset, offset + out.size()};
  if (name.text.size() > kLongestBlockText) {
    add_missing(missing, all);
    return missing;
  }
  for (std::uint64_t at = all.begin; at < all.end;) {
    name.number = at / kCacheBlock;
    const ByteRange part = name.range().intersect(all);
    const std::uint64_t base = name.range().begin;
    get_of_block(source, name, {part.begin - base, part.end - base},
                 out.subspan(part.begin - offset, part.size()), missing);
    at = part.end;
  }
  std::uint64_t missed = 0;
  for (const ByteRange range : missing) missed += range.size();
  missed_.fetch_add(missed, std::memory_order_relaxed);
  found_.fetch_add(out.size() - missed, std::memory_order_relaxed);
  return missing;
}

// ---- Writing

std::uint64_t BlockCache::put_in_block(const Source& source, const BlockName& name,
                                       std::size_t first_cell, std::size_t cells,
                                       std::span<const std::byte> bytes) {
  const ByteRange given{name.cell(first_cell).begin, name.cell(first_cell + cells - 1).end};
  const auto needed = [&](const BlockFile& file) {
    std::vector<std::size_t> absent;
    for (std::size_t cell = first_cell; cell < first_cell + cells; ++cell) {
      if (file.state() != BlockFile::State::Valid || !file.has(cell)) absent.push_back(cell);
    }
    return absent;
  };
  std::optional<BlockFile> file(std::in_place, BlockFile::open(source, name), name);
  if (file->state() == BlockFile::State::Other) return 0;
  std::vector<std::size_t> absent = needed(*file);
  if (absent.empty()) return given.size();
  std::uint64_t written = 0;
  const auto write_all_absent = [&] {
    for (const std::size_t cell : absent) {
      const ByteRange range = name.cell(cell);
      if (file->write(*directory_, cell, bytes.subspan(range.begin - given.begin, range.size())) !=
          0) {
        return;
      }
    }
    written = given.size();
  };
  bool is_reserved = false;
  (void)directory_->locked([&] {
    std::uint64_t counted = 0;
    const auto give_up = [&] { directory_->give_back(counted); };
    // Which cells are absent may be another answer now: another process may have written them, and
    // to make room the file itself may be removed.
    while (true) {
      file.emplace(BlockFile::open(source, name), name);
      absent = needed(*file);
      // A page for the head, and one for what the file system needs.
      const std::uint64_t needs = absent.size() * kCacheCell + 2 * kCellsBegin;
      if (absent.empty() || file->state() == BlockFile::State::Other) {
        if (absent.empty()) written = given.size();
        return give_up();
      }
      if (needs <= counted) break;
      if (!directory_->make_room(needs - counted)) return give_up();
      counted = needs;
    }
    bool is_new = false;
    if (file->state() == BlockFile::State::Broken) {
      // Under another inode, so that one that still writes to the broken one cannot harm.
      if (directory_->next_fault() == 0) {
        (void)::unlinkat(source.directory.get(), name.file_name().c_str(), 0);
      }
      file.emplace(BlockFile::create(*directory_, source, name));
      is_new = true;
    }
    if (file->state() != BlockFile::State::Valid) return give_up();
    int error = 0;
    for (auto cell = absent.begin(); cell != absent.end() && error == 0;) {
      const auto first = *cell;
      auto last = first;
      while (++cell != absent.end() && *cell == last + 1) ++last;
      error = file->reserve(*directory_, {name.cell(first).begin, name.cell(last).end});
    }
    if (error == 0) {
      is_reserved = true;
      return;
    }
    if (error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
      // A file system that cannot: another process counts right only what is written by then.
      write_all_absent();
      return;
    }
    for (const std::size_t cell : absent) {
      if (!file->has(cell)) file->release(*directory_, name.cell(cell));
    }
    if (is_new && directory_->next_fault() == 0) {
      (void)::unlinkat(source.directory.get(), name.file_name().c_str(), 0);
    }
    give_up();
  });
  if (is_reserved) write_all_absent();
  return written;
}

void BlockCache::put(const Source& source, const CacheObject& object, std::uint64_t offset,
                     std::span<const std::byte> bytes) {
  CKFS_CHECK(bytes.size() <= object.size && offset <= object.size - bytes.size());
  BlockName name{.text = block_text(object), .size = object.size};
  const ByteRange all{offset, offset + bytes.size()};
  if (name.text.size() > kLongestBlockText) return;
  for (std::uint64_t at = all.begin; at < all.end;) {
    name.number = at / kCacheBlock;
    const ByteRange block = name.range();
    const ByteRange part = block.intersect(all);
    at = part.end;
    // The cells that lie in it as a whole; the last of an object may be short.
    const std::size_t first = (part.begin - block.begin + kCacheCell - 1) / kCacheCell;
    const std::size_t end =
        part.end == object.size ? name.cells() : (part.end - block.begin) / kCacheCell;
    if (first >= end) continue;
    const ByteRange kept{block.begin + name.cell(first).begin,
                         block.begin + name.cell(end - 1).end};
    const std::uint64_t written = put_in_block(source, name, first, end - first,
                                               bytes.subspan(kept.begin - offset, kept.size()));
    kept_.fetch_add(written, std::memory_order_relaxed);
    refused_.fetch_add(kept.size() - written, std::memory_order_relaxed);
  }
}

// ---- Texts

std::optional<std::string> BlockCache::get_text(const Source& source, std::string_view key) {
  const std::string name = "text-" + key_name(key);
  const UniqueFd file(
      ::openat(source.directory.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status{};
  if (!file || ::fstat(file.get(), &status) != 0) return std::nullopt;
  TextHead head;
  if (!read_cached(file.get(), 0, std::as_writable_bytes(std::span(&head, 1))) ||
      head.magic != kTextMagic || head.key_size != key.size() ||
      head.text_size > kLongestCachedText ||
      static_cast<std::uint64_t>(status.st_size) != sizeof head + key.size() + head.text_size) {
    return std::nullopt;
  }
  std::string bytes(key.size() + head.text_size, '\0');
  if (!read_cached(file.get(), sizeof head, std::as_writable_bytes(std::span(bytes))) ||
      crc32c(bytes) != head.sum || !bytes.starts_with(key)) {
    return std::nullopt;
  }
  // Its time says when it was used; the bytes stay as they are.
  (void)write_cached(*directory_, file.get(), 0, std::as_bytes(std::span(&head.magic, 1)));
  return bytes.substr(key.size());
}

void BlockCache::put_text(const Source& source, std::string_view key, std::string_view text) {
  if (text.size() > kLongestCachedText) return;
  const std::string bytes = std::string(key) + std::string(text);
  const TextHead head{.sum = crc32c(bytes), .text_size = text.size(), .key_size = key.size()};
  const std::string name = "text-" + key_name(key);
  const std::string fresh = "new-" + key_name(key);
  (void)directory_->locked([&] {
    const std::uint64_t bytes_of_disk = sizeof head + bytes.size() + 2 * kCellsBegin;
    if (!directory_->make_room(bytes_of_disk)) return;
    const auto write = [&] {
      if (directory_->next_fault() != 0) return false;
      (void)::unlinkat(source.directory.get(), fresh.c_str(), 0);
      const UniqueFd file(::openat(source.directory.get(), fresh.c_str(),
                                   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
      return file &&
             write_cached(*directory_, file.get(), 0, std::as_bytes(std::span(&head, 1))) == 0 &&
             write_cached(*directory_, file.get(), sizeof head, std::as_bytes(std::span(bytes))) ==
                 0 &&
             directory_->next_fault() == 0 &&
             ::renameat(source.directory.get(), fresh.c_str(), source.directory.get(),
                        name.c_str()) == 0;
    };
    if (write()) return;
    if (directory_->next_fault() == 0) ::unlinkat(source.directory.get(), fresh.c_str(), 0);
    directory_->give_back(bytes_of_disk);
  });
}

CacheStatistics BlockCache::statistics() const {
  return {.found = found_.load(std::memory_order_relaxed),
          .missed = missed_.load(std::memory_order_relaxed),
          .kept = kept_.load(std::memory_order_relaxed),
          .refused = refused_.load(std::memory_order_relaxed),
          .evicted = directory_->evicted()};
}

}  // namespace ckfs
