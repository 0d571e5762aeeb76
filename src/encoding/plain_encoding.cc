#include "encoding/plain_encoding.h"

#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "tensor/integers.h"

namespace ckfs {
namespace {

struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
};

/// Of the floats that are cast, or widened at a scale of 1; {0, 0} for all others.
FloatFormat float_format(DType dtype) {
  switch (dtype) {
    // Those of FNUZ begin one power of two lower, which is subnormal in F16 and has all its bits.
    case DType::F8E4M3:
    case DType::F8E4M3FNUZ:
      return {4, 3};
    case DType::F8E5M2:
    case DType::F8E5M2FNUZ:
      return {5, 2};
    case DType::F16:
      return {5, 10};
    case DType::BF16:
      return {8, 7};
    case DType::F32:
      return {8, 23};
    case DType::F64:
      return {11, 52};
    default:
      return {};
  }
}

class PlainEncoding final : public Encoding {
 public:
  explicit PlainEncoding(DType dtype) : dtype_(dtype) {}

  DType dtype() const override { return dtype_; }

  // F4 and F6: the least elements that are whole bytes.
  Granule granule() const override {
    const int together = std::lcm(bits(dtype_), 8);
    return {together / bits(dtype_), static_cast<std::uint64_t>(together / 8)};
  }

  std::optional<std::uint64_t> nbytes(std::int64_t numel) const override {
    return ckfs::nbytes(dtype_, numel);
  }

  bool is_plain() const override { return true; }
  bool is_quantized() const override { return false; }

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back({0, {bytes_of(dtype_, elements.first), bytes_of(dtype_, elements.end())}});
  }

  std::uint64_t most_bytes(std::uint32_t /*part*/, std::int64_t count) const override {
    return bytes_of(dtype_, count);
  }

  bool decodes_to(DType dtype) const override {
    return dtype == dtype_ || find_cast(dtype_, dtype) != nullptr;
  }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    const std::span<const std::byte> in =
        bytes.at(0, {bytes_of(dtype_, elements.first), bytes_of(dtype_, elements.end())});
    if (target.dtype == dtype_) {
      std::memcpy(target.out.data(), in.data(), in.size());
    } else {
      find_cast(dtype_, target.dtype, target.kernels)(in.data(), target.out.data(),
                                                      static_cast<std::size_t>(elements.count));
    }
    return {};
  }

  Exactness exactness(DType to) const override {
    if (to == dtype_) return Exactness::BitExact;
    const FloatFormat narrow = float_format(dtype_);
    const FloatFormat wide = float_format(to);
    if (is_integer(dtype_)) {
      return wide.mantissa_bits > 0 && bits_of_numbers(dtype_) <= wide.mantissa_bits + 1
                 ? Exactness::Exact
                 : Exactness::Lossy;
    }
    return narrow.exponent_bits <= wide.exponent_bits && narrow.mantissa_bits <= wide.mantissa_bits
               ? Exactness::Exact
               : Exactness::Lossy;
  }

  std::string text() const override { return std::string(name(dtype_)); }

 private:
  DType dtype_;
};

template <std::size_t... kIndices>
std::array<PlainEncoding, kDTypeCount> all(std::index_sequence<kIndices...> /*indices*/) {
  return {PlainEncoding(static_cast<DType>(kIndices))...};
}

}  // namespace

const Encoding& plain_encoding(DType dtype) {
  // Immutable, and shared by all catalogs: the exception to "no globals" is harmless.
  static const std::array<PlainEncoding, kDTypeCount> encodings =
      all(std::make_index_sequence<kDTypeCount>());
  return encodings[static_cast<std::size_t>(dtype)];
}

}  // namespace ckfs
