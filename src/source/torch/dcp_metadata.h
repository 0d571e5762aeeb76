// The .metadata of a DCP checkpoint, taken out of its pickle.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/pickle.h"
#include "tensor/dtype.h"

namespace ckfs {

/// A box of a tensor, and where the torch file with its elements is.
struct DcpChunk {
  std::uint32_t path = 0;                // index of DcpMetadata::paths
  std::uint32_t box = 0;                 // for DcpTensor::offsets() and sizes()
  std::uint64_t offset = 0, length = 0;  // bytes of the torch file in it
};

struct DcpTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::optional<DType> dtype;    // nullopt: DType does not have it
  std::string dtype_name;        // torch's
  std::vector<DcpChunk> chunks;  // those with elements, by their offsets; they tile the shape
  std::vector<std::int64_t> boxes;

  /// As many as the tensor has dimensions; valid as long as the tensor.
  std::span<const std::int64_t> offsets(const DcpChunk& chunk) const {
    return std::span(boxes).subspan(2 * shape.size() * chunk.box, shape.size());
  }
  std::span<const std::int64_t> sizes(const DcpChunk& chunk) const {
    return std::span(boxes).subspan((2 * std::size_t{chunk.box} + 1) * shape.size(), shape.size());
  }
};

/// Nothing of it is the pickle's, for a large one is ten times as large. A chunk takes 24 bytes,
/// and 16 for each dimension.
struct DcpMetadata {
  std::vector<DcpTensor> tensors;   // in the order of the pickle
  std::vector<std::string> others;  // keys that are not tensors
  std::vector<std::string> paths;   // of files, relative to .metadata; each once
};

/// An entry of the dictionary that was saved, flattened: names are slices of the pickle's bytes.
struct DcpEntry {
  std::string_view name;  // "model.layers.0.w"
  /// The key of the saved dictionary below which it was ("model"), where the saver says so; empty:
  /// it was at the top, or that is unknown.
  std::string_view key = {};
  /// The same of the dictionary within that one, "app.model"; empty: it was not in one.
  std::string_view inner_key = {};
  bool tensor = false;
};

/// All of them, in the order of the pickle. Errors: Corrupt.
Result<std::vector<DcpEntry>> list_dcp_entries(const Pickle& pickle, const std::string& file_name);

/// `wanted` says by a tensor's name whether to look at it at all. Errors: Corrupt (chunks that do
/// not tile, that lie nowhere...), Unsupported (compressed parts, thousands of chunks that make no
/// grid).
Result<DcpMetadata> read_dcp_metadata(const Pickle& pickle, const std::string& file_name,
                                      const std::function<bool(std::string_view)>& wanted);

}  // namespace ckfs
