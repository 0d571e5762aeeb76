// The alternative for pages that processes share was to give each to one of them. A page of scales
// of whole tensors has a thousand of them, so that process would read a thousand weights for it.
#include "export/weight_shares.h"

#include <algorithm>
#include <map>
#include <utility>

#include "api/inside.h"
#include "base/rounding.h"
#include "container/view_files.h"
#include "engine/read_plan.h"
#include "export/split.h"

namespace ckfs {
namespace {

using Wide = unsigned __int128;

/// Other bytes are cut into runs of about this size.
constexpr std::uint64_t kRun = 16_MiB;

/// Work that one process does.
struct Unit {
  std::vector<SourceStep> steps;
  ExportStep first;  // its place among the others
  std::uint64_t cost = 0;
};

/// The outputs of one weight.
struct Outputs {
  struct Output {
    std::size_t number = 0;
    ExportStep step;
  };
  std::vector<Output> all;
};

class Units {
 public:
  explicit Units(const ViewFiles& files) : files_(files) {
    for (std::size_t file = 0; file < files.size(); ++file) add_file(file);
  }

  /// By place.
  std::vector<Unit> all() && {
    for (auto& [set, weights] : sets_) add_set(*set.first, weights);
    std::ranges::sort(units_, {}, [](const Unit& unit) {
      return std::pair(unit.first.file, unit.first.range.begin);
    });
    return std::move(units_);
  }

 private:
  using Weights = std::map<std::uint32_t, Outputs>;  // by their numbers
  /// A definition; a set of it, or a weight that is in none.
  using Set = std::pair<const Definition*, std::pair<bool, std::uint32_t>>;

  void add_file(std::size_t file) {
    const FileLayout layout = files_.lay_out(file);
    ByteRange run;
    std::uint64_t cost = 0;
    const auto end_run = [&](std::uint64_t next) {
      if (!run.empty()) add_run({file, run}, cost);
      run = {next, next};
      cost = 0;
    };
    for (std::size_t i = 0; i < layout.segments.size(); ++i) {
      const Segment& segment = layout.segments[i];
      const ByteRange place = layout.range(i);
      if (place.empty()) continue;
      const bool is_tensor = segment.kind == Segment::Kind::Tensor;
      if (const auto made = is_tensor ? layout.quantized(segment.id) : std::nullopt) {
        end_run(place.end);
        const Definition& definition = *layout.definition;
        const auto weight = static_cast<std::uint32_t>(made->weight - definition.weights.data());
        const bool in_set = made->weight->set != ModelTensor::kNone;
        const Set set{&definition, {in_set, in_set ? made->weight->set : weight}};
        sets_[set][weight].all.push_back({made->output, {file, place}});
        continue;
      }
      const std::vector<std::uint64_t> ends = borders(layout, i);
      std::uint64_t at = place.begin;
      for (const std::uint64_t end : ends) {
        run.end = end;
        cost += is_tensor ? cost_of_part(layout, segment.id, {at, end}, place) : end - at;
        if (run.size() >= kRun) end_run(end);
        at = end;
      }
    }
    end_run(layout.size);
  }

  /// Where a segment may be cut: its end is the last.
  static std::vector<std::uint64_t> borders(const FileLayout& layout, std::size_t index) {
    const Segment& segment = layout.segments[index];
    const ByteRange place = layout.range(index);
    if (place.size() <= kRun) return {place.end};
    std::uint64_t step = kRun;
    if (segment.kind == Segment::Kind::Tensor) {
      const TensorExpr& expr = layout.expr(segment.id);
      const auto rows = expr.shape().empty() ? 1 : static_cast<std::uint64_t>(expr.shape()[0]);
      if (needs_tiles(layout, segment.id) || place.size() % rows != 0) return {place.end};
      const std::uint64_t row = place.size() / rows;
      const std::uint64_t each = ceil_div(kRun, row);
      for (std::uint64_t at = 0; at < rows; at += each) {
        const std::uint64_t count = std::min(each, rows - at);
        // Rows of no list of boxes.
        if (!expr.slice(0, static_cast<std::int64_t>(at), static_cast<std::int64_t>(count))) {
          return {place.end};
        }
      }
      step = each * row;
    }
    std::vector<std::uint64_t> ends;
    for (std::uint64_t at = place.begin; place.end - at > step; at += step) {
      ends.push_back(at + step);
    }
    ends.push_back(place.end);
    return ends;
  }

  static std::uint64_t cost_of_part(const FileLayout& layout, std::uint32_t tensor, ByteRange part,
                                    ByteRange all) {
    const std::uint64_t cost = cost_of(*layout.definition->catalog, layout.expr(tensor));
    return static_cast<std::uint64_t>(static_cast<Wide>(cost) * part.size() / all.size());
  }

  void add_run(const ExportStep& step, std::uint64_t cost) {
    SourceStep only;
    only.pieces.push_back(step);
    units_.push_back({.steps = {std::move(only)}, .first = step, .cost = cost});
  }

