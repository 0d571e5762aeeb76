// Files of a series, like model-00002-of-00005.safetensors. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

struct NumberedFile {
  std::string stem;         // "model"
  std::int64_t number = 0;  // as written; beyond what 64 bits hold, the nearest that they do
  std::int64_t count = 0;
};

/// The most files that a series may say it has.
inline constexpr std::int64_t kMaxSeries = std::numeric_limits<std::int32_t>::max();

/// nullopt: `path` is not such a name with the ending `ending` (".safetensors").
std::optional<NumberedFile> parse_numbered(std::string_view path, std::string_view ending);

/// Says which file of a series is missing, or has a number that none can have; other names are
/// passed over. Series count from 1, or (gpt-oss) from 0 to the number that they call their count.
/// `hint` is appended to the message where a file is missing. Errors: Corrupt.
Result<void> check_series(std::span<const std::string> paths, std::string_view ending,
                          std::string_view hint);

}  // namespace ckfs
