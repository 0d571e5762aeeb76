// Files of a series, like model-00002-of-00005.safetensors. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
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

/// A file of one of several ranks, by its name: consolidated.01.pth, rank1.safetensors,
/// model-rank-1-part-0.safetensors.
struct RankFile {
  std::string series;  // the name with '*' in the number's place
  std::int64_t rank = 0;
};

/// nullopt: `name` is not such a name. (DeepSpeed's names are not: it has its own adapters.)
std::optional<RankFile> parse_rank_file(std::string_view name);

/// For files beside each other: which of them are slices of several ranks, with the same tensors
/// under the same names. By name, with a text "slices of 2 ranks ...". A file that is rank 0 of a
/// series without any other is a model, and so is one that only says "rank" without a rank 0.
std::map<std::string, std::string> find_slices(std::span<const std::string> names);

/// Says which file of a series is missing, or has a number that none can have; other names are
/// passed over. Series count from 1, or (gpt-oss) from 0 to the number that they call their count.
/// `hint` is appended to the message where a file is missing. Errors: Corrupt.
Result<void> check_series(std::span<const std::string> paths, std::string_view ending,
                          std::string_view hint);

}  // namespace ckfs
