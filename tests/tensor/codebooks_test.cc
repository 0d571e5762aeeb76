// Kernels against torch: tests/data/codebooks holds what torch 2.13 made on CPU of every code of
// the small floats, of edge and random values, and of every e4m3 code times edge scales. A NaN
// compares as a NaN: torch's own NaN bits differ between machines.
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/load_le.h"
#include "tensor/kernel.h"

namespace ckfs {
namespace {

struct Tensor {
  DType dtype{};
  std::vector<std::byte> bytes;
};

std::size_t width(DType dtype) {
  return static_cast<std::size_t>(bits(dtype)) / 8;
}

std::map<std::string, Tensor> read_codebooks() {
  std::ifstream file(CKFS_TEST_DATA "/codebooks/codebooks.safetensors", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  std::map<std::string, Tensor> tensors;
  if (bytes.size() < 8) return tensors;
  const auto header_size = load_le<std::uint64_t>(bytes);
  const auto payload = bytes.subspan(8 + header_size);
  const auto header = nlohmann::json::parse(text.substr(8, header_size));
  for (const auto& [name, entry] : header.items()) {
    const std::size_t begin = entry["data_offsets"][0];
    const std::size_t end = entry["data_offsets"][1];
    const auto part = payload.subspan(begin, end - begin);
    tensors[name] = {*parse_dtype(std::string(entry["dtype"])), {part.begin(), part.end()}};
  }
  Tensor codes{DType::U16, std::vector<std::byte>(65536 * 2)};
  for (std::size_t i = 0; i < 65536; ++i) {
    store_le(std::span(codes.bytes).subspan(i * 2), static_cast<std::uint16_t>(i));
  }
  tensors["f16"] = {DType::F16, codes.bytes};
  tensors["bf16"] = {DType::BF16, codes.bytes};
  return tensors;
}

class Codebooks : public testing::Test {
 protected:
  static void SetUpTestSuite() { tensors_ = read_codebooks(); }
  static void TearDownTestSuite() { tensors_.clear(); }

  static const Tensor& tensor(const std::string& name) { return tensors_.at(name); }

  inline static std::map<std::string, Tensor> tensors_;
};

std::vector<std::byte> cast(const std::vector<std::byte>& in, DType from, DType to, KernelSet set) {
  if (from == to) return in;
  const std::size_t count = in.size() / width(from);
  std::vector<std::byte> out(count * width(to));
  if (CastKernel kernel = find_cast(from, to, set)) {
    kernel(in.data(), out.data(), count);
    return out;
  }
  return cast(cast(in, from, DType::F32, set), DType::F32, to, set);  // F8 to F16 and BF16
}

std::uint64_t code(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
  const auto at = std::span(bytes).subspan(i * width(dtype));
  return width(dtype) == 2 ? load_le<std::uint16_t>(at) : load_le<std::uint32_t>(at);
}

bool is_nan(std::uint64_t code, DType dtype) {
  switch (dtype) {
    case DType::F16:
      return (code & 0x7fff) > 0x7c00;
    case DType::BF16:
      return (code & 0x7fff) > 0x7f80;
    default:
      return (code & 0x7fffffff) > 0x7f800000;
  }
}

void expect_equal(const std::vector<std::byte>& actual, const Tensor& expected,
                  const std::string& what) {
  ASSERT_EQ(actual.size(), expected.bytes.size()) << what;
  for (std::size_t i = 0; i < actual.size() / width(expected.dtype); ++i) {
    const std::uint64_t ours = code(actual, expected.dtype, i);
    const std::uint64_t torch = code(expected.bytes, expected.dtype, i);
    if (is_nan(ours, expected.dtype) && is_nan(torch, expected.dtype)) continue;
    ASSERT_EQ(ours, torch) << what << ", element " << i;
  }
}

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
