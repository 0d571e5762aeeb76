// Encodings against the reference libraries: every code times edge scales (support/codebooks.h).
#include "support/codebooks.h"

#include "encoding/affine_codes_encoding.h"
#include "encoding/block_scale_encoding.h"
#include "encoding/table_codes_encoding.h"

namespace ckfs {
namespace {

using Bytes = std::vector<std::byte>;

/// All elements of a storage whose parts are `parts`.
Bytes decoded(const Encoding& encoding, std::int64_t numel, const std::vector<Bytes>& parts,
              DType to, KernelSet set) {
  std::vector<PartBytes::Window> windows;
  for (const Bytes& part : parts) windows.push_back({{0, part.size()}, part.data()});
  std::vector<std::span<const PartBytes::Window>> views;
  for (const PartBytes::Window& window : windows) views.emplace_back(&window, 1);
  Bytes out(bytes_of(to, numel));
  Bytes scratch(encoding.scratch(numel));
  EXPECT_TRUE(encoding.decode({0, numel}, PartBytes(views), {to, out, scratch, set}));
  return out;
}

/// What the names of expected tensors call a dtype.
std::string word(DType dtype) {
  return dtype == DType::F32 ? "f32" : dtype == DType::F16 ? "f16" : "bf16";
}

class EncodedCodebooks : public Codebooks {
 protected:
  struct Wanted {
    DType scale, to;
    std::string operation;
  };
  /// The product in F32, then one cast.
  static std::vector<Wanted> products() {
    std::vector<Wanted> all = {{DType::F32, DType::F32, "in_scale_dtype"}};
    for (const DType scale : {DType::F32, DType::BF16, DType::F16}) {
      for (const DType to : {DType::BF16, DType::F16}) {
        all.push_back({scale, to, "f32_to_" + word(to)});
      }
    }
    return all;
  }
};

TEST_F(EncodedCodebooks, AffineCodesAreTorchsProductInF32AndOneCast) {
  for (const int bits : {4, 8}) {
    const std::int64_t count = std::int64_t{1} << bits;
    const std::string codes = fmt::format("int{}", bits);
    // A row for each code, a group for each scale, as many equal columns as words are wide: the
    // expected rows are scales, ours are codes.
    for (const Wanted& wanted : products()) {
      const Tensor& scales = tensor("scales_" + word(wanted.scale));
      const Tensor& expected =
          tensor(codes + "_times_" + word(wanted.scale) + "." + wanted.operation);
      const std::int64_t groups = scales.shape[0];
      const std::int64_t columns = 32;
      const AffineCodes kind{.bits = bits,
                             .scale = wanted.scale,
                             .rows = groups * count,
                             .columns = columns,
                             .groups = groups,
                             .group_rows = count};
      const auto per_word = static_cast<std::size_t>(32 / bits);
      const auto rows = static_cast<std::size_t>(kind.rows);
      Bytes packed(rows / per_word * 32 * 4);
      for (std::size_t row = 0; row < rows; ++row) {
        // The signed value of row i of a group, in offset binary.
        const auto value = static_cast<std::int8_t>(
            tensor(codes + "_values").bytes[row % static_cast<std::size_t>(count)]);
        const auto code = static_cast<unsigned>(value + count / 2);
        for (std::size_t c = 0; c < 32; ++c) {
          const std::size_t bit = row % per_word * static_cast<std::size_t>(bits);
          packed[(row / per_word * 32 + c) * 4 + bit / 8] |=
              static_cast<std::byte>(code << bit % 8);
        }
      }
      Bytes repeated;
      for (std::size_t g = 0; g < static_cast<std::size_t>(groups); ++g) {
        const std::size_t size = width(wanted.scale);
        for (int c = 0; c < 32; ++c) {
          const auto at = scales.bytes.begin() + static_cast<std::ptrdiff_t>(g * size);
          repeated.insert(repeated.end(), at, at + static_cast<std::ptrdiff_t>(size));
        }
      }
      const Bytes zeros(static_cast<std::size_t>(groups * columns * bits / 8),
                        static_cast<std::byte>(bits == 4 ? 0x88 : 0x80));
      for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
        const Bytes all = decoded(*affine_codes_encoding(kind), kind.rows * columns,
                                  {packed, repeated, zeros}, wanted.to, set);
        Bytes first, last;  // columns
        const std::size_t size = width(wanted.to);
        for (std::size_t row = 0; row < rows; ++row) {
          const auto at = all.begin() + static_cast<std::ptrdiff_t>(row * 32 * size);
          const auto step = static_cast<std::ptrdiff_t>(size);
          first.insert(first.end(), at, at + step);
          last.insert(last.end(), at + 31 * step, at + 32 * step);
        }
        expect_equal(first, expected, codes);
        expect_equal(last, expected, codes);
      }
    }
  }
}

TEST_F(EncodedCodebooks, TableCodesAreTorchsProductInF32AndOneCast) {
  // The table holds the signed values, so that code k stands for value k.
  Bytes table(64);
  for (std::size_t k = 0; k < 16; ++k) {
    const auto value = static_cast<std::int8_t>(tensor("int4_values").bytes[k]);
    store_le(std::span(table).subspan(4 * k), static_cast<float>(value));
  }
  Bytes codes;
  const Tensor& scales = tensor("scales_f32");
  for (std::size_t i = 0; i < static_cast<std::size_t>(scales.shape[0]); ++i) {
    for (unsigned k = 0; k < 16; k += 2) codes.push_back(static_cast<std::byte>(k << 4 | (k + 1)));
  }
  for (const Wanted& wanted : products()) {
    if (wanted.scale != DType::F32) continue;
    const auto encoding = table_codes_encoding({.values = wanted.to, .block = 16});
    for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
      const Bytes all = decoded(*encoding, static_cast<std::int64_t>(2 * codes.size()),
                                {codes, scales.bytes, table}, wanted.to, set);
      expect_equal(all, tensor("int4_times_f32." + wanted.operation), "table");
    }
  }
}

