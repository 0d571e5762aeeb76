// What torch's HuggingFaceStorageWriter says in a header of the slices that the file holds: the
// entry DCP_SHARDING_INFO of `__metadata__`, a JSON text {"NAME": {"saved_offsets": [0, 5]}}.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ckfs {

inline constexpr std::string_view kDcpSharding = "DCP_SHARDING_INFO";

/// Where each tensor of a file begins in the whole tensor, by name.
using DcpOffsets = std::map<std::string, std::vector<std::int64_t>, std::less<>>;

/// Errors: Corrupt, with the file's name. Requires: `text` is UTF-8.
Result<DcpOffsets> parse_dcp_sharding(std::string_view text, std::string_view file_name);

}  // namespace ckfs
