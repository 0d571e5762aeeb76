// A row of elements is one call of a kernel, which unpacks codes and zero points side by side:
// eight rows share their words, but these stay in a near cache, and rows of one word may be of
// eight groups.
//
// The needs of few elements are exact, by columns; those of more than two rows are whole rows. So
// the cost of a narrow panel is proportional to its width.
#include "encoding/affine_codes_encoding.h"

#include <algorithm>
#include <cstring>

#include "base/load_le.h"
#include "base/rounding.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kWord = 4;

/// 1 in each field of a 32-bit word of `bits` bits each.
constexpr std::uint32_t ones(int bits) {
  std::uint32_t word = 0;
  for (int at = 0; at < 32; at += bits) word |= 1U << at;
  return word;
}

class AffineCodesEncoding final : public Encoding {
 public:
  explicit AffineCodesEncoding(const AffineCodes& codes)
      : codes_(codes),
        bits_(static_cast<std::uint64_t>(codes.bits)),
        zero_row_(static_cast<std::uint64_t>(codes.columns) * bits_ / 8) {
    CKFS_CHECK(find_affine(codes.order, codes.scale, DType::F32) != nullptr);
    CKFS_CHECK(static_cast<std::uint64_t>(codes.columns) * bits_ % 32 == 0);
  }

  DType dtype() const override { return DType::F32; }

  Granule granule() const override {
    if (codes_.order == CodeOrder::Awq) return {8, kWord, 1};
    if (codes_.bits == 3) return {32, 3 * kWord, codes_.columns};
    return {32 / codes_.bits, kWord, codes_.columns};
  }

