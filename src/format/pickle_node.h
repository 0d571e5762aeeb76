// How Pickle's nodes hold their values: shared by its accessors and its reader. Internal to
// src/format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "format/pickle.h"

namespace ckfs {

// The nodes that every pickle begins with.
inline constexpr NodeId kNoneNode = 0;
inline constexpr NodeId kFalseNode = 1;
inline constexpr NodeId kTrueNode = 2;
inline constexpr NodeId kEmptyTupleNode = 3;

// An integer from 0 to 2^31 - 1 is its own id.
inline constexpr NodeId kSmallInteger = 0x8000'0000;
constexpr bool is_small_integer(NodeId id) {
  return (id & kSmallInteger) != 0;
}
constexpr std::int64_t small_integer(NodeId id) {
  return id & ~kSmallInteger;
}

// Node::flag of an Int: the data is a slice of the text, not the value.
inline constexpr std::uint8_t kBigInteger = 1;

// Node::flag of a Tuple: how many elements are in the data itself (1 or 2); 0: they are in the
// words, as those of other containers.
inline constexpr std::size_t kTupleInNode = 2;

// Node::flag of a Call: what its items are; and whether it has a record, else the data is callable
// and arguments: it got neither a state nor items.
inline constexpr std::uint8_t kAppendsItems = 1;
inline constexpr std::uint8_t kSetsItems = 2;
inline constexpr std::uint8_t kHasRecord = 4;

// The record of a Call in the words, at the first of the data.
inline constexpr std::uint32_t kCallCallable = 0;
inline constexpr std::uint32_t kCallArgs = 1;
inline constexpr std::uint32_t kCallState = 2;
inline constexpr std::uint32_t kCallItems = 3;  // where they are in the words
inline constexpr std::uint32_t kCallCount = 4;
inline constexpr std::uint32_t kCallWords = 5;

constexpr std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return low | std::uint64_t{high} << 32;
}

}  // namespace ckfs
