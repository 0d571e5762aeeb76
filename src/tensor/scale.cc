// Looks up the kernels that decode F8 and multiply. Not by the trick that shifts the code into an
// F32 exponent and multiplies by 2^120: its subnormals stall most CPUs (docs/NOTES.md).
// F8E5M2FNUZ has plain loops only: no F16 conversion helps it, and no checkpoint is known to use
// it.
#include "tensor/kernel_sets.h"

namespace ckfs {

ScaleKernel find_scale(DType from, DType to, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) {
    if (ScaleKernel kernel = avx512::scale(from, to)) return kernel;
  }
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) {
    if (ScaleKernel kernel = avx2::scale(from, to)) return kernel;
  }
#endif
  (void)set;
  return reference::scale(from, to);
}

ScaleBlocksKernel find_scale_blocks(DType from, DType to, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) {
    if (ScaleBlocksKernel kernel = avx512::scale_blocks(from, to)) return kernel;
  }
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) {
    if (ScaleBlocksKernel kernel = avx2::scale_blocks(from, to)) return kernel;
  }
#endif
  (void)set;
  return reference::scale_blocks(from, to);
}

}  // namespace ckfs
