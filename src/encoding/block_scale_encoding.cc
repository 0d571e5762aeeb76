// A row of codes is decoded by one call for many blocks, because a block of 128 elements is too
// little work for one; its scales are widened to floats in front of it, and kept for the rows that
// share them. Codes of odd widths are unpacked to bytes first, some hundred at a time; kernels for
// each width and kind would be many, and such codes are rare.
#include "encoding/block_scale_encoding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/rounding.h"

namespace ckfs {
namespace {

/// Scales that are widened at once: a row of 65,536 elements in blocks of 128.
constexpr std::int64_t kScalesAtOnce = 512;
/// Elements that are unpacked, or given their group's scale, at once.
constexpr std::int64_t kUnpackAtOnce = 512;

/// 2^(u - 127 - less).
constexpr std::array<float, 256> powers_of_two(std::uint32_t less) {
  std::array<float, 256> powers{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    // 2^-127 and 2^-128 are subnormal in F32.
    const std::uint32_t bits = code > less ? (code - less) << 23 : 0x00400000U >> (less - code);
    powers[code] = std::bit_cast<float>(bits);
  }
  return powers;
}

/// Of scales in U8; with a wide exponent half as large.
constexpr std::array<std::array<float, 256>, 2> kPowers = {powers_of_two(0), powers_of_two(1)};

/// Scales of one run as floats.
void widen_scales(const BlockScale& scale, std::span<const std::byte> in, std::span<float> out,
                  KernelSet kernels) {
  if (scale.scale == DType::F32) {
    std::memcpy(out.data(), in.data(), out.size_bytes());
  } else if (scale.scale == DType::U8) {
    const std::array<float, 256>& power = kPowers[scale.wide_exponent ? 1 : 0];
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = power[std::to_integer<std::size_t>(in[i])];
  } else {
    find_cast(scale.scale, DType::F32, kernels)(in.data(), std::as_writable_bytes(out).data(),
                                                out.size());
  }
}

/// The values of the codes of 4 bits. With a wide exponent twice that, and scales half as large.
NibbleTable table_of(const BlockScale& scale) {
  NibbleTable table;
  if (scale.codes == DType::F4) {
    constexpr std::array<float, 8> kMagnitudes = {0, .5, 1, 1.5, 2, 3, 4, 6};
    for (std::size_t code = 0; code < 8; ++code) {
      const float magnitude = kMagnitudes[code] * (scale.wide_exponent ? 2.0F : 1.0F);
      table.values[code] = magnitude;
      table.values[code + 8] = code == 0 && !scale.minus_zero ? 0.0F : -magnitude;
    }
  } else {
    for (std::size_t code = 0; code < 16; ++code) {
      table.values[code] = static_cast<float>(code) - 8.0F;
    }
  }
  return table;
}

int bits_of_code(const BlockScale& scale) {
  return scale.codes == DType::I32 ? scale.packing.bits : bits(scale.codes);
}

class BlockScaleEncoding final : public Encoding {
 public:
  explicit BlockScaleEncoding(const BlockScale& scale)
      : scale_(scale),
        bits_(bits_of_code(scale)),
        row_bytes_(row_bytes(scale.columns)),
        grid_rows_(ceil_div(scale.rows, scale.block_rows)),
        grid_columns_(ceil_div(scale.columns - scale.padding, scale.block_columns)),
        table_(table_of(scale)) {
    CKFS_CHECK(scale.codes == DType::I8 || scale.codes == DType::F4 || scale.codes == DType::I32 ||
               find_scale_blocks(scale.codes, DType::F32) != nullptr);
    CKFS_CHECK(scale.codes == DType::I32 || (scale.padding == 0 && !scale.groups));
    CKFS_CHECK(granule().unit() <= kMaxUnit);
  }

  const BlockScale& scale() const { return scale_; }

  DType dtype() const override { return scale_.result; }

  Granule granule() const override {
    const auto count = static_cast<std::uint64_t>(bits_);
    if (scale_.codes == DType::I32 && scale_.packing.in_words) return {32 / bits_, 4};
    if (8 % bits_ == 0) return {8 / bits_, 1};
    if (scale_.columns % 8 == 0) return {8, count};
    return {scale_.columns, row_bytes_};  // a row's last word is its own
  }

