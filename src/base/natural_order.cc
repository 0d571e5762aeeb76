#include "base/natural_order.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

namespace ckfs {
namespace {

/// A part of a name between dots that is a number; nullopt: any other.
std::optional<std::uint64_t> number_in(std::string_view part) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  return value;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a;
  const std::string_view whole_b = b;
  while (!a.empty() && !b.empty()) {
    const std::string_view x = a.substr(0, a.find('.'));
    const std::string_view y = b.substr(0, b.find('.'));
    if (x != y) {
      const auto m = number_in(x);
      const auto n = number_in(y);
      if (m && n && *m != *n) return *m < *n;
      if (m.has_value() != n.has_value()) return m.has_value();
      return x < y;
    }
    a.remove_prefix(std::min(a.size(), x.size() + 1));
    b.remove_prefix(std::min(b.size(), y.size() + 1));
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
}

}  // namespace ckfs
