// The data that ckfs needs of DeepSpeed's two kinds of files, taken from their pickles.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "format/torch_file.h"
#include "tensor/dtype.h"

namespace ckfs {

struct NamedShape {
  std::string_view name;  // valid as long as the TorchFile it came from
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
};

/// The parameters of one group (stages 1, 2) or sub-group (stage 3), in the order of the data.
using ParameterGroup = std::vector<NamedShape>;

/// A *_model_states.pt.
struct ModelStates {
  FileId file = 0;
  TorchFile torch;
  std::optional<std::vector<ParameterGroup>> parameters;  // nullopt: param_shapes is None or absent
  std::vector<NamedShape> frozen;
  std::optional<NodeId> frozen_fragments;  // mapping of name to tensor
  std::optional<NodeId> module;            // mapping of name to tensor; not under pipelines
  std::set<std::string_view> buffer_names;
  std::vector<std::pair<std::string_view, std::string_view>> shared;  // alias, source
  std::int64_t world = 0;                                             // 0: unknown
  std::int64_t model_parallel = 0;                                    // 0: unknown
  std::optional<std::int64_t> pipeline_degree, tensor_degree;
  bool has_experts = false;
};

/// Errors: Corrupt (not such a file), Unsupported, and those of TorchFile.
Result<ModelStates> read_model_states(ByteSource& source, FileId file);

/// A rank's part of a group, in its file.
struct PartitionRun {
  DType dtype = DType::F32;
  std::int64_t numel = 0;
  std::uint64_t offset = 0;  // bytes
};

/// A *_optim_states.pt.
struct OptimizerStates {
  FileId file = 0;
  int stage = 1;           // where unsaid 1 (BF16_Optimizer), or 3 by the name of its groups
  std::int64_t world = 0;  // partition_count
  std::vector<PartitionRun> groups;
  /// Elements of padding behind each parameter of each group; empty: none anywhere.
  std::vector<std::vector<std::int64_t>> alignment;
  std::string version;  // of DeepSpeed
  std::uint64_t header_bytes = 0;
};

/// Errors: Corrupt (not such a file), Unsupported (expert groups, a layout before 0.5.9), and those
/// of TorchFile.
Result<OptimizerStates> read_optimizer_states(ByteSource& source, FileId file);

/// The shapes of parameters that old releases (before 0.6) keep in an optimizer file, with the file
/// that the names are slices of. nullopt: not there. Errors: Corrupt, and those of TorchFile.
struct OldShapes {
  TorchFile torch;
  std::vector<ParameterGroup> parameters;
};
Result<std::optional<OldShapes>> read_old_shapes(ByteSource& source, FileId file);

}  // namespace ckfs
