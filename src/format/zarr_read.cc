// Unknown members that change which bytes an array has are refused here. Others (a dtype without a
// safetensors name, a codec) are passed on by name, which is all that the caller needs.
#include "format/zarr_read.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "base/text.h"
#include "format/json_text.h"
#include "format/json_tree.h"
#include "tensor/float_bits.h"

namespace ckfs::zarr {
namespace {

using Kind = JsonNode::Kind;
using Indices = std::vector<std::int64_t>;

// A double is exact up to here, and no array of a model comes near.
constexpr double kMaxExtent = 0x1p53;

/// What TensorStore knows that DType does not: an element's bytes.
struct OtherType {
  std::string_view name;
  int width;
};
constexpr std::array<OtherType, 5> kOtherTypes{{{"int4", 1},
                                                {"int2", 1},
                                                {"float4_e2m1fn", 1},
                                                {"float8_e3m4", 1},
                                                {"float8_e4m3b11fnuz", 1}}};

/// The specification's codecs from bytes to bytes.
constexpr std::array<std::string_view, 4> kBytesCodecs{"blosc", "crc32c", "gzip", "zstd"};

bool is_signed(DType dtype) {
  return dtype == DType::I8 || dtype == DType::I16 || dtype == DType::I32 || dtype == DType::I64;
}

class MetadataReader {
 public:
  MetadataReader(Version version, std::string_view name) : name_(name) { out_.version = version; }

  Result<Metadata> read(std::string_view text) {
    if (text.size() > kMaxMetadata) {
      return fail(ErrorCode::Unsupported, "{}: {} bytes (limit {})", name_, text.size(),
                  kMaxMetadata);
    }
    CKFS_TRY(const JsonNode root, parse_json_tree(text, name_, JsonKeys::Unique));
    CKFS_TRY_VOID(out_.version == Version::V3 ? read3(root) : read2(root));
    CKFS_TRY_VOID(check());
    return std::move(out_);
  }

 private:
  template <typename... Args>
  Failure corrupt(fmt::format_string<Args...> text, Args&&... args) const {
    return fail(ErrorCode::Corrupt, "{}: {}", name_,
                fmt::format(text, std::forward<Args>(args)...));
  }
  template <typename... Args>
  Failure unsupported(fmt::format_string<Args...> text, Args&&... args) const {
    return fail(ErrorCode::Unsupported, "{}: {}", name_,
                fmt::format(text, std::forward<Args>(args)...));
  }

  Result<const JsonNode*> member(const JsonNode& object, std::string_view key, Kind kind) const {
    const JsonNode* found = object.find(key);
    if (found == nullptr) return corrupt("no member {}", key);
    if (found->kind != kind) {
      JsonNode wanted;
      wanted.kind = kind;
      return corrupt("{} is {}, not {}", key, found->kind_text(), wanted.kind_text());
    }
    return found;
  }

  Result<std::string> text_of(const JsonNode& object, std::string_view key) const {
    CKFS_TRY(const JsonNode* found, member(object, key, Kind::String));
    return found->text;
  }

  /// A list of whole numbers from `least` on.
  Result<Indices> numbers(const JsonNode& object, std::string_view key, double least) const {
    CKFS_TRY(const JsonNode* list, member(object, key, Kind::List));
    Indices found;
    if (list->items.size() > kMaxRank) {
      return unsupported("{} has {} dimensions (limit {})", key, list->items.size(), kMaxRank);
    }
    for (const JsonNode& item : list->items) {
      const double value = item.number;
      if (item.kind != Kind::Number || value != std::floor(value)) {
        return corrupt("{}[{}] is not a whole number", key, found.size());
      }
      if (value < least || value > kMaxExtent) {
        return corrupt("{}[{}] is {} (limits {}, 2^53)", key, found.size(), value, least);
      }
      found.push_back(static_cast<std::int64_t>(value));
    }
    return found;
  }

  Result<void> format_version(const JsonNode& root, int wanted) const {
    CKFS_TRY(const JsonNode* found, member(root, "zarr_format", Kind::Number));
    if (found->number != wanted) {
      return corrupt("zarr_format is {}, expected {}", found->number, wanted);
    }
    return {};
  }

