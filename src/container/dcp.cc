// Torch files of one dtype and shape differ in their elements alone, so the place of the elements
// and the text around them are planned once for all of them. A chunk costs 8 bytes. A data file has
// two texts of a few hundred bytes for each chunk; those of 64 chunks are one literal.
#include "container/dcp.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "container/array_chunks.h"
#include "container/literal_segments.h"
#include "format/dcp_write.h"
#include "format/torch_zip_writer.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kMostDcpBytes = 5'000'000'000;  // of a data file, with more than one chunk
constexpr std::size_t kItemsPerLiteral = 64;
constexpr std::size_t kMostDimensions = 64;
constexpr std::uint64_t kMostDcpChunks = std::uint64_t{1} << 24;
constexpr std::size_t kMostDcpFiles = 100'000;
constexpr std::string_view kItemRoot = "archive";  // what torch.save calls it in a stream

/// The torch file around a chunk.
struct DcpItemKind {
  torch_zip::TorchArchive archive;
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape;

  ByteRange before() const { return {0, archive.storage(0).begin}; }
  std::string render() const {
    std::string text = archive.render_head();
    text += torch_zip::render_pickle(torch_zip::TensorHead{{}, dtype, shape});
    text += archive.render_before(0, 1);
    return text + archive.render_tail();
  }
  /// Of render().
  std::uint64_t text_bytes() const { return archive.size() - archive.storage(0).size(); }
};

class DcpContainer final : public Container {
 public:
  explicit DcpContainer(std::shared_ptr<const Definition> definition)
      : definition_(std::move(definition)) {}

  Result<void> build() {
    for (std::uint32_t id = 0; id < definition_->tensors.size(); ++id) {
      CKFS_TRY_VOID(add(id));
    }
    if (!items_.empty()) file_begins_.push_back(static_cast<std::uint32_t>(items_.size()));
    metadata_bytes_ = dcp::measure_metadata(written(), planner());
    return {};
  }

  std::size_t size() const override { return sizes_.size() + 1; }

  std::string path(std::size_t file) const override {
    const std::string& directory = definition_->packaging.dcp.directory;
    if (file == sizes_.size()) return directory + ".metadata";
    return directory + dcp::data_file(static_cast<std::uint32_t>(file));
  }

  FileFacts facts(std::size_t file) const override {
    if (file == sizes_.size()) return {.size = metadata_bytes_};
    FileFacts facts{.size = sizes_[file]};
    for (const std::uint32_t id : tensors(file)) {
      ++facts.tensors;
      facts.exactness = std::max(facts.exactness, definition_->tensors[id].exactness);
    }
    return facts;
  }

  std::vector<std::uint32_t> tensors(std::size_t file) const override {
    std::vector<std::uint32_t> ids;
    if (file == sizes_.size()) return ids;
    for (const Item& item : items_of(file)) {
      if (ids.empty() || ids.back() != item.tensor) ids.push_back(item.tensor);
    }
    return ids;
  }

  FileLayout lay_out(std::size_t file) const override;

 private:
  /// A chunk; chunks of a tensor are numbered in the order of their offsets.
  struct Item {
    std::uint32_t tensor = 0, chunk = 0;
  };

  const ModelTensor& tensor(std::uint32_t id) const { return definition_->tensors[id]; }

  dcp::Planner planner() const {
    return definition_->packaging.dcp.planner ? dcp::Planner::Flat : dcp::Planner::None;
  }

  std::span<const Item> items_of(std::size_t file) const {
    return std::span(items_).subspan(file_begins_[file],
                                     file_begins_[file + 1] - file_begins_[file]);
  }

  /// Into how many parts dimension `d` of the tensor is cut.
  std::int64_t parts(std::uint32_t id, std::size_t d) const {
    const std::uint32_t split = tensor(id).split;
    return split == ModelTensor::kNone ? 1 : definition_->splits[split][d];
  }

  std::uint64_t chunk_count(std::uint32_t id) const {
    std::uint64_t count = 1;
    for (std::size_t d = 0; d < tensor(id).expr.shape().size(); ++d) {
      count *= static_cast<std::uint64_t>(parts(id, d));
    }
    return count;
  }

