#include "tensor/quantize.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "tensor/fast_sets.h"

namespace ckfs {
namespace {

constexpr float kEndless = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

template <typename T>
std::vector<std::byte> bytes_of_all(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// The codes of F32 values with one scale.
std::vector<std::uint8_t> codes(CodeKind kind, CodeArithmetic arithmetic,
                                const std::vector<float>& values, float scale = 1, float zero = 0,
                                KernelSet set = KernelSet::Reference) {
  const std::vector<std::byte> in = bytes_of_all(values);
  std::vector<std::uint8_t> out(values.size());
  const QuantizeKernel kernel = find_quantize(DType::F32, kind, arithmetic, set);
  kernel(in.data(), {&scale, &zero, 0, values.size()}, reinterpret_cast<std::byte*>(out.data()),
         values.size());
  return out;
}

/// The positive values of a format of small floats, by code.
std::vector<float> small_floats(int exponent_bits, int mantissa_bits, int bias, int count) {
  std::vector<float> values;
  for (int code = 0; code < count; ++code) {
    const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const double fraction = static_cast<double>(mantissa) / (1 << mantissa_bits);
    values.push_back(static_cast<float>(exponent == 0
                                            ? fraction * std::exp2(1 - bias)
                                            : (1 + fraction) * std::exp2(exponent - bias)));
  }
  return values;
}

/// All borders between neighbours and one step to either side, the values, and what lies beyond.
std::vector<float> borders_of(const std::vector<float>& table) {
  std::vector<float> values{0.0F, 1e-45F, 1e-30F, 3e38F, kEndless};
  const auto add = [&](float value) {
    values.push_back(std::nextafter(value, -kEndless));
    values.push_back(value);
    values.push_back(std::nextafter(value, kEndless));
  };
  for (std::size_t i = 0; i < table.size(); ++i) {
    add(table[i]);
    if (i + 1 < table.size()) add((table[i] + table[i + 1]) / 2);
  }
  const std::size_t positive = values.size();
  for (std::size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
  return values;
}

/// The code of the nearest value of the table, of two as near the even one.
int nearest(const std::vector<float>& table, float value) {
  const double magnitude = std::min<double>(std::fabs(value), table.back());
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int code = 0; code < static_cast<int>(table.size()); ++code) {
    const double distance = std::fabs(static_cast<double>(table[code]) - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) {
      best = code;
      least = distance;
    }
  }
  return best;
}

TEST(Quantize, GivesTheNearestE4M3AndKeepsTheSignOfZero) {
  const std::vector<float> table = small_floats(4, 3, 7, 127);
  ASSERT_EQ(448.0F, table.back());
  const std::vector<float> values = borders_of(table);
  const std::vector<std::uint8_t> got = codes(CodeKind::E4M3, CodeArithmetic::Quotient, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(nearest(table, values[i]) + (std::signbit(values[i]) ? 128 : 0), got[i]) << values[i];
  }
  EXPECT_EQ(0x7f, codes(CodeKind::E4M3, CodeArithmetic::Quotient, {kNan})[0]);
  EXPECT_EQ(0x7f, e4m3_code(-kNan));
}

TEST(Quantize, GivesTheNearestE2M1AndNegativeZeroOnlyToNegativeValues) {
  const std::vector<float> table = small_floats(2, 1, 1, 8);
  ASSERT_EQ(6.0F, table.back());
  const std::vector<float> values = borders_of(table);
  const std::vector<std::uint8_t> got = codes(CodeKind::E2M1, CodeArithmetic::Quotient, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(nearest(table, values[i]) + (values[i] < 0 ? 8 : 0), got[i]) << values[i];
  }
  EXPECT_EQ(0, codes(CodeKind::E2M1, CodeArithmetic::Quotient, {kNan})[0]);
}

TEST(Quantize, RoundsToWholeNumbersWithTiesToEven) {
  using enum CodeArithmetic;
  const std::vector<float> values{0.5F,   1.5F,     -0.5F, -1.5F,   126.5F, 127.49F,
                                  127.5F, kEndless, -1e9F, -128.5F, kNan};
  const std::vector<int> want{0, 2, 0, -2, 126, 127, 127, 127, -128, -128, 0};
  const std::vector<std::uint8_t> got = codes(CodeKind::I8, RoundedQuotient, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(want[i], static_cast<std::int8_t>(got[i])) << values[i];
  }
  EXPECT_EQ((std::vector<std::uint8_t>{15, 15, 0, 0, 8, 8, 10, 8}),
            codes(CodeKind::I4, RoundedQuotient, {7.4F, 99, -8, -99, 0.5F, -0.5F, 1.5F, kNan}));
  EXPECT_EQ((std::vector<std::uint8_t>{5, 15, 0}),
            codes(CodeKind::I4, RoundedSum, {0, 20, -20}, 1, -3));
}

TEST(Quantize, CountsTheMidpointsOfNf4BelowAValue) {
  const std::vector<float> values{-1, -2, 1, 2, 0, kNf4Table[3], kNf4Table[12]};
  EXPECT_EQ((std::vector<std::uint8_t>{0, 0, 15, 15, 7, 3, 12}),
            codes(CodeKind::NF4, CodeArithmetic::Product, values));
  // A midpoint itself is the lower code.
  const float middle = (kNf4Table[9] + kNf4Table[10]) / 2;
  EXPECT_EQ((std::vector<std::uint8_t>{9, 10}),
            codes(CodeKind::NF4, CodeArithmetic::Product, {middle, std::nextafter(middle, 1.0F)}));
}

TEST(Quantize, RoundsAQuotientToTheDtypeOfTheValueBeforeTheCode) {
  // 1.0625 lies between the codes of 1 and 1.125; the quotient is a little above it. BF16 has no
  // place for the little, and the tie goes to the even code.
  const std::uint16_t value = 0x3f89;  // 1.0703125
  const float scale = 1.00735F;
  std::array<std::byte, 2> in{};
  std::memcpy(in.data(), &value, 2);
  const auto code = [&](CodeArithmetic arithmetic) {
    std::byte out{};
    find_quantize(DType::BF16, CodeKind::E4M3, arithmetic)(in.data(), {&scale, nullptr, 0, 1}, &out,
                                                           1);
    return std::to_integer<int>(out);
  };
  EXPECT_EQ(0x39, code(CodeArithmetic::Quotient));
  EXPECT_EQ(0x38, code(CodeArithmetic::RoundedQuotient));
}

TEST(Maxima, AreOfEachGroupAndKeepANan) {
  const std::vector<float> values{1, -3, 2, 0, -0.0F, 0, kNan, 9, kEndless, -kEndless};
  const std::vector<std::byte> in = bytes_of_all(values);
  std::array<float, 4> maxima{};
  find_maxima(DType::F32)(in.data(), 3, maxima.data(), values.size());
  EXPECT_EQ(3, maxima[0]);
  EXPECT_EQ(0, maxima[1]);
  EXPECT_TRUE(std::isnan(maxima[2]));
  EXPECT_EQ(kEndless, maxima[3]);
  find_maxima(DType::F32)(in.data(), 3, maxima.data(), 3);
  EXPECT_EQ(3, maxima[0]);
}

/// All values of a format of 16 bits, or many of F32.
std::vector<std::byte> all_values(DType dtype) {
  if (dtype != DType::F32) {
    std::vector<std::uint16_t> values(1 << 16);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
    return bytes_of_all(values);
  }
  std::vector<std::uint32_t> values;
  for (std::uint64_t i = 0; i < 1 << 17; ++i) {
    values.push_back(static_cast<std::uint32_t>(i * 2654435761U >> 3 ^ i << 15));
  }
  return bytes_of_all(values);
}

TEST(Quantize, GivesTheSameByBothKernelSets) {
  using enum CodeArithmetic;
  constexpr std::array<std::pair<CodeKind, CodeArithmetic>, 10> kAll{
      {{CodeKind::E4M3, Product},
       {CodeKind::E4M3, Quotient},
       {CodeKind::E4M3, RoundedQuotient},
       {CodeKind::I8, RoundedQuotient},
       {CodeKind::I4, RoundedQuotient},
       {CodeKind::I4, RoundedSum},
       {CodeKind::E2M1, Quotient},
       {CodeKind::E2M1, RoundedQuotient},
       {CodeKind::NF4, Product},
       {CodeKind::NF4, Quotient}}};
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    const std::vector<std::byte> in = all_values(dtype);
    const std::size_t count = in.size() / bytes_of(dtype, 1);
    for (const auto& [kind, arithmetic] : kAll) {
      const QuantizeKernel plain = find_quantize(dtype, kind, arithmetic, KernelSet::Reference);
      for (const std::size_t group : {std::size_t{16}, std::size_t{37}, count}) {
        const std::size_t groups = count / group + 1;
        std::vector<float> scales(groups), zeros(groups);
        for (std::size_t i = 0; i < groups; ++i) {
          scales[i] =
              std::ldexp(1.0F + static_cast<float>(i % 97) / 97, static_cast<int>(i % 41) - 20);
          zeros[i] = static_cast<float>(i % 16) - 8;
        }
        if (groups > 8) {
          scales[1] = 0;
          scales[2] = kEndless;
          scales[3] = kNan;
          scales[4] = 1e-40F;
          scales[5] = std::bit_cast<float>(0x7fffffffU);  // a sum with its bits changes the sign
          zeros[6] = std::bit_cast<float>(0xffffffffU);
        }
        std::vector<std::byte> want(count), got(count);
        for (const std::size_t first : {std::size_t{0}, std::size_t{5}}) {
          const GroupScales by{scales.data(), zeros.data(), first, group};
          plain(in.data(), by, want.data(), count - 3);
          for (const auto& [set, fast] : fast_quantizes(dtype, kind, arithmetic)) {
            fast(in.data(), by, got.data(), count - 3);
            EXPECT_TRUE(want == got)
                << set << " " << name(dtype) << " kind " << static_cast<int>(kind) << " by "
                << static_cast<int>(arithmetic) << " groups of " << group;
          }
        }
      }
    }
    for (const std::size_t group : {std::size_t{1}, std::size_t{16}, std::size_t{37}, count}) {
      std::vector<float> want(count / group + 1);
      find_maxima(dtype, KernelSet::Reference)(in.data(), group, want.data(), count);
      for (const auto& [set, fast] : fast_maxima(dtype)) {
        std::vector<float> got(count / group + 1);
        fast(in.data(), group, got.data(), count);
        for (std::size_t i = 0; i < want.size(); ++i) {
          EXPECT_TRUE(want[i] == got[i] || (std::isnan(want[i]) && std::isnan(got[i]))) << set;
        }
      }
    }
  }
}

/// What both kernels make of groups of `values` of `in`: the same codes and scales, the bits of
/// NaNs in F32 apart.
void expect_same_groups(GroupForm form, DType dtype, std::size_t values, float global,
                        const std::vector<std::byte>& in) {
  const std::size_t count = in.size() / bytes_of(dtype, 1) / values;
  struct Made {
    std::vector<std::byte> codes, scales;
  };
  const auto made = [&](QuantizeGroupsKernel kernel, bool codes, bool scales) {
    Made bytes{std::vector<std::byte>(codes ? count * values : 1),
               std::vector<std::byte>(scales ? count * 4 : 1)};
    kernel(in.data(), {values, count, global}, codes ? bytes.codes.data() : nullptr,
           scales ? bytes.scales.data() : nullptr);
    return bytes;
  };
  const Made want = made(find_quantize_groups(form, dtype, KernelSet::Reference), true, true);
  const std::size_t width = form == GroupForm::Int4  ? bytes_of(dtype, 1)
                            : form == GroupForm::Nf4 ? 4
                                                     : 1;
  const std::uint32_t endless = 0x7f800000;
  for (const auto& [set, fast] : fast_quantize_groups(form, dtype)) {
    const std::string where =
        fmt::format("{} {} form {} groups of {}", set, name(dtype), static_cast<int>(form), values);
    const Made got = made(fast, true, true);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t a = 0, b = 0;
      std::memcpy(&a, want.scales.data() + i * width, width);
      std::memcpy(&b, got.scales.data() + i * width, width);
      const bool nan = width == 4 && a > endless && b > endless;
      ASSERT_TRUE(a == b || nan) << where << " scale " << i << ": " << a << " " << b;
    }
    const auto differ = std::ranges::mismatch(want.codes, got.codes);
    ASSERT_TRUE(differ.in1 == want.codes.end())
        << where << " byte " << differ.in1 - want.codes.begin();
    ASSERT_EQ(got.codes, made(fast, true, false).codes) << where;
    ASSERT_EQ(got.scales, made(fast, false, true).scales) << where;
  }
}

constexpr std::array kGroupForms{GroupForm::Int4, GroupForm::Mxfp4, GroupForm::Mxfp8,
                                 GroupForm::Nvfp4, GroupForm::Nf4};

/// Groups whose largest magnitude is each value of the dtype in turn (by `step`), with smaller ones
/// of all sizes beside it, in any place.
std::vector<std::byte> groups_by_top(DType dtype, std::size_t values, std::size_t step) {
  const std::vector<std::byte> all = all_values(dtype);
  const std::size_t width = bytes_of(dtype, 1);
  const std::size_t count = (dtype == DType::F32 ? 1 << 13 : 1 << 15) / step;  // magnitudes
  std::vector<std::byte> in(count * values * width);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t top = 0;
    std::memcpy(&top, all.data() + i * step * width, width);
    const std::uint32_t sign = width == 2 ? 0x8000 : 0x80000000;
    top &= ~sign;
    for (std::size_t k = 0; k < values; ++k) {
      state = state * 1664525 + 1013904223;
      const bool is_top = k == i % values;
      // Now and then far smaller, else near to the borders between codes.
      const std::uint32_t below = state >> 8 & (width == 2 ? (k % 4 == 0 ? 0x7fff : 0x1ff)
                                                           : (k % 4 == 0 ? 0x7fffff : 0x1ffffff));
      std::uint32_t bits = is_top || below > top ? top : top - below;
      if ((state >> 31) != 0) bits |= sign;
      std::memcpy(in.data() + (i * values + k) * width, &bits, width);
    }
  }
  return in;
}

