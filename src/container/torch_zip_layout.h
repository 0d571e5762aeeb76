// Target files of Container::TorchZip: what torch.save writes, and the index over them.
#pragma once

#include <cstddef>
#include <memory>

#include "base/error.h"
#include "container/file_layout.h"
#include "view/view.h"

namespace ckfs {

/// File number `file` of the definition: what torch 2.13 saves of {name: tensor}, byte for byte,
/// with compute_crc32 = False and one storage for each tensor that has bytes of its own. Tensors
/// are in the view's order. Path, size, segments and exactness; no inode. Errors: Unsupported (a
/// size beyond 2^63).
Result<FileLayout> lay_out_torch_file(const std::shared_ptr<const Definition>& definition,
                                      std::size_t file);

}  // namespace ckfs
