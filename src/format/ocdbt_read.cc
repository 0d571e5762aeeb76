// Structs are stored as columns, so entry i is put together from as many places as it has members.
// One pass finds where each column begins; afterwards entries are read with a cursor in each. So a
// node costs its own bytes, however many entries it has and however long their keys are.
#include "format/ocdbt_read.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <utility>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/text.h"
#include "format/crc32c.h"

namespace ckfs::ocdbt {
namespace {

constexpr std::size_t kFirst = 14;  // of a raw body: magic, length, version, compression
constexpr std::size_t kChecksum = 4;
constexpr std::uint64_t kMaxEntries = std::uint64_t{1} << 20;
constexpr std::uint64_t kMaxFiles = kMaxEntries;  // no entry is in two
// Data files of a table, and one more for each stored byte: a path has 16 bytes that are random.
constexpr std::uint64_t kFilesBase = std::uint64_t{1} << 16;
// Decoded bytes of a manifest, and more for each stored byte.
constexpr std::uint64_t kManifestBase = std::uint64_t{8} << 20;
constexpr std::uint64_t kManifestFactor = 64;
constexpr std::uint64_t kMaxInline = std::uint64_t{1} << 20;
// Bytes of a table's paths: they share most, but not so many more than there are to share.
constexpr std::uint64_t kMaxFileNames = std::uint64_t{16} << 20;
constexpr std::uint64_t kFileNamesBase = std::uint64_t{1} << 20;
constexpr std::uint64_t kFileNamesFactor = 16;  // for each byte of manifest or node
constexpr std::uint64_t kMaxEnd = (std::uint64_t{1} << 63) - 1;
constexpr std::uint64_t kNowhere = ~std::uint64_t{0};

/// Reads a body from start to end. After a failure its results are not valid.
class Cursor {
 public:
  Cursor(std::string_view text, std::size_t at) : text_(text), at_(at) {}

  std::size_t at() const { return at_; }
  std::size_t size() const { return text_.size(); }
  std::size_t left() const { return text_.size() - at_; }
  bool failed() const { return failed_; }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).empty() ? 0 : text_[at_ - 1]);
      if (failed_) return 0;
      if (shift == 63 && byte > 1) break;
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    failed_ = true;
    return 0;
  }

  std::uint8_t u8() {
    const std::string_view byte = take(1);
    return byte.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(byte.front());
  }

  std::string_view take(std::uint64_t count) {
    if (failed_ || count > left()) {
      failed_ = true;
      return {};
    }
    const std::string_view part = text_.substr(at_, count);
    at_ += count;
    return part;
  }

  /// Skips a column, and gives its start.
  std::size_t skip_column(std::uint64_t count) {
    const std::size_t begin = at_;
    for (std::uint64_t i = 0; i < count && !failed_; ++i) varint();
    return begin;
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

Failure cut_short(std::string_view name, std::string_view what) {
  return fail(ErrorCode::Corrupt, "{}: cut short in {}", name, what);
}

struct Body {
  std::string bytes;                 // in which the body lies
  std::size_t begin = 0;             // from here to the end
  std::optional<std::uint64_t> raw;  // where it begins in the stored bytes, if raw
};

/// Frames may leave out their size, or lie about it: so the text grows with the output.
Result<std::string> decompress(std::string_view frame, std::uint64_t most, std::string_view name) {
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          &ZSTD_freeDStream);
  if (!stream) return fail(ErrorCode::OutOfMemory, "{}: no memory for a zstd decoder", name);
  ZSTD_initDStream(stream.get());
  // The window is no larger than the frame's limit.
  ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, 27);
  std::string out;
  ZSTD_inBuffer in{frame.data(), frame.size(), 0};
  for (std::size_t hint = 1; hint != 0;) {
    const std::size_t step = std::clamp<std::size_t>(out.size(), 1U << 14, 1U << 22);
    const std::size_t before = out.size();
    out.resize(before + step);
    ZSTD_outBuffer to{out.data() + before, step, 0};
    hint = ZSTD_decompressStream(stream.get(), &to, &in);
    if (ZSTD_getErrorCode(hint) == ZSTD_error_memory_allocation) {
      return fail(ErrorCode::OutOfMemory, "{}: no memory for a zstd window", name);
    }
    if (ZSTD_isError(hint) != 0) {
      return fail(ErrorCode::Corrupt, "{}: zstd: {}", name, ZSTD_getErrorName(hint));
    }
    out.resize(before + to.pos);
    if (out.size() > most) {
      return fail(ErrorCode::Corrupt, "{}: {} bytes become more than {}", name, frame.size(), most);
    }
    if (hint != 0 && to.pos == 0 && in.pos == in.size) {
      return fail(ErrorCode::Corrupt, "{}: its zstd frame is cut short", name);
    }
  }
  if (in.pos != in.size) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes behind its zstd frame", name, in.size - in.pos);
  }
  out.shrink_to_fit();  // it may be kept, and is then counted by its size
  return out;
}

