#include "support/error_texts.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>

namespace ckfs {

std::set<std::string> error_texts(const std::filesystem::path& folder,
                                  const std::function<bool(const std::string&)>& wanted) {
  // fail(ErrorCode::X, "..." "..."), and what parsers call their own short forms of it.
  static const std::regex kError(
      R"re((?:\bfail\(\s*ErrorCode::\w+\s*,|\b(?:refuse|refuse_tensor|corrupt|unsupported)\()\s*((?:"(?:[^"\\]|\\.)*"\s*)+))re");
  static const std::regex kLiteral(R"re("((?:[^"\\]|\\.)*)")re");
  std::set<std::string> texts;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cc" || !wanted(entry.path().filename())) continue;
    std::ifstream in(entry.path());
    const std::string source{std::istreambuf_iterator<char>(in), {}};
    for (std::sregex_iterator error(source.begin(), source.end(), kError), end; error != end;
         ++error) {
      std::string text;
      const std::string literals = (*error)[1];
      for (std::sregex_iterator part(literals.begin(), literals.end(), kLiteral); part != end;
           ++part) {
        text += std::regex_replace((*part)[1].str(), std::regex(R"(\\(.))"), "$1");
      }
      texts.insert(text);
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
