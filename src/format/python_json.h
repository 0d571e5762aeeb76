// Text as Python's json module writes it by default.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace ckfs {

/// Puts `text` in double quotes: everything but printable ASCII is escaped, as UTF-16 units.
/// Surrogates may be in it; a byte that is not UTF-8 is escaped as Python does in file names
/// ("surrogateescape").
template <typename Put>
void put_python_string(const Put& put, std::string_view text) {
  const auto put_unit = [&](std::uint32_t unit) { put(fmt::format("\\u{:04x}", unit)); };
  put("\"");
  if (is_plain_json(text)) {
    put(text);
    put("\"");
    return;
  }
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && is_plain_json(text[end])) ++end;
    if (end > i) {
      put(text.substr(i, end - i));
      i = end;
      continue;
    }
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      ++i;
      switch (c) {
        case '"':
          put("\\\"");
          break;
        case '\\':
          put("\\\\");
          break;
        case '\b':
          put("\\b");
          break;
        case '\t':
          put("\\t");
          break;
        case '\n':
          put("\\n");
          break;
        case '\f':
          put("\\f");
          break;
        case '\r':
          put("\\r");
          break;
        default:
          put_unit(c);
      }
      continue;
    }
    const std::size_t length = python_text_length(text, i);
    if (length == 0) {
      put_unit(0xdc00U + c);
      ++i;
      continue;
    }
    std::uint32_t point = c & (0xffU >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      point = (point << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3fU);
    }
    i += length;
    if (point < 0x10000) {
      put_unit(point);
    } else {
      put_unit(0xd800 + ((point - 0x10000) >> 10));
      put_unit(0xdc00 + ((point - 0x10000) & 0x3ff));
    }
  }
  put("\"");
}

}  // namespace ckfs
