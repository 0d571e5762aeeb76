// Files of a series, like model-00002-of-00005.safetensors. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

struct NumberedFile {
  std::string stem;  // "model"
  int number = 0;
  int count = 0;
};

/// nullopt: `path` is not such a name with the ending `ending` (".safetensors").
std::optional<NumberedFile> parse_numbered(std::string_view path, std::string_view ending);

/// Says which file of a series is missing; other names are passed over. Series count from 1, or
/// (gpt-oss) from 0. `hint` is appended to the message. Errors: Corrupt.
Result<void> check_series(std::span<const std::string> paths, std::string_view ending,
                          std::string_view hint);

}  // namespace ckfs