/// Checks the envelope of a body, and takes the body out.
Result<Body> open_envelope(std::string stored, std::uint32_t magic, std::uint64_t most_decoded,
                           std::string_view name) {
  if (stored.size() < kFirst + kChecksum - 2) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes, fewer than any has (16)", name, stored.size());
  }
  const auto bytes = std::as_bytes(std::span(stored));
  std::uint32_t found = 0;
  for (int i = 0; i < 4; ++i)
    found = found << 8 | std::to_integer<std::uint32_t>(bytes[static_cast<std::size_t>(i)]);
  if (found != magic) {
    return fail(ErrorCode::Corrupt, "{}: begins with {:08x}, not with {:08x}", name, found, magic);
  }
  const auto length = load_le<std::uint64_t>(bytes.subspan(4));
  if (length != stored.size()) {
    return fail(ErrorCode::Corrupt, "{}: records a length of {}, and has {} bytes", name, length,
                stored.size());
  }
  const std::size_t end = stored.size() - kChecksum;
  const auto checksum = load_le<std::uint32_t>(bytes.subspan(end));
  if (const std::uint32_t real = crc32c(std::string_view(stored).substr(0, end));
      real != checksum) {
    return fail(ErrorCode::Corrupt, "{}: its CRC-32C is {:08x}, recorded is {:08x}", name, real,
                checksum);
  }
  Cursor head(std::string_view(stored).substr(0, end), 12);
  const std::uint64_t version = head.varint();
  const std::uint64_t compression = head.varint();
  if (head.failed()) return cut_short(name, "its format version");
  if (version != 0) {
    return fail(ErrorCode::Unsupported, "{}: format version {} (known: 0)", name, version);
  }
  if (compression > 1) {
    return fail(ErrorCode::Unsupported, "{}: compression method {} (known: 0, 1)", name,
                compression);
  }
  const std::size_t begin = head.at();
  if (compression == 0) {
    stored.resize(end);
    return Body{std::move(stored), begin, begin};
  }
  CKFS_TRY(std::string decoded,
           decompress(std::string_view(stored).substr(begin, end - begin), most_decoded, name));
  return Body{std::move(decoded), 0, std::nullopt};
}

/// Why `path` leads out of the database, or to nothing; empty: it does not.
std::string_view fault_of(std::string_view path) {
  if (path.find('\0') != std::string_view::npos) return "has a NUL";
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (part.empty()) return "has an empty part";
    if (part == "." || part == "..") return "is not a plain path";
    begin = end + 1;
  }
  return {};
}

