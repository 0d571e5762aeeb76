// A file of the right name and the wrong content is mostly a download: the page or the message that
// a server sent in its place, space that was reserved and never filled, or a model in another
// format under a new name. Its first bytes tell; arithmetic on them as a "length" tells nothing.
#include "format/known_formats.h"

#include <algorithm>
#include <array>

namespace ckfs {
namespace {

using std::string_view_literals::operator""sv;

struct Mark {
  std::string_view bytes;
  std::string_view name;
};

constexpr std::array kMarks{
    Mark{"GGUF"sv, "a GGUF file"sv},
    Mark{"lmgg"sv, "a GGML file"sv},
    Mark{"tjgg"sv, "a GGML file"sv},
    Mark{"PK\x03\x04"sv, "a zip archive (a file of torch?)"sv},
    Mark{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"sv},
    Mark{"\x93NUMPY"sv, "a file of numpy"sv},
    Mark{"\x1f\x8b"sv, "compressed by gzip"sv},
    Mark{"\x28\xb5\x2f\xfd"sv, "compressed by zstd"sv},
    Mark{"\xfd\x37zXZ\0"sv, "compressed by xz"sv},
    Mark{"BZh"sv, "compressed by bzip2"sv},
    Mark{"version https://git-lfs"sv, "a Git-LFS pointer, not the file itself"sv},
};

constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool begins_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::ranges::equal(text.substr(0, word.size()), word, {}, to_lower);
}

/// A pickle of protocol 2 to 5, which begins with a dictionary, a tuple, a frame or a global.
bool is_pickle(std::string_view text) {
  return text.size() > 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5 &&
         "}](c\x95\x8a"sv.find(text[2]) != std::string_view::npos;
}

/// Text of a server or a tool; empty: none that is known.
std::string_view name_of_text(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (begins_with_word(text, "<!doctype html") || begins_with_word(text, "<html")) {
    return "an HTML page (an error page that was saved?)";
  }
  if (begins_with_word(text, "<?xml")) return "an XML text (an error message that was saved?)";
  const bool is_printable = std::ranges::all_of(text, [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\t' || c == '\r' || c == '\n';
  });
  if (is_printable && (text.starts_with('{') || text.starts_with('['))) {
    return "a JSON text (an error message that was saved?)";
  }
  return {};
}

}  // namespace

std::string_view name_of_format(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  for (const Mark& mark : kMarks) {
    if (text.starts_with(mark.bytes)) return mark.name;
  }
  if (is_pickle(text)) return "a pickle (a file of torch?)";
  if (text.size() >= 262 && text.substr(257, 5) == "ustar") return "a tar archive";
  return name_of_text(text);
}

}  // namespace ckfs
