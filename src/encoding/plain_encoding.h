// Elements that are stored as they are.
#pragma once

#include "encoding/encoding.h"

namespace ckfs {

/// The one plain encoding of each dtype. Lives as long as the program.
const Encoding& plain_encoding(DType dtype);

}  // namespace ckfs