  // Version 2.

  Result<void> read2(const JsonNode& root) {
    CKFS_TRY_VOID(format_version(root, 2));
    CKFS_TRY(out_.shape, numbers(root, "shape", 0));
    CKFS_TRY(out_.chunk, numbers(root, "chunks", 1));
    out_.inner = out_.chunk;
    const JsonNode* dtype = root.find("dtype");
    if (dtype != nullptr && dtype->kind == Kind::List) {
      return unsupported("a dtype with fields");
    }
    CKFS_TRY(const std::string type, text_of(root, "dtype"));
    CKFS_TRY_VOID(take_dtype2(type));
    CKFS_TRY(const std::string order, text_of(root, "order"));
    if (order == "F") {
      out_.codecs.order.resize(out_.shape.size());
      for (std::size_t d = 0; d < out_.shape.size(); ++d) {
        out_.codecs.order[d] = static_cast<std::int64_t>(out_.shape.size() - 1 - d);
      }
    } else if (order != "C") {
      return corrupt("order is {} (known: C, F)", quote(order));
    }
    const JsonNode* filters = root.find("filters");
    if (filters != nullptr && filters->kind != Kind::Null && !filters->items.empty()) {
      return unsupported("filters");
    }
    const JsonNode* compressor = root.find("compressor");
    if (compressor == nullptr) return corrupt("no member compressor");
    if (compressor->kind != Kind::Null) {
      CKFS_TRY(std::string id, text_of(*compressor, "id"));
      out_.codecs.bytes_codecs.push_back(std::move(id));
    }
    out_.names = {false, '.'};
    if (const JsonNode* separator = root.find("dimension_separator")) {
      if (separator->kind != Kind::String || (separator->text != "." && separator->text != "/")) {
        return corrupt("dimension_separator is neither \".\" nor \"/\"");
      }
      out_.names.separator = separator->text.front();
    }
    const JsonNode* fill = root.find("fill_value");
    if (fill == nullptr) return corrupt("no member fill_value");
    if (fill->kind == Kind::Null) return {};
    return take_fill(*fill);
  }

  Result<void> take_dtype2(const std::string& type) {
    out_.data_type = type;
    std::string name = type;
    if (type.size() > 1 && type.front() == '>') {
      out_.codecs.big_endian = true;
      name.front() = '<';
    }
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (!can_hold(dtype) || name != data_type_name(Version::V2, dtype)) continue;
      return take_dtype(dtype);
    }
    return take_other(type);
  }

  // Version 3.

  Result<void> read3(const JsonNode& root) {
    CKFS_TRY_VOID(format_version(root, 3));
    CKFS_TRY_VOID(check_members(root));
    CKFS_TRY(const std::string node, text_of(root, "node_type"));
    if (node != "array") return corrupt("node_type is {}, not \"array\"", quote(node));
    CKFS_TRY(out_.shape, numbers(root, "shape", 0));
    const JsonNode* const type = root.find("data_type");
    if (type != nullptr && type->kind == Kind::Object) {
      return unsupported("a data_type that is an object");
    }
    CKFS_TRY(out_.data_type, text_of(root, "data_type"));
    CKFS_TRY_VOID(take_dtype3(out_.data_type));
    CKFS_TRY(const JsonNode* grid, member(root, "chunk_grid", Kind::Object));
    CKFS_TRY(const std::string grid_name, text_of(*grid, "name"));
    if (grid_name != "regular") return unsupported("chunk_grid {}", quote(grid_name));
    CKFS_TRY(const JsonNode* config, member(*grid, "configuration", Kind::Object));
    CKFS_TRY(out_.chunk, numbers(*config, "chunk_shape", 1));
    if (out_.chunk.size() != out_.shape.size()) return rank_differs("chunk_shape", out_.chunk);
    out_.inner = out_.chunk;
    CKFS_TRY_VOID(take_names(root));
    CKFS_TRY(const JsonNode* codecs, member(root, "codecs", Kind::List));
    CKFS_TRY_VOID(take_codecs(*codecs, false));
    const JsonNode* fill = root.find("fill_value");
    if (fill == nullptr) return corrupt("no member fill_value");
    return take_fill(*fill);
  }

