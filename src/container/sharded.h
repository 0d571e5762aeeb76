// Containers whose directory is a model's: shards of whole tensors, and an index over them where
// loaders need one. A format defines the layout of one shard (safetensors.h, torch_zip.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "container/container.h"
#include "container/shards.h"

namespace ckfs {

/// Costs 4 bytes a tensor and 13 a file. Files are the shards, by number, and the index, if there
/// is one.
class ShardedContainer : public Container {
 public:
  std::size_t size() const final { return shards() + (has_index() ? 1 : 0); }
  std::string path(std::size_t file) const final;
  FileFacts facts(std::size_t file) const final;
  std::vector<std::uint32_t> tensors(std::size_t file) const final;
  FileLayout lay_out(std::size_t file) const final;

 protected:
  ShardedContainer(std::shared_ptr<const Definition> definition, const FileNames& names,
                   bool shares);

  /// Orders and measures the shards. Not in the constructor, because it can fail and asks the
  /// format. Errors: those of make_containers().
  Result<void> build();

  const Definition& definition() const { return *definition_; }
  const ModelTensor& tensor(std::uint32_t id) const { return definition_->tensors[id]; }
  /// The tensors of a shard in the format's order.
  std::span<const std::uint32_t> ids(std::size_t shard) const;

  /// Errors: Unsupported: the format has no place for such a tensor. The text begins with its name.
  virtual Result<void> check(const ModelTensor& tensor) const = 0;
  /// Puts a shard's tensors into the order that the format wants.
  virtual void order(std::span<std::uint32_t> ids) const = 0;
  /// Bytes of a shard. Errors: Unsupported.
  virtual Result<std::uint64_t> measure(std::size_t shard) const = 0;
  /// Segments, literals and render() of a shard.
  virtual FileLayout lay_out_shard(std::size_t shard) const = 0;

 private:
  std::size_t shards() const { return begins_.size() - 1; }
  bool has_index() const;
  /// Calls visit(IndexName) for each tensor, in the order of the files, and returns what their data
  /// take. The names of files live as long as the call.
  template <typename Visit>
  std::uint64_t for_each_in_index(const Visit& visit) const;
  std::string render_index() const;

  const std::shared_ptr<const Definition> definition_;
  const FileNames names_;
  const bool shares_;                     // the format can give two names to the same bytes
  std::vector<std::uint32_t> ids_;        // of all shards, one after another
  std::vector<std::uint32_t> begins_{0};  // of each shard in ids_, and the end
  std::vector<std::uint64_t> sizes_;      // of each shard, and of the index
  std::vector<Exactness> exactness_;      // of each shard
  bool keeps_paths_ = false;              // files have the paths of the source's shards
};

}  // namespace ckfs