  std::optional<std::uint64_t> nbytes(std::int64_t numel) const override {
    // Behind the codes of a row its last word may have unused bytes.
    if (8 % bits_ == 0 || scale_.packing.in_words) return Encoding::nbytes(numel);
    if (numel < 0) return std::nullopt;
    return checked_mul(static_cast<std::uint64_t>(ceil_div(numel, scale_.columns)), row_bytes_);
  }

  std::uint32_t companions() const override {
    return 1 + has_global() + (scale_.zeros != BlockScale::Zeros::None ? 1 : 0) +
           (scale_.groups ? 1 : 0);
  }

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back({0, codes(elements)});
    const std::int64_t first_row = elements.first / scale_.columns;
    const std::int64_t last_row = (elements.end() - 1) / scale_.columns;
    const std::int64_t column = elements.first % scale_.columns;
    const bool one_row = first_row == last_row && !scale_.groups;
    // Of several rows of elements one may use any of a grid row's scales.
    const std::int64_t begin = one_row ? block_of(column) : 0;
    const std::int64_t end = one_row ? block_of(column + elements.count - 1) + 1 : grid_columns_;
    needs.push_back(
        {1, grid_range(scale_.scale, grid_row(first_row), grid_row(last_row), begin, end)});
    if (has_global()) needs.push_back({2, globals(first_row, last_row)});
    if (scale_.zeros == BlockScale::Zeros::Integers) {
      needs.push_back({zeros_part(),
                       grid_range(DType::I8, grid_row(first_row), grid_row(last_row), begin, end)});
    } else if (scale_.zeros == BlockScale::Zeros::Packed) {
      needs.push_back({zeros_part(), packed_zeros(grid_row(first_row), grid_row(last_row))});
    }
    if (scale_.groups) needs.push_back({groups_part(), groups_range()});
  }

  std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const override {
    const std::int64_t rows = (count + scale_.columns - 2) / scale_.columns + 1;
    if (part == 0) {
      // Each row may end, and the run begin, within a word.
      const auto touched = static_cast<std::uint64_t>(rows);
      return std::min(touched * row_bytes_, row_bytes(count) + 8 * touched);
    }
    // Each matrix of the batch that is touched has a grid of its own, begun and ended in a block.
    const std::int64_t matrices = (rows - 1) / scale_.rows + 2;
    if (has_global() && part == 2) return static_cast<std::uint64_t>(4 * matrices);
    if (scale_.groups && part == groups_part()) return groups_range().size();
    const std::int64_t grid_rows = std::min(rows, rows / scale_.block_rows + 2 * matrices);
    if (scale_.zeros == BlockScale::Zeros::Packed && part == zeros_part()) {
      return static_cast<std::uint64_t>((grid_rows * bits_ / 8 + 3) * grid_columns_ * 4);
    }
    const DType dtype = part == 1 ? scale_.scale : DType::I8;
    if (rows == 1 && !scale_.groups) {
      return bytes_of(dtype, std::min(grid_columns_, (count - 1) / scale_.block_columns + 2));
    }
    return bytes_of(dtype, grid_rows * grid_columns_);
  }

  std::size_t scratch(std::int64_t /*count*/) const override {
    // Whether columns have an order; by group: how many columns it has, its scale, its zero.
    return scale_.groups ? 4 + static_cast<std::size_t>(grid_columns_) * 12 : 0;
  }

  bool decodes_to(DType dtype) const override {
    return dtype == scale_.result ||
           (scale_.result == DType::F32 && find_scale_integers(dtype) != nullptr);
  }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    const std::byte* const in = bytes.at(0, codes(elements)).data();
    const std::uint64_t in_begin = codes(elements).begin;
    bool ordered = false;
    if (scale_.groups) {
      // All columns are looked at: not for each of the pieces that a row is cut into.
      auto& kept = *reinterpret_cast<std::uint32_t*>(target.scratch.data());
      if (!target.again) {
        CKFS_TRY(kept, check_groups(bytes, target.scratch.subspan(4)));
      }
      ordered = kept != 0;
    }
    std::array<float, kScalesAtOnce> scales, zeros;
    RowBlocks loaded;
    for (std::int64_t at = elements.first; at < elements.end();) {
      const std::int64_t row = at / scale_.columns;
      const std::int64_t begin = at % scale_.columns;
      const std::int64_t end = std::min(scale_.columns, begin + elements.end() - at);
      const std::byte* const from = in + (code_at(row, begin) - in_begin);
      std::byte* out = target.out.data() + bytes_of(target.dtype, at - elements.first);
      at += end - begin;
      if (ordered) {
        decode_ordered(row, begin, end, from, bytes, target, out);
        continue;
      }
      for (std::int64_t column = begin; column < end;) {
        RowBlocks piece{.row = row, .block = column / scale_.block_columns, .blocks = 0};
        const std::int64_t left = (end - 1) / scale_.block_columns + 1 - piece.block;
        // Multiplied where it is known to lie before the end: a block may be as wide as 2^58.
        std::int64_t stop =
            left <= kScalesAtOnce ? end : (piece.block + kScalesAtOnce) * scale_.block_columns;
        if (stop < end) stop -= stop % together();
        piece.blocks = (stop - 1) / scale_.block_columns + 1 - piece.block;
        if (!shares_scales(piece, loaded)) {
          load(piece, bytes, target.kernels, scales.data(), zeros.data());
          loaded = piece;
        }
        run(from + (code_at(0, column) - code_at(0, begin)),
            {scales.data(), has_zeros() ? zeros.data() : nullptr,
             static_cast<std::size_t>(column % scale_.block_columns),
             static_cast<std::size_t>(scale_.block_columns)},
            target, out, stop - column);
        out += bytes_of(target.dtype, stop - column);
        column = stop;
      }
    }
    return {};
  }

