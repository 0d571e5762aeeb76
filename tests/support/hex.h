#pragma once

#include <string>
#include <string_view>

namespace ckfs {

/// The bytes of pairs of hexadecimal digits; spaces are left out.
inline std::string from_hex(std::string_view hex) {
  std::string out, digits;
  for (const char c : hex) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() < 2) continue;
    out += static_cast<char>(std::stoi(digits, nullptr, 16));
    digits.clear();
  }
  return out;
}

}  // namespace ckfs
