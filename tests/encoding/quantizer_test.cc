#include "encoding/quantizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace ckfs {
namespace {

constexpr std::int64_t kRow = std::numeric_limits<std::int64_t>::max();

struct Form {
  QuantizedForm form;
  QuantizedGranule granule;
};
const std::vector<Form>& forms() {
  static const std::vector<Form> all{
      {QuantizedForm::Fp8Block, {128, 128}},     {QuantizedForm::Fp8Block, {3, 5}},
      {QuantizedForm::Fp8Block, {1, 7}},         {QuantizedForm::Fp8Ue8m0, {128, 128}},
      {QuantizedForm::Fp8Channel, {1, kRow}},    {QuantizedForm::Fp8Tensor, {1, 1}},
      {QuantizedForm::CtFp8Channel, {1, kRow}},  {QuantizedForm::CtFp8Block, {128, 128}},
      {QuantizedForm::CtInt8Channel, {1, kRow}}, {QuantizedForm::CtInt4Group, {1, 32}},
      {QuantizedForm::CtInt4Group, {1, 12}},     {QuantizedForm::CtInt4GroupAsymmetric, {1, 4}},
      {QuantizedForm::CtMxfp4, {1, 32}},         {QuantizedForm::CtMxfp8, {1, 32}},
      {QuantizedForm::CtNvfp4, {1, 16}},         {QuantizedForm::Nf4, {1, 64}}};
  return all;
}

std::vector<std::byte> random_values(DType dtype, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<std::byte> bytes;
  for (std::int64_t i = 0; i < count; ++i) {
    // Some zeros, and values of other sizes.
    const float value = i % 17 == 0 ? 0.0F : normal(random) * (i % 29 == 0 ? 100.0F : 1.0F);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t shown = dtype == DType::F32 ? bits : bits >> 16;  // F16: any bits
    const auto* const from = reinterpret_cast<const std::byte*>(&shown);
    bytes.insert(bytes.end(), from, from + bytes_of(dtype, 1));
  }
  return bytes;
}

/// Bytes `range` of an output, computed from the values of its units alone.
std::vector<std::byte> made(const Quantizer& quantizer, std::size_t output, ByteRange range,
                            const std::vector<std::byte>& values) {
  const ElementRange elements = quantizer.elements_of(output, range);
  const ByteRange whole = quantizer.bytes_of(output, elements);
  EXPECT_LE(whole.begin, range.begin);
  EXPECT_GE(whole.end, range.end);
  const std::size_t width = bytes_of(quantizer.from(), 1);
  // A copy of exactly these, so that a sanitizer sees a read beyond them.
  const std::vector<std::byte> own(
      values.begin() + static_cast<std::ptrdiff_t>(elements.first * width),
      values.begin() + static_cast<std::ptrdiff_t>(elements.end() * width));
  std::vector<std::byte> out(whole.size());
  EXPECT_TRUE(quantizer.quantize(output, elements, {.values = own.data(), .maximum = 2.5F}, out));
  return {out.begin() + static_cast<std::ptrdiff_t>(range.begin - whole.begin),
          out.begin() + static_cast<std::ptrdiff_t>(range.end - whole.begin)};
}

TEST(Quantizer, MakesTheSameBytesOfAnyRange) {
  std::mt19937 random(7);
  for (const Form& form : forms()) {
    for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
      for (const std::array<std::int64_t, 2> shape :
           {std::array<std::int64_t, 2>{5, 96}, {131, 300}, {9, 12}, {1, 160}, {260, 33}}) {
        const auto made_quantizer = make_quantizer(form.form, dtype, shape, form.granule);
        if (!made_quantizer) continue;  // groups that do not divide it
        const Quantizer& quantizer = **made_quantizer;
        const auto values = random_values(dtype, shape[0] * shape[1], 11);
        for (std::size_t k = 0; k < quantizer.outputs().size(); ++k) {
          const std::uint64_t bytes = quantizer.outputs()[k].nbytes;
          const auto whole = made(quantizer, k, {0, bytes}, values);
          ASSERT_EQ(bytes, whole.size());
          for (int turn = 0; turn < 12; ++turn) {
            const std::uint64_t begin = random() % bytes;
            const std::uint64_t end = begin + 1 + random() % (bytes - begin);
            const auto part = made(quantizer, k, {begin, end}, values);
            EXPECT_TRUE(std::equal(part.begin(), part.end(),
                                   whole.begin() + static_cast<std::ptrdiff_t>(begin)))
                << quantizer.text() << " " << name(dtype) << " " << shape[0] << "x" << shape[1]
                << " " << quantizer.outputs()[k].suffix << " " << begin << "-" << end;
          }
        }
      }
    }
  }
}

