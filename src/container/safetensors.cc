// Shards as safetensors' own writer would lay them out, so that `save_file` of a view's tensors
// gives the view's bytes again, and a mounted file and a converted one are interchangeable.
#include "container/safetensors.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/text.h"
#include "container/sharded.h"
#include "format/safetensors.h"

namespace ckfs {
namespace {

class SafetensorsContainer final : public ShardedContainer {
 public:
  explicit SafetensorsContainer(std::shared_ptr<const Definition> definition)
      : ShardedContainer(std::move(definition), kSafetensorsNames, false) {}

  using ShardedContainer::build;

 private:
  Result<void> check(const ModelTensor& tensor) const override {
    // The header's own key beside the names.
    if (tensor.name == "__metadata__") {
      return fail(ErrorCode::Unsupported,
                  "{}: a name that no tensor of a safetensors file can have", quote(tensor.name));
    }
    if (tensor.expr.dtype() == DType::C128) {
      return fail(ErrorCode::Unsupported, "{}: C128 has no safetensors dtype", quote(tensor.name));
    }
    // A pickle can hold lone surrogates; JSON, and so a safetensors header, cannot.
    if (is_utf8(tensor.name)) return {};
    return fail(ErrorCode::Unsupported, "{}: a name that is not UTF-8", quote(tensor.name));
  }

  void order(std::span<std::uint32_t> ids) const override {
    std::ranges::sort(ids, [&](std::uint32_t a, std::uint32_t b) {
      return safetensors::canonical_less(head_of(a), head_of(b));
    });
  }

  Result<std::uint64_t> measure(std::size_t shard) const override {
    const std::uint64_t header = safetensors::measure_header(heads_of(shard), metadata_of(shard));
    if (header - safetensors::kLengthBytes > safetensors::kMaxHeader) {
      return fail(ErrorCode::Unsupported, "header of {} bytes > {} (use max_shard)",
                  header - safetensors::kLengthBytes, safetensors::kMaxHeader);
    }
    std::uint64_t size = header;
    for (const std::uint32_t id : ids(shard)) {
      const auto end = checked_add(size, tensor(id).expr.nbytes());
      // The kernel's file offsets are signed.
      if (!end || *end > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        return fail(ErrorCode::Unsupported, "larger than 2^63 - 1 bytes (use max_shard)");
      }
      size = *end;
    }
    return size;
  }

  FileLayout lay_out_shard(std::size_t shard) const override {
    FileLayout layout;
    std::uint64_t data = 0;
    for (const std::uint32_t id : ids(shard)) data += tensor(id).expr.nbytes();
    std::uint64_t at = facts(shard).size - data;  // behind the header
    layout.literals.push_back(at);
    layout.segments.reserve(ids(shard).size() + 1);
    layout.segments.push_back({0, 0, 0, Segment::Kind::Literal});
    for (const std::uint32_t id : ids(shard)) {
      const std::uint64_t bytes = tensor(id).expr.nbytes();
      // A tensor without elements has a place in the header, but none in the data.
      if (bytes > 0 && tensor(id).stored == ModelTensor::kNone) {
        layout.segments.push_back({at, 0, id, Segment::Kind::Tensor});
      } else if (bytes > 0) {
        for (const Extent& extent : definition().catalog->storage(tensor(id).stored).extents) {
          layout.segments.push_back(
              {at + extent.begin, extent.offset, extent.file, Segment::Kind::File});
        }
      }
      at += bytes;
    }
    layout.render = [self =
                         std::static_pointer_cast<const SafetensorsContainer>(shared_from_this()),
                     shard](std::uint32_t) {
      return safetensors::render_header(self->heads_of(shard), self->metadata_of(shard));
    };
    return layout;
  }

  /// For a file that mirrors one of the source: the metadata of that one's header.
  std::span<const safetensors::MetadataEntry> metadata_of(std::size_t shard) const {
    if (definition().packaging.placement != Placement::Mirrored) return {};
    const auto& mirrored = definition().catalog->shards()[tensor(ids(shard)[0]).shard];
    if (mirrored.metadata == nullptr) return {};
    return *mirrored.metadata;
  }

  safetensors::TensorHead head_of(std::uint32_t id) const {
    return {tensor(id).name, tensor(id).expr.dtype(), tensor(id).expr.shape()};
  }

  std::vector<safetensors::TensorHead> heads_of(std::size_t shard) const {
    std::vector<safetensors::TensorHead> heads;
    heads.reserve(ids(shard).size());
    for (const std::uint32_t id : ids(shard)) heads.push_back(head_of(id));
    return heads;
  }
};

}  // namespace

Result<std::shared_ptr<const Container>> make_safetensors(
    std::shared_ptr<const Definition> definition) {
  auto container = std::make_shared<SafetensorsContainer>(std::move(definition));
  CKFS_TRY_VOID(container->build());
  return container;
}

}  // namespace ckfs
