// Which bytes of a file a GET asks for, and whether it wants them at all (RFC 9110, sections 13 and
// 14). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/byte_range.h"
#include "serve/request.h"

namespace ckfs {

/// What answers a request for a file.
enum class Wanted : std::uint8_t {
  Whole,          // 200
  Part,           // 206
  NotModified,    // 304
  Failed,         // 412: another version is asked for
  Unsatisfiable,  // 416: the range lies behind the end
};

struct AskedBytes {
  Wanted wanted = Wanted::Whole;
  ByteRange range;  // of Whole and Part
};

/// `tag` is the file's ETag without its quotes, `mtime` in seconds since 1970. A range counts with
/// GET only, and only if it is one range of bytes: others are ignored, as S3 does.
AskedBytes asked_bytes(const ServeRequest& request, std::string_view tag, std::int64_t mtime,
                       std::uint64_t size);

}  // namespace ckfs
