// The products of a block are at most 16 different ones, so they are made, and rounded, once for
// each block; decoding is then a look-up.
#include "encoding/table_codes_encoding.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/load_le.h"
#include "base/rounding.h"
#include "tensor/column_codes.h"

namespace ckfs {
namespace {

/// Blocks whose tables are made at once: 4 KiB in F32.
constexpr std::int64_t kBlocksAtOnce = 64;
constexpr std::size_t kTable = 16;
constexpr std::size_t kNestedTable = 256;

/// The bytes of items [begin, end) of `size` bytes.
ByteRange items(std::int64_t begin, std::int64_t end, std::uint64_t size) {
  return {static_cast<std::uint64_t>(begin) * size, static_cast<std::uint64_t>(end) * size};
}

class TableCodesEncoding final : public Encoding {
 public:
  explicit TableCodesEncoding(const TableCodes& codes) : codes_(codes) {
    CKFS_CHECK(codes.block > 0 && codes.block % 2 == 0);
  }

  DType dtype() const override { return codes_.values; }
  Granule granule() const override { return {2, 1}; }
  std::uint32_t companions() const override { return is_nested() ? 4 : 2; }

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back({0, items(elements.first / 2, ceil_div<std::int64_t>(elements.end(), 2), 1)});
    const std::int64_t first = elements.first / codes_.block;
    const std::int64_t last = (elements.end() - 1) / codes_.block;
    needs.push_back({1, items(first, last + 1, is_nested() ? 1 : sizeof(float))});
    needs.push_back({2, {0, kTable * sizeof(float)}});
    if (!is_nested()) return;
    needs.push_back(
        {3, items(first / codes_.nested_block, last / codes_.nested_block + 1, sizeof(float))});
    needs.push_back({4, {0, kNestedTable * sizeof(float)}});
  }

  std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const override {
    const std::int64_t blocks = (count - 1) / codes_.block + 2;
    switch (part) {
      case 0:
        return static_cast<std::uint64_t>(ceil_div<std::int64_t>(count, 2));
      case 1:
        return static_cast<std::uint64_t>(blocks) * (is_nested() ? 1 : sizeof(float));
      case 2:
        return kTable * sizeof(float);
      case 3:
        return static_cast<std::uint64_t>((blocks - 1) / codes_.nested_block + 2) * sizeof(float);
      default:
        return kNestedTable * sizeof(float);
    }
  }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    const std::size_t width = bytes_of(codes_.values, 1);
    const LookupKernel kernel = find_lookup(width, target.kernels);
    const std::array<float, kTable> values = table(bytes);
    std::array<float, kBlocksAtOnce> scales;
    std::array<float, kBlocksAtOnce * kTable> products;
    std::array<std::byte, sizeof(products)> rounded;
    std::byte* out = target.out.data();
    for (std::int64_t at = elements.first; at < elements.end();) {
      const std::int64_t block = at / codes_.block;
      const std::int64_t end =
          at + std::min(elements.end() - at, kBlocksAtOnce * codes_.block - at % codes_.block);
      const auto blocks = static_cast<std::size_t>((end - 1) / codes_.block + 1 - block);
      load_scales(block, bytes, std::span(scales).first(blocks), target.kernels);
      const std::span<float> made = std::span(products).first(blocks * kTable);
      scale_tables(values, std::span(scales).first(blocks), made);
      const std::byte* tables = std::as_bytes(made).data();
      if (codes_.values != DType::F32) {
        find_cast(DType::F32, codes_.values, target.kernels)(tables, rounded.data(), made.size());
        tables = rounded.data();
      }
      kernel(bytes.at(0, items(at / 2, ceil_div<std::int64_t>(end, 2), 1)).data(), tables,
             static_cast<std::size_t>(at % codes_.block), static_cast<std::size_t>(codes_.block),
             out, static_cast<std::size_t>(end - at));
      out += static_cast<std::size_t>(end - at) * width;
      at = end;
    }
    return {};
  }

  Exactness exactness(DType to) const override {
    if (to == codes_.values) return Exactness::BitExact;
    return to == DType::F32 || to == DType::F64 ? Exactness::Exact : Exactness::Lossy;
  }

  std::string text() const override {
    return is_nested() ? "4-bit codes with table and nested scale"
                       : "4-bit codes with table and scale";
  }

 private:
  bool is_nested() const { return codes_.nested_block > 0; }

  std::array<float, kTable> table(const PartBytes& bytes) const {
    std::array<float, kTable> values;
    std::memcpy(values.data(), bytes.at(2, {0, sizeof(values)}).data(), sizeof(values));
    if (codes_.negative_zero && values[8] == 0) values[8] = -0.0F;
    return values;
  }

  /// The scales of blocks from `first` on.
  void load_scales(std::int64_t first, const PartBytes& bytes, std::span<float> out,
                   KernelSet /*kernels*/) const {
    const std::int64_t end = first + static_cast<std::int64_t>(out.size());
    if (!is_nested()) {
      const auto stored = bytes.at(1, items(first, end, sizeof(float)));
      std::memcpy(out.data(), stored.data(), stored.size());
      return;
    }
    const auto codes = bytes.at(1, items(first, end, 1));
    const auto map = bytes.at(4, {0, kNestedTable * sizeof(float)});
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t outer = (first + static_cast<std::int64_t>(i)) / codes_.nested_block;
      const auto absmax = load_le<float>(bytes.at(3, items(outer, outer + 1, sizeof(float))));
      const auto code = std::to_integer<std::size_t>(codes[i]);
      out[i] = load_le<float>(map.subspan(code * sizeof(float))) * absmax + codes_.nested_offset;
    }
  }

  const TableCodes codes_;
};

}  // namespace

std::shared_ptr<const Encoding> table_codes_encoding(const TableCodes& codes) {
  return std::make_shared<const TableCodesEncoding>(codes);
}

}  // namespace ckfs
