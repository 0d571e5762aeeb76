#include "support/test_encodings.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fmt/format.h>

#include "base/load_le.h"
#include "base/rounding.h"

namespace ckfs {
namespace {

float f16(std::span<const std::byte> bytes, DType dtype = DType::F16) {
  float value = 0;
  find_cast(dtype, DType::F32, KernelSet::Reference)(
      bytes.data(), std::as_writable_bytes(std::span(&value, 1)).data(), 1);
  return value;
}

// The range of `count` items of `size` bytes from item `first`.
ByteRange items(std::int64_t first, std::int64_t count, std::uint64_t size) {
  const auto begin = static_cast<std::uint64_t>(first) * size;
  return {begin, begin + static_cast<std::uint64_t>(count) * size};
}

// Everything but which bytes an element needs and what it is.
class ElementEncoding : public Encoding {
 public:
  ElementEncoding(DType dtype, Granule granule, std::uint32_t companions)
      : dtype_(dtype), granule_(granule), companions_(companions) {}

  DType dtype() const override { return dtype_; }
  Granule granule() const override { return granule_; }
  std::uint32_t companions() const override { return companions_; }
  Exactness exactness(DType to) const override {
    return to == dtype_ ? Exactness::BitExact : Exactness::Lossy;
  }
  std::string text() const override { return "test"; }

  Result<void> decode(ElementRange elements, const PartBytes& bytes,
                      const DecodeTarget& target) const override {
    const std::int64_t unit = granule_.unit();
    // The end may be that of the storage; the begin is a border.
    CKFS_CHECK(elements.first % unit == 0 && decodes_to(target.dtype));
    CKFS_CHECK(target.scratch.size() >= scratch(elements.count));
    CKFS_CHECK(target.out.size() == bytes_of(target.dtype, elements.count));
    for (std::int64_t i = 0; i < elements.count; ++i) {
      CKFS_TRY(const float value, element(elements.first + i, bytes));
      put(value, target.dtype, target.out.subspan(bytes_of(target.dtype, i)));
    }
    return {};
  }

 protected:
  virtual Result<float> element(std::int64_t index, const PartBytes& bytes) const = 0;

 private:
  void put(float value, DType to, std::span<std::byte> out) const {
    std::array<std::byte, 8> rounded;
    const auto bytes = std::as_bytes(std::span(&value, 1));
    if (dtype_ == DType::F32) {
      std::ranges::copy(bytes, rounded.begin());
    } else {
      find_cast(DType::F32, dtype_, KernelSet::Reference)(bytes.data(), rounded.data(), 1);
    }
    if (to == dtype_) {
      std::copy_n(rounded.begin(), bytes_of(to, 1), out.begin());
    } else {
      find_cast(dtype_, to, KernelSet::Reference)(rounded.data(), out.data(), 1);
    }
  }

  const DType dtype_;
  const Granule granule_;
  const std::uint32_t companions_;
};

class ScaleInside final : public ElementEncoding {
 public:
  ScaleInside() : ElementEncoding(DType::F32, {32, 34}, 0) {}

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back(
        {0, items(elements.first / 32, ceil_div<std::int64_t>(elements.count, 32), 34)});
  }
  std::uint64_t most_bytes(std::uint32_t /*part*/, std::int64_t count) const override {
    return static_cast<std::uint64_t>(ceil_div<std::int64_t>(count, 32)) * 34;
  }
  bool decodes_to(DType dtype) const override {
    return dtype == DType::F32 || dtype == DType::BF16;
  }

 protected:
  Result<float> element(std::int64_t i, const PartBytes& bytes) const override {
    const auto block = bytes.at(0, items(i / 32, 1, 34));
    return f16(block) * static_cast<float>(
                            static_cast<std::int8_t>(block[static_cast<std::size_t>(2 + i % 32)]));
  }
};

class PackedOdd final : public ElementEncoding {
 public:
  PackedOdd(std::int64_t group, DType scale) : ElementEncoding(scale, {32, 12}, 1), group_(group) {}

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    needs.push_back(
        {0, items(elements.first / 32, ceil_div<std::int64_t>(elements.count, 32), 12)});
    const std::int64_t first = elements.first / group_;
    needs.push_back({1, items(first, (elements.end() - 1) / group_ + 1 - first, 2)});
  }
  std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const override {
    if (part == 0) return static_cast<std::uint64_t>(ceil_div<std::int64_t>(count, 32)) * 12;
    return static_cast<std::uint64_t>((count - 1) / group_ + 2) * 2;
  }

