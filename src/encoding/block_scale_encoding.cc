// A row of codes is decoded by one call for many blocks, because a block of 128 elements is too
// little work for one; its scales are widened to floats in front of it, and kept for the rows that
// share them.
#include "encoding/block_scale_encoding.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/rounding.h"

namespace ckfs {
namespace {

/// Scales that are widened at once: a row of 65,536 elements in blocks of 128.
constexpr std::int64_t kScalesAtOnce = 512;

void widen_scales(DType dtype, std::span<const std::byte> in, std::span<float> out,
                  KernelSet kernels) {
  if (dtype == DType::F32) {
    std::memcpy(out.data(), in.data(), out.size_bytes());
  } else if (dtype == DType::U8) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = std::ldexp(1.0F, static_cast<int>(in[i]) - 127);
    }
  } else {
    find_cast(dtype, DType::F32, kernels)(in.data(), std::as_writable_bytes(out).data(),
                                          out.size());
  }
}

class BlockScaleEncoding final : public Encoding {
 public:
  explicit BlockScaleEncoding(const BlockScale& scale)
      : scale_(scale),
        grid_rows_(ceil_div(scale.rows, scale.block_rows)),
        grid_columns_(ceil_div(scale.columns, scale.block_columns)) {
    CKFS_CHECK(find_scale_blocks(scale.codes, DType::F32) != nullptr);
  }

  const BlockScale& scale() const { return scale_; }

  DType dtype() const override { return DType::F32; }
  Granule granule() const override { return {}; }
  std::uint32_t companions() const override { return 1; }

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back(
        {0,
         {static_cast<std::uint64_t>(elements.first), static_cast<std::uint64_t>(elements.end())}});
    const std::int64_t first_row = elements.first / scale_.columns;
    const std::int64_t last_row = (elements.end() - 1) / scale_.columns;
    if (first_row == last_row) {
      const std::int64_t column = elements.first % scale_.columns;
      needs.push_back({1, scales(grid_row(first_row), column / scale_.block_columns,
                                 (column + elements.count - 1) / scale_.block_columns + 1)});
    } else {
      // Whole rows of the grid: of several rows of elements one may use any of a grid row's scales.
      needs.push_back({1,
                       {scales(grid_row(first_row), 0, grid_columns_).begin,
                        scales(grid_row(last_row), 0, grid_columns_).end}});
    }
  }

  std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const override {
    if (part == 0) return static_cast<std::uint64_t>(count);
    const std::int64_t rows = (count + scale_.columns - 2) / scale_.columns + 1;
    if (rows == 1) {
      return bytes_of(scale_.scale,
                      std::min(grid_columns_, (count - 1) / scale_.block_columns + 2));
    }
    // Each matrix of the batch that is touched has a grid of its own, begun and ended in a block.
    const std::int64_t matrices = (rows - 1) / scale_.rows + 2;
    return bytes_of(scale_.scale,
                    std::min(rows, rows / scale_.block_rows + 2 * matrices) * grid_columns_);
  }

  bool decodes_to(DType dtype) const override {
    return find_scale_blocks(scale_.codes, dtype) != nullptr;
  }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    const ScaleBlocksKernel kernel = find_scale_blocks(scale_.codes, target.dtype, target.kernels);
    const std::byte* in = bytes
                              .at(0, {static_cast<std::uint64_t>(elements.first),
                                      static_cast<std::uint64_t>(elements.end())})
                              .data();
    std::byte* out = target.out.data();
    std::array<float, kScalesAtOnce> floats;
    ByteRange loaded;
    for (std::int64_t at = elements.first; at < elements.end();) {
      const std::int64_t column = at % scale_.columns;
      const std::int64_t block = column / scale_.block_columns;
      const std::int64_t count =
          std::min({elements.end() - at, scale_.columns - column,
                    (block + kScalesAtOnce) * scale_.block_columns - column});
      const ByteRange wanted = scales(grid_row(at / scale_.columns), block,
                                      (column + count - 1) / scale_.block_columns + 1);
      if (!(loaded == wanted)) {
        const std::size_t width = bytes_of(scale_.scale, 1);
        widen_scales(scale_.scale, bytes.at(1, wanted),
                     std::span(floats).first(wanted.size() / width), target.kernels);
        loaded = wanted;
      }
      kernel(in, floats.data(), static_cast<std::size_t>(column % scale_.block_columns),
             static_cast<std::size_t>(scale_.block_columns), out, static_cast<std::size_t>(count));
      in += count;
      out += bytes_of(target.dtype, count);
      at += count;
    }
    return {};
  }

  Exactness exactness(DType to) const override {
    return to == DType::F32 || to == DType::BF16 ? Exactness::BitExact : Exactness::Lossy;
  }

  std::string text() const override { return fmt::format("{} with scale", name(scale_.codes)); }

 private:
  /// The grid's row for row `row` of the storage seen as [batch * rows, columns].
  std::int64_t grid_row(std::int64_t row) const {
    return row / scale_.rows * grid_rows_ + row % scale_.rows / scale_.block_rows;
  }

  /// The bytes of scales [begin, end) of a row of the grid.
  ByteRange scales(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    return {bytes_of(scale_.scale, row * grid_columns_ + begin),
            bytes_of(scale_.scale, row * grid_columns_ + end)};
  }

  const BlockScale scale_;
  const std::int64_t grid_rows_, grid_columns_;
};

}  // namespace

std::shared_ptr<const Encoding> block_scale_encoding(const BlockScale& scale) {
  return std::make_shared<const BlockScaleEncoding>(scale);
}

const BlockScale* find_block_scale(const Encoding& encoding) {
  const auto* found = dynamic_cast<const BlockScaleEncoding*>(&encoding);
  return found == nullptr ? nullptr : &found->scale();
}

}  // namespace ckfs
