// Scaled decoding of F8: the reference against exact test vectors and an independent computation,
// the fast set against the reference on all codes and edge scales.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "tensor/fast_sets.h"
#include "tensor/kernel.h"
#include "tensor/values.h"

namespace ckfs {
namespace {

constexpr DType kFrom[] = {DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ};

std::vector<std::byte> all_codes() {
  std::vector<std::byte> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::byte>(i);
  return codes;
}

/// Edges, every power of two, and random bits, all with both signs.
std::vector<float> scales() {
  std::vector<float> all = {0.0F,
                            1.0F,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::min(),
                            std::numeric_limits<float>::denorm_min(),
                            0x1.fffffep119F,  // around the largest that may be taken times 256, 128
                            0x1p120F,
                            0x1.fffffep120F,
                            0x1p121F,
                            std::bit_cast<float>(0x7f800001U),  // signalling
                            std::bit_cast<float>(0x7fffffffU)};
  for (int exponent = -149; exponent < 128; ++exponent) all.push_back(std::ldexp(1.0F, exponent));
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    all.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  const std::size_t positive = all.size();
  for (std::size_t i = 0; i < positive; ++i) {
    all.push_back(std::bit_cast<float>(std::bit_cast<std::uint32_t>(all[i]) ^ 0x80000000));
  }
  return all;
}

std::uint32_t scale_one(DType from, DType to, std::uint8_t code, std::uint32_t scale_bits) {
  const auto in = static_cast<std::byte>(code);
  std::byte out[4] = {};
  find_scale(from, to, KernelSet::Reference)(&in, std::bit_cast<float>(scale_bits), out, 1);
  std::uint32_t result = 0;
  std::memcpy(&result, out, bytes_of(to, 1));
  return result;
}

TEST(Scale, ExistsForF8ToFloatsOnly) {
  int found = 0;
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const auto a = static_cast<DType>(from);
      const auto b = static_cast<DType>(to);
      const bool exists = find_scale(a, b) != nullptr;
      EXPECT_EQ(find_scale(a, b, KernelSet::Reference) != nullptr, exists);
      EXPECT_EQ(find_scale_blocks(a, b) != nullptr, exists);
      EXPECT_EQ(find_scale_blocks(a, b, KernelSet::Reference) != nullptr, exists);
      found += exists;
    }
  }
  EXPECT_EQ(found, 12);
}

TEST(Scale, TheProductIsRoundedToF32First) {
  // Computed with exact rationals; one rounding would give a last bit more or less.
  constexpr DType kE4m3 = DType::F8E4M3;
  EXPECT_EQ(scale_one(kE4m3, DType::BF16, 0x33, 0x378A8BA3), 0x373EU);
  EXPECT_EQ(scale_one(kE4m3, DType::BF16, 0x0A, 0x3B70CCCD), 0x3896U);
  EXPECT_EQ(scale_one(kE4m3, DType::BF16, 0x1C, 0x3774AAAA), 0x35B8U);
  EXPECT_EQ(scale_one(kE4m3, DType::BF16, 0x36, 0x37B64924), 0x37A0U);
}

TEST(Scale, TheScaleIsNotRounded) {
  EXPECT_EQ(scale_one(DType::F8E4M3, DType::BF16, 0x1F, 0x37E18D6A), 0x3653U);
}

TEST(Scale, SignsAndLimits) {
  constexpr std::uint32_t kOne = 0x3f800000;
  EXPECT_EQ(scale_one(DType::F8E4M3, DType::BF16, 0x7e, kOne), 0x43e0U);  // 448
  EXPECT_EQ(scale_one(DType::F8E4M3, DType::BF16, 0x80, kOne), 0x8000U);
  EXPECT_EQ(scale_one(DType::F8E4M3, DType::BF16, 0x01, kOne), 0x3b00U);       // 2^-9
  EXPECT_EQ(scale_one(DType::F8E5M2, DType::F16, 0x7b, 0x3fa00000), 0x7c00U);  // 57344 * 1.25
  EXPECT_EQ(scale_one(DType::F8E4M3, DType::F32, 0x7e, 0x7f000000), 0x7f800000U);
  EXPECT_EQ(scale_one(DType::F8E4M3, DType::F32, 0x38, 0x00000001), 0x00000001U);
}

TEST(Scale, ANanHasTheSignOfTheStoredElement) {
  constexpr std::uint32_t kInfinite = 0x7f800000;
  for (std::uint32_t sign : {0U, 0x80000000U}) {
    for (DType from : {DType::F8E4M3, DType::F8E5M2}) {
      EXPECT_EQ(scale_one(from, DType::F32, 0x7f, sign | 0x3f800000), 0x7fc00000U);
      EXPECT_EQ(scale_one(from, DType::BF16, 0xff, sign | 0x3f800000), 0xffc0U);
      EXPECT_EQ(scale_one(from, DType::F16, 0xff, sign | 0x7fc00001), 0xfe00U);
      EXPECT_EQ(scale_one(from, DType::F16, 0x00, sign | kInfinite), 0x7e00U);
      EXPECT_EQ(scale_one(from, DType::BF16, 0x80, sign | kInfinite), 0xffc0U);
      EXPECT_EQ(scale_one(from, DType::BF16, 0xb8, sign | 0x7f800001), 0xffc0U);
    }
    EXPECT_EQ(scale_one(DType::F8E5M2, DType::F32, 0x7c, sign), 0x7fc00000U);  // infinity * 0
    EXPECT_EQ(scale_one(DType::F8E5M2, DType::F32, 0xfc, sign), 0xffc00000U);
    EXPECT_EQ(scale_one(DType::F8E4M3FNUZ, DType::F32, 0x80, sign | 0x3f800000), 0xffc00000U);
    EXPECT_EQ(scale_one(DType::F8E4M3FNUZ, DType::F32, 0x00, sign | kInfinite), 0x7fc00000U);
  }
}

