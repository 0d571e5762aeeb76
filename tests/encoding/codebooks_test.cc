// Encodings against the reference libraries: every code times edge scales (support/codebooks.h).
#include "support/codebooks.h"

#include "encoding/affine_codes_encoding.h"
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

}  // namespace
}  // namespace ckfs
