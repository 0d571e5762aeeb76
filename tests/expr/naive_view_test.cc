// The model's arithmetic against the plain kernels, which were written from another description of
// the same rules (bit patterns instead of values): all codes of 8 and 16 bits, and random ones of
// 32 and 64.
#include "support/naive_view.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

#include "encoding/block_scale_encoding.h"
#include "support/memory_source.h"
#include "tensor/kernel.h"

namespace ckfs {
namespace {

std::vector<Element> codes_of(DType dtype) {
  std::vector<Element> codes;
  if (bits(dtype) <= 16) {
    for (std::uint64_t code = 0; code < 1U << bits(dtype); ++code) codes.push_back({code, 0});
    return codes;
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 300000; ++i) {
    std::uint64_t code = random();
    // Half of the numbers lie where F16 and BF16 round, end, or are subnormal.
    if (dtype == DType::F64 && i % 2 == 0) {
      const auto exponent = static_cast<int>(random() % 320) - 160;
      code = std::bit_cast<std::uint64_t>(
          std::ldexp(static_cast<double>(random() % 8192 * 2 + 1), exponent));
    }
    if (dtype == DType::F32) {
      code &= 0xffffffff;
      if (i % 2 == 0) code = code & 0xfffff000;  // ties
    }
    codes.push_back({code, 0});
  }
  return codes;
}

TEST(NaiveView, CastsAsThePlainKernels) {
  const std::array dtypes{DType::F64, DType::F32, DType::F16, DType::BF16};
  for (const DType from : dtypes) {
    const std::vector<Element> codes = codes_of(from);
    const std::vector<std::byte> in = naive_bytes(codes, from);
    for (const DType to : dtypes) {
      if (from == to) continue;
      std::vector<Element> cast;
      for (const Element& code : codes) {
        cast.push_back(naive_steps(code, from, {Step{Step::Kind::Cast, to, 0}}));
      }
      const CastKernel kernel = find_cast(from, to, KernelSet::Reference);
      ASSERT_NE(kernel, nullptr);
      std::vector<std::byte> out(codes.size() * static_cast<std::size_t>(bits(to) / 8));
      kernel(in.data(), out.data(), codes.size());
      EXPECT_TRUE(out == naive_bytes(cast, to)) << name(from) << " to " << name(to);
    }
  }
}

TEST(NaiveView, ComputesStepsAsTheyAreDefined) {
  const auto f32 = [](float value) { return Element{std::bit_cast<std::uint32_t>(value), 0}; };
  const Step third{Step::Kind::Multiply, DType::F32, 1.0 / 3};
  EXPECT_EQ(naive_steps(f32(2.0F), DType::F32, {third}), f32(2.0F * (1.0F / 3)));
  EXPECT_EQ(naive_steps(f32(1.0F), DType::F32, {{Step::Kind::Add, DType::F32, -0.1}}),
            f32(1.0F + -0.1F));
  // BF16: 1.0 + 2^-9 is a tie that goes to the even 1.0; 1.0078125 + 2^-8 goes up to 1.015625.
  EXPECT_EQ(naive_steps({0x3f80, 0}, DType::BF16, {{Step::Kind::Add, DType::BF16, 0x1p-8}}),
            (Element{0x3f80, 0}));
  EXPECT_EQ(naive_steps({0x3f81, 0}, DType::BF16, {{Step::Kind::Add, DType::BF16, 0x1p-8}}),
            (Element{0x3f82, 0}));
  const Step flush{Step::Kind::FlushSubnormals, DType::F16, 0};
  EXPECT_EQ(naive_steps({0x83ff, 0}, DType::F16, {flush}), (Element{0x8000, 0}));
  EXPECT_EQ(naive_steps({0x8400, 0}, DType::F16, {flush}), (Element{0x8400, 0}));
  const Step canonical{Step::Kind::CanonicalNan, DType::F16, 0};
  EXPECT_EQ(naive_steps({0xfc01, 0}, DType::F16, {canonical}), (Element{0x7e00, 0}));
  EXPECT_EQ(naive_steps({0xfc00, 0}, DType::F16, {canonical}), (Element{0xfc00, 0}));
  // A computed NaN keeps the sign of the value.
  const Step by_zero{Step::Kind::Multiply, DType::F32, 0};
  EXPECT_EQ(naive_steps({0xff800000, 0}, DType::F32, {by_zero}), (Element{0xffc00000, 0}));
}

TEST(NaiveView, DecodesBlocksAsThePlainKernels) {
  std::mt19937_64 random(11);
  for (const DType dtype : {DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ}) {
    // 3 matrices of 5 x 7 in blocks of 2 x 3.
    const BlockScale encoding{.codes = dtype,
                              .scale = DType::F32,
                              .rows = 5,
                              .columns = 7,
                              .block_rows = 2,
                              .block_columns = 3};
    std::vector<std::byte> weight(3 * 5 * 7);
    std::vector<std::uint32_t> scales(3 * 3 * 3);
    for (std::byte& code : weight) code = static_cast<std::byte>(random());
    for (std::uint32_t& scale : scales) scale = static_cast<std::uint32_t>(random());
    scales[0] = 0x7f800000;  // infinity times zero is a NaN, too
    std::vector<std::byte> scale_bytes(scales.size() * 4);
    std::memcpy(scale_bytes.data(), scales.data(), scale_bytes.size());

    MemorySource source;
    CatalogBuilder builder("test");
    const Extent weight_extent{source.add("w", weight), 0, weight.size()};
    const Extent scale_extent{source.add("s", scale_bytes), 0, scale_bytes.size()};
    const StorageId scale = builder.add_storage(DType::F32, 27, std::span(&scale_extent, 1));
    const StorageId storage = builder.add_storage(dtype, 105, std::span(&weight_extent, 1));
    builder.set_encoding(storage, block_scale_encoding(encoding), std::span(&scale, 1), 105);
    const auto catalog = std::move(builder).build();

    std::vector<std::byte> expected(weight.size() * 4);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const std::size_t block = i / 35 * 9 + i % 35 / 7 / 2 * 3 + i % 7 / 3;
      find_scale(dtype, DType::F32, KernelSet::Reference)(
          &weight[i], std::bit_cast<float>(scales[block]), &expected[i * 4], 1);
    }
    EXPECT_TRUE(naive_bytes(naive_storage(*catalog, source, storage).value(), DType::F32) ==
                expected)
        << name(dtype);
  }
}

}  // namespace
}  // namespace ckfs