  Result<void> check_members(const JsonNode& root) const {
    constexpr std::array<std::string_view, 11> kKnown{
        "zarr_format",         "node_type",  "shape",  "data_type",  "chunk_grid",
        "chunk_key_encoding",  "fill_value", "codecs", "attributes", "dimension_names",
        "storage_transformers"};
    for (std::size_t i = 0; i < root.keys.size(); ++i) {
      if (std::ranges::find(kKnown, root.keys[i]) != kKnown.end()) continue;
      const JsonNode* must = root.items[i].find("must_understand");
      if (must != nullptr && must->kind == Kind::Boolean && must->number == 0) continue;
      return unsupported("a member {} that must be understood", quote(root.keys[i]));
    }
    const JsonNode* transformers = root.find("storage_transformers");
    if (transformers != nullptr && !transformers->items.empty()) {
      return unsupported("storage transformers");
    }
    return {};
  }

  Result<void> take_dtype3(const std::string& type) {
    for (int i = 0; i < kDTypeCount; ++i) {
      const auto dtype = static_cast<DType>(i);
      if (can_hold(dtype) && type == data_type_name(Version::V3, dtype)) return take_dtype(dtype);
    }
    return take_other(type);
  }

  Result<void> take_dtype(DType dtype) {
    out_.width = bits(dtype) / 8;
    out_.dtype = dtype;
    return {};
  }

  Result<void> take_other(std::string_view type) {
    const auto* const other = std::ranges::find(kOtherTypes, type, &OtherType::name);
    if (other != kOtherTypes.end()) out_.width = other->width;
    return {};
  }

  Result<void> take_names(const JsonNode& root) {
    CKFS_TRY(const JsonNode* encoding, member(root, "chunk_key_encoding", Kind::Object));
    CKFS_TRY(const std::string kind, text_of(*encoding, "name"));
    if (kind != "default" && kind != "v2") return unsupported("chunk_key_encoding {}", quote(kind));
    out_.names = {kind == "default", kind == "default" ? '/' : '.'};
    const JsonNode* config = encoding->find("configuration");
    const JsonNode* separator = config == nullptr ? nullptr : config->find("separator");
    if (separator == nullptr) return {};
    if (separator->kind != Kind::String || (separator->text != "." && separator->text != "/")) {
      return corrupt("separator is neither \".\" nor \"/\"");
    }
    out_.names.separator = separator->text.front();
    return {};
  }

  /// A codec is an object with a name, or the name alone.
  Result<std::string> codec_name(const JsonNode& codec) const {
    if (codec.kind == Kind::String) return codec.text;
    if (codec.kind != Kind::Object) return corrupt("codecs has {}", codec.kind_text());
    return text_of(codec, "name");
  }

  /// The chain of the array, or, `inner`, of the chunks in its shards.
  Result<void> take_codecs(const JsonNode& chain, bool inner) {
    Indices order;
    bool has_bytes = false;
    std::vector<std::string> bytes_codecs;
    for (const JsonNode& codec : chain.items) {
      CKFS_TRY(std::string codec_id, codec_name(codec));
      const JsonNode* config = codec.find("configuration");
      if (codec_id == "transpose") {
        if (has_bytes) return corrupt("codec transpose after one that makes bytes");
        CKFS_TRY_VOID(take_transpose(config, order));
      } else if (codec_id == "bytes") {
        if (has_bytes) return corrupt("two codecs that make bytes");
        has_bytes = true;
        CKFS_TRY(out_.codecs.big_endian, read_endian(config, out_.width));
      } else if (codec_id == "sharding_indexed") {
        if (has_bytes) return corrupt("two codecs that make bytes");
        has_bytes = true;
        if (inner) return unsupported("shards within shards");
        CKFS_TRY_VOID(take_sharding(config, order));
      } else {
        if (!has_bytes && std::ranges::find(kBytesCodecs, codec_id) != kBytesCodecs.end()) {
          return corrupt("codec {} before one that makes bytes", quote(codec_id));
        }
        if (!has_bytes) return unsupported("codec {}", quote(codec_id));
        bytes_codecs.push_back(std::move(codec_id));
      }
    }
    if (!has_bytes) return corrupt("no codec makes bytes");
    if (out_.sharding && !inner) {
      out_.sharding->bytes_codecs = std::move(bytes_codecs);
    } else {
      // Those of a shard come first.
      out_.codecs.order = composed(out_.codecs.order, order);
      out_.codecs.bytes_codecs = std::move(bytes_codecs);
    }
    return {};
  }

