// XML as services answer in it: listings and errors of S3, which are flat and small. By expat,
// which is older than the services, has a maintainer, and is fuzzed; a reader of our own would be
// a few hundred lines that see only strangers' text.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "base/error.h"

namespace ckfs {

inline constexpr std::size_t kMostXmlDepth = 16;
inline constexpr std::size_t kLongestXmlText = 65536;  // of one element

/// Called where an element ends, with its path ("ListBucketResult/Contents/Key", no namespaces) and
/// the text directly in it. False ends the reading.
using XmlElementEnds = std::function<bool(std::string_view path, std::string_view text)>;

/// Reads `text`, one document of UTF-8. Errors: Corrupt (not well-formed, a document type, which
/// is where entities come from, or more than the limits above), with `thing` before the text.
Result<void> read_xml(std::string_view text, std::string_view thing, const XmlElementEnds& ends);

}  // namespace ckfs