  Exactness exactness(DType to) const override {
    // F16 values are a cast away from BF16, as plain ones are.
    const bool is_rounded_once = to == DType::BF16 && scale_.result != DType::F16;
    return is_rounded_once ? Exactness::BitExact : Encoding::exactness(to);
  }

  std::string text() const override {
    if (scale_.codes == DType::I32) return fmt::format("int{} with scale", bits_);
    return fmt::format("{} with scale", name(scale_.codes));
  }

 private:
  /// Blocks of a row of the storage seen as [batch * rows, columns].
  struct RowBlocks {
    std::int64_t row = -1;
    std::int64_t block = 0;
    std::int64_t blocks = 0;
  };

  bool has_global() const { return scale_.global != BlockScale::Global::None; }
  bool has_zeros() const { return scale_.zeros != BlockScale::Zeros::None; }
  std::uint32_t zeros_part() const { return 2 + has_global(); }
  std::uint32_t groups_part() const { return 2 + has_global() + has_zeros(); }

  /// From multiples of this on, codes begin with a byte or a word.
  std::int64_t together() const { return scale_.packing.in_words ? 32 / bits_ : 8; }

  // Bytes of codes.

  std::uint64_t row_bytes(std::int64_t columns) const {
    if (scale_.codes != DType::I32) return bytes_of(scale_.codes, columns);
    const std::int64_t words = scale_.packing.in_words
                                   ? ceil_div<std::int64_t>(columns, 32 / bits_)
                                   : ceil_div<std::int64_t>(columns * bits_, 32);
    return static_cast<std::uint64_t>(words) * 4;
  }

  /// The first byte that has a bit of the code; of codes in words its word's.
  std::uint64_t code_at(std::int64_t row, std::int64_t column) const {
    const std::uint64_t begin = static_cast<std::uint64_t>(row) * row_bytes_;
    if (scale_.packing.in_words) {
      return begin + static_cast<std::uint64_t>(column / (32 / bits_)) * 4;
    }
    return begin + static_cast<std::uint64_t>(column * bits_) / 8;
  }

  ByteRange codes(ElementRange elements) const {
    const std::int64_t last = elements.end() - 1;
    const std::int64_t column = last % scale_.columns;
    const std::uint64_t row = static_cast<std::uint64_t>(last / scale_.columns) * row_bytes_;
    const std::uint64_t end = scale_.packing.in_words
                                  ? row_bytes(column + 1)
                                  : static_cast<std::uint64_t>((column + 1) * bits_ + 7) / 8;
    return {code_at(elements.first / scale_.columns, elements.first % scale_.columns), row + end};
  }

  // The grid.

  /// The grid's row for row `row` of the storage seen as [batch * rows, columns].
  std::int64_t grid_row(std::int64_t row) const {
    return row / scale_.rows * grid_rows_ + row % scale_.rows / scale_.block_rows;
  }
  /// Padding goes with the last block.
  std::int64_t block_of(std::int64_t column) const {
    return std::min(column / scale_.block_columns, grid_columns_ - 1);
  }

  ByteRange grid_range(DType dtype, std::int64_t first_row, std::int64_t last_row,
                       std::int64_t begin, std::int64_t end) const {
    return {bytes_of(dtype, first_row * grid_columns_ + begin),
            bytes_of(dtype, last_row * grid_columns_ + end)};
  }

