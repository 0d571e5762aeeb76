// Scales are computed for some hundred blocks at a time before one call of the kernel, which cannot
// use them as they are stored.
#include "encoding/table_codes_encoding.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/load_le.h"
#include "base/rounding.h"
#include "tensor/kernel.h"

namespace ckfs {
namespace {

/// Blocks whose scales are made at once.
constexpr std::int64_t kBlocksAtOnce = 512;
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
    const ScaleNibblesKernel kernel = find_scale_nibbles(codes_.values, target.kernels);
    const NibbleTable values = table(bytes);
    std::array<float, kBlocksAtOnce> scales;
    std::byte* out = target.out.data();
    for (std::int64_t at = elements.first; at < elements.end();) {
      const std::int64_t block = at / codes_.block;
      const std::int64_t in_block = at % codes_.block;
      const std::int64_t count =
          std::min(elements.end() - at, kBlocksAtOnce * codes_.block - in_block);
      const auto blocks = static_cast<std::size_t>((in_block + count - 1) / codes_.block + 1);
      load_scales(block, bytes, std::span(scales).first(blocks));
      kernel(bytes.at(0, items(at / 2, ceil_div<std::int64_t>(at + count, 2), 1)).data(), values,
             {scales.data(), nullptr, static_cast<std::size_t>(in_block),
              static_cast<std::size_t>(codes_.block)},
             out, static_cast<std::size_t>(count));
      out += bytes_of(codes_.values, count);
      at += count;
    }
    return {};
  }

  std::string text() const override {
    return is_nested() ? "4-bit codes with table and nested scale"
                       : "4-bit codes with table and scale";
  }

 private:
  bool is_nested() const { return codes_.nested_block > 0; }

  NibbleTable table(const PartBytes& bytes) const {
    NibbleTable table{.values = {}, .high_first = true};
    std::memcpy(table.values.data(), bytes.at(2, {0, sizeof(table.values)}).data(),
                sizeof(table.values));
    if (codes_.negative_zero && table.values[8] == 0) table.values[8] = -0.0F;
    return table;
  }

  /// The scales of blocks from `first` on.
  void load_scales(std::int64_t first, const PartBytes& bytes, std::span<float> out) const {
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