/// `base_path`: of the file that the table is in. `stored`: bytes of manifest or node there.
Result<std::vector<DataFile>> read_files(Cursor& in, std::string_view base_path,
                                         std::uint64_t stored, std::string_view name) {
  constexpr std::string_view kWhat = "its table of data files";
  const std::uint64_t count = in.varint();
  // Each file has a byte in two columns at least.
  if (in.failed() || count > in.left() / 2) return cut_short(name, kWhat);
  // Paths may be empty, and then a file takes fifty times its bytes.
  if (const std::uint64_t most_files = std::min(kMaxFiles, kFilesBase + stored);
      count > most_files) {
    return fail(ErrorCode::Corrupt, "{}: {} data files (limit {})", name, count, most_files);
  }
  std::vector<std::uint64_t> shared(count, 0), rest(count), base(count);
  for (std::size_t i = 1; i < count; ++i) shared[i] = in.varint();
  for (std::uint64_t& size : rest) size = in.varint();
  for (std::uint64_t& size : base) size = in.varint();
  if (in.failed()) return cut_short(name, kWhat);
  const std::uint64_t most = std::min(kMaxFileNames, kFileNamesBase + kFileNamesFactor * in.size());
  std::vector<DataFile> files(count);
  std::string own;  // the path without what goes before it
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (shared[i] > own.size()) {
      return fail(ErrorCode::Corrupt, "{}: data file {}: shares {} bytes with a path of {}", name,
                  i, shared[i], own.size());
    }
    own.resize(shared[i]);
    own += in.take(rest[i]);
    if (in.failed()) return cut_short(name, kWhat);
    if (base[i] > own.size()) {
      return fail(ErrorCode::Corrupt, "{}: data file {}: a base of {} bytes in a path of {}", name,
                  i, base[i], own.size());
    }
    total += base_path.size() + own.size();
    if (base_path.size() + own.size() > kMaxName || total > most) {
      return fail(ErrorCode::Corrupt,
                  "{}: data file {}: paths of {} bytes, {} with those before it (limits {}, {})",
                  name, i, base_path.size() + own.size(), total, kMaxName, most);
    }
    files[i] = {std::string(base_path) + own, base_path.size() + static_cast<std::size_t>(base[i])};
    // A value of no bytes lies in no file.
    if (files[i].path.empty()) continue;
    if (const std::string_view fault = fault_of(files[i].path); !fault.empty()) {
      return fail(ErrorCode::Corrupt, "{}: data file {} {}", name, quote(files[i].path), fault);
    }
  }
  return files;
}

/// Why something cannot be at that place of `files`; empty: it can.
std::string fault_of_place(std::uint64_t file, std::uint64_t offset, std::uint64_t size,
                           std::size_t files) {
  if (file >= files) return fmt::format("in data file {} of {}", file, files);
  const auto end = checked_add(offset, size);
  if (end && *end <= kMaxEnd) return {};
  return fmt::format("{} bytes from {} on exceed 2^63 - 1", size, offset);
}

/// What a manifest says of its writer, checked as far as it must be right.
struct Config {
  bool numbered = false;
  std::uint8_t arity = 4;  // of the version tree, log 2
};

Result<Config> read_config(Cursor& in, std::string_view name) {
  in.take(16);  // a random number
  const std::uint8_t kind = in.u8();
  in.varint();  // largest inline value
  in.varint();  // largest decoded node
  const std::uint8_t arity = in.u8();
  const std::uint64_t compression = in.varint();
  if (compression == 1) in.take(4);  // its level
  if (in.failed()) return cut_short(name, "its configuration");
  if (kind > 1) {
    return fail(ErrorCode::Unsupported, "{}: manifest kind {} (known: 0, 1)", name, kind);
  }
  if (arity < 1 || arity > 16) {
    return fail(ErrorCode::Corrupt, "{}: a version tree of arity 2^{} (limits 1, 16)", name, arity);
  }
  if (compression > 1) {
    return fail(ErrorCode::Unsupported, "{}: compression method {} (known: 0, 1)", name,
                compression);
  }
  return Config{kind == 1, arity};
}

