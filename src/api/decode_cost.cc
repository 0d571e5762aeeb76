// Simulates the readers' order, unit by unit of a file (a tile, a tensor): the bytes of chunks that
// each needs, against the chunks that memory and spill then hold. Chunks are kept or forgotten as
// wholes; decoders of the chunks used last stay where they are. This is the simplest model that
// tells "once" from "once for each layer". It errs where several readers share kept chunks.
#include "api/decode_cost.h"

#include <algorithm>
#include <list>
#include <map>
#include <utility>

#include "base/rounding.h"
#include "base/size_text.h"
#include "base/units.h"
#include "chunks/decoded_chunks.h"
#include "engine/engine.h"
#include "engine/gather.h"
#include "engine/read_plan.h"
#include "expr/chunk_needs.h"

namespace ckfs {
namespace {

/// A view of a terabyte has 30,000.
constexpr std::int64_t kMostTiles = std::int64_t{1} << 20;

class Player {
 public:
  /// `kept`: bytes in memory and spill together.
  Player(const Catalog& catalog, std::uint64_t kept, bool spills, std::uint64_t decoders)
      : catalog_(catalog), kept_(kept), spills_(spills), decoders_(decoders) {}

  void unit(const std::vector<Box>& boxes) {
    for (const Box& box : boxes) {
      if (!box.is_constant()) cost_.needed += needed_bytes(box);
    }
    for (const auto& [chunk, range] : chunk_needs(catalog_, boxes)) read(chunk, range);
  }

  const DecodeCost& cost() const { return cost_; }

 private:
  struct State {
    std::uint64_t decoded = 0;   // up to here it was decoded, and is kept
    std::uint64_t position = 0;  // of its decoder
    bool known = false;          // DecodeCost::chunks has it
    bool kept = false;
    bool standing = false;  // it has a decoder
    std::list<FileId>::iterator age, turn;
  };

  std::uint64_t needed_bytes(const Box& box) const {
    const Storage& storage = catalog_.storage(box.source);
    if (!storage.in_chunks) return 0;
    const auto width = storage.nbytes() / static_cast<std::uint64_t>(storage.numel);
    return static_cast<std::uint64_t>(box.numel()) * width;
  }

  void read(FileId id, ByteRange range) {
    const std::uint64_t size = catalog_.chunks().size(id);
    State& state = states_[id];
    const bool again = std::exchange(state.known, true);
    if (!again) cost_.chunks += size;
    if (state.kept) ages_.splice(ages_.end(), ages_, state.age);
    if (state.kept && range.end <= state.decoded) return;
    const std::uint64_t block = DecodedChunks::kBlock;
    std::uint64_t end = std::min(size, (range.end + block - 1) / block * block);
    // Bytes behind the decoder are there only if they were kept.
    const bool goes_on = state.standing && (state.kept || state.position <= range.begin + block);
    // As DecodedChunks does: a chunk that begins anew is decoded to its end where the spill has
    // room for it.
    const bool has_room = state.kept || (size <= kept_ && held_ <= kept_ - size);
    if (again && !goes_on && spills_ && has_room) end = size;
    cost_.decoded += end - (goes_on ? std::min(state.position, end) : 0);
    state.position = state.decoded = end;
    if (!state.standing) {
      state.turn = turns_.insert(turns_.end(), id);
      state.standing = true;
    } else {
      turns_.splice(turns_.end(), turns_, state.turn);
    }
    while (turns_.size() > decoders_) {
      states_[turns_.front()].standing = false;
      turns_.pop_front();
    }
    if (state.kept || size > kept_) return;
    state.age = ages_.insert(ages_.end(), id);
    state.kept = true;
    held_ += size;
    while (held_ > kept_) {
      held_ -= catalog_.chunks().size(ages_.front());
      states_[ages_.front()].kept = false;
      ages_.pop_front();
    }
  }

  const Catalog& catalog_;
  const std::uint64_t kept_;
  const bool spills_;
  const std::uint64_t decoders_;
  std::map<FileId, State> states_;
  std::list<FileId> ages_, turns_;
  std::uint64_t held_ = 0;
  DecodeCost cost_;
};

}  // namespace

DecodeCost decode_cost(const View::Impl& view, std::uint64_t memory, std::uint64_t spill) {
  const Catalog& catalog = *view.definition->catalog;
  if (catalog.chunks().empty()) return {};
  // The bytes of Tier::Source beside the shares of tiles and replies, and the bytes of a decoder
  // with a usual window.
  constexpr std::uint64_t kDecoder = 4_MiB;
  const std::uint64_t room = memory / 8 * 3;
  const std::uint64_t blocks = room - kDecoder;
  Player player(catalog, spill > ~std::uint64_t{0} - blocks ? spill : blocks + spill, spill > 0,
                std::max<std::uint64_t>(1, room / kDecoder));
  const TileBytes tile = tile_bytes(memory / 2, 0);
  // An array of 2^56 elements may be one chunk that is not there.
  std::int64_t tiles_left = kMostTiles;
  for (const std::size_t file : view.files->tensor_files()) {
    // mends() plays the same files several times.
    const std::shared_ptr<const FileLayout> layout = view.files->layout(file);
    for (const Segment& segment : layout->segments) {
      if (segment.kind != Segment::Kind::Tensor) continue;
      if (layout->quantized(segment.id)) {
        for (const TensorExpr* expr : layout->sources(segment.id)) player.unit(expr->boxes());
        continue;
      }
      const TensorExpr& expr = layout->expr(segment.id);
      if (!needs_tiles(catalog, expr)) {
        player.unit(expr.boxes());
        continue;
      }
      const std::int64_t step = tile_geometry(expr, tile).elements;
      const std::int64_t tiles = ceil_div(expr.numel(), step);
      if (tiles > tiles_left) {
        player.unit(expr.boxes());
        continue;
      }
      tiles_left -= tiles;
      for (std::int64_t at = 0; at < expr.numel(); at += step) {
        player.unit(expr.boxes(at, std::min(at + step, expr.numel())));
      }
    }
  }
  return player.cost();
}

std::vector<std::string> mends(const View::Impl& view, std::uint64_t memory,
                               const DecodeCost& cost) {
  const DecodeCost once{.needed = cost.needed, .decoded = cost.chunks, .chunks = cost.chunks};
  if (once.is_dear()) return {};
  std::vector<std::string> found;
  constexpr std::uint64_t kMost = 64_GiB;
  for (std::uint64_t more = memory; more < kMost;) {
    more = std::min(ceil_div(2 * more, 1_MiB) * 1_MiB, kMost);
    if (decode_cost(view, more, 0).is_dear()) continue;
    found.push_back(fmt::format("--memory {}MiB", more / 1_MiB));
    break;
  }
  if (!decode_cost(view, memory, cost.chunks).is_dear()) {
    found.push_back("--spill DIR (" + human_size(cost.chunks) + ")");
  }
  found.emplace_back("export");
  return found;
}

}  // namespace ckfs
