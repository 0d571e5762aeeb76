// Looks up the kernels for codes, and holds the plain ones: one element after the other, as
// column_codes.h defines it.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "tensor/float_bits.h"
#include "tensor/kernel_sets.h"
#include "tensor/select.h"

namespace ckfs {
namespace {

using bits_of::Format;

constexpr std::array<int, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};  // of columns 0 to 7

float plain_nan(float value) {
  return value == value ? value : std::bit_cast<float>(bits_of::kF32Nan);
}

std::uint32_t load_word(const std::byte* words, std::size_t i) {
  std::uint32_t word;
  std::memcpy(&word, words + 4 * i, sizeof(word));
  return word;
}

/// Field `i` of a stream of `bits` bits each; a field has parts of two bytes at most.
std::uint32_t stream_field(const std::byte* stream, std::size_t i, int bits) {
  const std::size_t at = i * static_cast<std::size_t>(bits);
  const auto shift = static_cast<int>(at % 8);
  auto field = std::to_integer<std::uint32_t>(stream[at / 8]) >> shift;
  if (shift + bits > 8) field |= std::to_integer<std::uint32_t>(stream[at / 8 + 1]) << (8 - shift);
  return field & ((1U << bits) - 1);
}

std::uint32_t awq_field(const std::byte* words, std::size_t i) {
  return load_word(words, i / 8) >> (4 * kAwqNibble[i % 8]) & 15;
}

template <CodeOrder kOrder>
std::uint32_t code_of(const AffineRow& row, std::size_t i) {
  if constexpr (kOrder == CodeOrder::Awq) return awq_field(row.low, row.first + i);
  const std::uint64_t both = std::uint64_t{load_word(row.high, i)} << 32 | load_word(row.low, i);
  return static_cast<std::uint32_t>(both >> row.shift) & ((1U << row.bits) - 1);
}

template <CodeOrder kOrder>
std::int32_t zero_of(const AffineRow& row, std::size_t i) {
  const std::size_t field = row.first + i;
  const std::uint32_t stored = kOrder == CodeOrder::Awq ? awq_field(row.zeros, field)
                                                        : stream_field(row.zeros, field, row.bits);
  const auto zero = static_cast<std::int32_t>(stored) + row.one;
  return row.wraps ? zero & ((1 << row.bits) - 1) : zero;
}

template <CodeOrder kOrder, DType kScale, DType kTo>
void affine_elements(const AffineRow& row, std::byte* out, std::size_t count) {
  using Scale = typename Format<kScale>::Code;
  using Out = typename Format<kTo>::Code;
  for (std::size_t i = 0; i < count; ++i) {
    Scale stored;
    std::memcpy(&stored, row.scales + i * sizeof(Scale), sizeof(Scale));
    const auto scale = std::bit_cast<float>(Format<kScale>::widen(stored));
    const auto code = static_cast<std::int32_t>(code_of<kOrder>(row, i));
    const float value = plain_nan(static_cast<float>(code - zero_of<kOrder>(row, i)) * scale);
    const Out result = Format<kTo>::narrow(std::bit_cast<std::uint32_t>(value));
    std::memcpy(out + i * sizeof(Out), &result, sizeof(Out));
  }
}

}  // namespace

namespace reference {

AffineKernel affine(CodeOrder order, DType scale, DType to) {
  return select_affine(order, scale, to,
                       []<CodeOrder kOrder, DType kScale, DType kTo>() -> AffineKernel {
                         return affine_elements<kOrder, kScale, kTo>;
                       });
}

}  // namespace reference

AffineRow advanced(AffineRow row, CodeOrder order, DType scale, std::size_t i) {
  const std::size_t blocks = (row.first + i) / 8;
  if (order == CodeOrder::Awq) {
    row.low += 4 * blocks;
  } else {
    row.low += 4 * i;
    row.high += 4 * i;
  }
  row.zeros += blocks * static_cast<std::size_t>(row.bits);
  row.scales += bytes_of(scale, static_cast<std::int64_t>(i));
  row.first = (row.first + i) % 8;
  return row;
}

AffineKernel find_affine(CodeOrder order, DType scale, DType to, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) {
    return avx512::affine(order, scale, to);
  }
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) return avx2::affine(order, scale, to);
#endif
  (void)set;
  return reference::affine(order, scale, to);
}

void scale_int8(std::span<const std::byte> in, float scale, float factor, std::span<float> out) {
  CKFS_CHECK(in.size() == out.size());
  for (std::size_t i = 0; i < in.size(); ++i) {
    const auto code = static_cast<float>(static_cast<std::int8_t>(in[i]));
    out[i] = plain_nan(code * scale * factor);
  }
}

}  // namespace ckfs
