// JSON edited as text: the members a view must change are changed, every other byte stays as the
// author wrote it. All functions are pure.
//
// Accepted is strict JSON plus the three words that Python's json adds: NaN, Infinity, -Infinity
// (real config.json files have them, in time_step_limit for one). Not halves of surrogate pairs,
// which no UTF-8 has, nor numbers that no double holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

inline constexpr std::uint64_t kMaxConfig = std::uint64_t{16} << 20;  // bytes of a config.json
inline constexpr int kMaxConfigDepth = 32;                            // nested objects and lists

inline constexpr std::size_t kMaxConfigStrings = 500'000;
inline constexpr std::size_t kMaxConfigValues = 500'000;  // elements and members, and the whole

/// Whether a config.json without a dtype stays without one, or gets one.
enum class WithoutDtype : bool { Kept, Filled };

/// config.json of a checkpoint in which nothing is quantized and floats are `torch_dtype`
/// ("bfloat16"): `quantization_config` and `compression_config` are gone from every object, every
/// `torch_dtype` and `dtype` that is bfloat16, float16, half, float32, float, float64, double,
/// float8_e4m3fn or float8_e5m2 names this one, and under WithoutDtype::Filled a top level without
/// either key gets "torch_dtype" as its last member. Errors: Corrupt (not JSON, not an object,
/// beyond one of the limits above, a string of more than 4 MiB, a member that matters twice), each
/// naming the file.
Result<std::string> dense_config(std::string_view text, std::string_view torch_dtype,
                                 std::string_view file_name,
                                 WithoutDtype without = WithoutDtype::Filled);

/// The same without another look at what the text is. Requires: dense_config() accepted `text` with
/// some dtype before. A checkpoint's config.json is parsed when it is opened, not for each view.
std::string edit_dense_config(std::string_view text, std::string_view torch_dtype,
                              WithoutDtype without = WithoutDtype::Filled);

/// config.json of a checkpoint that is quantized: every `quantization_config` and
/// `compression_config` is gone, and the top level ends with a "quantization_config" that is
/// `quantization`, the text of a JSON value. Floats are `torch_dtype` as in dense_config(), unless
/// that is empty: then they keep the names that they have. Requires: dense_config() accepted
/// `text`.
std::string edit_quantized_config(std::string_view text, std::string_view torch_dtype,
                                  std::string_view quantization);

/// The text without the members `key` of the top level. Requires: dense_config() accepted `text`.
std::string edit_without_member(std::string_view text, std::string_view key);

}  // namespace ckfs
