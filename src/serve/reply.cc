#include "serve/reply.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace ckfs {

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 206:
      return "Partial Content";
    case 301:
      return "Moved Permanently";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 412:
      return "Precondition Failed";
    case 416:
      return "Range Not Satisfiable";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

std::string_view content_type(std::string_view path) {
  constexpr auto kTypes = std::to_array<std::pair<std::string_view, std::string_view>>({
      {".json", "application/json"},
      {".txt", "text/plain; charset=utf-8"},
      {".md", "text/plain; charset=utf-8"},
      {".py", "text/plain; charset=utf-8"},
      {".jinja", "text/plain; charset=utf-8"},
  });
  for (const auto& [ending, type] : kTypes) {
    if (path.ends_with(ending)) return type;
  }
  // Never what a browser would run: names and bytes are a stranger's.
  return "application/octet-stream";
}

std::optional<std::string> xml_text(std::string_view text) {
  if (!is_utf8(text)) return std::nullopt;
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return std::nullopt;
        out += c;
    }
  }
  return out;
}

Result<std::string> json_name(std::string_view text) {
  if (!is_utf8(text)) {
    return fail(ErrorCode::Unsupported, "{}: not UTF-8, which JSON cannot hold", quote(text));
  }
  return nlohmann::json(text).dump();
}

std::string header_text(std::string_view text) {
  std::string out = one_line(text);
  std::ranges::replace_if(out, [](char c) { return static_cast<unsigned char>(c) >= 0x7f; }, '?');
  return out;
}

int status_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::NotFound:
    case ErrorCode::InvalidArgument:
    case ErrorCode::Unsupported:
      return 404;
    case ErrorCode::OutOfMemory:
      return 503;
    default:
      return 500;
  }
}

}  // namespace ckfs
