// Element kernels: the only code that looks at the value of an element.
//
// Each kernel exists as a plain loop that reads like its definition (Reference) and as the fastest
// one (Fast: vectors where the CPU has them, chosen once at run time; the plain loop for rare
// cases). Both give the same bits for all inputs, NaN included; tests/tensor holds them to it.
// Kernels work on whole elements at any alignment, input and output do not overlap, and they are
// safe for concurrent use.
//
// NaN: a rounded or computed NaN becomes the quiet NaN of the target dtype with the sign of the
// stored element and zero payload (7fc0/ffc0, 7e00/fe00, 7fc00000/ffc00000). A widening cast (BF16
// or F16 to F32 or F64, F32 to F64, F8E5M2 to F32) keeps sign and payload, shifted, and so keeps a
// signalling NaN signalling. The formats with a single NaN have no payload to keep: in F32 F8E4M3
// 7f and ff are 7fc00000 and ffc00000, F8E4M3FNUZ and F8E5M2FNUZ 80 is ffc00000 (its sign bit is
// set), F8E8M0 ff is 7fc00000.
//
// Rounding is to nearest, ties to even; overflow goes to infinity; subnormals are kept. Compiled
// with -ffp-contract=off: no fused multiply-add.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace ckfs {

enum class KernelSet : std::uint8_t { Reference, Fast };

/// Converts `count` elements at `in` to elements at `out`.
using CastKernel = void (*)(const std::byte* in, std::byte* out, std::size_t count);

/// The cast between two of F64, F32, F16, BF16; from an integer to one of them; or from F8E4M3,
/// F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ, F8E8M0 to F32, where 0 is 2^-127 and 255 is NaN; else, and where
/// from == to, nullptr. F64, and integers to F16 and BF16, go by way of F32, as torch does it.
CastKernel find_cast(DType from, DType to, KernelSet set = KernelSet::Fast);

/// out[i] = cast<to>( f32(in[i]) * scale ): the product is rounded to F32 first, then to `to`
/// (arithmetic of DeepSeek-V3 inference/kernel.py, weight_dequant_kernel).
using ScaleKernel = void (*)(const std::byte* in, float scale, std::byte* out, std::size_t count);

/// For `from` in F8E4M3, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ and `to` in F32, F16, BF16; else nullptr.
/// A product that is NaN has the sign bit of the stored element, whatever the scale's.
ScaleKernel find_scale(DType from, DType to, KernelSet set = KernelSet::Fast);

/// The same for a piece of a row whose scale changes every `block` elements: element i is scaled by
/// scales[(first + i) / block], so `first` is where the piece begins relative to the block of
/// scales[0]. One call for many blocks, because a block of 128 elements is too little work for one.
/// Requires: block > 0.
using ScaleBlocksKernel = void (*)(const std::byte* in, const float* scales, std::size_t first,
                                   std::size_t block, std::byte* out, std::size_t count);

/// For the pairs of find_scale; else nullptr.
ScaleBlocksKernel find_scale_blocks(DType from, DType to, KernelSet set = KernelSet::Fast);

/// Scales that change every `block` elements, as for ScaleBlocksKernel, and zero points to subtract
/// before: element i of a piece has scales[(first + i) / block] and zeros[(first + i) / block].
struct BlockScales {
  const float* scales = nullptr;
  /// nullptr: all are 0; else finite, none -0, and no difference with a value overflows.
  const float* zeros = nullptr;
  std::size_t first = 0;
  std::size_t block = 1;
};

/// out[i] = cast<to>( (f32(in[i]) - zero) * scale ) of I8 elements: the difference is exact for
/// whole zeros of up to 8 bits, the product is rounded to F32 first, then to `to`. A product that
/// is NaN has the sign of the difference.
using ScaleIntegersKernel = void (*)(const std::byte* in, const BlockScales& scales, std::byte* out,
                                     std::size_t count);

/// For `to` in F32, F16, BF16; else nullptr.
ScaleIntegersKernel find_scale_integers(DType to, KernelSet set = KernelSet::Fast);

/// What codes of 4 bits stand for.
struct NibbleTable {
  std::array<float, 16> values{};
  bool high_first = false;  // of the two in a byte the first is in its high bits

  bool operator==(const NibbleTable&) const = default;
};

/// out[i] = cast<to>( (table.values[code i] - zero) * scale ), two codes in a byte; the first is
/// the first of in[0]. Rounded and NaN as for ScaleIntegersKernel.
using ScaleNibblesKernel = void (*)(const std::byte* in, const NibbleTable& table,
                                    const BlockScales& scales, std::byte* out, std::size_t count);

/// For `to` in F32, F16, BF16; else nullptr.
ScaleNibblesKernel find_scale_nibbles(DType to, KernelSet set = KernelSet::Fast);

/// Codes of a few bits, least significant first.
struct Packing {
  int bits = 8;           // 1 to 8
  bool in_words = false;  // 32 / bits codes in each word of 32 bits, the highest bits unused;
                          // otherwise code k is the bits from k * bits on, across bytes and words

  auto operator<=>(const Packing&) const = default;
};

/// out[i] = code (first + i) of `in`, less 2^(bits - 1), as I8. Reads only bytes of `in` that hold
/// bits of these codes or, for a packing in words, that share a word with them.
using UnpackKernel = void (*)(const std::byte* in, Packing packing, std::size_t first,
                              std::byte* out, std::size_t count);
UnpackKernel find_unpack(KernelSet set = KernelSet::Fast);

/// One dimension of a strided copy; strides in elements, they may be negative or zero (source).
struct CopyLoop {
  std::int64_t count = 0;
  std::int64_t in_stride = 0;
  std::int64_t out_stride = 0;
};

/// Copies the elements of `element_bytes` (1, 2, 4, 8 or 16) bytes that a nest of loops visits,
/// outermost first, from `in` to `out`; both point at the element where all indices are zero. No
/// loop: one element. A loop of count 0: none.
/// Requires: counts >= 0; no element of `out` is visited twice, so the order of the visits does not
/// matter.
void copy_strided(std::span<const CopyLoop> loops, std::size_t element_bytes, const std::byte* in,
                  std::byte* out, KernelSet set = KernelSet::Fast);

}  // namespace ckfs