  /// `then` after `first`; empty: as they are.
  static Indices composed(const Indices& first, const Indices& then) {
    if (first.empty()) return then;
    if (then.empty()) return first;
    Indices both;
    both.reserve(then.size());
    for (const std::int64_t d : then) both.push_back(first[static_cast<std::size_t>(d)]);
    return both;
  }

  Result<void> take_transpose(const JsonNode* config, Indices& order) const {
    if (config == nullptr) return corrupt("codec transpose without a configuration");
    const std::size_t rank = out_.shape.size();
    CKFS_TRY(const Indices taken, numbers(*config, "order", 0));
    Indices all(rank);
    for (std::size_t d = 0; d < rank; ++d) all[d] = static_cast<std::int64_t>(d);
    if (!std::ranges::is_permutation(taken, all)) {
      return corrupt("codec transpose: order [{}] is not a permutation of {} dimensions",
                     fmt::join(taken, ","), rank);
    }
    order = composed(order, taken);
    return {};
  }

  Result<bool> read_endian(const JsonNode* config, int width) const {
    const JsonNode* endian = config == nullptr ? nullptr : config->find("endian");
    if (endian == nullptr) {
      if (width > 1) return corrupt("codec bytes: no endian, for elements of {} bytes", width);
      return false;
    }
    if (endian->kind != Kind::String || (endian->text != "little" && endian->text != "big")) {
      return corrupt("codec bytes: endian is neither \"little\" nor \"big\"");
    }
    return endian->text == "big";
  }

  Result<void> take_sharding(const JsonNode* config, const Indices& order) {
    if (config == nullptr) return corrupt("codec sharding_indexed without a configuration");
    Sharding sharding;
    sharding.order = order;
    CKFS_TRY(const Indices stored, numbers(*config, "chunk_shape", 1));
    if (stored.size() != out_.shape.size()) return rank_differs("inner chunk_shape", stored);
    for (std::size_t d = 0; d < stored.size(); ++d) {
      const std::size_t dim = order.empty() ? d : static_cast<std::size_t>(order[d]);
      out_.inner[dim] = stored[d];
      if (out_.chunk[dim] % stored[d] == 0) continue;
      return corrupt("inner chunks of {} do not divide shards of {} along dimension {}", stored[d],
                     out_.chunk[dim], dim);
    }
    if (const JsonNode* location = config->find("index_location")) {
      if (location->kind != Kind::String ||
          (location->text != "start" && location->text != "end")) {
        return corrupt("index_location is neither \"start\" nor \"end\"");
      }
      sharding.index_at_end = location->text == "end";
    }
    CKFS_TRY(const JsonNode* index, member(*config, "index_codecs", Kind::List));
    bool has_bytes = false;
    for (const JsonNode& codec : index->items) {
      CKFS_TRY(const std::string codec_id, codec_name(codec));
      if (codec_id == "bytes" && !has_bytes) {
        has_bytes = true;
        CKFS_TRY(sharding.index_big_endian, read_endian(codec.find("configuration"), 8));
      } else if (codec_id == "crc32c" && has_bytes && !sharding.index_crc32c) {
        sharding.index_crc32c = true;
      } else {
        return unsupported("index codec {}", quote(codec_id));
      }
    }
    if (!has_bytes) return corrupt("no index codec makes bytes");
    out_.codecs.order = order;
    out_.sharding = std::move(sharding);
    CKFS_TRY(const JsonNode* codecs, member(*config, "codecs", Kind::List));
    return take_codecs(*codecs, true);
  }

  // Fill values.

  /// The bits that the text "0x7fc0" stands for.
  static std::optional<std::uint64_t> hex(std::string_view text) {
    if (!text.starts_with("0x")) return std::nullopt;
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [at, error] = std::from_chars(text.data() + 2, end, value, 16);
    if (error != std::errc() || at != end) return std::nullopt;
    return value;
  }

