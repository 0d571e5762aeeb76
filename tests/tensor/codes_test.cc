// Integer codes and codes of 4 bits: all codes against edge scales by arithmetic in double, fast
// kernels against plain ones on random bits.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "tensor/fast_sets.h"
#include "tensor/values.h"

namespace ckfs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<float> kEdges = {0.0F,       -0.0F,       1.0F,      -1.0F,           0x1p-149F,
                                   0x1p-127F,  0x1.8p-126F, 0x1p-110F, 0x1.fffffep127F, 0x1p127F,
                                   -0x1p-133F, 0.3F,        kInfinity, -kInfinity,      NAN};

// The rounding of a product to F32, then to `to`, by the casts, which have tests of their own.
std::uint32_t expected(double factor, float scale, DType to) {
  const auto product = static_cast<float>(factor * static_cast<double>(scale));
  std::uint32_t bits = std::bit_cast<std::uint32_t>(product);
  if (std::isnan(product)) bits = std::signbit(factor) ? 0xffc00000 : 0x7fc00000;
  std::uint32_t out = bits;
  if (to != DType::F32) {
    out = 0;
    find_cast(DType::F32, to, KernelSet::Reference)(reinterpret_cast<const std::byte*>(&bits),
                                                    reinterpret_cast<std::byte*>(&out), 1);
  }
  return out;
}

std::uint32_t at(const std::vector<std::byte>& bytes, std::size_t i, DType dtype) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + i * bytes_of(dtype, 1), bytes_of(dtype, 1));
  return value;
}

TEST(ScaleIntegers, AllCodesTimesEdges) {
  for (const DType to : kScaledTo) {
    for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
      for (const float scale : kEdges) {
        for (const float zero : {0.0F, 3.0F, -128.0F}) {
          std::vector<std::byte> in(256), out(256 * bytes_of(to, 1));
          for (int i = 0; i < 256; ++i) in[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
          const float* zeros = zero == 0.0F ? nullptr : &zero;
          find_scale_integers(to, set)(in.data(), {&scale, zeros, 0, 256}, out.data(), 256);
          for (std::size_t i = 0; i < 256; ++i) {
            const double factor = static_cast<double>(static_cast<std::int8_t>(in[i])) - zero;
            EXPECT_EQ(at(out, i, to), expected(factor, scale, to)) << i << " " << scale;
          }
        }
      }
    }
  }
}

const NibbleTable kE2m1{{0, .5, 1, 1.5, 2, 3, 4, 6, -0.0F, -.5, -1, -1.5, -2, -3, -4, -6}, false};

TEST(ScaleNibbles, AllCodesTimesEdgesInBothOrders) {
  std::vector<std::byte> in(256);
  for (int i = 0; i < 256; ++i) in[static_cast<std::size_t>(i)] = static_cast<std::byte>(i);
  for (const bool high_first : {false, true}) {
    NibbleTable table = kE2m1;
    table.high_first = high_first;
    for (const DType to : kScaledTo) {
      for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
        for (const float scale : kEdges) {
          std::vector<std::byte> out(512 * bytes_of(to, 1));
          find_scale_nibbles(to, set)(in.data(), table, {&scale, nullptr, 0, 512}, out.data(), 512);
          for (std::size_t i = 0; i < 512; ++i) {
            const std::size_t code = (i % 2 == 0) == high_first ? i / 2 / 16 : i / 2 % 16;
            EXPECT_EQ(at(out, i, to), expected(table.values[code], scale, to)) << i << " " << scale;
          }
        }
      }
    }
  }
}

template <typename Run>
void compare_on_random_blocks(const Run& run) {
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 3000; ++turn) {
    constexpr std::array<std::size_t, 9> kBlocks = {1, 2, 7, 16, 16, 32, 33, 128, 4096};
    const std::size_t block = kBlocks[random() % kBlocks.size()];
    const std::size_t count = random() % 300 + 1;
    const std::size_t first = random() % (2 * block);
    const std::vector<std::byte> in = random_bytes(random, count);
    std::vector<float> scales((first + count + block - 1) / block), zeros(scales.size());
    for (float& scale : scales) {
      scale = random() % 4 == 0 ? kEdges[random() % kEdges.size()]
                                : std::ldexp(static_cast<float>(random() % 4096) - 2000.0F, -20);
    }
    for (float& zero : zeros) zero = static_cast<float>(random() % 16) - 8.0F;
    const float* some = random() % 2 == 0 ? nullptr : zeros.data();
    for (const DType to : kScaledTo)
      run(in, BlockScales{scales.data(), some, first, block}, to, count);
  }
}

