// Runs: consecutive elements of one storage, decoded and taken through the steps of a program. The
// unit of all computing: a decoded part of a plan is one run, a batch of a gather is many.
//
// The needs of several runs are collected first, so that shared bytes (granules at borders, rows of
// scales, look-up tables) are read once, and all in one batch:
//
//   const RunReads needed(catalog, runs);
//   RunDecoder decoder(needed, bytes, staging, kernels);  // needed.staging() bytes
//   bytes.fetch();
//   decoder.decode(run, 0, out);                          // for each run
//   bytes.check();
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "catalog/catalog.h"
#include "engine/source_bytes.h"
#include "expr/tensor_expr.h"
#include "tensor/kernel.h"

namespace ckfs {

/// The elements [first, first + count) of a storage, and the steps to apply.
struct ElementRun {
  StorageId storage = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  const Program* program = nullptr;  // nullptr: no step

  bool operator==(const ElementRun&) const = default;
};

/// The dtype after the steps of `program` on a value of dtype `value`.
DType result_dtype(DType value, const Program* program);

/// Whether decoding changes nothing: plain elements and no step.
bool is_move(const Storage& storage, const Program* program);

/// Whether the steps widen values of that dtype and round them back: all bits stay, except that a
/// NaN becomes the quiet one of its sign.
bool only_quiets_nans(DType value, std::span<const Step> steps);

/// The bytes that some runs need, each once, and their places in a staging buffer. Immutable;
/// refers to the catalog.
class RunReads {
 public:
  RunReads() = default;
  /// Whether long reads are padded (ReadRequest::padded), and so take some pages more of staging.
  enum class Padding : std::uint8_t { No, Yes };
  /// Runs may be of any storages, in any order; those without elements need nothing.
  RunReads(const Catalog& catalog, std::span<const ElementRun> runs, Padding padding = Padding::No);

  /// An upper bound of staging() without padding for `count` runs of `elements` elements of a
  /// storage, wherever they begin. Grows with both, except for a few bytes where the bound of a
  /// part becomes closer.
  static std::size_t most_staging(const Catalog& catalog, StorageId storage, std::int64_t elements,
                                  std::int64_t count);

  /// Bytes for the reads, and for the scratch of one decode() at a time. A multiple of
  /// kBufferAlignment.
  std::size_t staging() const { return staging_; }

  /// Of the runs. Requires: there are some.
  const Catalog& catalog() const { return *catalog_; }

  /// Adds the source bytes that are needed.
  void add_ranges(std::vector<FileRange>& ranges) const;

 private:
  friend class RunDecoder;
  static constexpr StorageId kNone = ~StorageId{0};

  /// The windows of one storage, in windows_.
  struct StorageWindows {
    StorageId storage = 0;
    StorageId of = kNone;  // whose companion it is
    std::size_t begin = 0, end = 0;
  };
  /// Bytes `range` of a storage have their place `at` in the staging.
  struct Window {
    ByteRange range;
    std::size_t at = 0;
    bool padded = false;
  };

  std::size_t place(std::size_t used, const StorageWindows& part, Padding padding);
  const StorageWindows* find(StorageId storage) const;
  ByteRange hull(const StorageWindows& part) const;
  std::optional<FileRange> kept(const StorageWindows& part) const;

  const Catalog* catalog_ = nullptr;
  std::vector<Window> windows_;
  std::vector<StorageWindows> parts_;  // by storage
  std::size_t scratch_ = 0;            // where in the staging it begins
  std::size_t staging_ = 0;
};

/// Decodes runs. Not for concurrent use: it has one scratch.
class RunDecoder {
 public:
  /// Asks `bytes` for the runs' bytes: mapped where possible, else read into `staging`. Requires:
  /// staging.size() >= reads.staging(); it begins at a multiple of kBufferAlignment; all outlive
  /// the decoder.
  RunDecoder(const RunReads& reads, SourceBytes& bytes, std::span<std::byte> staging,
             KernelSet kernels);

  /// Bytes [skip, skip + out.size()) of the run's result. Requires: bytes.fetch() has succeeded;
  /// the run is one of those of `reads`, or a part of one. Errors: Corrupt (a companion that
  /// contradicts itself).
  Result<void> decode(const ElementRun& run, std::uint64_t skip, std::span<std::byte> out);

 private:
  Result<void> whole(const ElementRun& run, std::span<std::byte> out);
  Result<void> values(ElementRange elements, DType to, std::span<std::byte> out);
  Result<void> units(ElementRange elements, DType to, std::span<std::byte> out);

  std::span<const PartBytes::Window> windows(StorageId storage) const;

  const RunReads& reads_;
  const std::span<std::byte> scratch_;
  const KernelSet kernels_;
  std::vector<PartBytes::Window> windows_;  // as those of reads_
  // Of the run at hand.
  StorageId storage_ = ~StorageId{0};
  const Encoding* encoding_ = nullptr;
  bool again_ = false;  // DecodeTarget::again
  std::int64_t numel_ = 0;
  std::vector<std::span<const PartBytes::Window>> parts_;
};

}  // namespace ckfs