  std::vector<std::int64_t> chunk_shape(std::uint32_t id) const {
    const auto shape = tensor(id).expr.shape();
    std::vector<std::int64_t> sizes(shape.begin(), shape.end());
    for (std::size_t d = 0; d < sizes.size(); ++d) sizes[d] /= parts(id, d);
    return sizes;
  }

  std::vector<std::int64_t> chunk_offsets(std::uint32_t id, std::uint32_t chunk,
                                          std::span<const std::int64_t> sizes) const {
    std::vector<std::int64_t> offsets(sizes.size());
    auto rest = static_cast<std::int64_t>(chunk);
    for (std::size_t d = sizes.size(); d-- > 0;) {
      offsets[d] = rest % parts(id, d) * sizes[d];
      rest /= parts(id, d);
    }
    return offsets;
  }

  Result<std::shared_ptr<const DcpItemKind>> kind_of(std::uint32_t id) const {
    std::vector<std::int64_t> shape = chunk_shape(id);
    const DType dtype = tensor(id).expr.dtype();
    const auto known = kinds_.find({dtype, shape});
    if (known != kinds_.end()) return known->second;
    const torch_zip::TensorHead head{{}, dtype, shape};
    const auto bytes = nbytes(dtype, checked_numel(shape).value());
    CKFS_CHECK(bytes.has_value());  // of a part of a tensor
    CKFS_TRY(auto archive, torch_zip::TorchArchive::plan(
                               std::string(kItemRoot), torch_zip::measure_pickle(head), {*bytes}));
    return std::make_shared<const DcpItemKind>(std::move(archive), dtype, std::move(shape));
  }

  Result<void> add(std::uint32_t id) {
    const ModelTensor& added = tensor(id);
    if (!is_utf8(added.name)) {
      return fail(ErrorCode::Unsupported, "{}: a name that is not UTF-8", quote(added.name));
    }
    if (!torch_zip::can_hold(added.expr.dtype())) {
      return fail(ErrorCode::Unsupported, "\"{}\": torch has no dtype {}", added.name,
                  name(added.expr.dtype()));
    }
    // torch has no tensor of more dimensions.
    if (const std::size_t rank = added.expr.shape().size(); rank > kMostDimensions) {
      return fail(ErrorCode::Unsupported, "{}: {} dimensions (torch has {} at most)",
                  quote(added.name), rank, kMostDimensions);
    }
    if (chunk_count(id) > 1) {
      if (auto sliceable = check_sliceable(added.expr); !sliceable) {
        return Failure(sliceable.error().within(quote(added.name)));
      }
    }
    CKFS_TRY(const auto kind, kind_of(id));
    kinds_.emplace(std::pair(kind->dtype, kind->shape), kind);
    const std::uint64_t count = chunk_count(id);
    const std::uint64_t bytes = kind->archive.size();
    if (count > kMostDcpChunks - items_.size()) {
      return fail(ErrorCode::Unsupported, "{}: more than {} chunks", quote(added.name),
                  kMostDcpChunks);
    }
    for (std::uint32_t chunk = 0; chunk < count; ++chunk) {
      if (sizes_.empty() || bytes > kMostDcpBytes - std::min(kMostDcpBytes, sizes_.back())) {
        if (sizes_.size() == kMostDcpFiles) {
          return fail(ErrorCode::InvalidArgument, "more than {} files of {} bytes", kMostDcpFiles,
                      kMostDcpBytes);
        }
        file_begins_.push_back(static_cast<std::uint32_t>(items_.size()));
        sizes_.push_back(0);
      }
      items_.push_back({id, chunk});
      sizes_.back() += bytes;
    }
    return {};
  }

