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
  std::size_t at = 0;  // where in the file
};

constexpr std::string_view kNotRead = ", which ckfs does not read";
constexpr std::string_view kNotSafetensors = ", not a safetensors file";

/// Formats that ckfs does not read.
constexpr std::array kUnread{
    Mark{"GGUF"sv, "a GGUF file"sv},
    Mark{"lmgg"sv, "a GGML file"sv},
    Mark{"tjgg"sv, "a GGML file"sv},
    Mark{"TFL3"sv, "a TensorFlow Lite file"sv, 4},
    Mark{"\x89HDF\r\n\x1a\n"sv, "an HDF5 file"sv},
    Mark{"\x93NUMPY"sv, "a numpy file (.npy)"sv},
    Mark{"PAR1"sv, "a Parquet file"sv},
    Mark{"ARROW1"sv, "an Arrow file"sv},
    Mark{"SQLite format 3"sv, "an SQLite database"sv},
    Mark{"\x7f\x45LF"sv, "a program"sv},
    Mark{"ustar"sv, "a tar archive"sv, 257},
    Mark{"7z\xbc\xaf\x27\x1c"sv, "a 7z archive"sv},
    Mark{"\x1f\x8b"sv, "a file compressed by gzip"sv},
    Mark{"\x28\xb5\x2f\xfd"sv, "a file compressed by zstd"sv},
    Mark{"\x04\x22\x4d\x18"sv, "a file compressed by lz4"sv},
    Mark{"\xfd\x37zXZ\0"sv, "a file compressed by xz"sv},
    Mark{"BZh"sv, "a file compressed by bzip2"sv},
};

constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool begins_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::ranges::equal(text.substr(0, word.size()), word, {}, to_lower);
}

/// A zip archive whose first member is an array: numpy.savez. The name's length is at 26, the name
/// at 30.
bool is_npz(std::string_view text) {
  if (!text.starts_with("PK\x03\x04") || text.size() < 30) return false;
  const std::size_t length = static_cast<unsigned char>(text[26]) +
                             256 * static_cast<std::size_t>(static_cast<unsigned char>(text[27]));
  return text.substr(30, length).ends_with(".npy");
}

/// A ModelProto of ONNX has no mark of its own. Writers put its version first, one byte behind the
/// tag 0x08, then their own name behind the tag 0x12: "\x08\x07\x12\x07pytorch".
bool is_onnx(std::string_view text) {
  if (text.size() < 5 || text[0] != '\x08' || text[1] < 1 || text[1] > 32 || text[2] != '\x12') {
    return false;
  }
  const auto length = static_cast<unsigned char>(text[3]);
  const std::string_view producer = text.substr(4, length);
  return length > 0 && length < 64 && producer.size() == length &&
         std::ranges::all_of(producer, [](char c) { return c >= ' ' && c <= '~'; });
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
  constexpr std::size_t kShortest = 8;  // a file of weights is longer, text or not
  const bool is_ascii = std::ranges::none_of(text, [](char c) { return c < 0 || c == 0x7f; });
  if (is_printable && is_ascii && text.size() >= kShortest)
    return "a text (an error message that was saved?)";
  return {};
}

}  // namespace

std::string what_it_is(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  const auto say = [](std::string_view name, std::string_view fact) {
    return std::string(name) + std::string(fact);
  };
  for (const Mark& mark : kUnread) {
    if (text.size() > mark.at && text.substr(mark.at).starts_with(mark.bytes)) {
      return say(mark.name, kNotRead);
    }
  }
  if (is_npz(text)) return say("a zip archive of numpy arrays (.npz)", kNotRead);
  if (is_onnx(text)) return say("an ONNX file", kNotRead);
  if (text.starts_with("PK\x03\x04"))
    return say("a zip archive (a file of torch?)", kNotSafetensors);
  if (is_pickle(text)) return say("a pickle (a file of torch?)", kNotSafetensors);
  if (text.starts_with("version https://git-lfs")) {
    return say("a Git-LFS pointer, not the file itself", kNotSafetensors);
  }
  const std::string_view name = name_of_text(text);
  return name.empty() ? std::string() : say(name, kNotSafetensors);
}

}  // namespace ckfs