  /// `value` or a component of it, as the bits of a float of `dtype`.
  static std::optional<std::uint64_t> float_bits(const JsonNode& value, DType dtype) {
    double number = value.number;
    if (value.kind == Kind::String) {
      if (const auto raw = hex(value.text)) return raw;
      if (value.text == "NaN") {
        number = std::numeric_limits<double>::quiet_NaN();
      } else if (value.text == "Infinity") {
        number = std::numeric_limits<double>::infinity();
      } else if (value.text == "-Infinity") {
        number = -std::numeric_limits<double>::infinity();
      } else {
        return std::nullopt;
      }
    } else if (value.kind != Kind::Number) {
      return std::nullopt;
    }
    return encode_float(number, dtype);
  }

  static std::optional<std::uint64_t> encode_float(double number, DType dtype) {
    const auto single = std::bit_cast<std::uint32_t>(static_cast<float>(number));
    switch (dtype) {
      case DType::F64:
        return std::bit_cast<std::uint64_t>(number);
      case DType::F32:
        return single;
      case DType::BF16:
        return bits_of::Format<DType::BF16>::narrow(single);
      case DType::F16:
        return bits_of::Format<DType::F16>::narrow(single);
      case DType::F8E4M3:
        return code_of<DType::F8E4M3>(single);
      case DType::F8E5M2:
        return code_of<DType::F8E5M2>(single);
      case DType::F8E4M3FNUZ:
        return code_of<DType::F8E4M3FNUZ>(single);
      case DType::F8E5M2FNUZ:
        return code_of<DType::F8E5M2FNUZ>(single);
      case DType::F8E8M0:
        return number == 0 ? 0 : code_of<DType::F8E8M0>(single);
      default:
        return std::nullopt;
    }
  }

  /// The first code that means `f32`; for a NaN without a code of its bits, the first NaN.
  template <DType kDType>
  static std::optional<std::uint64_t> code_of(std::uint32_t f32) {
    using Format = bits_of::Format<kDType>;
    for (std::uint32_t code = 0; code < 256; ++code) {
      if (Format::widen(static_cast<typename Format::Code>(code)) == f32) return code;
    }
    for (std::uint32_t code = 0; code < 256 && std::isnan(std::bit_cast<float>(f32)); ++code) {
      const std::uint32_t wide = Format::widen(static_cast<typename Format::Code>(code));
      if (std::isnan(std::bit_cast<float>(wide))) return code;
    }
    return std::nullopt;
  }

  /// Whether an integer of `dtype` has room for `value`.
  Result<void> check_integer(const JsonNode& value, DType dtype) const {
    if (value.kind != Kind::Number) return {};
    const double end = std::ldexp(1.0, bits(dtype) - (is_signed(dtype) ? 1 : 0));
    const double least = is_signed(dtype) ? -end : 0;
    if (value.number >= least && value.number <= end - 1) return {};
    return corrupt("fill_value is {} (limits {}, {})", value.number, least, end - 1);
  }

  /// Whether a float of `dtype` has room for the bits that `value`, or a component of it, may be.
  Result<void> check_hex(const JsonNode& value, DType dtype) const {
    const auto most = static_cast<std::size_t>(bits(dtype)) / 4;
    if (!value.text.starts_with("0x") || value.text.size() - 2 <= most) return {};
    return corrupt("fill_value {} has {} digits (limit {})", quote(value.text),
                   value.text.size() - 2, most);
  }

  /// Whether it is zero bits, whatever elements it is of.
  static bool is_zero(const JsonNode& value) {
    const bool number = value.kind == Kind::Number || value.kind == Kind::Boolean;
    const bool hex = value.kind == Kind::String && value.text.starts_with("0x0") &&
                     value.text.find_first_not_of('0', 2) == std::string::npos;
    return hex || (number && value.number == 0 && !std::signbit(value.number));
  }

