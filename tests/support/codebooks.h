// tests/data/codebooks: what torch 2.13 and the libraries of quantized formats made on CPU of every
// code of the small formats, of edge and random values, and of codes times edge scales. A NaN
// compares as a NaN: torch's own NaN bits differ between machines.
#pragma once

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

/// Tests that read it; the file is read once.
class Codebooks : public testing::Test {
 protected:
  struct Tensor {
    DType dtype{};
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };

  static void SetUpTestSuite() { tensors_ = read(); }
  static void TearDownTestSuite() { tensors_.clear(); }

  /// "bf16" and "f16" are all codes in order.
  static const Tensor& tensor(const std::string& name) { return tensors_.at(name); }

  static std::size_t width(DType dtype) { return bytes_of(dtype, 1); }

  /// By way of F32 where there is no kernel: F8 to F16 and BF16.
  static std::vector<std::byte> cast(const std::vector<std::byte>& in, DType from, DType to,
                                     KernelSet set) {
    if (from == to) return in;
    const std::size_t count = in.size() / width(from);
    std::vector<std::byte> out(count * width(to));
    if (CastKernel kernel = find_cast(from, to, set)) {
      kernel(in.data(), out.data(), count);
      return out;
    }
    return cast(cast(in, from, DType::F32, set), DType::F32, to, set);
  }

  static void expect_equal(const std::vector<std::byte>& actual, const Tensor& expected,
                           const std::string& what) {
    ASSERT_EQ(actual.size(), expected.bytes.size()) << what;
    for (std::size_t i = 0; i < actual.size() / width(expected.dtype); ++i) {
      const std::uint64_t ours = code(actual, expected.dtype, i);
      const std::uint64_t theirs = code(expected.bytes, expected.dtype, i);
      if (is_nan(ours, expected.dtype) && is_nan(theirs, expected.dtype)) continue;
      ASSERT_EQ(ours, theirs) << what << ", element " << i;
    }
  }

 private:
  static std::map<std::string, Tensor> read() {
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
      tensors[name] = {
          *parse_dtype(std::string(entry["dtype"])), entry["shape"], {part.begin(), part.end()}};
    }
    Tensor codes{DType::U16, {65536}, std::vector<std::byte>(65536 * 2)};
    for (std::size_t i = 0; i < 65536; ++i) {
      store_le(std::span(codes.bytes).subspan(i * 2), static_cast<std::uint16_t>(i));
    }
    tensors["f16"] = {DType::F16, codes.shape, codes.bytes};
    tensors["bf16"] = {DType::BF16, codes.shape, codes.bytes};
    return tensors;
  }

  static std::uint64_t code(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
    const auto at = std::span(bytes).subspan(i * width(dtype));
    return width(dtype) == 2 ? load_le<std::uint16_t>(at) : load_le<std::uint32_t>(at);
  }

  static bool is_nan(std::uint64_t code, DType dtype) {
    switch (dtype) {
      case DType::F16:
        return (code & 0x7fff) > 0x7c00;
      case DType::BF16:
        return (code & 0x7fff) > 0x7f80;
      default:
        return (code & 0x7fffffff) > 0x7f800000;
    }
  }

  inline static std::map<std::string, Tensor> tensors_;
};

}  // namespace ckfs