  ByteRange globals(std::int64_t first_row, std::int64_t last_row) const {
    if (!scale_.global_each) return {0, 4};
    return {static_cast<std::uint64_t>(first_row / scale_.rows) * 4,
            static_cast<std::uint64_t>(last_row / scale_.rows + 1) * 4};
  }

  /// The word of a column of packed zeros that holds the first bit of the row's, and that bit.
  struct WordBit {
    std::int64_t word = 0;
    int bit = 0;
  };
  WordBit packed_zero(std::int64_t grid_row) const {
    if (scale_.packing.in_words) {
      return {grid_row / (32 / bits_), static_cast<int>(grid_row % (32 / bits_)) * bits_};
    }
    return {grid_row * bits_ / 32, static_cast<int>(grid_row * bits_ % 32)};
  }
  ByteRange packed_zeros(std::int64_t first_row, std::int64_t last_row) const {
    const WordBit last = packed_zero(last_row);
    const std::int64_t end = last.word + (last.bit + bits_ > 32 ? 2 : 1);
    return {static_cast<std::uint64_t>(packed_zero(first_row).word * grid_columns_) * 4,
            static_cast<std::uint64_t>(end * grid_columns_) * 4};
  }

  ByteRange groups_range() const {
    return {0, static_cast<std::uint64_t>(scale_.columns - scale_.padding) * 4};
  }

  bool shares_scales(const RowBlocks& a, const RowBlocks& b) const {
    return b.row >= 0 && a.block == b.block && a.blocks == b.blocks &&
           grid_row(a.row) == grid_row(b.row);
  }

  /// The scales and zeros of a piece as floats.
  void load(const RowBlocks& piece, const PartBytes& bytes, KernelSet kernels, float* scales,
            float* zeros) const {
    const std::int64_t row = grid_row(piece.row);
    const std::int64_t begin = std::min(piece.block, grid_columns_ - 1);
    const std::int64_t end = std::min(piece.block + piece.blocks, grid_columns_);
    const auto stored = static_cast<std::size_t>(std::max<std::int64_t>(end - begin, 1));
    const auto wanted = static_cast<std::size_t>(piece.blocks);
    const std::span<float> out(scales, stored);
    widen_scales(scale_,
                 bytes.at(1, grid_range(scale_.scale, row, row, begin, begin + std::ssize(out))),
                 out, kernels);
    if (has_global()) {
      const auto global = load_le<float>(bytes.at(2, globals(piece.row, piece.row)));
      for (float& scale : out) {
        scale = scale_.global == BlockScale::Global::Divides ? scale / global : scale * global;
      }
    }
    for (std::size_t i = stored; i < wanted; ++i) scales[i] = scales[stored - 1];
    if (!has_zeros()) return;
    for (std::size_t i = 0; i < stored; ++i) {
      zeros[i] = zero(row, begin + static_cast<std::int64_t>(i), bytes);
    }
    for (std::size_t i = stored; i < wanted; ++i) zeros[i] = zeros[stored - 1];
  }

  float zero(std::int64_t row, std::int64_t block, const PartBytes& bytes) const {
    if (scale_.zeros == BlockScale::Zeros::Integers) {
      return static_cast<float>(load_le<std::int8_t>(
          bytes.at(zeros_part(), grid_range(DType::I8, row, row, block, block + 1))));
    }
    const WordBit place = packed_zero(row);
    const auto word = [&](std::int64_t index) {
      const auto begin = static_cast<std::uint64_t>(index * grid_columns_ + block) * 4;
      return std::uint64_t{load_le<std::uint32_t>(bytes.at(zeros_part(), {begin, begin + 4}))};
    };
    std::uint64_t two = word(place.word);
    if (place.bit + bits_ > 32) two |= word(place.word + 1) << 32;
    const auto code = static_cast<int>(two >> place.bit & ((std::uint64_t{1} << bits_) - 1));
    return static_cast<float>(code - (1 << (bits_ - 1)));
  }

