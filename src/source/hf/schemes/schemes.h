// The rows of quantization_schemes().
#pragma once

#include "source/hf/scheme.h"

namespace ckfs {

extern const Scheme kFp8;            // scaled_bytes.cc
extern const Scheme kIntQuantized;   // scaled_bytes.cc
extern const Scheme kQuanto;         // scaled_bytes.cc
extern const Scheme kPackQuantized;  // pack_quantized.cc
extern const Scheme kNvfp4;          // float4.cc
extern const Scheme kMxfp4;          // float4.cc
extern const Scheme kGptOss;         // float4.cc
extern const Scheme kModelOptFp4;    // float4.cc
extern const Scheme kDeepSeekV4Fp4;  // float4.cc
extern const Scheme kGptq;           // gptq.cc
extern const Scheme kBitsandbytes4;  // bitsandbytes.cc
extern const Scheme kBitsandbytes8;  // bitsandbytes.cc
extern const Scheme kForeign;        // foreign.cc

}  // namespace ckfs