  std::uint32_t companions() const override {
    return codes_.lookup == AffineCodes::Lookup::None ? 2 : 3;
  }

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    const std::int64_t first = elements.first / codes_.columns;
    const std::int64_t last = (elements.end() - 1) / codes_.columns;
    if (last - first <= 1) {
      for_each_row(elements, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
        add_row(row, column, count, needs);
      });
    } else {
      needs.push_back({0, {words(word_row(first), 0).begin, words(word_row_end(last), 0).begin}});
      const bool any = codes_.lookup == AffineCodes::Lookup::Any;
      const std::int64_t begin = any ? 0 : first / codes_.group_rows;
      const std::int64_t end = any ? codes_.groups : last / codes_.group_rows + 1;
      needs.push_back({1, {scales(begin, 0, 0).begin, scales(end, 0, 0).begin}});
      needs.push_back({2, {zeros(begin, 0, 0).begin, zeros(end, 0, 0).begin}});
    }
    if (companions() == 3) {
      needs.push_back({3,
                       {kWord * static_cast<std::uint64_t>(first),
                        kWord * static_cast<std::uint64_t>(last + 1)}});
    }
  }

  std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const override {
    const std::int64_t rows = (count + codes_.columns - 2) / codes_.columns + 1;
    if (part == 3) return kWord * static_cast<std::uint64_t>(rows);
    const bool any = codes_.lookup == AffineCodes::Lookup::Any;
    // Up to two rows: the columns of each. Those of the zero points begin and end on words.
    const bool few = rows <= 2;
    const auto columns = static_cast<std::uint64_t>(few ? count : codes_.columns);
    if (part == 0 && codes_.order == CodeOrder::Awq) {
      return static_cast<std::uint64_t>(few ? count / 8 : rows * codes_.columns / 8) * kWord;
    }
    if (part == 0) {
      const std::uint64_t straddling = codes_.bits == 3 ? 2 : 1;
      const std::uint64_t covered = (static_cast<std::uint64_t>(rows) * bits_ + 30) / 32 + 1;
      return (few ? straddling : covered) * columns * kWord;
    }
    const std::int64_t touched = any ? codes_.groups
                                 : few
                                     ? 1
                                     : std::min(codes_.groups, (rows - 1) / codes_.group_rows + 2);
    const auto groups = static_cast<std::uint64_t>(touched);
    if (part == 1) return groups * bytes_of(codes_.scale, static_cast<std::int64_t>(columns));
    if (!few) return groups * zero_row_;
    const auto pieces = static_cast<std::uint64_t>(rows);
    return groups * (columns * bits_ / 8 + pieces * (bits_ + 2 * kWord));
  }

  std::size_t scratch(std::int64_t count) const override {
    if (codes_.zeros != AffineCodes::Zeros::PlusOneInWords) return 0;
    return static_cast<std::size_t>(std::min(count, codes_.columns)) * bits_ / 8 + bits_ +
           2 * kWord;
  }

  bool decodes_to(DType dtype) const override {
    return find_affine(codes_.order, codes_.scale, dtype) != nullptr;
  }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    const AffineKernel kernel =
        find_affine(codes_.order, codes_.scale, target.dtype, target.kernels);
    std::byte* out = target.out.data();
    Result<void> done;
    for_each_row(elements, [&](std::int64_t row, std::int64_t column, std::int64_t count) {
      if (!done) return;
      const auto group = group_of(row, bytes);
      if (!group) {
        done = tl::unexpected(group.error());
        return;
      }
      kernel(row_at(row, *group, column, count, bytes, target.scratch), out,
             static_cast<std::size_t>(count));
      out += bytes_of(target.dtype, count);
    });
    return done;
  }

  Exactness exactness(DType to) const override {
    if (to == DType::BF16 || to == DType::F16) return Exactness::BitExact;
    return Encoding::exactness(to);
  }

  std::string text() const override {
    return fmt::format("{}-bit codes with zero point and scale", codes_.bits);
  }

 private:
  /// Calls use(row, first column, columns) for each row of the elements.
  template <typename Use>
  void for_each_row(ElementRange elements, Use use) const {
    for (std::int64_t at = elements.first; at < elements.end();) {
      const std::int64_t column = at % codes_.columns;
      const std::int64_t count = std::min(elements.end() - at, codes_.columns - column);
      use(at / codes_.columns, column, count);
      at += count;
    }
  }

  void add_row(std::int64_t row, std::int64_t column, std::int64_t count,
               std::vector<PartRange>& needs) const {
    // What rows have in common comes first, and so at the same place for each.
    const bool any = codes_.lookup == AffineCodes::Lookup::Any;
    const std::int64_t begin = any ? 0 : row / codes_.group_rows;
    const std::int64_t end = any ? codes_.groups : begin + 1;
    for (std::int64_t group = begin; group < end; ++group) {
      needs.push_back({1, scales(group, column, count)});
      needs.push_back({2, zeros(group, column, count)});
    }
    if (codes_.order == CodeOrder::Awq) {
      needs.push_back({0, awq_words(row, column, count)});
    } else {
      for (std::int64_t word = word_row(row); word < word_row_end(row); ++word) {
        needs.push_back({0, words(word, column, count)});
      }
    }
  }

  /// The row of words that the codes of `row` begin in: 32 rows of codes are `bits` rows of words.
  /// Awq: every row has words of its own.
  std::int64_t word_row(std::int64_t row) const {
    return codes_.order == CodeOrder::Awq ? row
                                          : row / 32 * codes_.bits + row % 32 * codes_.bits / 32;
  }
  /// That behind the one they end in.
  std::int64_t word_row_end(std::int64_t row) const {
    if (codes_.order == CodeOrder::Awq) return row + 1;
    return row / 32 * codes_.bits + (row % 32 * codes_.bits + codes_.bits - 1) / 32 + 1;
  }

  ByteRange words(std::int64_t word_row, std::int64_t column, std::int64_t count = 0) const {
    const std::int64_t columns =
        codes_.order == CodeOrder::Awq ? codes_.columns / 8 : codes_.columns;
    const std::uint64_t begin = kWord * static_cast<std::uint64_t>(word_row * columns + column);
    return {begin, begin + kWord * static_cast<std::uint64_t>(count)};
  }
  ByteRange awq_words(std::int64_t row, std::int64_t column, std::int64_t count) const {
    return words(row, column / 8, ceil_div<std::int64_t>(column + count, 8) - column / 8);
  }

  ByteRange scales(std::int64_t group, std::int64_t column, std::int64_t count) const {
    const std::int64_t begin = group * codes_.columns + column;
    return {bytes_of(codes_.scale, begin), bytes_of(codes_.scale, begin + count)};
  }

  /// Of eights of columns, in whole words.
  ByteRange zeros(std::int64_t group, std::int64_t column, std::int64_t count) const {
    const std::uint64_t begin = zero_row_ * static_cast<std::uint64_t>(group);
    const std::uint64_t from = static_cast<std::uint64_t>(column / 8) * bits_;
    const std::uint64_t to =
        ceil_div<std::uint64_t>(static_cast<std::uint64_t>(column + count), 8) * bits_;
    return {begin + from / kWord * kWord,
            begin + (count == 0 ? from / kWord * kWord : std::min(zero_row_, round_up(to, kWord)))};
  }

  Result<std::int64_t> group_of(std::int64_t row, const PartBytes& bytes) const {
    const std::int64_t in_order = row / codes_.group_rows;
    if (codes_.lookup == AffineCodes::Lookup::None) return in_order;
    const std::uint64_t at = kWord * static_cast<std::uint64_t>(row);
    const std::int64_t group = load_le<std::int32_t>(bytes.at(3, {at, at + kWord}));
    if (group < 0 || group >= codes_.groups) {
      return fail(ErrorCode::Corrupt, "g_idx[{}]: {} (groups: {})", row, group, codes_.groups);
    }
    if (codes_.lookup == AffineCodes::Lookup::Checked && group != in_order) {
      return fail(ErrorCode::Corrupt, "g_idx[{}]: {}, but without desc_act it is {}", row, group,
                  in_order);
    }
    return group;
  }

  AffineRow row_at(std::int64_t row, std::int64_t group, std::int64_t column, std::int64_t count,
                   const PartBytes& bytes, std::span<std::byte> scratch) const {
    AffineRow args{.bits = codes_.bits, .first = static_cast<std::size_t>(column % 8)};
    if (codes_.order == CodeOrder::Awq) {
      args.low = bytes.at(0, awq_words(row, column, count)).data();
    } else {
      args.low = bytes.at(0, words(word_row(row), column, count)).data();
      args.high = bytes.at(0, words(word_row_end(row) - 1, column, count)).data();
      args.shift = static_cast<int>(row % 32 * codes_.bits % 32);
    }
    args.scales = bytes.at(1, scales(group, column, count)).data();
    const ByteRange range = zeros(group, column, count);
    std::span<const std::byte> stored = bytes.at(2, range);
    if (codes_.zeros == AffineCodes::Zeros::PlusOneInWords) {
      const std::uint32_t one = ones(codes_.bits);
      for (std::size_t at = 0; at < stored.size(); at += kWord) {
        store_le(scratch.subspan(at), load_le<std::uint32_t>(stored.subspan(at)) + one);
      }
      stored = scratch;
    }
    const std::uint64_t begin = zero_row_ * static_cast<std::uint64_t>(group) +
                                static_cast<std::uint64_t>(column / 8) * bits_;
    args.zeros = stored.data() + (begin - range.begin);
    args.one = codes_.zeros == AffineCodes::Zeros::PlusOne ||
                       codes_.zeros == AffineCodes::Zeros::PlusOneWrapped
                   ? 1
                   : 0;
    args.wraps = codes_.zeros == AffineCodes::Zeros::PlusOneWrapped;
    return args;
  }

  const AffineCodes codes_;
  const std::uint64_t bits_;
  const std::uint64_t zero_row_;  // bytes of the zero points of a group
};

}  // namespace

std::shared_ptr<const Encoding> affine_codes_encoding(const AffineCodes& codes) {
  return std::make_shared<const AffineCodesEncoding>(codes);
}

}  // namespace ckfs
