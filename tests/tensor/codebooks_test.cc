// Casts and scaled decoding against torch (support/codebooks.h).
#include "support/codebooks.h"

namespace ckfs {
namespace {

TEST_F(Codebooks, CastsAreTorchs) {
  struct Case {
    const char* expected;
    const char* source;
    DType from;
  };
  for (const Case& c :
       {Case{"bf16.to_f16", "bf16", DType::BF16}, Case{"f16.to_bf16", "f16", DType::F16},
        Case{"f16.to_f32", "f16", DType::F16}, Case{"f32_edges.to_bf16", "f32_edges", DType::F32},
        Case{"f32_edges.to_f16", "f32_edges", DType::F32},
        Case{"f32_random.to_bf16", "f32_random", DType::F32},
        Case{"f32_random.to_f16", "f32_random", DType::F32},
        Case{"f64_edges.to_f32", "f64_edges", DType::F64},
        Case{"f64_edges.to_bf16", "f64_edges", DType::F64},
        Case{"f64_edges.to_f16", "f64_edges", DType::F64},
        Case{"e4m3fn.to_f32", "e4m3fn", DType::F8E4M3},
        Case{"e4m3fn.to_bf16", "e4m3fn", DType::F8E4M3},
        Case{"e4m3fn.to_f16", "e4m3fn", DType::F8E4M3}, Case{"e5m2.to_f32", "e5m2", DType::F8E5M2},
        Case{"e5m2.to_bf16", "e5m2", DType::F8E5M2}, Case{"e5m2.to_f16", "e5m2", DType::F8E5M2},
        Case{"e8m0_u8.to_f32_torch", "e8m0_u8", DType::F8E8M0}}) {
    const Tensor& expected = tensor(c.expected);
    for (KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
      expect_equal(cast(tensor(c.source).bytes, c.from, expected.dtype, set), expected, c.expected);
    }
  }
}

TEST_F(Codebooks, ScaledE4m3IsTorchsProductInF32AndOneCast) {
  struct Case {
    const char* expected;
    const char* scales;
    DType scale_dtype;
  };
  const std::vector<std::byte>& codes = tensor("e4m3fn").bytes;
  for (const Case& c : {Case{"e4m3fn_times_f32.in_scale_dtype", "scales_f32", DType::F32},
                        Case{"e4m3fn_times_f32.f32_to_bf16", "scales_f32", DType::F32},
                        Case{"e4m3fn_times_f32.f32_to_f16", "scales_f32", DType::F32},
                        Case{"e4m3fn_times_bf16.f32_to_bf16", "scales_bf16", DType::BF16},
                        Case{"e4m3fn_times_bf16.f32_to_f16", "scales_bf16", DType::BF16},
                        Case{"e4m3fn_times_f16.f32_to_bf16", "scales_f16", DType::F16},
                        Case{"e4m3fn_times_f16.f32_to_f16", "scales_f16", DType::F16}}) {
    const Tensor& expected = tensor(c.expected);
    for (KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
      const std::vector<std::byte> scales =
          cast(tensor(c.scales).bytes, c.scale_dtype, DType::F32, set);
      std::vector<std::byte> actual;
      for (std::size_t i = 0; i < scales.size(); i += 4) {
        std::vector<std::byte> row(codes.size() * width(expected.dtype));
        find_scale(DType::F8E4M3, expected.dtype, set)(
            codes.data(), load_le<float>(std::span(scales).subspan(i)), row.data(), codes.size());
        actual.insert(actual.end(), row.begin(), row.end());
      }
      expect_equal(actual, expected, c.expected);
    }
  }
}

}  // namespace
}  // namespace ckfs
