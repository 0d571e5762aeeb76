// Groups are found by union: a piece joins the pieces that need the same chunk. A tensor is cut
// where the chunks along its first dimension end (array_source.h). So pieces are runs of a file,
// and only the order in which they are written differs from that of the files.
#include "export/source_order.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "api/inside.h"
#include "base/hash.h"
#include "base/rounding.h"
#include "container/array_source.h"
#include "container/view_files.h"
#include "engine/read_plan.h"
#include "expr/chunk_needs.h"
#include "view/view.h"

namespace ckfs {
namespace {

/// Pieces of a file that are this near are read one after another.
constexpr std::uint64_t kNear = 1_MiB;

// The most pieces of a tensor, and of all tensors together (though each may have kFewPieces): some
// seconds of work. A header of a few KB may name any number of rows.
constexpr std::size_t kMostPieces = std::size_t{1} << 16;
constexpr std::size_t kMostOfAll = std::size_t{1} << 22;
constexpr std::size_t kFewPieces = 16;

struct Piece {
  ExportStep step;
  std::vector<FileId> chunks;  // ascending
  bool tiled = false;          // computed in tiles, which may need each chunk
};

struct Group {
  std::vector<std::size_t> pieces;  // by file and offset
  std::vector<FileId> chunks;       // ascending
  std::uint64_t decoded = 0;
};

std::vector<FileId> chunks_of(const Catalog& catalog, const std::vector<Box>& boxes) {
  std::vector<FileId> chunks;
  for (const auto& [chunk, range] : chunk_needs(catalog, boxes)) chunks.push_back(chunk);
  return chunks;
}

/// Cuts a tensor at `place` into pieces of at least `least` bytes (the last may have fewer), and
/// into `most` pieces at most.
void cut(const Catalog& catalog, const TensorExpr& expr, std::size_t file, ByteRange place,
         std::uint64_t least, std::size_t most, std::vector<Piece>& pieces) {
  std::vector<FileId> all = chunks_of(catalog, expr.boxes());
  if (all.empty()) return;
  const bool tiled = needs_tiles(catalog, expr);
  const std::int64_t rows = expr.shape().empty() ? 1 : expr.shape()[0];
  std::int64_t each = rows;
  if (rows > 1 && all.size() > 1 && place.size() % static_cast<std::uint64_t>(rows) == 0) {
    const std::int64_t cell = array_source(catalog, expr).cell[0];
    const std::uint64_t bytes =
        place.size() / static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(cell);
    const std::uint64_t cells =
        ceil_div(static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(cell));
    each = cell * static_cast<std::int64_t>(
                      std::max(ceil_div(least, bytes), ceil_div<std::uint64_t>(cells, most)));
  }
  if (each >= rows) {
    pieces.push_back({{file, place}, std::move(all), tiled});
    return;
  }
  const std::uint64_t row_bytes = place.size() / static_cast<std::uint64_t>(rows);
  const std::size_t first = pieces.size();
  for (std::int64_t at = 0; at < rows; at += each) {
    const std::int64_t end = std::min(rows, at + each);
    const Result<TensorExpr> part = expr.slice(0, at, end - at);
    if (!part) {  // rows of no list of boxes
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end());
      pieces.push_back({{file, place}, std::move(all), tiled});
      return;
    }
    std::vector<FileId> chunks = chunks_of(catalog, part->boxes());
    const std::uint64_t to = place.begin + static_cast<std::uint64_t>(end) * row_bytes;
    // Rows that need the same chunks are one piece: the engine cuts tiles best.
    if (pieces.size() > first && pieces.back().chunks == chunks) {
      pieces.back().step.range.end = to;
      continue;
    }
    const std::uint64_t from = place.begin + static_cast<std::uint64_t>(at) * row_bytes;
    pieces.push_back({{file, {from, to}}, std::move(chunks), tiled});
  }
}

std::vector<Piece> pieces_of(const View& view, std::uint64_t least) {
  std::vector<Piece> pieces;
  const Definition& definition = definition_of(view);
  const ViewFiles& files = view_files_of(view);
  const std::size_t tensors = std::max<std::size_t>(definition.tensors.size(), 1);
  const std::size_t most = std::clamp(kMostOfAll / tensors, kFewPieces, kMostPieces);
  for (const std::size_t file : files.tensor_files()) {
    const FileLayout layout = files.lay_out(file);
    for (std::size_t i = 0; i < layout.segments.size(); ++i) {
      const Segment& segment = layout.segments[i];
      if (segment.kind != Segment::Kind::Tensor || layout.range(i).empty()) continue;
      if (!layout.quantized(segment.id)) {
        cut(*definition.catalog, layout.expr(segment.id), file, layout.range(i), least, most,
            pieces);
        continue;
      }
      std::vector<FileId> chunks;
      for (const TensorExpr* expr : layout.sources(segment.id)) {
        const std::vector<FileId> more = chunks_of(*definition.catalog, expr->boxes());
        chunks.insert(chunks.end(), more.begin(), more.end());
      }
      std::ranges::sort(chunks);
      const auto repeated = std::ranges::unique(chunks);
      chunks.erase(repeated.begin(), repeated.end());
      pieces.push_back({{file, layout.range(i)}, std::move(chunks), true});
    }
  }
  // Rows of constants need no chunk.
  std::erase_if(pieces, [](const Piece& piece) { return piece.chunks.empty(); });
  std::ranges::sort(pieces, {}, [](const Piece& piece) {
    return std::pair(piece.step.file, piece.step.range.begin);
  });
  return pieces;
}

/// By their first chunks.
std::vector<Group> groups_of(const ChunkTable& chunks, std::span<const Piece> pieces) {
  std::vector<std::size_t> parent(pieces.size());
  std::iota(parent.begin(), parent.end(), std::size_t{0});
  const auto root = [&](std::size_t piece) {
    while (parent[piece] != piece) piece = parent[piece] = parent[parent[piece]];
    return piece;
  };
  std::unordered_map<FileId, std::size_t> user;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    for (const FileId chunk : pieces[i].chunks) {
      const auto [known, is_new] = user.try_emplace(chunk, i);
      if (!is_new) parent[root(i)] = root(known->second);
    }
  }
  std::map<std::size_t, Group> by_root;
  for (std::size_t i = 0; i < pieces.size(); ++i) by_root[root(i)].pieces.push_back(i);
  for (const auto& [chunk, piece] : user) {
    Group& group = by_root[root(piece)];
    group.chunks.push_back(chunk);
    group.decoded += chunks.size(chunk);
  }
  std::vector<Group> groups;
  for (auto& [piece, group] : by_root) {
    std::ranges::sort(group.chunks);
    groups.push_back(std::move(group));
  }
  std::ranges::sort(groups, {}, [](const Group& group) { return group.chunks.front(); });
  return groups;
}

