// The files beside the tensors: edited texts, and files of the source as they are.
#pragma once

#include <memory>

#include "base/byte_source.h"
#include "container/container.h"

namespace ckfs {

std::shared_ptr<const Container> make_side_files(std::shared_ptr<const Definition> definition,
                                                 const ByteSource& source);

}  // namespace ckfs
