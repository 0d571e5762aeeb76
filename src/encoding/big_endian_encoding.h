// Elements that are stored as they are, with their bytes in reverse order.
#pragma once

#include "encoding/encoding.h"

namespace ckfs {

/// Requires: elements of whole bytes, more than one. The two parts of a complex number are in
/// order, and the bytes of each are not.
std::shared_ptr<const Encoding> big_endian_encoding(DType dtype);

}  // namespace ckfs
