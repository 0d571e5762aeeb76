// Every fast kernel that this CPU can run, also those that a wider set hides from find_*().
#pragma once

#include <utility>
#include <vector>

#include "tensor/kernel.h"
#include "tensor/kernel_sets.h"

namespace ckfs {

template <typename Kernel>
using NamedKernels = std::vector<std::pair<const char*, Kernel>>;

inline NamedKernels<CastKernel> fast_casts(DType from, DType to) {
  return {{"chosen", find_cast(from, to)}};
}

inline NamedKernels<ScaleKernel> fast_scales(DType from, DType to) {
  NamedKernels<ScaleKernel> kernels = {{"chosen", find_scale(from, to)}};
#ifdef __x86_64__
  if (vectors() >= Vectors::Avx2) {
    if (ScaleKernel kernel = avx2::scale(from, to)) kernels.emplace_back("avx2", kernel);
  }
#endif
  return kernels;
}

inline NamedKernels<ScaleBlocksKernel> fast_scale_blocks(DType from, DType to) {
  NamedKernels<ScaleBlocksKernel> kernels = {{"chosen", find_scale_blocks(from, to)}};
#ifdef __x86_64__
  if (vectors() >= Vectors::Avx2) {
    if (ScaleBlocksKernel kernel = avx2::scale_blocks(from, to)) {
      kernels.emplace_back("avx2", kernel);
    }
  }
#endif
  return kernels;
}

inline NamedKernels<ScaleIntegersKernel> fast_scale_integers(DType to) {
  NamedKernels<ScaleIntegersKernel> kernels = {{"chosen", find_scale_integers(to)}};
#ifdef __x86_64__
  if (vectors() >= Vectors::Avx2) kernels.emplace_back("avx2", avx2::scale_integers(to));
#endif
  return kernels;
}

inline NamedKernels<ScaleNibblesKernel> fast_scale_nibbles(DType to) {
  NamedKernels<ScaleNibblesKernel> kernels = {{"chosen", find_scale_nibbles(to)}};
#ifdef __x86_64__
  if (vectors() >= Vectors::Avx2) kernels.emplace_back("avx2", avx2::scale_nibbles(to));
#endif
  return kernels;
}

/// `of(set)` of each set of kernels that make codes: "lanes" is also what other CPUs have.
template <typename Kernel, typename Of>
NamedKernels<Kernel> fast_lanes(Kernel chosen, Of of) {
  NamedKernels<Kernel> kernels = {{"chosen", chosen}, {"lanes", of(Vectors::None)}};
#ifdef __x86_64__
  if (vectors() >= Vectors::Avx2) kernels.emplace_back("avx2", of(Vectors::Avx2));
#endif
  return kernels;
}

inline NamedKernels<QuantizeKernel> fast_quantizes(DType from, CodeKind kind,
                                                   CodeArithmetic arithmetic) {
  return fast_lanes(find_quantize(from, kind, arithmetic), [&]([[maybe_unused]] Vectors set) {
#ifdef __x86_64__
    if (set == Vectors::Avx2) return avx2::quantize(from, kind, arithmetic);
#endif
    return lanes::quantize(from, kind, arithmetic);
  });
}

inline NamedKernels<MaximaKernel> fast_maxima(DType from) {
  return fast_lanes(find_maxima(from), [&]([[maybe_unused]] Vectors set) {
#ifdef __x86_64__
    if (set == Vectors::Avx2) return avx2::maxima(from);
#endif
    return lanes::maxima(from);
  });
}

inline NamedKernels<QuantizeGroupsKernel> fast_quantize_groups(GroupForm form, DType from) {
  return fast_lanes(find_quantize_groups(form, from), [&]([[maybe_unused]] Vectors set) {
#ifdef __x86_64__
    if (set == Vectors::Avx2) return avx2::quantize_groups(form, from);
#endif
    return lanes::quantize_groups(form, from);
  });
}

}  // namespace ckfs
