// A file of torch.save: its pickle, and where in the file each storage lies. Both forms: the zip of
// torch 1.6 and later, and the stream before it (which `_use_new_zipfile_serialization=False` still
// writes). Tensor data are never read here, only headers and pickles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"
#include "format/pickle.h"
#include "format/zip.h"
#include "tensor/dtype.h"

namespace ckfs {

inline constexpr std::size_t kMaxTorchRank = 64;

/// A tensor as a strided view on a storage; checked: every element lies inside the storage.
struct TorchTensor {
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> stride;  // in elements, not negative
  std::int64_t offset = 0;           // in elements
  std::uint32_t storage = 0;
};

/// Whether elements lie in row-major order without gaps. Dimensions of one element do not matter; a
/// tensor without elements is always contiguous.
bool is_contiguous(const TorchTensor& tensor);

/// Bytes from the first to behind the last element of a tensor, in its storage; empty where it has
/// no elements. Requires: a tensor of TorchFile::tensor().
ByteRange run_of(const TorchTensor& tensor);

/// A tensor of a class that holds other tensors and has no storage of its own (DTensor).
struct TorchWrapper {
  Pickle::GlobalName type;
  /// The class again, dtype, shape, stride, offset, layout, device, requires_grad.
  std::span<const NodeId> args;
  NodeId state = 0;  // what the class keeps
};

/// Immutable; safe for concurrent use. The source must outlive it. Movable: node ids and string
/// slices of its pickle stay valid.
class TorchFile {
 public:
  /// Whether `prefix` (the first 64 bytes or more, or all there are) begins like a torch file that
  /// open() can take.
  static bool recognize(std::span<const std::byte> prefix);

  /// Reads directory and pickle of the torch file that fills the bytes `within` of `file`, which
  /// has them: the whole file, or a part (an item of a .distcp). Errors: Corrupt, Unsupported (not
  /// a torch file, a pickle or a directory of more than `max_header` bytes...), and those of the
  /// source.
  static Result<TorchFile> open(ByteSource& source, FileId file, ByteRange within,
                                std::uint64_t max_header = kMaxPickle);

  /// The same of a file that others may be read by, or that may be read by one of `models`, which
  /// must outlive it. Where its pickle is alike (read_alike()) and names the same storages as a
  /// model's, its cost is that of the differences.
  static Result<TorchFile> open_alike(ByteSource& source, FileId file, ByteRange within,
                                      std::span<const TorchFile* const> models);
  /// Of open_alike(): which of the models it was read by; nullopt: it can be a model itself.
  std::optional<std::size_t> model() const { return model_; }
  /// Whether it could have been read by this model.
  bool is_alike(const TorchFile& model) const { return read_by(model).has_value(); }

  const Pickle& pickle() const { return pickle_; }
  NodeId root() const { return pickle_.root(); }

  /// Bytes that open() read and parsed: the zip's directory and the pickle, or the stream up to the
  /// storages.
  std::uint64_t header_bytes() const { return header_bytes_; }

  /// Whether the node would become a tensor (or parameter) in torch, servable or not.
  bool is_tensor(NodeId node) const;
  /// Such a tensor, or a parameter that is one; nullopt: the node is another, or none.
  std::optional<TorchWrapper> wrapper(NodeId node) const;
  /// Errors: Unsupported, with the reason, for tensors that are not strided views on stored bytes
  /// (sparse, quantized, on the meta device, conjugated...) or whose dtype DType does not have;
  /// Corrupt where the node is not a tensor, or numbers contradict each other. Messages name the
  /// fact without file and tensor, which the caller knows: "shape [2^40] ...".
  Result<TorchTensor> tensor(NodeId node) const;

  /// Storages that the pickle names, each once however many share it: 0 to storage_count() - 1.
  std::uint32_t storage_count() const { return static_cast<std::uint32_t>(storages_.size()); }
  /// Bytes of the storage as the pickle has them.
  std::uint64_t storage_size(std::uint32_t storage) const { return storages_[storage].size; }

  /// The storage's bytes in the file (absolute). For a zip this reads the member's local header.
  /// One without bytes is an empty range there, and nothing is read. Errors: Corrupt (no such
  /// member, or its size is not the storage's), Unsupported (compressed), those of the source.
  Result<ByteRange> storage_bytes(std::uint32_t storage) const;
  /// The same for many, with one batch of reads for each thousand.
  Result<std::vector<ByteRange>> storage_bytes(std::span<const std::uint32_t> storages) const;

 private:
  friend class TorchFileReader;

  struct Storage {
    std::string_view key;
    std::uint64_t size = 0;
    std::uint64_t begin = 0;   // legacy stream only: absolute; 0 if its list does not have it
    std::uint8_t width = 1;    // bytes of an element
    bool conflicting = false;  // named with two different sizes
  };
  /// A persistent id and its storage; ordered by node.
  struct Reference {
    NodeId node = 0;
    std::uint32_t storage = 0;
  };
  /// What a storage's persistent id names.
  struct StorageId {
    std::string_view key;
    std::optional<DType> dtype;  // nullopt: untyped bytes
    std::int64_t numel = 0;
    std::int64_t view_offset = 0;  // elements
    std::int64_t view_numel = 0;
  };

  TorchFile(ByteSource& source, FileId file) : source_(&source), file_(file) {}

  Result<StorageId> storage_id(NodeId node) const;
  Result<TorchTensor> strided(std::span<const NodeId> args, std::string_view function) const;
  Result<void> collect_storages();
  /// The pickle, as one that is alike the model's.
  std::optional<Pickle> read_by(const TorchFile& model) const;
  std::optional<ZipMember> find_member(std::string_view key) const;
  /// The error of the first storage that cannot be understood.
  Result<void> check_storages() const;

  ByteSource* source_;
  FileId file_;
  std::uint64_t header_bytes_ = 0;
  std::vector<std::byte> text_;  // the pickle's bytes
  Pickle pickle_;
  std::optional<std::size_t> model_;
  PickleTrace storages_trace_;  // of open_alike(): what collect_storages() saw
  std::optional<ZipArchive> zip_;
  std::string root_name_;  // of the zip's members, with the '/'
  std::vector<Storage> storages_;
  std::vector<Reference> references_;
};

}  // namespace ckfs