TEST(QuantizeGroups, GivesTheSameByBothKernelSetsForEachLargestMagnitude) {
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    for (const std::size_t values : {std::size_t{16}, std::size_t{32}, std::size_t{48}}) {
      const std::vector<std::byte> in = groups_by_top(dtype, values, values == 16 ? 1 : 13);
      for (const GroupForm form : kGroupForms) {
        expect_same_groups(form, dtype, values, form == GroupForm::Nvfp4 ? 1536.0F : 1.0F, in);
      }
    }
  }
}

TEST(QuantizeGroups, GivesTheSameByBothKernelSetsForAllValuesAndAnyNumberOfGroups) {
  for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
    const std::vector<std::byte> all = all_values(dtype);
    const std::size_t width = bytes_of(dtype, 1);
    for (const GroupForm form : kGroupForms) {
      for (const float global : {1.0F, 3.5e-5F, 6.5e8F, 1e38F, 3e-39F}) {
        expect_same_groups(form, dtype, 16, global, all);
        if (form != GroupForm::Nvfp4) break;
      }
      expect_same_groups(form, dtype, 128, 2.0F, all);
      for (std::size_t groups = 0; groups < 35; ++groups) {
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(4096 * width);
        expect_same_groups(form, dtype, 32, 0.75F,
                           {begin, begin + static_cast<std::ptrdiff_t>(groups * 32 * width)});
      }
    }
  }
}

