// A rank's part of a model, as FSDP's trainers write it with torch.save: a state dict with all
// names of the model, each value the part of that tensor that the rank has. The classes around the
// parts (DTensor, ShardedTensor) are read as data: their module paths changed between releases of
// torch, their fields did not, or in few known ways.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"
#include "format/torch_file.h"
#include "tensor/dtype.h"

namespace ckfs {

struct RankTensor {
  enum class Kind : std::uint8_t {
    Plain,    // whole on each rank
    DTensor,  // divided by a mesh of devices
    Sharded,  // ShardedTensor: shards that say where they lie
  };
  /// A box of the whole tensor: its first element, and the elements that the rank has of it.
  struct Piece {
    std::vector<std::int64_t> begin;
    TorchTensor local;
    ByteRange bytes;  // of the storage, absolute
  };

  std::string name;  // without the names of wrappers
  Kind kind = Kind::Plain;
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape;  // of the whole
  /// Those with elements. None where a rank before has the same.
  std::vector<Piece> pieces = {};
  /// Sharded: offsets and sizes of the shards of all ranks, which all ranks must state alike.
  std::vector<std::int64_t> all_shards = {};
  /// Why the tensor cannot be shown, and nothing else of it is known; empty: it can.
  std::string left_out = {};
};

struct RankState {
  std::vector<RankTensor> tensors;  // names once each, in the order of the pickle
  std::vector<Note> notes;          // values that are not tensors
  std::uint64_t header_bytes = 0;   // that were parsed
};

/// The name without the parts that FSDP, activation checkpointing and torch.compile add.
std::string without_wrappers(std::string_view name);

/// Reads the file of rank `rank` of `world`; `key` as for find_state_dict(). Errors, each naming
/// the file, and the tensor where it is about one: Corrupt, Unsupported (a sum that is spread over
/// ranks, another wrapper class, an unknown placement...), and those of TorchFile.
Result<RankState> read_fsdp_rank(ByteSource& source, FileId file, std::uint32_t rank,
                                 std::uint32_t world, std::string_view key);

}  // namespace ckfs
