// A file as torch.save writes it, laid out from names and sizes alone: a pickle of a plain dict of
// tensors, and the zip archive around it and the storages. The storages' bytes are not part of
// this; src/engine moves them.
//
// Both are what torch 2.13 writes with torch.utils.serialization.config.save.compute_crc32 = False,
// byte for byte: all CRC-32 fields are zero, because a CRC would cost a read of all data before the
// first byte. torch checks none; Python's zipfile and unzip do.
//
// All functions are pure; a TorchArchive is immutable and safe for concurrent use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_range.h"
#include "base/error.h"
#include "tensor/dtype.h"

namespace ckfs::torch_zip {

/// A tensor to write: row-major, the whole of a storage of its own; or another name of one before.
struct TensorHead {
  static constexpr std::uint32_t kOwnStorage = ~std::uint32_t{0};

  std::string_view name;
  DType dtype = DType::U8;
  std::span<const std::int64_t> shape;
  /// The index of the tensor before it in the list, with a storage of its own, that it is another
  /// name of.
  std::uint32_t same_as = kOwnStorage;
};

/// Whether torch has that dtype, with the same shape: all but F4 and F6.
bool can_hold(DType dtype);

/// Bytes of render_pickle(); no text is built. Requires: can_hold() every dtype.
std::uint64_t measure_pickle(std::span<const TensorHead> tensors);

/// data.pkl of a dict of the tensors in this order (protocol 2, as CPython's C pickler writes it).
/// Storages have the keys "0", "1", ... in the order of the tensors that own one.
std::string render_pickle(std::span<const TensorHead> tensors);

/// data.pkl of one tensor by itself, as torch.save(tensor) writes it; its name is in no text.
/// Requires: it has a storage of its own.
std::uint64_t measure_pickle(const TensorHead& tensor);
std::string render_pickle(const TensorHead& tensor);

/// The archive around a pickle and storages: 16 bytes a storage.
class TorchArchive {
 public:
  /// `root` is the name of all members' directory: the file's, without its last extension.
  /// Requires: `root` has fewer than 256 bytes. Errors: Unsupported where the file would be larger
  /// than 2^63 - 1 bytes.
  static Result<TorchArchive> plan(std::string root, std::uint64_t pickle_bytes,
                                   std::vector<std::uint64_t> storage_bytes);

  std::uint64_t size() const { return size_; }
  std::size_t storages() const { return storage_bytes_.size(); }
  /// Where the pickle lies in the file.
  ByteRange pickle() const { return pickle_; }
  /// Where storage `k` lies.
  ByteRange storage(std::size_t k) const;

  /// The bytes between storage k - 1 (or the pickle, if k is 0) and storage `k`.
  ByteRange before(std::size_t k) const;
  /// The bytes before the pickle: it begins the file's text.
  ByteRange head() const { return {0, pickle_.begin}; }
  /// The bytes behind the last storage (or the pickle, where there is none).
  ByteRange tail() const;

  std::string render_head() const;
  /// The bytes of before(begin), before(begin + 1), ... before(end - 1), without the storages.
  std::string render_before(std::size_t begin, std::size_t end) const;
  std::string render_tail() const;

 private:
  struct Member {
    std::string name;  // below the root
    std::uint64_t bytes = 0;
    std::uint64_t header = 0;  // where its local header begins
  };

  TorchArchive() = default;

  // Members by number, in the order of the file: the pickle, three small ones, storages, two more.
  std::size_t members() const;
  Member member(std::size_t index) const;
  std::uint64_t data_begin(const Member& member) const;
  std::uint64_t end(const Member& member) const;  // behind its descriptor
  void put_local_header(std::string& out, const Member& member) const;
  void put_directory_entry(std::string& out, const Member& member) const;
  /// Writes the descriptor of the member before storage `k`, small members if they come here, and
  /// the local header.
  void put_before(std::string& out, std::size_t k) const;
  /// The local header, text and descriptor of each small member behind the pickle.
  void put_small_members(std::string& out) const;
  std::string serialization_id() const;

  std::string root_;
  ByteRange pickle_;
  std::vector<std::uint64_t> storage_bytes_;
  std::vector<std::uint64_t> storage_headers_;  // offsets of their local headers
  std::uint64_t version_ = 0;    // offset of the local header of the member of that name
  std::uint64_t directory_ = 0;  // offset of the central directory
  std::uint64_t size_ = 0;
};

}  // namespace ckfs::torch_zip
