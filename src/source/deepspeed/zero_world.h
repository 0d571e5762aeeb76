// The files of one world of ranks, read and checked against each other.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/deepspeed/deepspeed_names.h"
#include "source/deepspeed/deepspeed_states.h"
#include "source/file_table.h"
#include "source/repeated_headers.h"

namespace ckfs {

/// All ranks of one model-parallel rank: a world of its own.
struct ZeroWorld {
  std::uint32_t mp = 0;
  ModelStates model;
  std::optional<OldShapes> old_shapes;  // where model.parameters is absent
  std::vector<OptimizerStates> ranks;

  const std::vector<ParameterGroup>& groups() const {
    return model.parameters ? *model.parameters : old_shapes->parameters;
  }
  bool partitioned() const { return ranks.front().stage == 3; }
};

/// A model-parallel rank and its files.
struct NumberedCell {
  std::uint32_t mp = 0;
  const DeepSpeedCell* files = nullptr;
};

/// Not for concurrent use; reads by several threads of its own.
class ZeroWorldReader {
 public:
  /// The arguments must outlive it. `tag` is for messages.
  ZeroWorldReader(SourceFiles& files, const FileTable& table, RepeatedHeaders& repeated,
                  std::string tag)
      : files_(files), table_(table), repeated_(repeated), tag_(std::move(tag)) {}

  /// Reads the optimizer files of all ranks and the model file of each cell; the worlds are in the
  /// order of the cells. Errors: NotFound (a rank's file is missing), Corrupt (files of two runs),
  /// Unsupported, OutOfMemory, and those of the files.
  Result<std::vector<ZeroWorld>> read(std::span<const NumberedCell> cells);

  /// Files whose own ranks are not in the worlds read so far.
  std::span<const std::string> stale() const { return stale_; }
  std::span<const Note> warnings() const { return warnings_; }

 private:
  FileId id(const std::string& path) const { return table_.find(path).value(); }
  using Ranks = std::vector<OptimizerStates>;

  Result<OptimizerStates> read_optimizer(const std::string& path) const;
  Result<OptimizerStates> read_first(const NumberedCell& cell) const;
  /// By cell.
  Result<std::vector<Ranks>> read_ranks(std::span<const NumberedCell> cells) const;
  Result<std::optional<ZeroWorld>> read_model(const NumberedCell& cell, Ranks ranks) const;
  Result<void> check_complete(const DeepSpeedCell& cell, const OptimizerStates& first) const;
  Result<void> check_ranks(std::span<const OptimizerStates> ranks);
  Result<void> check_stale(std::span<const NumberedCell> cells, std::span<const Ranks> ranks);

  SourceFiles& files_;
  const FileTable& table_;
  RepeatedHeaders& repeated_;
  std::string tag_;
  std::vector<std::string> stale_;
  std::vector<Note> warnings_;
};

}  // namespace ckfs
