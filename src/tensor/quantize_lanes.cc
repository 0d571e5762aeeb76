// The kernels that make codes (quantize_lanes.h) for any CPU.
#include <cstddef>
#include <cstdint>

#include "tensor/kernel_sets.h"
#include "tensor/quantize.h"
#include "tensor/quantize_elements.h"
#include "tensor/select.h"

#define CKFS_LANES lanes
#define CKFS_VECTOR_BYTES 16
#include "tensor/quantize_lanes.h"