/// Each border between codes, one step to either side and the values themselves, in groups of 16
/// whose scale is one: 15 of them, and one value that makes the scale.
TEST(QuantizeGroups, GivesTheCodesOfTheDefinitionAtAllBorders) {
  struct Case {
    GroupForm form;
    float top;     // of each group
    float global;  // makes the scale 1 of it
    std::vector<float> table;
  };
  const std::vector<Case> cases{
      {GroupForm::Mxfp4, 6, 1, small_floats(2, 1, 1, 8)},
      {GroupForm::Nvfp4, 6, 1, small_floats(2, 1, 1, 8)},
      {GroupForm::Mxfp8, 416, 1, small_floats(4, 3, 7, 127)},
  };
  for (const Case& of : cases) {
    std::vector<float> values;
    for (const float value : borders_of(of.table)) {
      if (std::fabs(value) > of.top) continue;
      if (values.size() % 16 == 15) values.push_back(of.top);
      values.push_back(value);
    }
    while (values.size() % 16 != 0) values.push_back(of.top);
    const std::size_t count = values.size();
    for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
      std::vector<std::byte> codes(count), scales(count / 16);
      find_quantize_groups(of.form, DType::F32, set)(
          bytes_of_all(values).data(), {16, count / 16, of.global}, codes.data(), scales.data());
      for (const std::byte scale : scales) {
        ASSERT_EQ(std::byte{of.form == GroupForm::Nvfp4 ? std::uint8_t{0x38} : std::uint8_t{127}},
                  scale);
      }
      for (std::size_t i = 0; i < count; ++i) {
        const bool wide = of.form == GroupForm::Mxfp8;
        const int got = wide ? std::to_integer<int>(codes[i])
                             : std::to_integer<int>(codes[i / 2]) >> (i % 2 * 4) & 15;
        const bool negative = wide ? std::signbit(values[i]) : values[i] < 0;
        EXPECT_EQ(nearest(of.table, values[i]) + (negative ? (wide ? 128 : 8) : 0), got)
            << values[i];
      }
    }
  }
}

}  // namespace
}  // namespace ckfs
