// Torch files of one dtype and shape differ in their elements alone, so the place of the elements
// and the text around them are planned once for all of them. A chunk costs 8 bytes. A data file has
// two texts of a few hundred bytes for each chunk; those of 64 chunks are one literal.
//
// A loader reads the chunks that it needs a part of, each whole. So a part of a tensor that is
// still large is cut into runs of rows, as many in each as the limit allows. Not chosen: equal
// runs, which a prime number of rows does not have.
#include "container/dcp.h"

#include <algorithm>
#include <map>
#include <tuple>
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

/// How tensors of one dtype, shape and split are cut: a grid of chunks, all of one shape but the
/// last ones along one dimension, which may be shorter.
struct DcpGrid {
  std::vector<std::int64_t> shape;  // of the tensors
  std::vector<std::int64_t> step;   // from one chunk to the next, along each dimension
  std::vector<std::int64_t> count;  // of chunks along each dimension
  std::size_t uneven = 0;           // the dimension with shorter ones, if last is another than kind
  std::shared_ptr<const DcpItemKind> kind, last;

  std::uint64_t chunks() const {
    std::uint64_t all = 1;  // at most as many as elements, or one
    for (const std::int64_t along : count) all *= static_cast<std::uint64_t>(along);
    return all;
  }

  std::vector<std::int64_t> offsets(std::uint32_t chunk) const {
    std::vector<std::int64_t> offsets(step.size());
    auto rest = static_cast<std::int64_t>(chunk);
    for (std::size_t d = step.size(); d-- > 0;) {
      offsets[d] = rest % count[d] * step[d];
      rest /= count[d];
    }
    return offsets;
  }

  const DcpItemKind& kind_at(std::span<const std::int64_t> offsets) const {
    if (kind == last) return *kind;
    return offsets[uneven] / step[uneven] + 1 == count[uneven] ? *last : *kind;
  }
};

/// Cuts a grid whose chunks have more than `most` bytes into runs of rows, at the first dimension
/// that is whole: as many rows as fit, and whole blocks of scales where there are that many. Where
/// one row has more than that, each is cut in turn.
void cut_rows(DcpGrid& grid, DType dtype, std::uint64_t most) {
  constexpr std::int64_t kBlock = 128;
  if (*checked_numel(grid.step) == 0) return;  // then a product of the others may have no number
  for (std::size_t d = 0; d < grid.step.size(); ++d) {
    if (grid.count[d] > 1 || grid.step[d] == 1) continue;
    const std::uint64_t row =
        *nbytes(dtype, *checked_numel(grid.step)) / static_cast<std::uint64_t>(grid.step[d]);
    auto fit = static_cast<std::int64_t>(most / row);
    if (fit >= grid.step[d]) return;
    if (fit >= kBlock) fit -= fit % kBlock;
    grid.step[d] = std::max<std::int64_t>(fit, 1);
    grid.count[d] = (grid.shape[d] - 1) / grid.step[d] + 1;
    grid.uneven = d;
    if (fit > 0) return;
  }
}

class DcpContainer final : public Container {
 public:
  explicit DcpContainer(std::shared_ptr<const Definition> definition)
      : definition_(std::move(definition)) {}

  Result<void> build() {
    grid_of_.reserve(definition_->tensors.size());
    for (std::uint32_t id = 0; id < definition_->tensors.size(); ++id) {
      CKFS_TRY_VOID(add(id));
    }
    metadata_bytes_ = dcp::measure_metadata(written(), planner());
    return {};
  }

  std::size_t size() const override { return files_.size() + 1; }

  std::string path(std::size_t file) const override {
    const std::string& directory = definition_->packaging.dcp.directory;
    if (file == files_.size()) return directory + ".metadata";
    return directory + dcp::data_file(static_cast<std::uint32_t>(file));
  }

  FileFacts facts(std::size_t file) const override {
    if (file == files_.size()) return {.size = metadata_bytes_};
    const DataFile& of = files_[file];
    return {.size = of.bytes, .tensors = of.tensors, .exactness = of.exactness};
  }