TEST(ScaleIntegers, FastGivesTheBitsOfTheReference) {
  compare_on_random_blocks([](const auto& in, const BlockScales& scales, DType to, std::size_t n) {
    std::vector<std::byte> want(n * bytes_of(to, 1)), got(want.size());
    find_scale_integers(to, KernelSet::Reference)(in.data(), scales, want.data(), n);
    for (const auto& [name, kernel] : fast_scale_integers(to)) {
      kernel(in.data(), scales, got.data(), n);
      ASSERT_EQ(want, got) << name << " block " << scales.block << " first " << scales.first;
    }
  });
}

TEST(ScaleNibbles, FastGivesTheBitsOfTheReference) {
  int turn = 0;
  compare_on_random_blocks([&](const auto& in, const BlockScales& scales, DType to, std::size_t n) {
    NibbleTable table = kE2m1;
    table.high_first = ++turn % 2 == 0;
    if (turn % 7 == 0) table.values[3] = 0x1p-30F;
    if (turn % 11 == 0) table.values[5] = kInfinity;
    if (turn % 13 == 0) table.values[9] = NAN;
    std::vector<std::byte> want(n * bytes_of(to, 1)), got(want.size());
    find_scale_nibbles(to, KernelSet::Reference)(in.data(), table, scales, want.data(), n);
    for (const auto& [name, kernel] : fast_scale_nibbles(to)) {
      kernel(in.data(), table, scales, got.data(), n);
      ASSERT_EQ(want, got) << name << " block " << scales.block << " first " << scales.first;
    }
  });
}

TEST(Unpack, GivesTheBitsInOrderLessTheOffset) {
  std::mt19937_64 random(3);
  for (int bits = 1; bits <= 8; ++bits) {
    for (const bool in_words : {false, true}) {
      const std::vector<std::byte> in = random_bytes(random, 64);
      const int in_word = 32 / bits;
      const std::size_t all =
          in_words ? 16 * static_cast<std::size_t>(in_word) : 512 / static_cast<std::size_t>(bits);
      std::vector<int> codes;
      for (std::size_t k = 0; k < all; ++k) {
        const std::size_t bit = in_words ? k / in_word * 32 + k % in_word * bits : k * bits;
        int code = 0;
        for (std::size_t b = 0; b < static_cast<std::size_t>(bits); ++b) {
          code |= (std::to_integer<int>(in[(bit + b) / 8]) >> (bit + b) % 8 & 1) << b;
        }
        codes.push_back(code - (1 << (bits - 1)));
      }
      for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
        for (std::size_t first : {std::size_t{0}, std::size_t{1}, std::size_t{5}, all / 2}) {
          // Exactly the bytes, so that a sanitizer sees one too many.
          const std::size_t last_bit =
              in_words ? (all - 1) / in_word * 32 + 32 : all * static_cast<std::size_t>(bits);
          const std::vector<std::byte> exact(
              in.begin(), in.begin() + static_cast<std::ptrdiff_t>((last_bit + 7) / 8));
          std::vector<std::byte> out(all - first);
          find_unpack(set)(exact.data(), {bits, in_words}, first, out.data(), out.size());
          for (std::size_t i = 0; i < out.size(); ++i) {
            EXPECT_EQ(static_cast<std::int8_t>(out[i]), codes[first + i]) << bits << " " << i;
          }
        }
      }
    }
  }
}

TEST(ScaleCodes, HasTheVectorsOfTheSpecification) {
  const auto one = [](unsigned code, std::uint32_t scale) {
    const auto in = static_cast<std::byte>(code);
    const auto factor = std::bit_cast<float>(scale);
    std::uint16_t out[2] = {};
    find_scale_nibbles(DType::BF16)(&in, kE2m1, {&factor, nullptr, 0, 2},
                                    reinterpret_cast<std::byte*>(out), 1);
    return out[0];
  };
  // NVFP4: the effective scale is not rounded to BF16. 7.0 / global.
  const float effective = 7.0F / std::bit_cast<float>(0x47504594U);
  EXPECT_EQ(one(7, std::bit_cast<std::uint32_t>(effective)), 0x3a4e);
  EXPECT_EQ(one(1, 0x00400000), 0x0020);  // MXFP4: 2^-128 is kept
  EXPECT_EQ(one(7, 0x7f000000), 0x7f80);
  EXPECT_EQ(one(9, 0x3c000000), 0xbb80);
  EXPECT_EQ(one(8, 0x3f800000), 0x8000);
  NibbleTable int4{{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}, false};
  const std::array in = {std::byte{0xf0}, std::byte{0x0b}};
  const std::array scales = {std::bit_cast<float>(0x3c230000U), std::bit_cast<float>(0x3b910000U)};
  std::uint16_t out[3] = {};
  find_scale_nibbles(DType::BF16)(in.data(), int4, {scales.data(), nullptr, 0, 2},
                                  reinterpret_cast<std::byte*>(out), 3);
  EXPECT_EQ(out[0], 0xbda3);
  EXPECT_EQ(out[1], 0x3d8f);
  EXPECT_EQ(out[2], 0x3c5a);
}

}  // namespace
}  // namespace ckfs
