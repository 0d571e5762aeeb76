// The plain kernels of integer codes and of codes of 4 bits.
#include <bit>
#include <cstring>

#include "tensor/float_bits.h"
#include "tensor/kernel_sets.h"
#include "tensor/select.h"

namespace ckfs::reference {
namespace {

using bits_of::Format;

/// (factor - zero) * scale as bits of F32; a NaN has the sign of the difference.
std::uint32_t product(float value, const BlockScales& scales, std::size_t i) {
  const std::size_t at = (scales.first + i) / scales.block;
  const float factor = scales.zeros == nullptr ? value : value - scales.zeros[at];
  const auto f32 = std::bit_cast<std::uint32_t>(factor * scales.scales[at]);
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(factor) & 0x80000000;
  return bits_of::is_f32_nan(f32) ? sign | bits_of::kF32Nan : f32;
}

template <DType kTo>
void store(std::byte* out, std::size_t i, std::uint32_t f32) {
  const typename Format<kTo>::Code code = Format<kTo>::narrow(f32);
  std::memcpy(out + i * sizeof(code), &code, sizeof(code));
}

template <DType kTo>
void integers(const std::byte* in, const BlockScales& scales, std::byte* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(static_cast<std::int8_t>(in[i]));
    store<kTo>(out, i, product(value, scales, i));
  }
}

template <DType kTo>
void nibbles(const std::byte* in, const NibbleTable& table, const BlockScales& scales,
             std::byte* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto byte = std::to_integer<unsigned>(in[i / 2]);
    const unsigned code = (i % 2 == 0) == table.high_first ? byte >> 4 : byte & 15U;
    store<kTo>(out, i, product(table.values[code], scales, i));
  }
}

void unpack_codes(const std::byte* in, Packing packing, std::size_t first, std::byte* out,
                  std::size_t count) {
  const auto bits = static_cast<std::size_t>(packing.bits);
  const std::size_t in_word = 32 / bits;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t k = first + i;
    const std::size_t bit = packing.in_words ? k / in_word * 32 + k % in_word * bits : k * bits;
    auto code = std::to_integer<unsigned>(in[bit / 8]);
    if (bit % 8 + bits > 8) code |= std::to_integer<unsigned>(in[bit / 8 + 1]) << 8;
    code = (code >> bit % 8) & ((1U << bits) - 1);
    out[i] = static_cast<std::byte>(code - (1U << (bits - 1)));
  }
}

}  // namespace

ScaleIntegersKernel scale_integers(DType to) {
  return select<DType::F32, DType::F16, DType::BF16>(
      to, []<DType kTo>() -> ScaleIntegersKernel { return integers<kTo>; });
}

ScaleNibblesKernel scale_nibbles(DType to) {
  return select<DType::F32, DType::F16, DType::BF16>(
      to, []<DType kTo>() -> ScaleNibblesKernel { return nibbles<kTo>; });
}

UnpackKernel unpack() {
  return unpack_codes;
}

}  // namespace ckfs::reference