/// Whether the order of the files may need a chunk of the group when it is dropped already.
bool is_scattered(const Group& group, std::span<const Piece> pieces, std::uint64_t kept) {
  for (std::size_t i = 1; i < group.pieces.size(); ++i) {
    const ExportStep& a = pieces[group.pieces[i - 1]].step;
    const ExportStep& b = pieces[group.pieces[i]].step;
    if (a.file != b.file || b.range.begin - a.range.end > kNear) return true;
  }
  return group.decoded > kept && std::ranges::any_of(group.pieces, [&](std::size_t piece) {
           return pieces[piece].tiled || pieces[piece].chunks.size() > 1;
         });
}

/// The pieces of groups in turn, so that threads begin with different chunks.
std::vector<ExportStep> in_turn(std::span<const Group> groups, std::span<const Piece> pieces) {
  std::vector<ExportStep> steps;
  for (std::size_t turn = 0, left = 1; left > 0; ++turn) {
    left = 0;
    for (const Group& group : groups) {
      if (turn >= group.pieces.size()) continue;
      steps.push_back(pieces[group.pieces[turn]].step);
      ++left;
    }
  }
  return steps;
}

/// A step for each weight that is quantized: its codes, then what was made with these and kept
/// (Want::keep_scales). In the order of the files all scales would come first, and every value
/// would be read twice.
SourceOrder order_of_weights(const View& view) {
  const Definition& definition = definition_of(view);
  const ViewFiles& files = view_files_of(view);
  struct Place {
    std::uint8_t output = 0;
    ExportStep step;
  };
  std::vector<std::vector<Place>> places(definition.weights.size());
  for (const std::size_t file : files.tensor_files()) {
    const FileLayout layout = files.lay_out(file);
    if (layout.definition.get() != &definition) continue;  // a part
    for (std::size_t i = 0; i < layout.segments.size(); ++i) {
      const Segment& segment = layout.segments[i];
      if (segment.kind != Segment::Kind::Tensor) continue;
      const ModelTensor& tensor = definition.tensors[layout.tensor(segment.id)];
      if (tensor.weight == ModelTensor::kNone) continue;
      const Quantizer& quantizer = *definition.weights[tensor.weight].quantizer;
      if (quantizer.unit(tensor.output).elements == 0) continue;
      places[tensor.weight].push_back({tensor.output, {file, layout.range(i)}});
    }
  }
  SourceOrder order;
  for (std::vector<Place>& weight : places) {
    if (weight.empty()) continue;
    std::ranges::stable_sort(weight, {}, &Place::output);  // the codes are the first
    SourceStep& step = order.steps.emplace_back();
    step.in_turn = true;
    for (const Place& place : weight) step.pieces.push_back(place.step);
  }
  order.id = order_id(order.steps);
  return order;
}

}  // namespace