  void add_set(const Definition& definition, Weights& weights) {
    Unit unit;
    for (auto& [number, outputs] : weights) {
      const QuantizedTensor& weight = definition.weights[number];
      std::ranges::sort(outputs.all, {}, &Outputs::Output::number);  // the codes are the first
      SourceStep& step = unit.steps.emplace_back();
      step.in_turn = true;
      const std::uint64_t values = cost_of(*definition.catalog, weight.values);
      unit.cost += weight.quantizer->needs_maximum() ? 2 * values : values;
      for (const Outputs::Output& output : outputs.all) {
        step.pieces.push_back(output.step);
        unit.cost += output.step.range.size();
      }
    }
    unit.first = unit.steps.front().pieces.front();
    units_.push_back(std::move(unit));
  }

  const ViewFiles& files_;
  std::vector<Unit> units_;
  std::map<Set, Weights> sets_;
};

/// The pages of each file where pieces of several processes meet.
std::vector<std::vector<ByteRange>> shared_pages(std::span<const SourceOrder> ranks,
                                                 std::size_t files) {
  struct Place {
    ByteRange range;
    std::size_t rank = 0;
  };
  std::vector<std::vector<Place>> places(files);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const SourceStep& step : ranks[rank].steps) {
      for (const ExportStep& piece : step.pieces) places[piece.file].push_back({piece.range, rank});
    }
  }
  std::vector<std::vector<ByteRange>> shared(files);
  for (std::size_t file = 0; file < files; ++file) {
    std::ranges::sort(places[file], {}, [](const Place& place) { return place.range.begin; });
    const std::uint64_t size = places[file].empty() ? 0 : places[file].back().range.end;
    for (std::size_t i = 1; i < places[file].size(); ++i) {
      const Place& here = places[file][i];
      CKFS_CHECK(here.range.begin == places[file][i - 1].range.end);
      if (here.rank == places[file][i - 1].rank || here.range.begin % kSplitUnit == 0) continue;
      const std::uint64_t page = here.range.begin / kSplitUnit * kSplitUnit;
      if (!shared[file].empty() && shared[file].back().begin == page) continue;
      shared[file].push_back({page, std::min(page + kSplitUnit, size)});
    }
  }
  return shared;
}

}  // namespace

std::optional<WeightShares> weight_shares(const View& view, unsigned parts) {
  const Definition& definition = definition_of(view);
  bool quantizes = !definition.weights.empty(), has_chunks = !definition.catalog->chunks().empty();
  for (const DefinitionPart& part : definition.parts) {
    quantizes = quantizes || !part.definition->weights.empty();
    has_chunks = has_chunks || !part.definition->catalog->chunks().empty();
  }
  if (!quantizes || has_chunks) return std::nullopt;
  std::vector<Unit> units = Units(view_files_of(view)).all();
  std::uint64_t total = 0;
  for (const Unit& unit : units) total += unit.cost;

  WeightShares shares{.ranks = std::vector<SourceOrder>(parts), .shared = {}};
  std::vector<std::uint64_t> costs(parts);
  std::uint64_t before = 0;
  for (Unit& unit : units) {
    const Wide middle = static_cast<Wide>(before) + unit.cost / 2;
    const auto rank = static_cast<std::size_t>(
        std::min<Wide>(middle * parts / std::max<std::uint64_t>(total, 1), parts - 1));
    before += unit.cost;
    costs[rank] += unit.cost;
    std::ranges::move(unit.steps, std::back_inserter(shares.ranks[rank].steps));
  }
  if (*std::ranges::max_element(costs) / 2 > total / parts) return std::nullopt;
  for (SourceOrder& rank : shares.ranks) rank.id = order_id(rank.steps);
  shares.shared = shared_pages(shares.ranks, view_files_of(view).size());
  for (const SourceOrder& rank : shares.ranks) {
    std::uint64_t kept = 0;
    for (const SourceStep& step : rank.steps) {
      for (const ExportStep& piece : step.pieces) {
        kept += piece.range.size() - own_bytes(shares, piece).size();
      }
    }
    if (kept > kMostKept) return std::nullopt;
  }
  return shares;
}

ByteRange own_bytes(const WeightShares& shares, const ExportStep& piece) {
  const std::vector<ByteRange>& pages = shares.shared[piece.file];
  ByteRange own = piece.range;
  // A page inside of the piece is its process's alone.
  const auto at = std::ranges::upper_bound(pages, own.begin, {}, &ByteRange::end);
  if (at != pages.end() && at->begin <= own.begin) own.begin = std::min(at->end, own.end);
  const auto last = std::ranges::lower_bound(pages, own.end, {}, &ByteRange::end);
  if (last != pages.end() && last->begin < own.end) own.end = std::max(last->begin, own.begin);
  return own;
}

}  // namespace ckfs
