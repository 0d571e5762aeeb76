// A torch file is pickle, storages, and around each storage a hundred bytes of zip. As a literal of
// its own each of those would cost more memory than its tensor does in the catalog; all of them as
// one literal would have to be rendered whole, megabytes, for the first of them. So a few hundred
// are one literal, whose parts lie between the storages.
#include "container/torch_zip_layout.h"

#include <algorithm>
#include <unordered_map>

#include "format/torch_zip_writer.h"

namespace ckfs {
namespace {

// Texts of this many storages make one literal: 32 KB, which is less than most storages.
constexpr std::size_t kStoragesPerLiteral = 256;

// Literals before those.
constexpr std::uint32_t kHeadLiteral = 0;
constexpr std::uint32_t kPickleLiteral = 1;
constexpr std::uint32_t kTailLiteral = 2;
constexpr std::uint32_t kFirstLiteral = 3;

std::vector<torch_zip::TensorHead> heads_of(const Definition& definition, std::size_t file) {
  const std::vector<std::uint32_t>& ids = definition.files[file].tensors;
  std::unordered_map<std::uint32_t, std::uint32_t> shared;  // by number in the definition
  for (const std::uint32_t id : ids) {
    const std::uint32_t source = definition.tensors[id].same_as;
    if (source != ViewTensor::kOwnBytes) shared.emplace(source, torch_zip::TensorHead::kOwnStorage);
  }
  std::vector<torch_zip::TensorHead> heads;
  heads.reserve(ids.size());
  for (const std::uint32_t id : ids) {
    const ViewTensor& tensor = definition.tensors[id];
    const auto place = static_cast<std::uint32_t>(heads.size());
    heads.push_back({tensor.name, tensor.expr.dtype(), tensor.expr.shape()});
    if (tensor.same_as != ViewTensor::kOwnBytes) heads.back().same_as = shared.at(tensor.same_as);
    const auto source = shared.find(id);
    if (source != shared.end()) source->second = place;
  }
  return heads;
}

/// The file's name without its last extension: what torch calls the directory inside.
std::string root_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::string(name.substr(0, name.rfind('.')));
}

/// The segments of a file, of which some literals come in several pieces.
class Segments {
 public:
  explicit Segments(FileLayout& layout) : layout_(layout) {}

  /// Bytes of literal `id`, from `inside`, at `range` of the file.
  void literal(std::uint32_t id, std::uint64_t inside, ByteRange range) {
    if (range.empty()) return;
    if (!layout_.segments.empty()) {
      const Segment& last = layout_.segments.back();
      const bool continues = last.kind == Segment::Kind::Literal && last.id == id &&
                             last.source_offset + (range.begin - last.begin) == inside;
      if (continues) return;
    }
    layout_.segments.push_back({range.begin, inside, id, Segment::Kind::Literal});
  }

  void tensor(std::uint32_t id, ByteRange range) {
    if (!range.empty()) layout_.segments.push_back({range.begin, 0, id, Segment::Kind::Tensor});
  }

 private:
  FileLayout& layout_;
};

}  // namespace

Result<FileLayout> lay_out_torch_file(const std::shared_ptr<const Definition>& definition,
                                      std::size_t file) {
  FileLayout layout;
  layout.path = definition->files[file].path;
  std::vector<std::uint32_t> owners;  // tensors that have a storage
  std::vector<std::uint64_t> sizes;
  for (const std::uint32_t id : definition->files[file].tensors) {
    const ViewTensor& tensor = definition->tensors[id];
    layout.exactness = std::max(layout.exactness, tensor.exactness);
    ++layout.tensor_count;
    if (tensor.same_as != ViewTensor::kOwnBytes) continue;
    owners.push_back(id);
    sizes.push_back(tensor.expr.nbytes());
  }
  const std::uint64_t pickle_bytes = torch_zip::measure_pickle(heads_of(*definition, file));
  auto planned =
      torch_zip::TorchArchive::plan(root_of(layout.path), pickle_bytes, std::move(sizes));
  if (!planned) {
    return Failure(
        planned.error().within(fmt::format("{}/{}", definition->spec.canonical(), layout.path)));
  }
  const auto archive = std::make_shared<const torch_zip::TorchArchive>(std::move(*planned));
  layout.size = archive->size();

  layout.literals.push_back({archive->head().size(), [archive] { return archive->render_head(); }});
  layout.literals.push_back({pickle_bytes, [definition, file] {
                               return torch_zip::render_pickle(heads_of(*definition, file));
                             }});
  layout.literals.push_back({archive->tail().size(), [archive] { return archive->render_tail(); }});
  Segments segments(layout);
  segments.literal(kHeadLiteral, 0, archive->head());
  segments.literal(kPickleLiteral, 0, archive->pickle());
  for (std::size_t begin = 0; begin < owners.size(); begin += kStoragesPerLiteral) {
    const std::size_t end = std::min(begin + kStoragesPerLiteral, owners.size());
    const auto id = static_cast<std::uint32_t>(kFirstLiteral + begin / kStoragesPerLiteral);
    std::uint64_t inside = 0;
    for (std::size_t k = begin; k < end; ++k) {
      const ByteRange before = archive->before(k);
      segments.literal(id, inside, before);
      segments.tensor(owners[k], archive->storage(k));
      inside += before.size();
    }
    layout.literals.push_back(
        {inside, [archive, begin, end] { return archive->render_before(begin, end); }});
  }
  segments.literal(kTailLiteral, 0, archive->tail());
  return layout;
}

}  // namespace ckfs
