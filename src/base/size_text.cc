#include "base/size_text.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/checked.h"
#include "base/text.h"

namespace ckfs {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};

// Larger units first, and the decimal one before the binary one: the first of two equally short
// spellings is the canonical one.
constexpr std::array<Unit, 9> kUnits{{{"TB", 1'000'000'000'000},
                                      {"TiB", 1ULL << 40},
                                      {"GB", 1'000'000'000},
                                      {"GiB", 1ULL << 30},
                                      {"MB", 1'000'000},
                                      {"MiB", 1ULL << 20},
                                      {"KB", 1'000},
                                      {"KiB", 1ULL << 10},
                                      {"", 1}}};

constexpr std::array kDecimal{"KB", "MB", "GB", "TB", "PB", "EB"};

char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

}  // namespace

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) {
    at -= 3;
    text.insert(at, ",");
  }
  return text;
}

std::string human_size(std::uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1000;
  std::size_t unit = 0;
  // 999.5 and more would be printed with four digits.
  for (; value >= 999.5 && unit + 1 < kDecimal.size(); ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, value < 99.95 ? 1 : 0, kDecimal[unit]);
}

std::string size_text(std::uint64_t bytes) {
  std::string best;
  for (const Unit& unit : kUnits) {
    if (bytes % unit.bytes != 0) continue;
    std::string spelling = fmt::format("{}{}", bytes / unit.bytes, unit.name);
    if (best.empty() || spelling.size() < best.size()) best = std::move(spelling);
  }
  return best;
}

Result<std::uint64_t> parse_size(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::uint64_t number = 0;
  const auto [digits, error] = std::from_chars(text.data(), end, number);
  double value = 0;
  const char* rest = digits;
  const bool has_point = error == std::errc() && digits != end && *digits == '.';
  if (has_point) rest = std::from_chars(text.data(), end, value, std::chars_format::fixed).ptr;
  const auto* const unit =
      std::ranges::find_if(kUnits, [suffix = std::string_view(rest, end)](const Unit& each) {
        return std::ranges::equal(suffix, each.name, {}, to_lower, to_lower);
      });
  if (error == std::errc::invalid_argument || unit == kUnits.end() ||
      (has_point && (rest == digits + 1 || unit->bytes == 1))) {
    return fail(ErrorCode::InvalidArgument,
                "{} is not a size (a number, then KB, MB, GB, TB, KiB, MiB, GiB or TiB)",
                quote(text));
  }
  // As huggingface_hub and zero_to_fp32 do: the product in F64, and no more than its whole part.
  value *= static_cast<double>(unit->bytes);
  if (has_point && value < 0x1p64) return static_cast<std::uint64_t>(value);
  const auto bytes = checked_mul(number, unit->bytes);
  if (has_point || error != std::errc() || !bytes) {
    return fail(ErrorCode::InvalidArgument, "{} exceeds 2^64 - 1 bytes", quote(text));
  }
  return *bytes;
}

Result<std::uint64_t> parse_bytes(const std::string& name, const std::string& value,
                                  std::uint64_t least) {
  const Result<std::uint64_t> size = parse_size(value);
  if (!size) {
    return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is not a size (such as 4096, 512MiB, 2GB)",
                name, value);
  }
  if (*size < least) {
    return fail(ErrorCode::InvalidArgument, "{}: {} is too little (at least {})", name,
                size_text(*size), size_text(least));
  }
  return *size;
}

Result<std::uint64_t> parse_number(const std::string& thing, const std::string& text) {
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is not a whole number (0 to 2^64 - 1)",
                thing, text);
  }
  return number;
}

}  // namespace ckfs