  std::vector<std::uint32_t> tensors(std::size_t file) const override {
    std::vector<std::uint32_t> ids;
    if (file == files_.size()) return ids;
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

  struct DataFile {
    std::uint64_t bytes = 0;
    std::uint32_t begin = 0;    // in items_
    std::uint32_t tensors = 0;  // with a chunk here
    Exactness exactness = Exactness::BitExact;
  };

  const ModelTensor& tensor(std::uint32_t id) const { return definition_->tensors[id]; }
  const DcpGrid& grid(std::uint32_t id) const { return *grid_of_[id]; }

  dcp::Planner planner() const {
    return definition_->packaging.dcp.planner ? dcp::Planner::Flat : dcp::Planner::None;
  }

  std::span<const Item> items_of(std::size_t file) const {
    const std::size_t end = file + 1 < files_.size() ? files_[file + 1].begin : items_.size();
    return std::span(items_).subspan(files_[file].begin, end - files_[file].begin);
  }

  Result<std::shared_ptr<const DcpItemKind>> kind_of(DType dtype,
                                                     const std::vector<std::int64_t>& shape) {
    const auto known = kinds_.find({dtype, shape});
    if (known != kinds_.end()) return known->second;
    const torch_zip::TensorHead head{{}, dtype, shape};
    const auto bytes = nbytes(dtype, checked_numel(shape).value());
    CKFS_CHECK(bytes.has_value());  // of a part of a tensor
    CKFS_TRY(auto archive, torch_zip::TorchArchive::plan(
                               std::string(kItemRoot), torch_zip::measure_pickle(head), {*bytes}));
    auto kind = std::make_shared<const DcpItemKind>(std::move(archive), dtype, shape);
    kinds_.emplace(std::pair(dtype, shape), kind);
    return kind;
  }

  /// The grid without runs of rows.
  DcpGrid split_of(const ModelTensor& of) const {
    const auto shape = of.expr.shape();
    DcpGrid grid;
    grid.shape.assign(shape.begin(), shape.end());
    grid.step = grid.shape;
    grid.count.assign(shape.size(), 1);
    if (of.split == ModelTensor::kNone) return grid;
    grid.count = definition_->splits[of.split];
    for (std::size_t d = 0; d < grid.step.size(); ++d) grid.step[d] /= grid.count[d];
    return grid;
  }

  /// How the tensor is cut. Only what is there already can be refused: a tensor whose rows cannot
  /// be taken apart is not cut for its size.
  Result<std::shared_ptr<const DcpGrid>> grid_for(const ModelTensor& of) {
    const DType dtype = of.expr.dtype();
    DcpGrid grid = split_of(of);
    const bool is_split = grid.chunks() > 1;
    cut_rows(grid, dtype, definition_->packaging.dcp.max_chunk);
    if (grid.chunks() > 1) {
      if (auto sliceable = check_sliceable(of.expr); !sliceable) {
        if (is_split) return Failure(sliceable.error().within(quote(of.name)));
        grid = split_of(of);
      }
    }
    auto& known = grids_[{dtype, grid.shape, grid.step}];
    if (known) return known;
    std::vector<std::int64_t> last = grid.step;
    if (!last.empty()) {
      const std::size_t d = grid.uneven;
      last[d] = grid.shape[d] - (grid.count[d] - 1) * grid.step[d];
    }
    CKFS_TRY(grid.kind, kind_of(dtype, grid.step));
    CKFS_TRY(grid.last, kind_of(dtype, last));
    known = std::make_shared<const DcpGrid>(std::move(grid));
    return known;
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
    CKFS_TRY(const std::shared_ptr<const DcpGrid> grid, grid_for(added));
    grid_of_.push_back(grid);
    const std::uint64_t count = grid->chunks();
    if (count > kMostDcpChunks - items_.size()) {
      return fail(ErrorCode::Unsupported, "{}: more than {} chunks", quote(added.name),
                  kMostDcpChunks);
    }
    for (std::uint32_t chunk = 0; chunk < count; ++chunk) {
      const std::uint64_t bytes = grid->kind_at(grid->offsets(chunk)).archive.size();
      if (files_.empty() || bytes > kMostDcpBytes - std::min(kMostDcpBytes, files_.back().bytes)) {
        if (files_.size() == kMostDcpFiles) {
          return fail(ErrorCode::InvalidArgument, "more than {} files of {} bytes", kMostDcpFiles,
                      kMostDcpBytes);
        }
        files_.push_back({.begin = static_cast<std::uint32_t>(items_.size())});
      }
      DataFile& file = files_.back();
      if (file.begin == items_.size() || items_.back().tensor != id) {
        ++file.tensors;
        file.exactness = std::max(file.exactness, added.exactness);
      }
      items_.push_back({id, chunk});
      file.bytes += bytes;
    }
    return {};
  }

  /// All of it, for .metadata.
  std::vector<dcp::WrittenTensor> written() const {
    std::vector<dcp::WrittenTensor> all;
    all.reserve(grid_of_.size());
    for (std::uint32_t file = 0; file < files_.size(); ++file) {
      std::uint64_t offset = 0;
      for (const Item& item : items_of(file)) {
        const ModelTensor& of = tensor(item.tensor);
        if (item.chunk == 0) all.push_back({of.name, of.expr.dtype(), of.expr.shape(), {}, {}});
        const std::vector<std::int64_t> offsets = grid(item.tensor).offsets(item.chunk);
        const DcpItemKind& kind = grid(item.tensor).kind_at(offsets);
        dcp::WrittenTensor& last = all.back();
        last.boxes.insert(last.boxes.end(), offsets.begin(), offsets.end());
        last.boxes.insert(last.boxes.end(), kind.shape.begin(), kind.shape.end());
        last.chunks.push_back({file, offset, kind.archive.size()});
        offset += kind.archive.size();
      }
    }
    return all;
  }

  /// The part of the tensor's expression, which check_sliceable() found to be possible.
  TensorExpr chunk_expr(const Item& item, std::span<const std::int64_t> offsets,
                        std::span<const std::int64_t> sizes) const {
    TensorExpr expr = tensor(item.tensor).expr;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (grid(item.tensor).count[d] == 1) continue;
      Result<TensorExpr> part = expr.slice(static_cast<std::int64_t>(d), offsets[d], sizes[d], 1);
      CKFS_CHECK(part);
      expr = *std::move(part);
    }
    return expr;
  }