 protected:
  Result<float> element(std::int64_t i, const PartBytes& bytes) const override {
    const auto words = bytes.at(0, items(i / 32, 1, 12));
    const auto bit = static_cast<std::size_t>(i % 32 * 3);
    std::uint32_t code = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      const auto byte = static_cast<unsigned>(words[(bit + k) / 8]);
      code |= (byte >> (bit + k) % 8 & 1U) << k;
    }
    return f16(bytes.at(1, items(i / group_, 1, 2)), dtype()) *
           static_cast<float>(static_cast<int>(code) - 4);
  }

 private:
  const std::int64_t group_;
};

class ActOrder final : public ElementEncoding {
 public:
  ActOrder(std::int64_t rows, std::int64_t columns, std::int64_t groups, bool strict)
      : ElementEncoding(DType::F16, {8, 4, columns}, 2),
        rows_(rows),
        columns_(columns),
        groups_(groups),
        strict_(strict) {}

  void add_needs(ElementRange elements, std::vector<PartRange>& needs) const override {
    const std::int64_t first = elements.first / columns_;
    const std::int64_t last = (elements.end() - 1) / columns_;
    if (first == last) {
      // Of each group's scales the columns of the run.
      const std::int64_t column = elements.first % columns_;
      needs.push_back({0, items(first / 8 * columns_ + column, elements.count, 4)});
      for (std::int64_t g = 0; g < groups_; ++g) {
        needs.push_back({2, items(g * columns_ + column, elements.count, 2)});
      }
    } else {
      needs.push_back({0, items(first / 8 * columns_, (last / 8 - first / 8 + 1) * columns_, 4)});
      needs.push_back({2, items(0, groups_ * columns_, 2)});
    }
    needs.push_back({1, items(0, rows_, 4)});  // all of it
  }
  std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const override {
    if (part == 1) return static_cast<std::uint64_t>(rows_) * 4;
    const std::int64_t rows = (count + columns_ - 2) / columns_ + 1;
    if (part == 2) {
      return static_cast<std::uint64_t>(groups_ * (rows == 1 ? count : columns_)) * 2;
    }
    const std::int64_t words = rows == 1 ? count : ((rows + 6) / 8 + 1) * columns_;
    return static_cast<std::uint64_t>(words) * 4;
  }

 protected:
  Result<float> element(std::int64_t i, const PartBytes& bytes) const override {
    const std::int64_t row = i / columns_;
    const std::int64_t column = i % columns_;
    auto group = load_le<std::uint32_t>(bytes.at(1, items(row, 1, 4)));
    if (strict_ && group >= static_cast<std::uint64_t>(groups_)) {
      return fail(ErrorCode::Corrupt, "g_idx[{}]: {} (groups: {})", row, group, groups_);
    }
    group %= static_cast<std::uint32_t>(groups_);
    const auto word = load_le<std::uint32_t>(bytes.at(0, items(row / 8 * columns_ + column, 1, 4)));
    const auto code = static_cast<int>(word >> (row % 8 * 4) & 15U);
    return f16(bytes.at(2, items(group * columns_ + column, 1, 2))) * static_cast<float>(code - 8);
  }

 private:
  const std::int64_t rows_, columns_, groups_;
  const bool strict_;
};

std::uint64_t bytes_for(std::int64_t count, std::int64_t per, std::uint64_t size) {
  return static_cast<std::uint64_t>(ceil_div(count, per)) * size;
}

}  // namespace

TestEncoding scale_inside() {
  return {std::make_shared<const ScaleInside>(), {}};
}

TestEncoding packed_odd(std::int64_t numel, std::int64_t group, DType scale) {
  return {std::make_shared<const PackedOdd>(group, scale), {bytes_for(numel, group, 2)}};
}

TestEncoding act_order(std::int64_t rows, std::int64_t columns, std::int64_t groups, bool strict) {
  return {std::make_shared<const ActOrder>(rows, columns, groups, strict),
          {bytes_for(rows, 1, 4), bytes_for(groups * columns, 1, 2)}};
}

}  // namespace ckfs
