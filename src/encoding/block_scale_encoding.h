// FP8 weights with one scale for each block of rows x columns (DeepSeek-V3, Qwen3-FP8).
#pragma once

#include <memory>

#include "encoding/encoding.h"

namespace ckfs {

/// The value of element (b, r, c) of the storage, seen as [batch, rows, columns], is f32(q) *
/// f32(scale[b][r / block_rows][c / block_columns]), rounded to F32. The one companion is the
/// scale, of shape [batch, ceil(rows / block_rows), ceil(columns / block_columns)].
struct BlockScale {
  DType codes = DType::F8E4M3;  // one of find_scale_blocks()
  DType scale = DType::F32;     // F32, BF16, F8E8M0, or U8: then 2^(u - 127), with 255 = infinity
                                // (transformers integrations/finegrained_fp8.py)
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t block_rows = 0;
  std::int64_t block_columns = 0;

  auto operator<=>(const BlockScale&) const = default;
};

/// Values are F32; decodes to F32, BF16 and F16 at once. Bit-exact in F32 and BF16, as the
/// reference tool's (DeepSeek-V3 inference/fp8_cast_bf16.py); there is none for F16. Requires: all
/// sizes are positive.
std::shared_ptr<const Encoding> block_scale_encoding(const BlockScale& scale);

/// What block_scale_encoding() was given, where `encoding` came from there: for tests and for their
/// model, which decode in their own way.
const BlockScale* find_block_scale(const Encoding& encoding);

}  // namespace ckfs
