#include "format/quant_state.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "format/json_members.h"

namespace ckfs {
namespace {

constexpr std::int64_t kMaxBlock = std::int64_t{1} << 20;
constexpr std::size_t kMaxRank = 8;

struct Reader {
  JsonScanner scanner;
  std::string_view name;
  std::vector<JsonMember> members;

  /// The text of a member's value; Corrupt where there is none, or two.
  Result<JsonSpan> value(std::string_view key) const {
    const JsonMember* found = nullptr;
    for (const JsonMember& member : members) {
      if (!is_key(member, key)) continue;
      if (found != nullptr) return fail(ErrorCode::Corrupt, "{}: key \"{}\" twice", name, key);
      found = &member;
    }
    if (found == nullptr) return fail(ErrorCode::Corrupt, "{}: no \"{}\"", name, key);
    return found->value;
  }

  bool has(std::string_view key) const {
    return std::ranges::any_of(members, [&](const JsonMember& m) { return is_key(m, key); });
  }

  Failure wrong(std::string_view key, std::string_view wanted) const {
    return fail(ErrorCode::Corrupt, "{}: {} is not {}", name, key, wanted);
  }

  Result<std::string> text(std::string_view key) const {
    CKFS_TRY(const JsonSpan span, value(key));
    if (scanner.first(span) != '"') return wrong(key, "a string");
    return json_string(scanner.of(span));
  }

  static std::optional<std::int64_t> whole(std::string_view digits, std::int64_t most) {
    std::int64_t read = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), read);
    const bool good =
        error == std::errc() && end == digits.data() + digits.size() && read > 0 && read <= most;
    return good ? std::optional(read) : std::nullopt;
  }

  Result<std::int64_t> block(std::string_view key) const {
    CKFS_TRY(const JsonSpan span, value(key));
    const auto read = whole(scanner.of(span), kMaxBlock);
    if (!read) return wrong(key, fmt::format("a whole number from 1 to {}", kMaxBlock));
    return *read;
  }
};

Result<DType> dtype_of(const Reader& reader, std::string_view key) {
  CKFS_TRY(const std::string text, reader.text(key));
  if (text == "bfloat16") return DType::BF16;
  if (text == "float16") return DType::F16;
  if (text == "float32") return DType::F32;
  return reader.wrong(key, "one of bfloat16, float16, float32");
}

Result<std::vector<std::int64_t>> shape_of(const Reader& reader) {
  CKFS_TRY(const JsonSpan span, reader.value("shape"));
  std::vector<std::int64_t> shape;
  bool good = reader.scanner.first(span) == '[';
  for (const JsonMember& element : reader.scanner.children(span)) {
    const auto read = Reader::whole(reader.scanner.of(element.value), INT64_MAX);
    good = good && read && shape.size() < kMaxRank;
    if (!good) break;
    shape.push_back(*read);
  }
  if (!good || shape.empty()) {
    return reader.wrong("shape", fmt::format("a list of 1 to {} positive numbers", kMaxRank));
  }
  return shape;
}

Result<QuantState::Nested> nested_of(const Reader& reader) {
  QuantState::Nested nested;
  CKFS_TRY(nested.block, reader.block("nested_blocksize"));
  CKFS_TRY(const DType dtype, dtype_of(reader, "nested_dtype"));
  if (dtype != DType::F32) return reader.wrong("nested_dtype", "float32");
  CKFS_TRY(const JsonSpan span, reader.value("nested_offset"));
  const std::string_view digits = reader.scanner.of(span);
  // Python wrote a float of 32 bits with the digits of the double that equals it.
  double offset = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), offset);
  nested.offset = static_cast<float>(offset);
  if (error != std::errc() || end != digits.data() + digits.size() ||
      !std::isfinite(nested.offset)) {
    return reader.wrong("nested_offset", "a finite number");
  }
  return nested;
}

}  // namespace

Result<QuantState> parse_quant_state(std::string_view text, std::string_view name) {
  CKFS_TRY_VOID(validate_config(text, name));
  Reader reader{JsonScanner(text), name, {}};
  reader.members = reader.scanner.children(reader.scanner.top());
  QuantState state;
  CKFS_TRY(state.type, reader.text("quant_type"));
  if (state.type != "nf4" && state.type != "fp4") return reader.wrong("quant_type", "nf4 or fp4");
  CKFS_TRY(state.dtype, dtype_of(reader, "dtype"));
  CKFS_TRY(state.block, reader.block("blocksize"));
  if (state.block % 2 != 0) return reader.wrong("blocksize", "even");
  CKFS_TRY(state.shape, shape_of(reader));
  if (reader.has("nested_blocksize") || reader.has("nested_offset")) {
    CKFS_TRY(state.nested, nested_of(reader));
  }
  return state;
}

}  // namespace ckfs
