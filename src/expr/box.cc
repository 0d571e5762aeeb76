// A box is one nest of loops over the target's flat index, not one loop for each dimension. The
// alternative, an index vector per box, needs a dimension for every factor that any operation ever
// made and has to agree on them across boxes. With flat indices a reshape is free, and the price is
// paid in one place: align() finds the dimensions again when an operation needs them, by cutting
// loops where they cross a border.
//
// All cuts keep the nest property (each stride exceeds the span of the loops inside), because the
// result visits a subset of the same indices in the same order.
#include "expr/box.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "base/rounding.h"

namespace ckfs {
namespace {

// The box in which the outermost `level` loops are fixed.
struct ClipFrame {
  std::size_t level = 0;
  std::int64_t target_offset = 0;
  std::int64_t source_offset = 0;
};

Box without_outer_loops(const Box& box, const ClipFrame& frame) {
  Box inner{box.source, frame.target_offset, frame.source_offset, {}, box.program};
  inner.loops.assign(box.loops.begin() + static_cast<std::ptrdiff_t>(frame.level), box.loops.end());
  return inner;
}

// Appends the part in [begin, end). At each level only the first and the last turn can be partial,
// because a turn of a loop ends before its next turn begins.
void clip_level(const Box& box, const ClipFrame& frame, std::int64_t begin, std::int64_t end,
                std::vector<Box>& pieces) {
  const std::span loops = std::span(box.loops).subspan(frame.level);
  const std::int64_t offset = frame.target_offset;
  if (offset >= end) return;
  if (offset >= begin && offset + target_span(loops) < end) {
    pieces.push_back(without_outer_loops(box, frame));
    return;
  }
  if (loops.empty()) return;
  const Loop& loop = loops.front();
  const std::int64_t inner = target_span(loops.subspan(1));
  const std::int64_t touched_first =
      std::max(std::int64_t{0}, ceil_div(begin - inner - offset, loop.target_stride));
  const std::int64_t touched_last =
      std::min(loop.count - 1, floor_div(end - 1 - offset, loop.target_stride));
  const std::int64_t whole_first =
      std::max(std::int64_t{0}, ceil_div(begin - offset, loop.target_stride));
  const std::int64_t whole_last =
      std::min(loop.count - 1, floor_div(end - 1 - inner - offset, loop.target_stride));
  const auto turn = [&](std::int64_t k) {
    return ClipFrame{frame.level + 1, offset + k * loop.target_stride,
                     frame.source_offset + k * loop.source_stride};
  };
  if (touched_first > touched_last) return;
  if (touched_first < whole_first) clip_level(box, turn(touched_first), begin, end, pieces);
  if (whole_first < whole_last) {
    Box middle = without_outer_loops(box, frame);
    middle.target_offset += whole_first * loop.target_stride;
    middle.source_offset += whole_first * loop.source_stride;
    middle.loops.front().count = whole_last - whole_first + 1;
    pieces.push_back(std::move(middle));
  } else if (whole_first == whole_last) {
    pieces.push_back(without_outer_loops(box, turn(whole_first)));
  }
  if (touched_last > whole_last && touched_last >= whole_first) {
    clip_level(box, turn(touched_last), begin, end, pieces);
  }
}

// Turns of loop `index` in runs that each begin in another block.
std::vector<Box> cut_by_blocks(const Box& box, std::size_t index, std::int64_t block) {
  const Loop& loop = box.loops[index];
  const std::int64_t phase = box.target_offset % block;
  std::vector<Box> pieces;
  for (std::int64_t k = 0; k < loop.count;) {
    const std::int64_t border = ((phase + k * loop.target_stride) / block + 1) * block;
    const std::int64_t next = std::min(loop.count, ceil_div(border - phase, loop.target_stride));
    pieces.push_back(restrict_loop(box, index, k, next - k));
    k = next;
  }
  return pieces;
}

// Loop `index`, whose stride divides the block: a head up to the first border, whole blocks as two
// loops, and a tail.
std::vector<Box> factor_by_block(const Box& box, std::size_t index, std::int64_t block) {
  const Loop& loop = box.loops[index];
  const std::int64_t phase = box.target_offset % block;
  const std::int64_t per_block = block / loop.target_stride;
  const std::int64_t head = phase < loop.target_stride
                                ? 0
                                : std::min(loop.count, ceil_div(block - phase, loop.target_stride));
  const std::int64_t whole = (loop.count - head) / per_block;
  const std::int64_t tail = loop.count - head - whole * per_block;
  std::vector<Box> pieces;
  if (head > 0) pieces.push_back(restrict_loop(box, index, 0, head));
  if (whole > 0) {
    Box blocks = restrict_loop(box, index, head, per_block);
    if (whole > 1) {
      blocks.loops.insert(blocks.loops.begin() + static_cast<std::ptrdiff_t>(index),
                          {whole, block, loop.source_stride * per_block});
    }
    pieces.push_back(std::move(blocks));
  }
  if (tail > 0) pieces.push_back(restrict_loop(box, index, head + whole * per_block, tail));
  return pieces;
}

bool is_aligned(const Box& box, std::int64_t block) {
  std::int64_t span = 0;
  for (const Loop& loop : box.loops) {
    if (loop.target_stride % block != 0) span += (loop.count - 1) * loop.target_stride;
  }
  return box.target_offset % block + span < block;
}

// One step of the way to alignment: two or more boxes, or one with other loops, each nearer to it.
// Requires: the box is not aligned.
Result<std::vector<Box>> cut_once(const Box& box, std::int64_t block) {
  const std::int64_t phase = box.target_offset % block;
  std::size_t outermost = 0;
  while (box.loops[outermost].target_stride % block == 0) ++outermost;

  const Loop& loop = box.loops[outermost];
  const std::int64_t reach = (loop.count - 1) * loop.target_stride;
  if (phase + reach < block) {
    // The loops inside cross the border, and that only in the last turn.
    return std::vector<Box>{restrict_loop(box, outermost, 0, loop.count - 1),
                            restrict_loop(box, outermost, loop.count - 1, 1)};
  }
  if (loop.target_stride < block && block % loop.target_stride == 0) {
    return factor_by_block(box, outermost, block);
  }
  // The stride and the block have no simple relation: either one box for each block, or one for
  // each turn within the period after which the phase comes again.
  const std::int64_t period = block / std::gcd(loop.target_stride, block);
  const std::int64_t blocks = (phase + reach) / block + 1;
  const std::int64_t turns = std::min(period, loop.count);
  if (std::min(blocks, turns) > static_cast<std::int64_t>(kMaxBoxes)) {
    return fail(ErrorCode::Unsupported, "dimensions that do not divide: more boxes than {}",
                kMaxBoxes);
  }
  if (loop.target_stride < block && blocks <= turns) return cut_by_blocks(box, outermost, block);
  if (turns > static_cast<std::int64_t>(kMaxBoxes)) {
    return fail(ErrorCode::Unsupported, "dimensions that do not divide: {} boxes (limit {})", turns,
                kMaxBoxes);
  }
  std::vector<Box> pieces;
  for (std::int64_t k = 0; k < turns; ++k) {
    pieces.push_back(restrict_loop(box, outermost, k, ceil_div(loop.count - k, period), period));
  }
  return pieces;
}

bool same_program(const Box& a, const Box& b) {
  if (a.program == b.program) return true;
  return a.program && b.program && *a.program == *b.program;
}

// Whether sorted loops are digits of the target index.
bool are_digits(std::span<const Loop> loops) {
  std::int64_t span = 0;
  for (std::size_t i = loops.size(); i > 0; --i) {
    if (loops[i - 1].target_stride <= span) return false;
    span += (loops[i - 1].count - 1) * loops[i - 1].target_stride;
  }
  return true;
}

std::vector<Loop> without(std::vector<Loop> loops, std::size_t index) {
  loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(index));
  return loops;
}

// The loops of the one box that visits the elements of `a` and then those of `b`, if there is one:
// they differ in the turns of one loop, and b begins where a ends. That loop may have one turn in
// either.
std::optional<std::vector<Loop>> joined_loops(const Box& a, const Box& b) {
  const std::int64_t target = b.target_offset - a.target_offset;
  const std::int64_t source = b.source_offset - a.source_offset;
  const auto continues = [&](const Loop& loop, std::int64_t turns) {
    return target == turns * loop.target_stride && source == turns * loop.source_stride;
  };
  const auto checked = [](std::vector<Loop> loops) -> std::optional<std::vector<Loop>> {
    std::ranges::sort(loops, std::ranges::greater{}, &Loop::target_stride);
    if (!are_digits(loops)) return std::nullopt;
    return loops;
  };
  for (std::size_t i = 0; i < a.loops.size(); ++i) {
    const Loop& loop = a.loops[i];
    if (!continues(loop, loop.count)) continue;
    std::vector<Loop> longer = a.loops;
    if (without(a.loops, i) == b.loops) {
      longer[i].count += 1;
      return checked(std::move(longer));
    }
    if (i < b.loops.size() && b.loops[i].target_stride == loop.target_stride &&
        b.loops[i].source_stride == loop.source_stride &&
        without(a.loops, i) == without(b.loops, i)) {
      longer[i].count += b.loops[i].count;
      return checked(std::move(longer));
    }
  }
  for (std::size_t i = 0; i < b.loops.size(); ++i) {
    if (!continues(b.loops[i], 1) || without(b.loops, i) != a.loops) continue;
    std::vector<Loop> longer = b.loops;
    longer[i].count += 1;
    return checked(std::move(longer));
  }
  if (a.loops != b.loops) return std::nullopt;
  std::vector<Loop> longer = a.loops;
  longer.push_back({2, target, source});
  return checked(std::move(longer));
}

}  // namespace