/// The versions that the manifest itself has; keeps the last.
Result<void> read_versions(Cursor& in, const Config& config, Manifest& manifest,
                           std::string_view name) {
  constexpr std::string_view kWhat = "its versions";
  const std::uint64_t count = in.varint();
  if (in.failed() || count > in.left()) return cut_short(name, kWhat);
  if (count == 0 || count > std::uint64_t{1} << config.arity) {
    return fail(ErrorCode::Corrupt, "{}: {} versions (limits 1, {})", name, count,
                std::uint64_t{1} << config.arity);
  }
  std::uint64_t before = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t generation = in.varint();
    if (!in.failed() && generation <= before) {
      return fail(ErrorCode::Corrupt, "{}: version {}: generation {} after {}", name, i, generation,
                  before);
    }
    before = generation;
  }
  const auto last = [&] {
    in.skip_column(count - 1);
    return in.varint();
  };
  in.take(count - 1);
  manifest.height = in.u8();
  const std::uint64_t file = last();
  const std::uint64_t offset = last();
  const std::uint64_t size = last();
  for (int column = 0; column < 3; ++column) in.skip_column(count);  // totals
  in.take(8 * count);                                                // when they were written
  if (in.failed()) return cut_short(name, kWhat);
  if (offset == kNowhere && size == kNowhere) return {};
  if (const std::string fault = fault_of_place(file, offset, size, manifest.files.size());
      !fault.empty()) {
    return fail(ErrorCode::Corrupt, "{}: the root: {}", name, fault);
  }
  manifest.root = DataLocation{static_cast<std::uint32_t>(file), offset, size};
  return {};
}

/// The nodes of older versions.
Result<void> skip_version_nodes(Cursor& in, std::string_view name) {
  const std::uint64_t count = in.varint();
  if (in.failed() || count > in.left()) return cut_short(name, "its table of older versions");
  // generation, file, offset, size, generations; then a time of 8 bytes and a height.
  for (int column = 0; column < 5; ++column) in.skip_column(count);
  in.take(9 * count);
  if (in.failed()) return cut_short(name, "its table of older versions");
  return {};
}

}  // namespace

Result<Manifest> parse_manifest(std::string_view bytes, std::string_view name) {
  const std::uint64_t most = std::min(kMaxNode, kManifestBase + kManifestFactor * bytes.size());
  CKFS_TRY(const Body body, open_envelope(std::string(bytes), kManifestMagic, most, name));
  Cursor in(body.bytes, body.begin);
  CKFS_TRY(const Config config, read_config(in, name));
  Manifest manifest;
  manifest.numbered = config.numbered && in.left() == 0;
  if (!manifest.numbered) {
    CKFS_TRY(manifest.files, read_files(in, "", bytes.size(), name));
    CKFS_TRY_VOID(read_versions(in, config, manifest, name));
    CKFS_TRY_VOID(skip_version_nodes(in, name));
  }
  if (in.left() > 0) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes behind its last table", name, in.left());
  }
  return manifest;
}

std::optional<std::uint64_t> numbered_manifest(std::string_view file_name) {
  constexpr std::string_view kBefore = "manifest.";
  if (!file_name.starts_with(kBefore) || file_name.size() != kBefore.size() + 16) {
    return std::nullopt;
  }
  const std::string_view digits = file_name.substr(kBefore.size());
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number, 16);
  return number;
}

Result<Node> Node::parse(std::string bytes, const NodeContext& context, std::string_view name) {
  const std::uint64_t stored = bytes.size();
  CKFS_TRY(Body body, open_envelope(std::move(bytes), kNodeMagic, context.most_decoded, name));
  Node node;
  node.bytes_ = std::move(body.bytes);
  node.raw_ = body.raw;
  Cursor in(node.bytes_, body.begin);
  node.height_ = in.u8();
  if (in.failed()) return cut_short(name, "its height");
  if (node.height_ != context.height) {
    return fail(ErrorCode::Corrupt, "{}: of height {}, expected at height {}", name, node.height_,
                context.height);
  }
  node.at_.prefixes = in.at();
  CKFS_TRY_VOID(node.read(context.base_path, stored, name));
  CKFS_TRY_VOID(node.check(context.least, name));
  return node;
}

std::uint64_t Node::held() const {
  std::uint64_t bytes = bytes_.size() + files_.size() * sizeof(DataFile);
  for (const DataFile& file : files_) bytes += file.path.size();
  return bytes;
}

