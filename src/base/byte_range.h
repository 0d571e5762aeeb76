// Half-open ranges of bytes: the one way to name bytes everywhere.
#pragma once

#include <cstdint>
#include <fmt/format.h>

namespace ckfs {

/// The bytes [begin, end). Requires: begin <= end; a default range is empty.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  constexpr std::uint64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin == end; }
  constexpr bool contains(ByteRange other) const {
    return begin <= other.begin && other.end <= end;
  }

  /// What both have in common; empty where they do not meet.
  constexpr ByteRange intersect(ByteRange other) const {
    const std::uint64_t low = begin > other.begin ? begin : other.begin;
    const std::uint64_t high = end < other.end ? end : other.end;
    return low < high ? ByteRange{low, high} : ByteRange{low, low};
  }

  constexpr bool operator==(const ByteRange&) const = default;
};

}  // namespace ckfs

template <>
struct fmt::formatter<ckfs::ByteRange> : fmt::formatter<std::string_view> {
  auto format(ckfs::ByteRange range, fmt::format_context& context) const {
    return fmt::format_to(context.out(), "[{}, {})", range.begin, range.end);
  }
};
