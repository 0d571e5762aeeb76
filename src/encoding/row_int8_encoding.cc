#include "encoding/row_int8_encoding.h"

#include <algorithm>
#include <array>

#include "base/load_le.h"
#include "tensor/column_codes.h"

namespace ckfs {
namespace {

constexpr float kFactor = 7.874015718698502e-3F;  // bitsandbytes _ops.py, int8_vectorwise_dequant
constexpr std::int64_t kAtOnce = 2048;            // floats in front of the cast: 8 KiB

class RowInt8Encoding final : public Encoding {
 public:
  explicit RowInt8Encoding(std::int64_t columns) : columns_(columns) {}

  DType dtype() const override { return DType::F32; }
  Granule granule() const override { return {}; }
  std::uint32_t companions() const override { return 1; }

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back({0, codes(elements.first, elements.end())});
    needs.push_back({1, scales(elements.first / columns_, (elements.end() - 1) / columns_ + 1)});
  }

  std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const override {
    if (part == 0) return static_cast<std::uint64_t>(count);
    return sizeof(float) * static_cast<std::uint64_t>((count + columns_ - 2) / columns_ + 1);
  }

  bool decodes_to(DType dtype) const override {
    return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F16;
  }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    std::array<float, kAtOnce> floats;
    std::byte* out = target.out.data();
    for (std::int64_t at = elements.first; at < elements.end();) {
      const std::int64_t row = at / columns_;
      const std::int64_t count =
          std::min({elements.end() - at, (row + 1) * columns_ - at, kAtOnce});
      const std::span<float> piece = std::span(floats).first(static_cast<std::size_t>(count));
      scale_int8(bytes.at(0, codes(at, at + count)),
                 load_le<float>(bytes.at(1, scales(row, row + 1))), kFactor, piece);
      if (target.dtype == DType::F32) {
        std::ranges::copy(std::as_bytes(piece), out);
      } else {
        find_cast(DType::F32, target.dtype, target.kernels)(std::as_bytes(piece).data(), out,
                                                            piece.size());
      }
      out += bytes_of(target.dtype, count);
      at += count;
    }
    return {};
  }

  Exactness exactness(DType to) const override {
    return to == DType::BF16 ? Exactness::BitExact : Encoding::exactness(to);
  }

  std::string text() const override { return "I8 with row scale"; }

 private:
  static ByteRange codes(std::int64_t begin, std::int64_t end) {
    return {static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(end)};
  }
  static ByteRange scales(std::int64_t begin, std::int64_t end) {
    return {sizeof(float) * static_cast<std::uint64_t>(begin),
            sizeof(float) * static_cast<std::uint64_t>(end)};
  }

  const std::int64_t columns_;
};

}  // namespace

std::shared_ptr<const Encoding> row_int8_encoding(std::int64_t columns) {
  return std::make_shared<const RowInt8Encoding>(columns);
}

}  // namespace ckfs