std::int64_t Box::numel() const {
  std::int64_t numel = 1;
  for (const Loop& loop : loops) numel *= loop.count;
  return numel;
}

bool Box::operator==(const Box& other) const {
  return source == other.source && target_offset == other.target_offset &&
         source_offset == other.source_offset && loops == other.loops && same_program(*this, other);
}

std::vector<Box> clip(const Box& box, std::int64_t begin, std::int64_t end) {
  const std::int64_t last = box.target_offset + target_span(box.loops);
  std::vector<Box> pieces;
  begin = std::max(begin, box.target_offset);
  if (begin >= end || begin > last) return pieces;
  // Compared before the addition, so that `last + 1` need not exist.
  clip_level(box, {0, box.target_offset, box.source_offset}, begin, end > last ? last + 1 : end,
             pieces);
  return pieces;
}

std::int64_t target_span(std::span<const Loop> loops) {
  std::int64_t span = 0;
  for (const Loop& loop : loops) span += (loop.count - 1) * loop.target_stride;
  return span;
}

std::vector<Loop> normalize(std::vector<Loop> loops) {
  std::erase_if(loops, [](const Loop& loop) { return loop.count == 1; });
  std::ranges::sort(loops, std::ranges::greater{}, &Loop::target_stride);
  // In place: a model has 100,000 boxes, and each operation makes their loops anew.
  std::size_t merged = 0;
  for (const Loop loop : loops) {
    Loop* const outer = merged > 0 ? &loops[merged - 1] : nullptr;
    if (outer != nullptr && outer->target_stride == loop.count * loop.target_stride &&
        outer->source_stride == loop.count * loop.source_stride) {
      *outer = {outer->count * loop.count, loop.target_stride, loop.source_stride};
    } else {
      loops[merged++] = loop;
    }
  }
  loops.resize(merged);
  return loops;
}

