// Kernels for codes: the plain ones against exact values and a second computation, the fast ones
// against the plain ones, on random bits in buffers of exactly the size that may be read.
#include "tensor/column_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "base/load_le.h"
#include "tensor/fast_sets.h"
#include "tensor/values.h"

namespace ckfs {
namespace {

std::vector<std::byte> words(std::initializer_list<std::uint32_t> values) {
  std::vector<std::byte> bytes(values.size() * 4);
  std::size_t at = 0;
  for (const std::uint32_t value : values) store_le(std::span(bytes).subspan(4 * at++), value);
  return bytes;
}

template <typename T>
std::vector<T> decoded(CodeOrder order, DType scale, DType to, const AffineRow& row,
                       std::size_t count, KernelSet set = KernelSet::Reference) {
  std::vector<T> values(count);
  find_affine(order, scale, to, set)(row, std::as_writable_bytes(std::span(values)).data(), count);
  return values;
}

/// Every fast kernel that this CPU can run.
NamedKernels<AffineKernel> fast_affines(CodeOrder order, DType scale, DType to) {
  NamedKernels<AffineKernel> kernels = {{"chosen", find_affine(order, scale, to)}};
#ifdef __x86_64__
  if (vectors() >= Vectors::Avx2) kernels.emplace_back("avx2", avx2::affine(order, scale, to));
#endif
  return kernels;
}

TEST(Affine, ExistsForTheThreeFloats) {
  for (int scale = 0; scale < kDTypeCount; ++scale) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const auto a = static_cast<DType>(scale);
      const auto b = static_cast<DType>(to);
      const bool wanted =
          std::ranges::count(kScaledTo, a) > 0 && std::ranges::count(kScaledTo, b) > 0;
      for (const CodeOrder order : {CodeOrder::Down, CodeOrder::Awq}) {
        EXPECT_EQ(find_affine(order, a, b) != nullptr, wanted);
        EXPECT_EQ(find_affine(order, a, b, KernelSet::Reference) != nullptr, wanted);
      }
    }
  }
}

TEST(Affine, TheProductIsRoundedOnce) {
  // F16 first and BF16 then would give 3cde.
  const auto code = words({0x00000050});
  const auto zero = words({2});
  const std::vector<std::byte> scale = {std::byte{0xa3}, std::byte{0x20}};
  const AffineRow row{.bits = 4,
                      .low = code.data(),
                      .high = code.data(),
                      .shift = 4,
                      .zeros = zero.data(),
                      .scales = scale.data()};
  EXPECT_EQ(decoded<std::uint16_t>(CodeOrder::Down, DType::F16, DType::BF16, row, 1)[0], 0x3cdf);
}

TEST(Affine, OneIsAddedToAZeroPointWiderThanItsBitsOrNot) {
  const auto code = words({0});
  const auto zero = words({15});
  const std::vector<std::byte> scale = {std::byte{0x00}, std::byte{0x3c}};  // 1
  AffineRow row{.low = code.data(),
                .high = code.data(),
                .zeros = zero.data(),
                .one = 1,
                .scales = scale.data()};
  EXPECT_EQ(decoded<float>(CodeOrder::Down, DType::F16, DType::F32, row, 1)[0], -16.0F);
  row.wraps = true;
  EXPECT_EQ(decoded<float>(CodeOrder::Down, DType::F16, DType::F32, row, 1)[0], 0.0F);
  row.one = 0;
  EXPECT_EQ(decoded<float>(CodeOrder::Down, DType::F16, DType::F32, row, 1)[0], -15.0F);
}

TEST(Affine, AwqColumnsAreInterleaved) {
  const auto code = words({0x76543210});
  const auto zero = words({0});
  std::vector<float> scales(8, 1.0F);
  AffineRow row{
      .low = code.data(), .zeros = zero.data(), .scales = std::as_bytes(std::span(scales)).data()};
  EXPECT_EQ(decoded<float>(CodeOrder::Awq, DType::F32, DType::F32, row, 8),
            (std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7}));
  row.first = 3;
  EXPECT_EQ(decoded<float>(CodeOrder::Awq, DType::F32, DType::F32, row, 2),
            (std::vector<float>{5, 2}));
}

TEST(Affine, ACodeOfThreeBitsMayLieInTwoWords) {
  const auto low = words({0xc0000000});   // bits 30 and 31
  const auto high = words({0xfffffff0});  // bit 0 is clear
  const auto zero = words({0});
  const float scale = 1;
  const AffineRow row{.bits = 3,
                      .low = low.data(),
                      .high = high.data(),
                      .shift = 30,
                      .zeros = zero.data(),
                      .scales = std::as_bytes(std::span(&scale, 1)).data()};
  EXPECT_EQ(decoded<float>(CodeOrder::Down, DType::F32, DType::F32, row, 1)[0], 3.0F);
}

TEST(Affine, ZeroPointsAreAStreamOfBits) {
  // Fields of three bits, 0 to 7, then again: 0xfac688 repeated.
  const auto code = words({0, 0, 0, 0, 0, 0, 0, 0});
  const std::vector<std::byte> zeros = {std::byte{0x88}, std::byte{0xc6}, std::byte{0xfa}};
  std::vector<float> scales(8, 1.0F);
  const AffineRow row{.bits = 3,
                      .low = code.data(),
                      .high = code.data(),
                      .zeros = zeros.data(),
                      .scales = std::as_bytes(std::span(scales)).data()};
  EXPECT_EQ(decoded<float>(CodeOrder::Down, DType::F32, DType::F32, row, 8),
            (std::vector<float>{0, -1, -2, -3, -4, -5, -6, -7}));
}

