// What the JSON results of verbs have in common.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <ckfs/checkpoint.h>

namespace ckfs::cli {

/// {version: 1, source, fingerprint, view, layout_version, ckfs}: what a result was made from, and
/// by which program.
nlohmann::ordered_json begin_result(const Checkpoint& checkpoint, const View& view,
                                    std::string_view source);

/// The text to print. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& json);

}  // namespace ckfs::cli
