// The kernels that make codes (quantize_lanes.h) for AVX-512.
#ifdef __x86_64__
#include <cstddef>
#include <cstdint>
#include <immintrin.h>

#include "tensor/kernel_sets.h"
#include "tensor/quantize.h"
#include "tensor/quantize_elements.h"
#include "tensor/select.h"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
#define CKFS_LANES avx512
#define CKFS_VECTOR_BYTES 64
#include "tensor/quantize_lanes.h"
#pragma GCC pop_options
#endif
