// .metadata of a checkpoint of torch.distributed.checkpoint, laid out from names and places alone.
//
// All functions are pure. The pickle is of protocol 4, with the classes that torch's own has, and
// loads into an equal object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace ckfs::dcp {

/// Where a chunk lies: the torch file with its elements.
struct WrittenChunk {
  std::uint32_t file = 0;  // number of the data file
  std::uint64_t offset = 0, length = 0;
};

struct WrittenTensor {
  std::string_view name;
  DType dtype = DType::U8;
  std::span<const std::int64_t> shape;
  /// Of each chunk as many offsets and as many sizes as the tensor has dimensions.
  std::vector<std::int64_t> boxes;
  std::vector<WrittenChunk> chunks;
};

/// Whether a loader is to find each tensor in a dictionary that is not nested. (It is, by its
/// default; without it, only a loader that names the tensors gets them.)
enum class Planner : bool { None, Flat };

/// The name of a data file: "__0_3.distcp".
std::string data_file(std::uint32_t number);

/// Bytes of render_metadata(); no text is built. Requires: torch_zip::can_hold() every dtype.
std::uint64_t measure_metadata(std::span<const WrittenTensor> tensors, Planner planner);
std::string render_metadata(std::span<const WrittenTensor> tensors, Planner planner);

}  // namespace ckfs::dcp
