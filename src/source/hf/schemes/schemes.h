// The rows of quantization_schemes(), a file for each.
#pragma once

#include "source/hf/scheme.h"

namespace ckfs {

extern const Scheme kFp8;      // fp8.cc
extern const Scheme kForeign;  // foreign.cc

}  // namespace ckfs