  Result<void> take_fill(const JsonNode& value) {
    if (!out_.dtype) {
      out_.unknown_fill = !is_zero(value);
      return {};
    }
    const DType dtype = *out_.dtype;
    std::optional<std::uint64_t> first, second;
    switch (dtype) {
      case DType::Bool:
        if (value.kind == Kind::Boolean) first = static_cast<std::uint64_t>(value.number);
        break;
      case DType::C64:
      case DType::C128:
        if (value.kind == Kind::List && value.items.size() == 2) {
          const DType part = dtype == DType::C64 ? DType::F32 : DType::F64;
          for (const JsonNode& item : value.items) CKFS_TRY_VOID(check_hex(item, part));
          first = float_bits(value.items[0], part);
          second = float_bits(value.items[1], part);
          if (!second) first.reset();
        }
        break;
      case DType::U8:
      case DType::I8:
      case DType::I16:
      case DType::U16:
      case DType::I32:
      case DType::U32:
      case DType::I64:
      case DType::U64:
        CKFS_TRY_VOID(check_integer(value, dtype));
        if (value.kind == Kind::Number && value.number == std::floor(value.number) &&
            std::abs(value.number) <= kMaxExtent) {
          first = static_cast<std::uint64_t>(static_cast<std::int64_t>(value.number));
        }
        break;
      default:
        CKFS_TRY_VOID(check_hex(value, dtype));
        first = float_bits(value, dtype);
        break;
    }
    if (!first) return unsupported("a fill_value that {} cannot hold", out_.data_type);
    const int part = second ? out_.width / 2 : out_.width;
    for (int i = 0; i < out_.width; ++i) {
      const std::uint64_t word = i < part ? *first : *second;
      out_.fill += static_cast<char>((word >> (8 * (i % part))) & 0xff);
    }
    if (out_.fill.find_first_not_of('\0') == std::string::npos) out_.fill.clear();
    return {};
  }

  // Both.

  Failure rank_differs(std::string_view what, const Indices& list) const {
    return corrupt("{} has {} dimensions, and shape has {}", what, list.size(), out_.shape.size());
  }

  Result<void> check() const {
    if (out_.chunk.size() != out_.shape.size()) return rank_differs("chunks", out_.chunk);
    // So that no dtype's bytes, at most 16 each, are more than 2^63 - 1.
    const auto is_small = [](const Indices& shape) {
      const auto numel = checked_numel(shape);
      return numel && checked_mul(*numel, std::int64_t{16});
    };
    if (!is_small(out_.chunk)) {
      return unsupported("chunks of [{}]: 2^59 elements or more", fmt::join(out_.chunk, ","));
    }
    if (!is_small(out_.shape)) {
      return unsupported("a shape of [{}]: 2^59 elements or more", fmt::join(out_.shape, ","));
    }
    return {};
  }

  const std::string_view name_;
  Metadata out_;
};

}  // namespace

std::int64_t Metadata::inner_numel() const {
  return checked_numel(inner).value();
}

Result<Metadata> parse_metadata(Version version, std::string_view text, std::string_view name) {
  return MetadataReader(version, name).read(text);
}

std::optional<std::vector<std::int64_t>> parse_chunk_name(const ChunkNames& names, std::size_t rank,
                                                          std::string_view text) {
  if (names.prefixed) {
    if (!text.starts_with('c')) return std::nullopt;
    text.remove_prefix(1);
    if (rank == 0) return text.empty() ? std::optional(Indices()) : std::nullopt;
    if (!text.starts_with(names.separator)) return std::nullopt;
    text.remove_prefix(1);
  } else if (rank == 0) {
    return text == "0" ? std::optional(Indices()) : std::nullopt;
  }
  Indices found;
  found.reserve(rank);
  while (found.size() < rank) {
    const std::size_t end = std::min(text.find(names.separator), text.size());
    std::int64_t value = 0;
    const char* const last = text.data() + end;
    const auto [at, error] = std::from_chars(text.data(), last, value);
    // As writers put it: no sign, no zero before other digits.
    if (error != std::errc() || at != last || text.front() == '-' ||
        (text.front() == '0' && end > 1)) {
      return std::nullopt;
    }
    found.push_back(value);
    if (found.size() == rank) return end == text.size() ? std::optional(found) : std::nullopt;
    if (end == text.size()) return std::nullopt;
    text.remove_prefix(end + 1);
  }
  return std::nullopt;
}

}  // namespace ckfs::zarr
