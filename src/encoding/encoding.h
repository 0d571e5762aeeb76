// How stored bytes encode values: the only code that turns bytes of a storage into elements.
//
// A storage is bytes over extents, and a number of elements; an encoding says which bytes which
// elements need, of the storage itself and of its companions (other storages: scales, zero points,
// look-up tables), and computes their values. Readers, planners, reports and labels ask the object;
// nothing looks at which encoding it is.
//
// Encodings are small immutable objects, safe for concurrent use; those of
// quantized weights are shared by all of one kind and shape. They refer to their parts by number
// and hold no ids, so that tensors of one kind and shape can share one: part 0 is the storage
// itself, part k its companion k - 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckfs/types.h>

#include "base/byte_range.h"
#include "base/error.h"
#include "tensor/dtype.h"
#include "tensor/kernel.h"

namespace ckfs {

/// The elements [first, first + count) of a storage, in its logical order.
struct ElementRange {
  std::int64_t first = 0;
  std::int64_t count = 0;

  std::int64_t end() const { return first + count; }
};

/// Elements that share stored bytes: `elements` elements that lie `stride` apart in the logical
/// order have `bytes` bytes of the storage together; `elements * stride` consecutive elements from
/// a multiple of that number have `bytes * stride` bytes to themselves.
///
///   plain float32         {1, 4, 1}       8 codes of 4 bits a word      {8, 4, 1}
///   32 codes of 3 bits    {32, 12, 1}     the same packed along the rows of a matrix of n columns
///   GGUF q8_0             {32, 34, 1}                                    {32, 12, n}
struct Granule {
  std::int64_t elements = 1;
  std::uint64_t bytes = 1;
  std::int64_t stride = 1;

  /// Runs that begin and end at multiples of this share no stored bytes with others.
  std::int64_t block() const { return elements * stride; }
  /// Runs for decode() begin and end at multiples of this.
  std::int64_t unit() const { return stride == 1 ? elements : 1; }
};

/// The largest Granule::unit() that an encoding may have.
inline constexpr std::int64_t kMaxUnit = 2048;

/// Bytes `range` of part number `part`.
struct PartRange {
  std::uint32_t part = 0;
  ByteRange range;

  bool operator==(const PartRange&) const = default;
};

/// Bytes of parts that are in memory, as decode() finds them.
class PartBytes {
 public:
  /// Bytes `range` of a part, wherever they lie: in a staging buffer, or where the file is mapped.
  struct Window {
    ByteRange range;
    const std::byte* bytes = nullptr;
  };

  /// `parts[p]` are the windows of part p, by range, disjoint and not touching. All is kept by
  /// reference.
  explicit PartBytes(std::span<const std::span<const Window>> parts) : parts_(parts) {}

  /// The bytes `range` of `part`. Requires: they lie within one range that add_needs() gave for the
  /// elements that are decoded, or for a run that contains them.
  std::span<const std::byte> at(std::uint32_t part, ByteRange range) const;

 private:
  std::span<const std::span<const Window>> parts_;
};

/// Where decoded values go.
struct DecodeTarget {
  DType dtype = DType::F32;
  std::span<std::byte> out;      // exactly the elements
  std::span<std::byte> scratch;  // scratch() bytes, aligned to kBufferAlignment
  KernelSet kernels = KernelSet::Fast;
  /// `scratch` is as the last decode() left it, which was of the same storage and succeeded: facts
  /// that do not depend on the elements can be reused.
  bool again = false;
};

class Encoding {
 public:
  virtual ~Encoding() = default;

  /// The dtype of the values: what a view sees before its casts.
  virtual DType dtype() const = 0;
  /// Requires of implementations: unit() <= kMaxUnit.
  virtual Granule granule() const = 0;
  /// How many companions a storage of this encoding has.
  virtual std::uint32_t companions() const { return 0; }
  /// Bytes of a storage of `numel` elements: the last granule may be filled in part. nullopt where
  /// that overflows (for plain elements from 2^61 on) or is not a whole number of bytes, or `numel`
  /// is negative.
  virtual std::optional<std::uint64_t> nbytes(std::int64_t numel) const;

  /// Whether element i is just the bits i * size to (i + 1) * size of the storage: such bytes may
  /// be moved without decoding.
  virtual bool is_plain() const { return false; }

  /// Whether the values are computed from codes; else they are stored, in any byte order.
  virtual bool is_quantized() const { return true; }

  /// Appends the ranges of each part that `elements` need, in any order; of a companion perhaps
  /// all. The ranges for some of the elements lie within those for all. Requires, here and in
  /// decode(): elements.count > 0; the range begins at a multiple of granule().unit(), and ends at
  /// one or with the storage.
  virtual void add_needs(ElementRange elements, std::vector<PartRange>& needs) const = 0;

  /// The most bytes of `part` that `count` such consecutive elements need, wherever they begin. May
  /// be more than the part has.
  virtual std::uint64_t most_bytes(std::uint32_t part, std::int64_t count) const = 0;

  /// Scratch for decoding `count` elements at once; no less for more.
  virtual std::size_t scratch(std::int64_t /*count*/) const { return 0; }

  /// Whether decode() gives values of `dtype`, in one pass and rounded as a cast of the value would
  /// be. Always for dtype(); of others where a kernel does both.
  virtual bool decodes_to(DType dtype) const { return dtype == this->dtype(); }

  /// Decodes the elements. Requires: decodes_to(target.dtype). Errors: Corrupt (a companion that
  /// contradicts itself); the caller puts the thing's name before it.
  [[nodiscard]] virtual Result<void> decode(ElementRange elements, const PartBytes& bytes,
                                            const DecodeTarget& target) const = 0;

  /// How exact values of this storage are when shown as `to`, a castable float or dtype(): the
  /// source of every label. The default: bit-exact in dtype(), else as exact as a cast of such
  /// values.
  virtual Exactness exactness(DType to) const;

  /// The stored form of the values, for people: "F32", "F8_E4M3 with scale".
  virtual std::string text() const = 0;
};

}  // namespace ckfs
