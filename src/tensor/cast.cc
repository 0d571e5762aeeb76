// Looks up casts: the widest set this CPU has, else plain loops. The compiler's own vectors would
// serve for BF16, but it cannot find F16C's conversions, and its loops need AVX2 flags that the
// whole program must not have.
#include "tensor/kernel_sets.h"

namespace ckfs {

CastKernel find_cast(DType from, DType to, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) {
    if (CastKernel kernel = avx2::cast(from, to)) return kernel;
  }
#endif
  (void)set;
  return reference::cast(from, to);
}

}  // namespace ckfs
