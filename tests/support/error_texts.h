// The error messages that parsers can give, taken from their source text: so that a corpus of
// broken files can be held to reaching each of them.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>

namespace ckfs {

/// The format strings of all errors in the .cc files below `folder` whose name `wanted` accepts.
std::set<std::string> error_texts(const std::filesystem::path& folder,
                                  const std::function<bool(const std::string&)>& wanted);

/// Whether `message` can come from the format string `text`: its pieces, in their order.
bool comes_from(const std::string& message, const std::string& text);

}  // namespace ckfs