/// A row of codes for each of some scales: `parts` are all codes, the scales, what else the kind
/// has.
struct RowsOfCodes : EncodedCodebooks {
  static void expect_decoded(BlockScale kind, const std::vector<Bytes>& parts, DType to,
                             const std::string& expected) {
    for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
      const Bytes all =
          decoded(*block_scale_encoding(kind), kind.rows * kind.columns, parts, kind.result, set);
      // What a kind that has no kernel for it is cast by.
      expect_equal(cast(all, kind.result, to, set), tensor(expected), expected);
      if (!block_scale_encoding(kind)->decodes_to(to)) continue;
      expect_equal(decoded(*block_scale_encoding(kind), kind.rows * kind.columns, parts, to, set),
                   tensor(expected), expected + " at once");
    }
  }

  static Bytes repeated(const Bytes& row, std::int64_t times) {
    Bytes all;
    for (std::int64_t i = 0; i < times; ++i) all.insert(all.end(), row.begin(), row.end());
    return all;
  }

  /// Signed values as words of packed codes.
  static Bytes packed(const Bytes& values, int bits) {
    Bytes words(values.size() * static_cast<std::size_t>(bits) / 8);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto code =
          static_cast<unsigned>(static_cast<std::int8_t>(values[i]) + (1 << (bits - 1)));
      const std::size_t bit = i * static_cast<std::size_t>(bits);
      words[bit / 8] |= static_cast<std::byte>(code << bit % 8);
    }
    return words;
  }
};

