#include "encoding/big_endian_encoding.h"

#include <algorithm>
#include <memory>

namespace ckfs {
namespace {

class BigEndianEncoding final : public Encoding {
 public:
  explicit BigEndianEncoding(DType dtype) : dtype_(dtype) {}

  DType dtype() const override { return dtype_; }
  Granule granule() const override { return {1, width()}; }
  bool is_quantized() const override { return false; }

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back({0, {bytes_of(dtype_, elements.first), bytes_of(dtype_, elements.end())}});
  }

  std::uint64_t most_bytes(std::uint32_t /*part*/, std::int64_t count) const override {
    return bytes_of(dtype_, count);
  }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    const std::span<const std::byte> in =
        bytes.at(0, {bytes_of(dtype_, elements.first), bytes_of(dtype_, elements.end())});
    const bool complex = dtype_ == DType::C64 || dtype_ == DType::C128;
    const std::size_t number = complex ? width() / 2 : width();
    for (std::size_t at = 0; at < in.size(); at += number) {
      std::ranges::reverse_copy(in.subspan(at, number),
                                target.out.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return {};
  }

  std::string text() const override { return std::string(name(dtype_)) + ", big-endian"; }

 private:
  std::uint64_t width() const { return static_cast<std::uint64_t>(bits(dtype_)) / 8; }

  DType dtype_;
};

}  // namespace

std::shared_ptr<const Encoding> big_endian_encoding(DType dtype) {
  return std::make_shared<const BigEndianEncoding>(dtype);
}

}  // namespace ckfs
