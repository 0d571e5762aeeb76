// The JSON results of verbs, and of the same work through the C library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <ckfs/checkpoint.h>

namespace ckfs {

/// {version: 1, source, fingerprint, view, layout_version, ckfs}: what a result was made from, and
/// by which program.
nlohmann::ordered_json begin_result(const View& view, std::string_view source);

}  // namespace ckfs