Result<void> Node::read(std::string_view base_path, std::uint64_t stored, std::string_view name) {
  Cursor in(bytes_, at_.prefixes);
  CKFS_TRY(files_, read_files(in, base_path, stored, name));
  const std::uint64_t count = in.varint();
  if (in.failed()) return cut_short(name, "its number of entries");
  if (count == 0 || count > kMaxEntries) {
    return fail(ErrorCode::Corrupt, "{}: {} entries (limits 1, {})", name, count, kMaxEntries);
  }
  entries_ = count;
  at_.prefixes = in.skip_column(count - 1);
  at_.suffixes = in.at();
  std::uint64_t key_bytes = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t size = in.varint();
    if (!in.failed() && size > kMaxName) {
      return fail(ErrorCode::Corrupt, "{}: key {} of more than {} bytes", name, i, kMaxName);
    }
    key_bytes += size;
  }
  if (height_ > 0) at_.stripped = in.skip_column(count);
  at_.keys = in.at();
  in.take(key_bytes);
  if (in.failed()) return cut_short(name, "its keys");
  if (height_ > 0) {
    at_.file_ids = in.skip_column(count);
    at_.offsets = in.skip_column(count);
    at_.child_sizes = in.skip_column(count);
    for (int column = 0; column < 3; ++column) in.skip_column(count);  // totals
    if (in.failed()) return cut_short(name, "its table of children");
  } else {
    at_.sizes = in.skip_column(count);
    at_.kinds = in.at();
    const std::string_view kinds = in.take(count);
    if (in.failed()) return cut_short(name, "its table of values");
    std::uint64_t in_node = 0;
    std::uint64_t outside = 0;
    Cursor sizes(bytes_, at_.sizes);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t size = sizes.varint();
      const char kind = kinds[i];
      if (kind != 0 && kind != 1) {
        return fail(ErrorCode::Corrupt, "{}: value {} of kind {} (known: 0, 1)", name, i,
                    static_cast<int>(static_cast<unsigned char>(kind)));
      }
      if (kind == 0 && size > kMaxInline) {
        return fail(ErrorCode::Corrupt, "{}: value {}: {} bytes in the node (limit {})", name, i,
                    size, kMaxInline);
      }
      outside += kind == 1 ? 1 : 0;
      in_node += kind == 0 ? size : 0;
    }
    at_.file_ids = in.skip_column(outside);
    at_.offsets = in.skip_column(outside);
    at_.values = in.at();
    in.take(in_node);
    if (in.failed()) return cut_short(name, "its values");
  }
  if (in.left() > 0) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes behind its last entry", name, in.left());
  }
  return {};
}

namespace {

/// Keys one after another, each made of the one before, and of no more bytes than differ: keys may
/// be long, and share nearly all.
class Keys {
 public:
  /// `prefix`: before each.
  Keys(std::string_view bytes, std::size_t prefixes, std::size_t suffixes, std::size_t keys,
       std::string_view prefix = {})
      : prefixes_(bytes, prefixes),
        suffixes_(bytes, suffixes),
        text_(bytes, keys),
        prefix_(prefix.size()),
        key_(prefix) {}

  /// The next; nullopt: it shares more with the one before than there is, or is too long.
  std::optional<std::string_view> next() {
    const bool is_first = std::exchange(first_, false);
    const std::uint64_t shared = is_first ? 0 : prefixes_.varint();
    const std::uint64_t rest = suffixes_.varint();
    if (shared > key_.size() - prefix_ || shared + rest > kMaxName) return std::nullopt;
    const std::string_view more = text_.take(rest);
    const std::size_t kept = prefix_ + shared;
    if (!is_first && more <= std::string_view(key_).substr(kept)) not_before_ = key_;
    key_.resize(kept);
    key_ += more;
    return key_;
  }

  /// A key that is not less than the last, though it came before it.
  const std::optional<std::string>& not_before() const { return not_before_; }