TEST_F(RowsOfCodes, OfE4m3AreTorchsProducts) {
  for (const DType scale : {DType::F32, DType::BF16, DType::F16}) {
    const Tensor& scales = tensor("scales_" + word(scale));
    BlockScale kind{.codes = DType::F8E4M3,
                    .scale = scale,
                    .rows = scales.shape[0],
                    .columns = 256,
                    .block_rows = 1,
                    .block_columns = 256};
    const std::vector<Bytes> parts = {repeated(tensor("e4m3fn").bytes, kind.rows), scales.bytes};
    const std::string name = "e4m3fn_times_" + word(scale);
    expect_decoded(kind, parts, DType::BF16, name + ".f32_to_bf16");
    expect_decoded(kind, parts, DType::F16, name + ".f32_to_f16");
    kind.result = scale;
    expect_decoded(kind, parts, scale, name + ".in_scale_dtype");
  }
}

TEST_F(RowsOfCodes, OfIntegersAreTorchsProductsInTheScalesDtype) {
  for (const int bits : {4, 8}) {
    const std::string codes = fmt::format("int{}", bits);
    const Bytes& values = tensor(codes + "_values").bytes;
    for (const DType scale : {DType::F32, DType::BF16, DType::F16}) {
      const Tensor& scales = tensor("scales_" + word(scale));
      for (const DType stored : {DType::I32, DType::I8}) {
        if (stored == DType::I8 && bits != 8) continue;
        const BlockScale kind{.codes = stored,
                              .scale = scale,
                              .rows = scales.shape[0],
                              .columns = std::ssize(values),
                              .block_rows = 1,
                              .block_columns = std::ssize(values),
                              .packing = {.bits = bits},
                              .result = scale};
        const Bytes row = stored == DType::I8 ? values : packed(values, bits);
        const std::vector<Bytes> parts = {repeated(row, kind.rows), scales.bytes};
        const std::string name = codes + "_times_" + word(scale) + ".in_scale_dtype";
        expect_decoded(kind, parts, scale, name);
        expect_decoded(kind, parts, DType::BF16, name + "_to_bf16");
      }
    }
  }
}

TEST_F(RowsOfCodes, OfMxfp4AreThoseOfCompressedTensorsAndOfGptOss) {
  const std::int64_t rows = tensor("fp4_scales").shape[1];
  BlockScale kind{.codes = DType::F4,
                  .scale = DType::U8,
                  .rows = rows,
                  .columns = 32,
                  .block_rows = 1,
                  .block_columns = 32};
  const std::vector<Bytes> parts = {tensor("fp4_blocks").bytes, tensor("fp4_scales").bytes};
  expect_decoded(kind, parts, DType::BF16, "fp4_blocks.ct_mxfp4_bf16");
  kind.wide_exponent = true;
  for (const DType to : {DType::F32, DType::BF16}) {
    for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
      const Bytes all = decoded(*block_scale_encoding(kind), rows * 32, parts, to, set);
      Bytes turned(all.size());
      const CopyLoop loops[] = {{rows, 32, 1}, {32, 1, rows}};
      copy_strided(loops, width(to), all.data(), turned.data());
      expect_equal(turned, tensor("fp4_blocks.gpt_oss_" + word(to)), word(to));
    }
  }
}

TEST_F(RowsOfCodes, OfNvfp4AreThoseOfBothTools) {
  const std::int64_t rows = tensor("nvfp4_scale").shape[0];
  for (std::size_t i = 0; i < 4; ++i) {
    for (const bool divides : {true, false}) {
      const Bytes& globals = tensor(divides ? "nvfp4_globals" : "nvfp4_scale_2").bytes;
      const auto at = globals.begin() + static_cast<std::ptrdiff_t>(4 * i);
      const BlockScale kind{
          .codes = DType::F4,
          .scale = DType::F8E4M3,
          .rows = rows,
          .columns = 16,
          .block_rows = 1,
          .block_columns = 16,
          .global = divides ? BlockScale::Global::Divides : BlockScale::Global::Multiplies,
          .minus_zero = divides};
      expect_decoded(kind,
                     {tensor("nvfp4_packed").bytes, tensor("nvfp4_scale").bytes, Bytes(at, at + 4)},
                     DType::BF16,
                     fmt::format("nvfp4.{}_{}_bf16", divides ? "ct_global" : "modelopt_scale2", i));
    }
  }
}

}  // namespace
}  // namespace ckfs
