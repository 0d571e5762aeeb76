// The kernels that make codes (quantize_lanes.h) for AVX2.
#ifdef __x86_64__
#include <cstddef>
#include <cstdint>

#include "tensor/kernel_sets.h"
#include "tensor/quantize.h"
#include "tensor/quantize_elements.h"
#include "tensor/select.h"

#pragma GCC push_options
#pragma GCC target("avx2,f16c,bmi2")
#define CKFS_LANES avx2
#define CKFS_VECTOR_BYTES 32
#include "tensor/quantize_lanes.h"
#pragma GCC pop_options
#endif
