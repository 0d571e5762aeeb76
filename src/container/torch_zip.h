// Files as torch.save writes them, and the index over them: byte for byte those of torch 2.13 for
// {name: tensor}, with compute_crc32 = False and one storage for each tensor that has bytes of its
// own. Tensors of a file are in the view's order, except those that split_by_size() puts at its
// end.
#pragma once

#include <memory>

#include "container/container.h"

namespace ckfs {

/// Errors: those of make_containers().
Result<std::shared_ptr<const Container>> make_torch_zip(
    std::shared_ptr<const Definition> definition);

}  // namespace ckfs
