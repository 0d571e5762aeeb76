// An item of a .distcp: a torch file that holds one tensor and nothing else
// (torch/distributed/checkpoint/filesystem.py, _write_item).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"
#include "format/torch_file.h"
#include "tensor/dtype.h"

namespace ckfs {

struct DcpItem {
  TorchTensor tensor;
  ByteRange storage;               // the tensor's, absolute bytes of the file
  std::uint64_t header_bytes = 0;  // that were read to find it

  /// Where the tensor's elements are, from the first to behind the last: absolute.
  ByteRange run() const {
    const ByteRange within = run_of(tensor);
    return {storage.begin + within.begin, storage.begin + within.end};
  }
};

/// Opens the item that fills the bytes `within` of `file`, which has them, and which .metadata says
/// is a box of `dtype` and `shape` of the tensor `name`. Errors: those of TorchFile, with file,
/// tensor and bytes named; Corrupt (another shape or dtype), Unsupported (a header of more than
/// `max_header` bytes...).
Result<DcpItem> open_dcp_item(ByteSource& source, FileId file, ByteRange within,
                              std::string_view name, DType dtype,
                              std::span<const std::int64_t> shape,
                              std::uint64_t max_header = kMaxPickle);

}  // namespace ckfs