  /// All of it, for .metadata.
  std::vector<dcp::WrittenTensor> written() const {
    std::vector<dcp::WrittenTensor> all;
    std::uint64_t offset = 0;
    for (std::uint32_t file = 0; file < sizes_.size(); ++file) {
      offset = 0;
      for (const Item& item : items_of(file)) {
        const ModelTensor& of = tensor(item.tensor);
        if (item.chunk == 0) all.push_back({of.name, of.expr.dtype(), of.expr.shape(), {}, {}});
        const std::shared_ptr<const DcpItemKind> kind = *kind_of(item.tensor);
        const std::vector<std::int64_t> offsets =
            chunk_offsets(item.tensor, item.chunk, kind->shape);
        dcp::WrittenTensor& last = all.back();
        last.boxes.insert(last.boxes.end(), offsets.begin(), offsets.end());
        last.boxes.insert(last.boxes.end(), kind->shape.begin(), kind->shape.end());
        last.chunks.push_back({file, offset, kind->archive.size()});
        offset += kind->archive.size();
      }
    }
    return all;
  }

  /// The part of the tensor's expression, which check_sliceable() found to be possible.
  TensorExpr chunk_expr(const Item& item, std::span<const std::int64_t> sizes) const {
    const std::vector<std::int64_t> offsets = chunk_offsets(item.tensor, item.chunk, sizes);
    TensorExpr expr = tensor(item.tensor).expr;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (parts(item.tensor, d) == 1) continue;
      Result<TensorExpr> part = expr.slice(static_cast<std::int64_t>(d), offsets[d], sizes[d], 1);
      CKFS_CHECK(part);
      expr = *std::move(part);
    }
    return expr;
  }

  const std::shared_ptr<const Definition> definition_;
  std::map<std::pair<DType, std::vector<std::int64_t>>, std::shared_ptr<const DcpItemKind>> kinds_;
  std::vector<Item> items_;                 // of all files, one after another
  std::vector<std::uint32_t> file_begins_;  // in items_, and the end
  std::vector<std::uint64_t> sizes_;        // of data files
  std::uint64_t metadata_bytes_ = 0;
};

FileLayout DcpContainer::lay_out(std::size_t file) const {
  const auto self = std::static_pointer_cast<const DcpContainer>(shared_from_this());
  FileLayout layout;
  if (file == sizes_.size()) {
    layout.literals = {metadata_bytes_};
    layout.segments = {{0, 0, 0, Segment::Kind::Literal}};
    layout.render = [self](std::uint32_t /*literal*/) {
      return dcp::render_metadata(self->written(), self->planner());
    };
    return layout;
  }
  const std::span<const Item> items = items_of(file);
  LiteralSegments segments(layout);
  std::uint64_t at = 0;
  std::uint64_t inside = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i % kItemsPerLiteral == 0) {
      layout.literals.push_back(0);
      inside = 0;
    }
    const auto literal = static_cast<std::uint32_t>(layout.literals.size() - 1);
    const std::shared_ptr<const DcpItemKind> kind = *kind_of(items[i].tensor);
    const ByteRange storage = kind->archive.storage(0);
    segments.literal(literal, inside, {at, at + storage.begin});
    if (!storage.empty()) {
      segments.tensor(static_cast<std::uint32_t>(layout.chunks.size()),
                      {at + storage.begin, at + storage.end});
      layout.chunks.push_back({chunk_expr(items[i], kind->shape), items[i].tensor});
    }
    segments.literal(literal, inside + storage.begin,
                     {at + storage.end, at + kind->archive.size()});
    inside += kind->text_bytes();
    layout.literals.back() = inside;
    at += kind->archive.size();
  }
  layout.render = [self, file](std::uint32_t literal) {
    const std::span<const Item> of_file = self->items_of(file);
    const std::size_t begin = literal * kItemsPerLiteral;
    std::string text;
    std::string last;
    std::shared_ptr<const DcpItemKind> known;
    for (const Item& item :
         of_file.subspan(begin, std::min(kItemsPerLiteral, of_file.size() - begin))) {
      const std::shared_ptr<const DcpItemKind> kind = *self->kind_of(item.tensor);
      if (kind != known) last = kind->render();
      known = kind;
      text += last;
    }
    return text;
  };
  return layout;
}

}  // namespace

Result<std::shared_ptr<const Container>> make_dcp(std::shared_ptr<const Definition> definition) {
  auto container = std::make_shared<DcpContainer>(std::move(definition));
  CKFS_TRY_VOID(container->build());
  return container;
}

}  // namespace ckfs