TEST(Scale, FastGivesTheBitsOfTheReference) {
  const std::vector<std::byte> in = all_codes();
  const std::vector<float> factors = scales();
  for (DType from : kFrom) {
    for (DType to : kScaledTo) {
      std::vector<std::byte> expected(in.size() * bytes_of(to, 1));
      std::vector<std::byte> actual(expected.size());
      for (float scale : factors) {
        find_scale(from, to, KernelSet::Reference)(in.data(), scale, expected.data(), in.size());
        for (const auto& [set, kernel] : fast_scales(from, to)) {
          kernel(in.data(), scale, actual.data(), in.size());
          ASSERT_EQ(actual, expected)
              << set << ": " << name(from) << " to " << name(to) << ", scale " << std::hex
              << std::bit_cast<std::uint32_t>(scale);
        }
      }
    }
  }
}

TEST(Scale, FastTakesAnyCountAndAlignment) {
  const std::vector<std::byte> codes = all_codes();
  constexpr std::byte kGuard{0xa5};
  for (DType from : kFrom) {
    for (DType to : kScaledTo) {
      for (const auto& [set, kernel] : fast_scales(from, to)) {
        for (std::size_t count = 0; count <= 70; ++count) {
          const std::byte* in = codes.data() + 255 - count - count % 5;
          std::vector<std::byte> expected(count * bytes_of(to, 1));
          find_scale(from, to, KernelSet::Reference)(in, 0.37F, expected.data(), count);
          std::vector<std::byte> out(expected.size() + 34, kGuard);
          kernel(in, 0.37F, out.data() + 1, count);
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + 1))
              << set << ": " << name(from) << " to " << name(to) << ", " << count;
          ASSERT_EQ(out.front(), kGuard);
          ASSERT_EQ(std::count(out.end() - 33, out.end(), kGuard), 33);
        }
      }
    }
  }
}

TEST(ScaleBlocks, EachElementTakesTheScaleOfItsBlock) {
  std::mt19937 random(5);
  std::vector<std::byte> in(700);
  for (std::byte& code : in) code = static_cast<std::byte>(random());
  std::vector<float> factors(1000);
  for (float& scale : factors) scale = static_cast<float>(random() % 1000) * 0x1p-13F;
  factors[1] = std::numeric_limits<float>::infinity();
  factors[2] = std::numeric_limits<float>::denorm_min();
  const auto check = [&](DType from, DType to, std::size_t block, std::size_t first,
                         std::size_t count) {
    std::vector<std::byte> expected(count * bytes_of(to, 1));
    for (std::size_t i = 0; i < count; ++i) {  // one element at a time
      find_scale(from, to, KernelSet::Reference)(in.data() + i, factors[(first + i) / block],
                                                 expected.data() + i * bytes_of(to, 1), 1);
    }
    auto kernels = fast_scale_blocks(from, to);
    kernels.push_back({"reference", find_scale_blocks(from, to, KernelSet::Reference)});
    for (const auto& [set, kernel] : kernels) {
      std::vector<std::byte> actual(expected.size());
      kernel(in.data(), factors.data(), first, block, actual.data(), count);
      ASSERT_EQ(actual, expected) << set << ": " << name(from) << " to " << name(to) << ", block "
                                  << block << ", first " << first << ", " << count;
    }
  };
  for (DType from : kFrom) {
    for (DType to : kScaledTo) {
      for (std::size_t block : {1U, 7U, 16U, 32U, 100U, 128U, 1000U}) {
        for (std::size_t first : {0U, 1U, 5U, 127U, 128U, 300U}) {
          for (std::size_t count : {0U, 1U, 15U, 128U, 333U, 700U}) {
            check(from, to, block, first, count);
          }
        }
      }
    }
  }
}

TEST(ScaleBlocks, ABlockMayBeLongerThanAnyRow) {
  const std::vector<std::byte> in(40, std::byte{0x38});  // 1.0
  const float scale = 2.5F;
  std::vector<float> out(40);
  find_scale_blocks(DType::F8E4M3, DType::F32)(in.data(), &scale, 7,
                                               std::numeric_limits<std::size_t>::max(),
                                               std::as_writable_bytes(std::span(out)).data(), 40);
  EXPECT_EQ(out, std::vector<float>(40, 2.5F));
}

}  // namespace
}  // namespace ckfs
