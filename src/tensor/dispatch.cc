// Which vectors this CPU has. Asked for once, at the first kernel that is looked up, and not by
// ifunc or target_clones: those cannot choose between functions written with intrinsics, and they
// resolve before main, where nothing can be logged or overridden.
#include "tensor/kernel_sets.h"

namespace ckfs {
namespace {

Vectors detect() {
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("bmi2");
  if (!avx2) return Vectors::None;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
  return avx512 ? Vectors::Avx512 : Vectors::Avx2;
#else
  return Vectors::None;
#endif
}

}  // namespace

Vectors vectors() {
  static const Vectors found = detect();
  return found;
}

}  // namespace ckfs
