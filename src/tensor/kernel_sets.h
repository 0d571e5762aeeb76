// The kernels behind tensor/kernel.h and column_codes.h, by set; private to src/tensor.
//
// Each set answers with nullptr for what it does not have. A fast set is asked first, the reference
// set, which has everything, last (cast.cc, scale.cc, codes.cc, column_codes.cc, strided.cc).
#pragma once

#include <cstddef>

#include "tensor/column_codes.h"
#include "tensor/kernel.h"
#include "tensor/quantize.h"

namespace ckfs {

/// What this CPU can run, found once.
enum class Vectors : std::uint8_t {
  None,    // plain loops
  Avx2,    // AVX2, F16C and BMI2
  Avx512,  // AVX-512 F, BW, VL and BF16
};
Vectors vectors();

namespace reference {
CastKernel cast(DType from, DType to);
ScaleKernel scale(DType from, DType to);
ScaleBlocksKernel scale_blocks(DType from, DType to);
AffineKernel affine(CodeOrder order, DType scale, DType to);
void copy_strided(std::span<const CopyLoop> loops, std::size_t element_bytes, const std::byte* in,
                  std::byte* out);
ScaleIntegersKernel scale_integers(DType to);
ScaleNibblesKernel scale_nibbles(DType to);
UnpackKernel unpack();
}  // namespace reference

/// The row from element `i` on.
AffineRow advanced(AffineRow row, CodeOrder order, DType scale, std::size_t i);

/// Transposes `columns` input columns and any multiple of `rows` input rows: element (row, column)
/// of `in` becomes element (column, row) of `out`. Strides from row to row are in bytes.
struct TransposeBand {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  void (*kernel)(const std::byte* in, std::ptrdiff_t in_stride, std::byte* out,
                 std::ptrdiff_t out_stride, std::int64_t rows) = nullptr;
};

namespace lanes {  // loops that a compiler makes vectors of; for any CPU
QuantizeKernel quantize(DType from, CodeKind kind, CodeArithmetic arithmetic);
MaximaKernel maxima(DType from);
QuantizeGroupsKernel quantize_groups(GroupForm form, DType from);
}  // namespace lanes

#ifdef __x86_64__
namespace avx2 {  // Requires: vectors() >= Vectors::Avx2
CastKernel cast(DType from, DType to);
ScaleKernel scale(DType from, DType to);
ScaleBlocksKernel scale_blocks(DType from, DType to);
AffineKernel affine(CodeOrder order, DType scale, DType to);
TransposeBand transpose_band(std::size_t element_bytes);
ScaleIntegersKernel scale_integers(DType to);
ScaleNibblesKernel scale_nibbles(DType to);
UnpackKernel unpack();
QuantizeKernel quantize(DType from, CodeKind kind, CodeArithmetic arithmetic);
MaximaKernel maxima(DType from);
QuantizeGroupsKernel quantize_groups(GroupForm form, DType from);
}  // namespace avx2

namespace avx512 {  // Requires: vectors() >= Vectors::Avx512
ScaleKernel scale(DType from, DType to);
ScaleBlocksKernel scale_blocks(DType from, DType to);
ScaleIntegersKernel scale_integers(DType to);
ScaleNibblesKernel scale_nibbles(DType to);
AffineKernel affine(CodeOrder order, DType scale, DType to);
QuantizeKernel quantize(DType from, CodeKind kind, CodeArithmetic arithmetic);
MaximaKernel maxima(DType from);
QuantizeGroupsKernel quantize_groups(GroupForm form, DType from);
}  // namespace avx512
#endif

}  // namespace ckfs