TEST(Quantizer, HasOutputsOfTheSizesThatTheToolsWrite) {
  const std::array<std::int64_t, 2> shape{130, 136};
  const auto outputs = [&](QuantizedForm form, QuantizedGranule granule) {
    std::vector<std::string> texts;
    const auto quantizer = *make_quantizer(form, DType::BF16, shape, granule);
    for (const QuantizedOutput& output : quantizer->outputs()) {
      texts.push_back(
          fmt::format("{} {} {}", output.suffix, name(output.dtype), fmt::join(output.shape, "x")));
    }
    return texts;
  };
  using testing::ElementsAre;
  EXPECT_THAT(outputs(QuantizedForm::Fp8Block, {128, 128}),
              ElementsAre("weight F8_E4M3 130x136", "weight_scale_inv F32 2x2"));
  EXPECT_THAT(outputs(QuantizedForm::Fp8Tensor, {1, 1}),
              ElementsAre("weight F8_E4M3 130x136", "weight_scale F32 1"));
  EXPECT_THAT(outputs(QuantizedForm::CtInt4GroupAsymmetric, {1, 68}),
              ElementsAre("weight_packed I32 130x17", "weight_scale BF16 130x2",
                          "weight_zero_point I32 17x2", "weight_shape I64 2"));
  EXPECT_THAT(outputs(QuantizedForm::CtNvfp4, {1, 8}),
              ElementsAre("weight_packed U8 130x68", "weight_scale F8_E4M3 130x17",
                          "weight_global_scale F32 1"));
  EXPECT_THAT(outputs(QuantizedForm::Nf4, {1, 64}),
              ElementsAre("weight U8 8840x1", "weight.absmax F32 277", "weight.quant_map F32 16",
                          "weight.quant_state.bitsandbytes__nf4 U8 80"));
}

std::string refusal(QuantizedForm form, DType dtype, std::vector<std::int64_t> shape,
                    QuantizedGranule granule) {
  const auto made = make_quantizer(form, dtype, shape, granule);
  return made ? std::string() : made.error().message();
}

TEST(Quantizer, RefusesWhatItsFormHasNoPlaceFor) {
  using testing::HasSubstr;
  const auto group = QuantizedForm::CtInt4Group;
  EXPECT_THAT(refusal(group, DType::BF16, {4, 72}, {1, 128}),
              HasSubstr("groups of 128 do not divide 72 columns"));
  EXPECT_THAT(refusal(group, DType::BF16, {72}, {1, 128}), HasSubstr("1 dimensions"));
  EXPECT_THAT(refusal(group, DType::F64, {4, 128}, {1, 128}), HasSubstr("F64"));
  EXPECT_THAT(refusal(group, DType::BF16, {4, 0}, {1, 128}), HasSubstr("no elements"));
  EXPECT_THAT(
      refusal(QuantizedForm::Fp8Block, DType::BF16, {std::int64_t{1} << 40, 1 << 30}, {128, 128}),
      HasSubstr("too large"));
  EXPECT_THAT(refusal(QuantizedForm::Fp4AsFp8, DType::BF16, {128, 96}, {}), HasSubstr("128 x 128"));
}

/// FP4 as FP8: a block of 128 x 128 with one scale byte but for one group, whose values are all
/// `value` times its scale.
Result<void> exact(int byte, int other, float value, std::vector<std::byte>& codes,
                   std::vector<std::byte>& scale) {
  const std::array<std::int64_t, 2> shape{128, 128};
  const auto quantizer = *make_quantizer(QuantizedForm::Fp4AsFp8, DType::BF16, shape, {});
  std::vector<std::byte> values, scales(128 * 4, std::byte(byte));
  scales[130] = std::byte(other);  // row 32, columns 64 to 95
  for (int i = 0; i < 128 * 128; ++i) {
    const bool apart = i / 128 == 32 && i % 128 / 32 == 2;
    const float shown = std::ldexp(apart ? value : 1.5F, (apart ? other : byte) - 127);
    const auto bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shown) >> 16);
    values.push_back(std::byte(bits & 0xff));
    values.push_back(std::byte(bits >> 8));
  }
  codes.resize(128 * 128);
  scale.resize(4);
  const Quantizer::Values in{.values = values.data(), .beside = scales.data()};
  CKFS_TRY_VOID(quantizer->quantize(0, {0, 128 * 128}, in, codes));
  return quantizer->quantize(1, {0, 128 * 128}, in, scale);
}

TEST(Fp4AsFp8, KeepsEveryValueOrNamesTheBlock) {
  std::vector<std::byte> codes, scale;
  // 1.5 * 2^6 is 96: exponent 6 and half, 0x6c. 4 * 2^(-15 + 6) is 2^-7: 4 times the least, 0x04.
  ASSERT_TRUE(exact(120, 105, 4.0F, codes, scale));
  EXPECT_EQ(std::byte{0x6c}, codes[0]);
  EXPECT_EQ(std::byte{0x04}, codes[32 * 128 + 64]);
  EXPECT_EQ((std::vector<std::byte>{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0x39}}),
            scale);  // 2^(114 - 127)
  const auto refused = exact(120, 103, 0.5F, codes, scale);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("block 0, 0"));
  EXPECT_FALSE(exact(6, 6, 1, codes, scale));      // an exponent that F32 has no place for
  EXPECT_FALSE(exact(120, 255, 1, codes, scale));  // a scale that is NaN
}

}  // namespace
}  // namespace ckfs
