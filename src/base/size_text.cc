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

}  // namespace ckfs
