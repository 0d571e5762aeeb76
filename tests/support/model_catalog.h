// A small checkpoint in memory for tests of views and layouts, shard by shard. Tensor data are
// numbers that differ from tensor to tensor; scales are all 1.
#pragma once

#include <deque>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "catalog/catalog.h"
#include "encoding/big_endian_encoding.h"
#include "encoding/block_scale_encoding.h"
#include "support/memory_source.h"
#include "view/view.h"

namespace ckfs {

struct TensorSpec {
  std::string name;
  DType dtype = DType::BF16;
  std::vector<std::int64_t> shape;
  bool scaled = false;  // FP8 with one scale for the whole tensor, a companion beside it
  Role role = Role::Weight;
  std::string same_as = {};     // a tensor before it in its shard that it is another name of
  std::string storage_of = {};  // a tensor before it that has the same bytes in its own shape
  bool big_endian = false;
};

class ModelCatalog {
 public:
  ModelCatalog& shard(const std::string& path, const std::vector<TensorSpec>& tensors) {
    Shard shard{
        path, source_->add(path, std::vector<std::byte>(1 << 16, std::byte(++shards_))), {}};
    std::uint64_t offset = 0;
    for (const TensorSpec& tensor : tensors) {
      const StorageId storage = add_storage(shard.file, offset, tensor.dtype, tensor.shape);
      shard.tensors.push_back(builder_.add_tensor(tensor.name, tensor.shape, storage));
      if (tensor.big_endian) {
        builder_.set_encoding(storage, big_endian_encoding(tensor.dtype), {},
                              *checked_numel(tensor.shape));
      }
      if (!tensor.scaled) continue;
      const std::vector<std::int64_t> one{1, 1};
      const StorageId scale = add_storage(shard.file, offset, DType::F32, one);
      builder_.add_tensor(tensor.name + "_scale_inv", one, scale);
      builder_.set_encoding(storage,
                            block_scale_encoding({.rows = tensor.shape[0],
                                                  .columns = tensor.shape[1],
                                                  .block_rows = tensor.shape[0],
                                                  .block_columns = tensor.shape[1]}),
                            std::span(&scale, 1), tensor.shape[0] * tensor.shape[1]);
      builder_.set_quantization({.summary = "fp8 (one block)", .groups = {}, .left_out = {}});
    }
    builder_.add_shard(std::move(shard));
    builder_.add_file({path, *source_->find(path)});
    return *this;
  }

  /// The source has an index of that name.
  ModelCatalog& index(const std::string& path) {
    model_.index = path;
    return *this;
  }

  /// The tensors of a source whose files are no model for a view's: the only shard.
  ModelCatalog& state(const std::vector<TensorSpec>& tensors) {
    const FileId file = source_->add("state.pt", std::vector<std::byte>(1 << 16, std::byte{7}));
    std::uint64_t offset = 0;
    std::map<std::string, TensorId> ids;
    std::vector<TensorId> order(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorSpec& tensor = tensors[i];
      if (!tensor.same_as.empty()) continue;
      const StorageId storage = tensor.storage_of.empty()
                                    ? add_storage(file, offset, tensor.dtype, tensor.shape)
                                    : builder_.tensor(ids.at(tensor.storage_of)).storage;
      order[i] = builder_.add_tensor(tensor.name, tensor.shape, storage);
      builder_.set_role(order[i], tensor.role);
      ids.emplace(tensor.name, order[i]);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].same_as.empty()) continue;
      order[i] = builder_.add_alias(tensors[i].name, ids.at(tensors[i].same_as));
    }
    builder_.add_only_shard(std::move(order));
    builder_.add_file({"state.pt", file});
    return *this;
  }

  ModelCatalog& config(std::string text) {
    model_.config = std::move(text);
    return *this;
  }

  ModelCatalog& side_file(const std::string& path, std::string_view text) {
    const SourceFile file{path, source_->add_text(path, text)};
    model_.side_files.push_back(file);
    builder_.add_file(file);
    return *this;
  }

  ModelCatalog& obstacle(std::string tensor, std::string reason) {
    builder_.add_obstacle(std::move(tensor), std::move(reason));
    return *this;
  }

  ModelCatalog& part(std::string directory, std::shared_ptr<const Catalog> catalog) {
    builder_.add_part({std::move(directory), std::move(catalog)});
    return *this;
  }

  /// The source is an Orbax item with those leaves. The object outlives the catalog.
  ModelCatalog& tree(const std::vector<TensorSpec>& tensors) {
    const FileId file = source_->add("array", std::vector<std::byte>(1 << 16, std::byte{7}));
    std::uint64_t offset = 0;
    ItemTree tree;
    for (const TensorSpec& tensor : tensors) {
      const StorageId storage = add_storage(file, offset, tensor.dtype, tensor.shape);
      const TensorId id = builder_.add_tensor(tensor.name, tensor.shape, storage);
      const std::string& path = paths_.emplace_back('k' + tensor.name + '\0');
      tree.leaves.push_back(
          {.path = path, .type = "jax.Array", .tensor = id, .element = {}, .text = {}});
    }
    builder_.set_tree(std::move(tree));
    builder_.add_file({"array", file});
    return *this;
  }

  std::shared_ptr<const Catalog> build() {
    builder_.set_model(std::move(model_));
    return std::move(builder_).build();
  }

  MemorySource& source() { return *source_; }

 private:
  StorageId add_storage(FileId file, std::uint64_t& offset, DType dtype,
                        const std::vector<std::int64_t>& shape) {
    const std::int64_t numel = *checked_numel(shape);
    const std::vector<Extent> extents{{file, offset, *nbytes(dtype, numel)}};
    offset += extents[0].nbytes;
    return builder_.add_storage(dtype, numel, extents);
  }

  std::unique_ptr<MemorySource> source_ = std::make_unique<MemorySource>();
  CatalogBuilder builder_{"safetensors"};
  ModelDirectory model_;
  int shards_ = 0;
  std::deque<std::string> paths_;  // of leaves
};

/// The definition of a view of `catalog`; a view that cannot be had is a failure.
inline std::shared_ptr<const Definition> define(std::shared_ptr<const Catalog> catalog,
                                                std::string_view spelling) {
  const auto spec = parse_view_spec(spelling);
  EXPECT_TRUE(spec) << spec.error().message();
  auto definition = define_view(std::move(catalog), *spec);
  EXPECT_TRUE(definition) << definition.error().message();
  return definition ? *definition : nullptr;
}

}  // namespace ckfs