std::uint64_t order_id(std::span<const SourceStep> steps) {
  std::uint64_t id = kHashSeed;
  for (const SourceStep& step : steps) {
    for (const ExportStep& piece : step.pieces) {
      id = stable_hash(fmt::format("{} {}\n", piece.file, piece.range), id);
    }
    id = stable_hash("step\n", id);
  }
  return id;
}

SourceOrder source_order(const View& view, const OrderLimits& limits) {
  const ChunkTable& chunks = definition_of(view).catalog->chunks();
  if (chunks.empty() && !definition_of(view).weights.empty()) {
    return order_of_weights(view);
  }
  if (chunks.empty()) return {};
  const std::vector<Piece> pieces = pieces_of(view, limits.piece);
  std::vector<Group> groups = groups_of(chunks, pieces);
  std::erase_if(groups,
                [&](const Group& group) { return !is_scattered(group, pieces, limits.kept); });
  std::uint64_t decoded = 0;
  for (const Group& group : groups) decoded += group.decoded;
  if (decoded <= limits.kept) return {};

  SourceOrder order;
  for (std::size_t begin = 0; begin < groups.size();) {
    SourceStep step;
    std::size_t end = begin;
    do {
      step.decoded += groups[end].decoded;
      step.chunks.insert(step.chunks.end(), groups[end].chunks.begin(), groups[end].chunks.end());
      ++end;
    } while (end < groups.size() && step.decoded + groups[end].decoded <= limits.step);
    step.pieces = in_turn(std::span(groups).subspan(begin, end - begin), pieces);
    std::ranges::sort(step.chunks);
    order.steps.push_back(std::move(step));
    begin = end;
  }
  order.id = order_id(order.steps);
  return order;
}

Result<std::shared_ptr<const FileLayout>> part_of(const FileLayout& whole, ByteRange range) {
  auto part = std::make_shared<FileLayout>();
  part->path = fmt::format("{} from byte {}", whole.path, range.begin);
  part->size = range.size();
  part->definition = whole.definition;
  part->literals = whole.literals;
  part->render = whole.render;
  if (range.empty()) return part;
  for (std::size_t i = whole.find(range.begin); i < whole.segments.size(); ++i) {
    const ByteRange place = whole.range(i), here = place.intersect(range);
    if (place.begin >= range.end) break;
    if (here.empty()) continue;
    Segment segment = whole.segments[i];
    segment.begin = here.begin - range.begin;
    if (segment.kind != Segment::Kind::Tensor) {
      segment.source_offset += here.begin - place.begin;
    } else {
      TensorExpr expr = whole.expr(segment.id);
      if (here != place) {
        const std::uint64_t row = place.size() / static_cast<std::uint64_t>(expr.shape()[0]);
        CKFS_CHECK((here.begin - place.begin) % row == 0 && here.size() % row == 0);
        CKFS_TRY(expr, expr.slice(0, static_cast<std::int64_t>((here.begin - place.begin) / row),
                                  static_cast<std::int64_t>(here.size() / row)));
      }
      const bool quantized = whole.quantized(segment.id).has_value();
      CKFS_CHECK(!quantized || here == place);
      part->chunks.push_back({std::move(expr), whole.tensor(segment.id), quantized});
      segment.id = static_cast<std::uint32_t>(part->chunks.size() - 1);
    }
    part->segments.push_back(segment);
  }
  part->finish();
  return part;
}

}  // namespace ckfs
