// Codes of up to 8 bits with one scale for each block of rows x columns. Formats may add zeros to
// subtract, a scale of the scales, or a group for each column instead of blocks. All formats whose
// rows lie one behind another are this one encoding: FP8 (DeepSeek-V3, Qwen3-FP8), MXFP8, MXFP4,
// NVFP4, and the integers of compressed-tensors.
#pragma once

#include <memory>

#include "encoding/encoding.h"

namespace ckfs {

/// The value of element (b, r, c) of the storage, seen as [batch, rows, columns], is
///
///   (f32(code) - zero) * scale,     scale = s   or   f32(s * g)   or   f32(s / g)
///
/// rounded to F32, then to `result`; s is the scale [b][r / block_rows][c / block_columns] of a
/// grid of [batch, ceil(rows / block_rows), ceil((columns - padding) / block_columns)]. The
/// companions, in this order: the scales; the scale of the scales; the zeros; the groups.
struct BlockScale {
  /// F8E4M3, F8E5M2, F8E4M3FNUZ, F8E5M2FNUZ; I8; F4: codes of E2M1, two in a byte, the first in its
  /// low bits; I32: words of packed codes, each less 2^(bits - 1). A row begins with a word.
  DType codes = DType::F8E4M3;
  /// F32, BF16, F16, F8E4M3, F8E8M0, or U8: then 2^(u - 127), with 255 = infinity (transformers
  /// integrations/finegrained_fp8.py, compressed-tensors).
  DType scale = DType::F32;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t block_rows = 0;
  std::int64_t block_columns = 0;

  Packing packing = {};      // of I32
  std::int64_t padding = 0;  // elements at each row's end that fill its last word; of any value

  /// One F32 for all scales, or one for those of each matrix of the batch.
  enum class Global : std::uint8_t { None, Multiplies, Divides };
  Global global = Global::None;
  bool global_each = false;

  /// In a grid like that of the scales: I8; or packed as the codes are, along the grid's rows.
  enum class Zeros : std::uint8_t { None, Integers, Packed };
  Zeros zeros = Zeros::None;

  /// The group of each column (I32) takes the place of c / block_columns. A group of -1 anywhere
  /// means that there is no such order; otherwise each has block_columns columns, or decoding fails
  /// (Corrupt).
  bool groups = false;

  bool minus_zero = true;  // F4: code 8 is -0, as in all references but ModelOpt's NVFP4
  /// U8 with F4: 255 is 2^128, and the product alone may be infinite (gpt-oss, torch.ldexp).
  bool wide_exponent = false;

  DType result = DType::F32;  // F32, BF16, F16

  auto operator<=>(const BlockScale&) const = default;
};

/// Values are of dtype `result`; where that is F32, decodes to F32, BF16 and F16 at once. Bit-exact
/// as the reference tools (docs/FORMATS.md) in `result`, and in BF16 where that is not F16.
/// Requires: all sizes are positive; rows of packed codes of 3, 5, 6 or 7 bits are whole eights, or
/// no longer than kMaxUnit; those of other bits, or in words, are whole words (`padding`);
/// `padding` and `groups` come with I32 only, and `zeros` not with F8.
std::shared_ptr<const Encoding> block_scale_encoding(const BlockScale& scale);

/// The arguments of block_scale_encoding() that made `encoding`, if it did: for tests and their
/// model, which decode in their own way.
const BlockScale* find_block_scale(const Encoding& encoding);

}  // namespace ckfs