  /// Whether there is an order of columns; it is then one, with groups of equal size.
  Result<bool> check_groups(const PartBytes& bytes, std::span<std::byte> scratch) const {
    const std::span<const std::byte> groups = bytes.at(groups_part(), groups_range());
    auto* const counts = reinterpret_cast<std::uint32_t*>(scratch.data());
    std::fill_n(counts, grid_columns_, 0U);
    const std::int64_t columns = scale_.columns - scale_.padding;
    for (std::int64_t c = 0; c < columns; ++c) {
      if (group_at(groups, c) == -1) return false;
    }
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t group = group_at(groups, c);
      if (group < 0 || group >= grid_columns_) {
        return fail(ErrorCode::Corrupt, "g_idx[{}]: {} (groups: {})", c, group, grid_columns_);
      }
      ++counts[group];
    }
    for (std::int64_t group = 0; group < grid_columns_; ++group) {
      if (counts[group] == scale_.block_columns) continue;
      return fail(ErrorCode::Corrupt, "g_idx: group {} has {} columns (group size: {})", group,
                  counts[group], scale_.block_columns);
    }
    return true;
  }

  static std::int64_t group_at(std::span<const std::byte> groups, std::int64_t column) {
    return load_le<std::int32_t>(groups.subspan(static_cast<std::size_t>(column) * 4, 4));
  }

  /// Columns of a row in which each has its group's scale.
  void decode_ordered(std::int64_t row, std::int64_t begin, std::int64_t end, const std::byte* in,
                      const PartBytes& bytes, const DecodeTarget& target, std::byte* out) const {
    const std::span<const std::byte> groups = bytes.at(groups_part(), groups_range());
    auto* const scales = reinterpret_cast<float*>(target.scratch.data()) + 1 + grid_columns_;
    float* const zeros = scales + grid_columns_;
    load({.row = row, .block = 0, .blocks = grid_columns_}, bytes, target.kernels, scales, zeros);
    std::array<float, kUnpackAtOnce> by_column, zero_by_column;
    const std::int64_t columns = scale_.columns - scale_.padding;
    const std::int64_t most = kUnpackAtOnce / together() * together();
    for (std::int64_t column = begin; column < end;) {
      const std::int64_t stop = std::min(end, column + most);
      for (std::int64_t c = column; c < stop; ++c) {
        // They were checked, but a mapped file may have changed since. A result computed then is
        // never given out.
        const std::int64_t group =
            c < columns ? std::clamp<std::int64_t>(group_at(groups, c), 0, grid_columns_ - 1) : 0;
        by_column[static_cast<std::size_t>(c - column)] = scales[group];
        if (has_zeros()) zero_by_column[static_cast<std::size_t>(c - column)] = zeros[group];
      }
      run_integers(in + (code_at(0, column) - code_at(0, begin)),
                   {by_column.data(), has_zeros() ? zero_by_column.data() : nullptr, 0, 1}, target,
                   out, stop - column);
      out += bytes_of(target.dtype, stop - column);
      column = stop;
    }
  }

  /// Decodes `count` elements of one row, whose codes begin with a byte or word at `in`.
  void run(const std::byte* in, const BlockScales& scales, const DecodeTarget& target,
           std::byte* out, std::int64_t count) const {
    const auto size = static_cast<std::size_t>(count);
    const bool nibbles = scale_.codes == DType::F4 ||
                         (scale_.codes == DType::I32 && bits_ == 4 && !scale_.packing.in_words);
    if (nibbles) {
      find_scale_nibbles(target.dtype, target.kernels)(in, table_, scales, out, size);
    } else if (scale_.codes == DType::I8) {
      find_scale_integers(target.dtype, target.kernels)(in, scales, out, size);
    } else if (scale_.codes == DType::I32) {
      run_integers(in, scales, target, out, count);
    } else {
      find_scale_blocks(scale_.codes, target.dtype, target.kernels)(in, scales.scales, scales.first,
                                                                    scales.block, out, size);
    }
  }

  void run_integers(const std::byte* in, BlockScales scales, const DecodeTarget& target,
                    std::byte* out, std::int64_t count) const {
    const UnpackKernel unpack = find_unpack(target.kernels);
    const ScaleIntegersKernel kernel = find_scale_integers(target.dtype, target.kernels);
    std::array<std::byte, kUnpackAtOnce> codes;
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t now = std::min(count - done, kUnpackAtOnce);
      const auto size = static_cast<std::size_t>(now);
      unpack(in, scale_.packing, static_cast<std::size_t>(done), codes.data(), size);
      kernel(codes.data(), scales, out, size);
      scales.first += size;
      out += bytes_of(target.dtype, now);
      done += now;
    }
  }

  const BlockScale scale_;
  const int bits_;
  const std::uint64_t row_bytes_;
  const std::int64_t grid_rows_, grid_columns_;
  const NibbleTable table_;
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
