#include "support/error_texts.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <string_view>

namespace ckfs {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

void skip_space(std::string_view& text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0) {
    text.remove_prefix(1);
  }
}

/// What "..." "..." at the beginning of `text` says; empty: there is none.
std::string literals_at(std::string_view text) {
  std::string said;
  for (skip_space(text); text.starts_with('"'); skip_space(text)) {
    text.remove_prefix(1);
    for (; !text.starts_with('"'); text.remove_prefix(1)) {
      if (text.starts_with('\\')) text.remove_prefix(1);
      said += text.front();
    }
    text.remove_prefix(1);
  }
  return said;
}

}  // namespace

// fail(ErrorCode::X, "..." "..."), and what parsers call their own short forms of it. Not by
// std::regex, which takes seconds for it.
std::set<std::string> error_texts(const std::filesystem::path& folder,
                                  const std::function<bool(const std::string&)>& wanted) {
  std::set<std::string> texts;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cc" || !wanted(entry.path().filename())) continue;
    std::ifstream in(entry.path());
    const std::string source{std::istreambuf_iterator<char>(in), {}};
    for (const std::string_view call :
         {"fail(", "refuse(", "refuse_tensor(", "corrupt(", "unsupported("}) {
      for (std::size_t at = source.find(call); at != std::string::npos;
           at = source.find(call, at + 1)) {
        if (at > 0 && is_word(source[at - 1])) continue;
        std::string_view rest = std::string_view(source).substr(at + call.size());
        skip_space(rest);
        if (call == "fail(") {
          if (!rest.starts_with("ErrorCode::")) continue;
          rest.remove_prefix(rest.find(',') + 1);
        }
        std::string text = literals_at(rest);
        if (!text.empty()) texts.insert(std::move(text));
      }
    }
  }
  return texts;
}

bool comes_from(const std::string& message, const std::string& text) {
  std::size_t at = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t open = std::min(text.find('{', begin), text.size());
    const std::string piece = text.substr(begin, open - begin);
    at = message.find(piece, at);
    if (at == std::string::npos) return false;
    at += piece.size();
    begin = std::min(text.find('}', open), text.size() - 1) + 1;
  }
  return true;
}

}  // namespace ckfs