Box restrict_loop(const Box& box, std::size_t index, std::int64_t first, std::int64_t count,
                  std::int64_t every) {
  Box part = box;
  Loop& loop = part.loops[index];
  CKFS_CHECK(count > 0 && first >= 0 && first + (count - 1) * every < loop.count);
  part.target_offset += first * loop.target_stride;
  part.source_offset += first * loop.source_stride;
  if (count == 1) {
    part.loops.erase(part.loops.begin() + static_cast<std::ptrdiff_t>(index));
  } else {
    loop = {count, loop.target_stride * every, loop.source_stride * every};
  }
  return part;
}

Result<std::vector<Box>> align(std::vector<Box> boxes, std::span<const std::int64_t> blocks) {
  if (boxes.size() > kMaxBoxes) {
    return fail(ErrorCode::Unsupported, "{} boxes (limit {})", boxes.size(), kMaxBoxes);
  }
  std::vector<Box> aligned = std::move(boxes);
  for (const std::int64_t block : blocks) {
    const auto is_done = [&](const Box& box) { return is_aligned(box, block); };
    const auto rest = std::ranges::partition(aligned, is_done).begin();
    std::vector<Box> todo(std::make_move_iterator(rest), std::make_move_iterator(aligned.end()));
    aligned.erase(rest, aligned.end());
    while (!todo.empty()) {
      Box box = std::move(todo.back());
      todo.pop_back();
      if (is_done(box)) {
        aligned.push_back(std::move(box));
      } else {
        CKFS_TRY(std::vector<Box> pieces, cut_once(box, block));
        std::ranges::move(pieces, std::back_inserter(todo));
      }
      if (aligned.size() + todo.size() > kMaxBoxes) break;
    }
    if (aligned.size() + todo.size() > kMaxBoxes) {
      return fail(ErrorCode::Unsupported, "dimensions that do not divide: more boxes than {}",
                  kMaxBoxes);
    }
  }
  return aligned;
}

std::vector<Box> join(std::vector<Box> boxes) {
  std::ranges::sort(boxes, {}, &Box::target_offset);
  std::vector<Box> joined;
  joined.reserve(boxes.size());
  for (Box& box : boxes) {
    // Bits of constants are numbers, too, but not offsets.
    const bool may_join =
        !joined.empty() && joined.back().source == box.source &&
        (!box.is_constant() || joined.back().source_offset == box.source_offset) &&
        same_program(joined.back(), box);
    if (may_join) {
      if (auto loops = joined_loops(joined.back(), box)) {
        joined.back().loops = normalize(std::move(*loops));
        continue;
      }
    }
    joined.push_back(std::move(box));
  }
  joined.shrink_to_fit();
  return joined;
}

}  // namespace ckfs
