// model.safetensors.index.json: which file holds which tensor. All functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ckfs {

// Limits that keep the memory for parsing below 64 MB beside the text.
inline constexpr std::uint64_t kMaxIndex = std::uint64_t{256} << 20;  // bytes of the file
inline constexpr std::size_t kMaxIndexNames = 1'000'000;
inline constexpr std::size_t kMaxIndexFiles = 50'000;
inline constexpr std::size_t kMaxIndexFileName = 512;  // bytes
inline constexpr std::size_t kMaxIndexDepth = 64;      // nested objects and lists
/// Bytes of names with an escape, and 32 more for each.
inline constexpr std::size_t kMaxIndexEscaped = 4'194'304;

/// A parsed index. Immutable. Names are slices of the text, which must outlive it, or
/// where they have an escape of the index.
class HfIndex {
 public:
  /// A name and the number of its file.
  struct Entry {
    std::string_view name;
    std::uint32_t file = 0;
  };

  /// File names, in byte order, each once; plain relative names, without a "./" before them.
  std::span<const std::string> files() const { return files_; }
  /// Entries by name in byte order.
  std::size_t size() const { return entries_.size(); }
  Entry operator[](std::size_t index) const;
  /// The number of the file that holds `name`. `near`: the place of a similar name, for speed only;
  /// afterwards that of `name`, or where it would be.
  std::optional<std::uint32_t> find(std::string_view name, std::size_t& near) const;

 private:
  friend class HfIndexReader;

  struct Slot {
    std::uint32_t name = 0;  // offset in text_, or index in escaped_ where name_size is kEscaped
    std::uint32_t name_size = 0;
    std::uint32_t file = 0;
  };
  static constexpr std::uint32_t kEscaped = ~std::uint32_t{0};

  std::string_view name_of(const Slot& slot) const;

  std::string_view text_;
  std::vector<Slot> entries_;
  std::vector<std::string> files_;
  std::vector<std::string> escaped_;
};

/// Errors: Corrupt, each naming the file and the fact. A name mapped twice, a file name that leaves
/// the directory, anything but strings in weight_map, and a string or number of more than 65,536
/// bytes are refused; of `metadata` nothing else is looked at.
Result<HfIndex> parse_hf_index(std::string_view text, std::string_view file_name);

/// A tensor of a target index and the path of its file.
struct IndexName {
  std::string_view name;
  std::string_view file;
};

/// How many bytes render_hf_index() writes. They do not depend on the order of the tensors, so
/// neither a text nor a list of them is built.
class HfIndexMeasure {
 public:
  void add(const IndexName& entry);
  std::uint64_t nbytes(std::uint64_t total_size) const;

 private:
  std::uint64_t entries_ = 0;  // how many
  std::uint64_t text_ = 0;     // bytes of names and paths, as strings of JSON
};

/// The index as json.dumps(index, indent=2, sort_keys=True) + "\n" writes it, with the metadata
/// {"total_size": total_size}: bytes of all tensors, without headers. Requires: `names` in byte
/// order.
std::string render_hf_index(std::span<const IndexName> names, std::uint64_t total_size);

}  // namespace ckfs