  const std::shared_ptr<const Definition> definition_;
  std::map<std::pair<DType, std::vector<std::int64_t>>, std::shared_ptr<const DcpItemKind>> kinds_;
  std::map<std::tuple<DType, std::vector<std::int64_t>, std::vector<std::int64_t>>,
           std::shared_ptr<const DcpGrid>>
      grids_;                                            // by dtype, shape and steps
  std::vector<std::shared_ptr<const DcpGrid>> grid_of_;  // by tensor
  std::vector<Item> items_;                              // of all files, one after another
  std::vector<DataFile> files_;
  std::uint64_t metadata_bytes_ = 0;
};

FileLayout DcpContainer::lay_out(std::size_t file) const {
  const auto self = std::static_pointer_cast<const DcpContainer>(shared_from_this());
  FileLayout layout;
  if (file == files_.size()) {
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
    const std::vector<std::int64_t> offsets = grid(items[i].tensor).offsets(items[i].chunk);
    const DcpItemKind& kind = grid(items[i].tensor).kind_at(offsets);
    const ByteRange storage = kind.archive.storage(0);
    segments.literal(literal, inside, {at, at + storage.begin});
    if (!storage.empty()) {
      segments.tensor(static_cast<std::uint32_t>(layout.chunks.size()),
                      {at + storage.begin, at + storage.end});
      layout.chunks.push_back({chunk_expr(items[i], offsets, kind.shape), items[i].tensor});
    }
    segments.literal(literal, inside + storage.begin, {at + storage.end, at + kind.archive.size()});
    inside += kind.text_bytes();
    layout.literals.back() = inside;
    at += kind.archive.size();
  }
  layout.render = [self, file](std::uint32_t literal) {
    const std::span<const Item> of_file = self->items_of(file);
    const std::size_t begin = literal * kItemsPerLiteral;
    std::string text;
    std::string last;
    const DcpItemKind* known = nullptr;
    for (const Item& item :
         of_file.subspan(begin, std::min(kItemsPerLiteral, of_file.size() - begin))) {
      const DcpGrid& grid = self->grid(item.tensor);
      const DcpItemKind& kind = grid.kind_at(grid.offsets(item.chunk));
      if (&kind != known) last = kind.render();
      known = &kind;
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