 private:
  Cursor prefixes_, suffixes_, text_;
  bool first_ = true;
  std::size_t prefix_;
  std::string key_;
  std::optional<std::string> not_before_;
};

}  // namespace

/// Everything of the entries that the columns alone do not show.
Result<void> Node::check(std::string_view least, std::string_view name) const {
  Keys keys(bytes_, at_.prefixes, at_.suffixes, at_.keys);
  Cursor stripped(bytes_, at_.stripped);
  Cursor kinds(bytes_, at_.kinds);
  Cursor sizes(bytes_, height_ > 0 ? at_.child_sizes : at_.sizes);
  Cursor file_ids(bytes_, at_.file_ids);
  Cursor offsets(bytes_, at_.offsets);
  for (std::size_t i = 0; i < entries_; ++i) {
    const std::optional<std::string_view> key = keys.next();
    if (!key) {
      return fail(
          ErrorCode::Corrupt,
          "{}: key {} shares more with the key before it than that has, or has more than {} "
          "bytes",
          name, i, kMaxName);
    }
    if (i == 0 && *key < least) {
      return fail(ErrorCode::Corrupt, "{}: its first key is {}, expected none below {}", name,
                  quote(*key), quote(least));
    }
    if (keys.not_before()) {
      return fail(ErrorCode::Corrupt, "{}: key {} after {}", name, quote(*key),
                  quote(*keys.not_before()));
    }
    const std::uint64_t size = sizes.varint();
    if (height_ == 0 && kinds.u8() == 0) continue;
    if (height_ > 0 && stripped.varint() > key->size()) {
      return fail(ErrorCode::Corrupt, "{}: child {} leaves out more than its key has", name,
                  quote(*key));
    }
    const std::uint64_t file = file_ids.varint();
    const std::uint64_t offset = offsets.varint();
    if (const std::string fault = fault_of_place(file, offset, size, files_.size());
        !fault.empty()) {
      return fail(ErrorCode::Corrupt, "{}: {}: {}", name, quote(*key), fault);
    }
  }
  return {};
}

Result<void> Node::for_each_value(
    const std::function<Result<void>(std::string_view key, const Value& value)>& take,
    std::string_view prefix) const {
  CKFS_CHECK(height_ == 0);
  Keys keys(bytes_, at_.prefixes, at_.suffixes, at_.keys, prefix);
  Cursor sizes(bytes_, at_.sizes);
  Cursor kinds(bytes_, at_.kinds);
  Cursor file_ids(bytes_, at_.file_ids);
  Cursor offsets(bytes_, at_.offsets);
  Cursor values(bytes_, at_.values);
  for (std::size_t i = 0; i < entries_; ++i) {
    const std::string_view key = keys.next().value();
    Value value;
    value.place.size = sizes.varint();
    value.in_node = kinds.u8() == 0;
    if (value.in_node) {
      if (raw_) value.at = values.at();
      value.text = values.take(value.place.size);
    } else {
      value.place.file = static_cast<std::uint32_t>(file_ids.varint());
      value.place.offset = offsets.varint();
    }
    CKFS_TRY_VOID(take(key, value));
  }
  return {};
}

Result<void> Node::for_each_child(
    const std::function<Result<void>(const ChildRef& child)>& take) const {
  CKFS_CHECK(height_ > 0);
  Keys keys(bytes_, at_.prefixes, at_.suffixes, at_.keys);
  Cursor stripped(bytes_, at_.stripped);
  Cursor file_ids(bytes_, at_.file_ids);
  Cursor offsets(bytes_, at_.offsets);
  Cursor sizes(bytes_, at_.child_sizes);
  for (std::size_t i = 0; i < entries_; ++i) {
    ChildRef child;
    child.key = keys.next().value();
    child.stripped = stripped.varint();
    child.place.file = static_cast<std::uint32_t>(file_ids.varint());
    child.place.offset = offsets.varint();
    child.place.size = sizes.varint();
    CKFS_TRY_VOID(take(child));
  }
  return {};
}

}  // namespace ckfs::ocdbt
