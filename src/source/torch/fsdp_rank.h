// A rank's part of a model, as FSDP's trainers write it with torch.save: a state dict with all
// names of the model, each value the part of that tensor that the rank has. The classes around the
// parts (DTensor, ShardedTensor) are read as data: their module paths changed between releases of
// torch, their fields did not, or in few known ways.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "base/mutex.h"
#include "catalog/catalog.h"
#include "format/torch_file.h"
#include "tensor/dtype.h"

namespace ckfs {

/// What all ranks must say of a tensor alike.
struct RankFacts {
  enum class Kind : std::uint8_t {
    Plain,    // whole on each rank
    DTensor,  // divided by a mesh of devices
    Sharded,  // ShardedTensor: shards that say where they lie
  };
  std::string name;  // without the names of wrappers
  Kind kind = Kind::Plain;
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape = {};  // of the whole
  /// Sharded: offsets and sizes of the shards of all ranks; else nullptr. Ranks that say the same
  /// share it.
  std::shared_ptr<const std::vector<std::int64_t>> all_shards = {};
  /// Why the tensor cannot be shown, and nothing else of it is known; empty: it can.
  std::string left_out = {};
};

struct RankTensor {
  /// A box of the whole tensor: its first element, and the elements that the rank has of it.
  struct Piece {
    std::vector<std::int64_t> begin;
    TorchTensor local;
    ByteRange bytes;  // of the storage, absolute
  };

  /// Never nullptr. One object for ranks whose pickles say it alike.
  std::shared_ptr<const RankFacts> said;
  /// Those with elements. None where a rank before has the same.
  std::vector<Piece> pieces = {};
};

struct RankState {
  std::vector<RankTensor> tensors;  // names once each, in the order of the pickle
  std::vector<Note> notes;  // values that are not tensors; none if read by another rank's pickle
  std::uint64_t header_bytes = 0;  // that were parsed
};

/// The name without the parts that FSDP, activation checkpointing and torch.compile add.
std::string without_wrappers(std::string_view name);

struct RankModel;

/// Reads the files of ranks. The first is parsed in full, and kept as a model: another of the same
/// instructions costs a comparison of bytes, and its differences. Some models are kept, because
/// pickles of ranks without a part of some tensor are others. The result does not depend on
/// models. Safe for concurrent use.
class FsdpRankReader {
 public:
  /// `source` must outlive it. `key` as for find_state_dict().
  FsdpRankReader(ByteSource& source, std::uint32_t world, std::string key);
  FsdpRankReader(const FsdpRankReader&) = delete;
  FsdpRankReader& operator=(const FsdpRankReader&) = delete;
  ~FsdpRankReader();

  /// Errors, each naming the file, and the tensor where it is about one: Corrupt, Unsupported (a
  /// sum that is spread over ranks, another wrapper class, an unknown placement...), and those of
  /// TorchFile.
  Result<RankState> read(FileId file, std::uint32_t rank);

  /// Files that were parsed in full, for tests.
  std::size_t parsed() const;

 private:
  ByteSource& source_;
  std::uint32_t world_;
  std::string key_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const RankModel>> models_ CKFS_GUARDED_BY(mutex_);  // the last
  std::size_t parsed_ CKFS_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckfs
