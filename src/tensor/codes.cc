// Looks up the kernels of integer codes and of codes of 4 bits.
#include "tensor/kernel_sets.h"

namespace ckfs {

ScaleIntegersKernel find_scale_integers(DType to, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) {
    if (ScaleIntegersKernel kernel = avx512::scale_integers(to)) return kernel;
  }
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) {
    if (ScaleIntegersKernel kernel = avx2::scale_integers(to)) return kernel;
  }
#endif
  (void)set;
  return reference::scale_integers(to);
}

ScaleNibblesKernel find_scale_nibbles(DType to, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) {
    if (ScaleNibblesKernel kernel = avx512::scale_nibbles(to)) return kernel;
  }
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) {
    if (ScaleNibblesKernel kernel = avx2::scale_nibbles(to)) return kernel;
  }
#endif
  (void)set;
  return reference::scale_nibbles(to);
}

UnpackKernel find_unpack(KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) return avx2::unpack();
#endif
  (void)set;
  return reference::unpack();
}

}  // namespace ckfs
