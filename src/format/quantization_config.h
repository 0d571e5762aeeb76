// The quantization that a checkpoint's configuration declares, whichever tool wrote it: as written,
// typed and bounded. src/source/hf decides what it means for a tensor. In a quantization's object,
// and in the objects in it that are read, a key that comes twice is Corrupt. Of a config.json's own
// keys, only those that decide what a view shows are checked.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ckfs {

/// How a group's weights are quantized, in the words of compressed-tensors. A member that is absent
/// or null has no value, and a group_size of -1 (no groups) has none.
struct WeightArguments {
  std::optional<std::int64_t> num_bits;
  std::optional<std::int64_t> group_size;
  std::optional<bool> symmetric;
  std::optional<std::array<std::int64_t, 2>> block_structure;
  std::string type;      // "int", "float"
  std::string strategy;  // "tensor", "channel", "group", "block", "tensor_group", ...
};

/// One of `config_groups`.
struct QuantizationGroup {
  std::string name;
  /// Module names, names of classes ("Linear"), or "re:" and a regular expression of Python.
  std::vector<std::string> targets;
  std::string format;  // empty: the configuration's
  /// nullopt: says nothing of weights, or only by `name`, which is then that of a preset ("W4A16").
  std::optional<WeightArguments> weights;
};

/// What a config.json declares as its quantization.
struct QuantizationConfig {
  std::string file = "config.json";  // that declares it
  std::string method;                // "fp8"; empty where quant_method is absent
  std::optional<std::array<std::int64_t, 2>> weight_block_size;
  std::vector<QuantizationGroup> groups;  // in the order of the file
  /// Modules that are not quantized: `ignore`, `modules_to_not_convert`, `exclude_modules`.
  std::vector<std::string> ignore;
  bool transforms = false;  // `transform_config` is there and not empty
  bool overrides = false;   // `dynamic` is there and not empty: some modules differ from the rest
  /// Every string, number, true and false of the object, of the objects in it (but config_groups
  /// and dynamic) and of the lists in those, by its key ("bits", "meta.quantizer.0"; parts of at
  /// most 1024 bytes), as text: strings decoded, the others as they are written. At most 16 MiB.
  std::map<std::string, std::string, std::less<>> values;

  /// A value; empty where there is none.
  std::string_view value(std::string_view key) const;
  /// A value as a whole number; nullopt where there is none, or it is something else
  /// (the text of a number counts as one).
  std::optional<std::int64_t> number(std::string_view key) const;
};

/// The first of `quantization_config`, `text_config.quantization_config`, `compression_config`,
/// and a quantization_config deeper down, that is there and not null; nullopt: none. Errors:
/// Corrupt (also if it is not an object).
Result<std::optional<QuantizationConfig>> find_quantization(std::string_view text,
                                                            std::string_view file_name);

/// What ModelOpt's hf_quant_config.json declares: its member `quantization`, or nothing where that
/// is absent. Its method is "modelopt" where it does not say. Errors: Corrupt.
Result<QuantizationConfig> parse_modelopt(std::string_view text, std::string_view file_name);

/// What a file that holds nothing else declares: quantize_config.json of GPTQ, quant_config.json of
/// AWQ, from before config.json did. Its method is `method` where it does not say. Errors: Corrupt.
Result<QuantizationConfig> parse_quantization_file(std::string_view text,
                                                   std::string_view file_name,
                                                   std::string_view method);

}  // namespace ckfs