TEST(Affine, NanIsPositiveAndZeroTakesTheSignOfTheScale) {
  const auto code = words({5, 5, 6, 6});
  const auto zero = words({0x5555});
  const std::vector<float> scales = {std::numeric_limits<float>::infinity(), -1.0F,
                                     std::bit_cast<float>(0xff800001U),
                                     -std::numeric_limits<float>::infinity()};
  const AffineRow row{.low = code.data(),
                      .high = code.data(),
                      .zeros = zero.data(),
                      .scales = std::as_bytes(std::span(scales)).data()};
  for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
    EXPECT_EQ(decoded<std::uint32_t>(CodeOrder::Down, DType::F32, DType::F32, row, 4, set),
              (std::vector<std::uint32_t>{0x7fc00000, 0x80000000, 0x7fc00000, 0xff800000}));
    EXPECT_EQ(decoded<std::uint16_t>(CodeOrder::Down, DType::F32, DType::BF16, row, 4, set),
              (std::vector<std::uint16_t>{0x7fc0, 0x8000, 0x7fc0, 0xff80}));
    EXPECT_EQ(decoded<std::uint16_t>(CodeOrder::Down, DType::F32, DType::F16, row, 4, set),
              (std::vector<std::uint16_t>{0x7e00, 0x8000, 0x7e00, 0xfc00}));
  }
}

TEST(Affine, FastEqualsReferenceOnRandomBits) {
  std::mt19937_64 random(8);
  for (const CodeOrder order : {CodeOrder::Down, CodeOrder::Awq}) {
    for (const int size : {2, 3, 4, 8}) {
      if (order == CodeOrder::Awq && size != 4) continue;
      for (int k = 0; k < 400; ++k) {
        const std::size_t count = 1 + random() % 70;
        const std::size_t first = random() % 8;
        const std::size_t fields = (first + count + 7) / 8;  // groups of eight
        const std::size_t code_words = order == CodeOrder::Awq ? fields : count;
        // Rows end on a word: so do their zero points.
        const auto low = random_bytes(random, code_words * 4);
        const auto high = random_bytes(random, code_words * 4);
        const auto zeros = random_bytes(random, fields * static_cast<std::size_t>(size));
        for (const DType scale : kScaledTo) {
          const auto scales = random_bytes(random, count * bytes_of(scale, 1));
          const AffineRow row{.bits = size,
                              .low = low.data(),
                              .high = high.data(),
                              .shift = static_cast<int>(random() % 32),
                              .zeros = zeros.data(),
                              .first = first,
                              .one = static_cast<std::int32_t>(random() % 2),
                              .wraps = random() % 2 == 0,
                              .scales = scales.data()};
          for (const DType to : kScaledTo) {
            std::vector<std::byte> plain(count * bytes_of(to, 1)), fast(count * bytes_of(to, 1));
            find_affine(order, scale, to, KernelSet::Reference)(row, plain.data(), count);
            for (const auto& [set, kernel] : fast_affines(order, scale, to)) {
              kernel(row, fast.data(), count);
              ASSERT_EQ(plain, fast) << set << ", " << size << " bits, " << count << " from "
                                     << first << ", scale " << name(scale) << " to " << name(to);
            }
          }
        }
      }
    }
  }
}

TEST(Affine, EqualsASecondComputation) {
  std::mt19937_64 random(9);
  for (const int size : {2, 3, 4, 8}) {
    const std::size_t count = 64;
    const auto low = random_bytes(random, count * 4);
    const auto zeros = random_bytes(random, count * static_cast<std::size_t>(size) / 8);
    std::vector<float> scales(count);
    for (float& scale : scales) scale = static_cast<float>(random() % 4096) * 0x1p-9F - 3.0F;
    const int shift = static_cast<int>(random() % static_cast<unsigned>(33 - size));
    const AffineRow row{.bits = size,
                        .low = low.data(),
                        .high = low.data(),
                        .shift = shift,
                        .zeros = zeros.data(),
                        .one = 1,
                        .scales = std::as_bytes(std::span(scales)).data()};
    const auto values = decoded<float>(CodeOrder::Down, DType::F32, DType::F32, row, count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto field = [&](const std::vector<std::byte>& from, std::size_t bit) {
        int value = 0;
        for (int b = 0; b < size; ++b, ++bit) {
          value |= (static_cast<int>(from[bit / 8]) >> bit % 8 & 1) << b;
        }
        return value;
      };
      const int code = field(low, i * 32 + static_cast<std::size_t>(shift));
      const int zero = field(zeros, i * static_cast<std::size_t>(size)) + 1;
      EXPECT_EQ(values[i], static_cast<float>(static_cast<double>(code - zero) * scales[i]));
    }
  }
}

TEST(ScaleInt8, BothProductsAreRounded) {
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  std::vector<float> out(256);
  const float scale = 0x1.234568p-3F;
  const float factor = 7.874015718698502e-3F;
  scale_int8(codes, scale, factor, out);
  int different = 0;
  for (int i = 0; i < 256; ++i) {
    const auto code = static_cast<double>(static_cast<std::int8_t>(i));
    const auto once = static_cast<float>(code * scale);
    const auto twice = static_cast<float>(static_cast<double>(once) * factor);
    EXPECT_EQ(out[static_cast<std::size_t>(i)], twice);
    different += twice != static_cast<float>(code * scale * factor);
  }
  EXPECT_GT(different, 0);  // of a product that is rounded once
  scale_int8(codes, std::numeric_limits<float>::infinity(), factor, out);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(out[0]), 0x7fc00000U);
}

}  // namespace
}  // namespace ckfs
