// The safetensors container: its header, read and written. (The data behind the header are bytes
// that src/engine moves; nothing here reads them.)
//
// A file is: N as 8 little-endian bytes, N bytes of JSON, data. Parsing checks everything that
// safetensors' own loader checks, and also duplicate names; each check has its own error text. All
// functions are pure and safe for concurrent use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace ckfs::safetensors {

/// The bytes before the header's text.
inline constexpr std::uint64_t kLengthBytes = 8;

// Limits. The first is the format's own; the others keep the memory for parsing a hostile header
// below 64 MB beside its text, and are far from any real checkpoint.
inline constexpr std::uint64_t kMaxHeader = 100'000'000;
inline constexpr std::size_t kMaxTensors = 500'000;
/// Of all shapes together; equal ones mostly count once.
inline constexpr std::size_t kMaxDimensions = 1'000'000;
inline constexpr std::size_t kMaxRank = 64;
inline constexpr std::size_t kMaxName = 65'535;       // bytes of a tensor's name
inline constexpr std::size_t kMaxString = 4'194'304;  // bytes of any string or number
inline constexpr std::size_t kMaxMetadata = 100'000;  // members of __metadata__
/// Bytes of escaped names, and 32 more for each; bytes of metadata's keys.
inline constexpr std::size_t kMaxEscaped = 4'194'304;
/// Bytes of metadata's values that a header keeps.
inline constexpr std::size_t kMaxKeptMetadata = 4'194'304;

/// A tensor as the header lists it. [begin, end) counts from the first byte of data.
struct HeaderTensor {
  std::string_view name;
  DType dtype = DType::U8;
  std::span<const std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// An entry of the header's `__metadata__`: a key and its text.
using MetadataEntry = std::pair<std::string, std::string>;

/// A parsed header: tensors in the order of their data, which they cover without hole or overlap.
/// Immutable. Names are slices of the text that was parsed, so the text must outlive the header.
class Header {
 public:
  /// Offset of the data in the file.
  std::uint64_t data_offset() const { return data_offset_; }
  std::size_t size() const { return entries_.size(); }
  /// Valid as long as the header and its text.
  HeaderTensor operator[](std::size_t index) const;
  /// `__metadata__` by key, without the entries whose values would be more than kMaxKeptMetadata
  /// bytes with those before them.
  std::span<const MetadataEntry> metadata() const { return metadata_; }
  /// The keys of those.
  std::span<const std::string> metadata_not_kept() const { return metadata_not_kept_; }

 private:
  friend class HeaderReader;

  // 24 bytes a tensor; `end` follows from dtype and shape.
  struct Entry {
    std::uint64_t begin = 0;
    std::uint32_t name = 0;   // offset in text_, or index in escaped_ where name_escaped
    std::uint32_t shape = 0;  // offset in dimensions_
    std::uint16_t name_size = 0;
    bool name_escaped = false;
    std::uint8_t rank = 0;
    DType dtype = DType::U8;
  };

  std::string_view name_of(const Entry& entry) const;

  std::string_view text_;
  std::uint64_t data_offset_ = 0;
  std::vector<Entry> entries_;
  std::vector<std::int64_t> dimensions_;
  std::vector<std::string> escaped_;
  std::vector<MetadataEntry> metadata_;
  std::vector<std::string> metadata_not_kept_;
};

/// Length of the header's text, by the file's first bytes: at least 8, or the whole of a shorter
/// file. Errors: Corrupt.
Result<std::uint64_t> header_length(std::span<const std::byte> prefix, std::uint64_t file_size,
                                    std::string_view file_name);

/// Parses the header's text (without the length before it) of a file of `file_size` bytes.
/// Requires: header_length() gave the text's length. Errors: Corrupt, each naming the file, the
/// fact and, where it is about one, the tensor.
Result<Header> parse_header(std::string_view text, std::uint64_t file_size,
                            std::string_view file_name);

/// A tensor to write.
struct TensorHead {
  std::string_view name;
  DType dtype = DType::U8;  // not C128
  std::span<const std::int64_t> shape;
};

/// The order in which safetensors' writer lays tensors: dtype descending, then name ascending.
bool canonical_less(const TensorHead& a, const TensorHead& b);

/// Bytes of a tensor's data. Requires: the shape is one of a tensor that exists.
std::uint64_t data_size(const TensorHead& tensor);

/// Bytes before the data (length field, text, padding) of the file that
/// `save_file(tensors, metadata={"format": "pt", **metadata})` writes; no text is built. (That
/// writer's order of metadata is another each time; here it is the given one, behind `format`.)
/// Requires: `tensors` in canonical order; no key of `metadata` is "format", or there twice.
std::uint64_t measure_header(std::span<const TensorHead> tensors,
                             std::span<const MetadataEntry> metadata = {});

/// Those bytes.
std::string render_header(std::span<const TensorHead> tensors,
                          std::span<const MetadataEntry> metadata = {});

}  // namespace ckfs::safetensors
