// The rows of quantization_schemes(), a file for each.
#pragma once

#include "source/hf/scheme.h"

namespace ckfs {

extern const Scheme kFp8;            // fp8.cc
extern const Scheme kGptq;           // gptq.cc
extern const Scheme kBitsandbytes4;  // bitsandbytes.cc
extern const Scheme kBitsandbytes8;
extern const Scheme kForeign;  // foreign.cc

}  // namespace ckfs
