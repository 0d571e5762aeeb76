// Shards as safetensors' own writer would lay them out, so that `save_file` of a view's tensors
// gives the view's bytes again, and a mounted file and a converted one are interchangeable.
//
// A header of a large model is megabytes of text. It is measured here and rendered from the
// definition when it is read; kept as text it would cost more than the whole catalog.
#include "container/safetensors_layout.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "format/hf_index.h"
#include "format/safetensors.h"

namespace ckfs {
namespace {

safetensors::TensorHead head_of(const ViewTensor& tensor) {
  return {tensor.name, tensor.expr.dtype(), tensor.expr.shape()};
}

std::vector<safetensors::TensorHead> heads_of(const Definition& definition,
                                              std::span<const std::uint32_t> order) {
  std::vector<safetensors::TensorHead> heads;
  heads.reserve(order.size());
  for (const std::uint32_t id : order) heads.push_back(head_of(definition.tensors[id]));
  return heads;
}

std::string render_shard_header(const Definition& definition, std::size_t file) {
  return safetensors::render_header(heads_of(definition, canonical_order(definition, file)));
}

struct IndexContent {
  std::vector<IndexName> names;
  std::uint64_t total_size = 0;
};

IndexContent index_content(const Definition& definition) {
  IndexContent content;
  content.names.reserve(definition.tensors.size());
  for (const TensorFile& file : definition.files) {
    for (const std::uint32_t id : file.tensors) {
      const ViewTensor& tensor = definition.tensors[id];
      content.names.push_back({tensor.name, file.path});
      // What shares its bytes is there once in files that can say so.
      if (tensor.same_as == ViewTensor::kOwnBytes) content.total_size += tensor.expr.nbytes();
    }
  }
  std::ranges::sort(content.names, {}, &IndexName::name);
  return content;
}

}  // namespace

std::vector<std::uint32_t> canonical_order(const Definition& definition, std::size_t file) {
  std::vector<std::uint32_t> order = definition.files[file].tensors;
  std::ranges::sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return safetensors::canonical_less(head_of(definition.tensors[a]),
                                       head_of(definition.tensors[b]));
  });
  return order;
}

Result<FileLayout> lay_out_shard(const std::shared_ptr<const Definition>& definition,
                                 std::size_t file) {
  FileLayout layout;
  layout.path = definition->files[file].path;
  const std::vector<std::uint32_t> order = canonical_order(*definition, file);
  layout.tensor_count = order.size();

  const std::uint64_t header = safetensors::measure_header(heads_of(*definition, order));
  if (header - safetensors::kLengthBytes > safetensors::kMaxHeader) {
    return fail(ErrorCode::Unsupported, "{}/{}: header of {} bytes > {} (use max_shard)",
                definition->spec.canonical(), layout.path, header - safetensors::kLengthBytes,
                safetensors::kMaxHeader);
  }
  layout.literals.push_back(
      {header, [definition, file] { return render_shard_header(*definition, file); }});
  layout.segments.reserve(order.size() + 1);
  layout.segments.push_back({0, 0, 0, Segment::Kind::Literal});
  layout.size = header;
  for (const std::uint32_t id : order) {
    const ViewTensor& tensor = definition->tensors[id];
    layout.exactness = std::max(layout.exactness, tensor.exactness);
    const std::uint64_t bytes = tensor.expr.nbytes();
    // A tensor without elements has a place in the header, but none in the data.
    if (bytes == 0) continue;
    layout.segments.push_back({layout.size, 0, id, Segment::Kind::Tensor});
    const auto end = checked_add(layout.size, bytes);
    // The kernel's file offsets are signed.
    if (!end || *end > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return fail(ErrorCode::Unsupported, "{}/{}: larger than 2^63 - 1 bytes (use max_shard)",
                  definition->spec.canonical(), layout.path);
    }
    layout.size = *end;
  }
  return layout;
}

FileLayout lay_out_index(const std::shared_ptr<const Definition>& definition) {
  FileLayout layout;
  layout.path = definition->index;
  const IndexContent content = index_content(*definition);
  layout.size = measure_hf_index(content.names, content.total_size);
  layout.literals.push_back({layout.size, [definition] {
                               const IndexContent names = index_content(*definition);
                               return render_hf_index(names.names, names.total_size);
                             }});
  layout.segments.push_back({0, 0, 0, Segment::Kind::Literal});
  return layout;
}

}  // namespace ckfs
