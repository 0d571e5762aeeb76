// Copies along a nest of loops. The nest is first brought into the least form: loops of one are
// dropped, the rest sorted by their stride in the output, neighbours that continue each other
// merged, and elements that always move together made one wider element. What remains is one of
// three: runs that memcpy moves, a transpose (one loop is dense in the output, another in the
// input), or a plain nest. Enough for what converters do; a search for the best loop order, as
// compilers do it, would be far more code for the nests that no checkpoint has.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "tensor/kernel_sets.h"

namespace ckfs {
namespace {

constexpr std::size_t kMaxLoops = 16;

/// Input rows that a transpose takes at once, a few columns at a time: so many that each output row
/// gets whole cache lines in a row, so few that their input lines stay in the first cache until the
/// next columns. (Several columns' bands at a time, rows outermost: half as fast for two bytes.)
constexpr std::int64_t kStripRows = 128;
/// Bytes of an input row that a transpose takes at once where there is no band kernel.
constexpr std::int64_t kPlainBytes = 64;

/// A nest in the least form. Strides in elements of `element_bytes`.
struct Nest {
  std::array<CopyLoop, kMaxLoops> loops{};
  std::size_t depth = 0;
  std::ptrdiff_t element_bytes = 0;

  std::span<const CopyLoop> all() const { return std::span(loops).first(depth); }
  const CopyLoop& inner() const { return loops[depth - 1]; }
  void remove(std::size_t i) {
    std::copy(loops.begin() + static_cast<std::ptrdiff_t>(i) + 1,
              loops.begin() + static_cast<std::ptrdiff_t>(depth),
              loops.begin() + static_cast<std::ptrdiff_t>(i));
    --depth;
  }
};

bool continues(const CopyLoop& outer, const CopyLoop& inner) {
  return outer.in_stride == inner.in_stride * inner.count &&
         outer.out_stride == inner.out_stride * inner.count;
}

bool is_dense(const CopyLoop& loop) {
  return loop.in_stride == 1 && loop.out_stride == 1;
}

void widen_elements(Nest& nest) {
  while (nest.depth > 0 && is_dense(nest.inner())) {
    // As much of the run as one element of 16 bytes takes; only a power of two moves in one step.
    const std::int64_t count = nest.inner().count;
    const bool fits = (count & (count - 1)) == 0 && count * nest.element_bytes <= 16;
    const auto outer = nest.all().first(nest.depth - 1);
    if (!fits || !std::ranges::all_of(outer, [count](const CopyLoop& loop) {
          return loop.in_stride % count == 0 && loop.out_stride % count == 0;
        })) {
      return;
    }
    --nest.depth;
    nest.element_bytes *= static_cast<std::ptrdiff_t>(count);
    for (std::size_t i = 0; i < nest.depth; ++i) {
      nest.loops[i].in_stride /= count;
      nest.loops[i].out_stride /= count;
    }
  }
}

/// Requires: every count > 0.
Nest reduce(std::span<const CopyLoop> loops, std::size_t element_bytes) {
  Nest nest;
  nest.element_bytes = static_cast<std::ptrdiff_t>(element_bytes);
  for (const CopyLoop& loop : loops) {
    if (loop.count > 1) nest.loops[nest.depth++] = loop;
  }
  std::ranges::sort(std::span(nest.loops).first(nest.depth), std::ranges::greater{},
                    [](const CopyLoop& loop) { return std::abs(loop.out_stride); });
  for (std::size_t i = nest.depth; i-- > 1;) {
    const CopyLoop outer = nest.loops[i - 1];
    const CopyLoop inner = nest.loops[i];
    if (!continues(outer, inner)) continue;
    nest.loops[i - 1] = {outer.count * inner.count, inner.in_stride, inner.out_stride};
    nest.remove(i);
  }
  widen_elements(nest);
  return nest;
}

template <std::size_t kBytes>
void copy_line(const CopyLoop& loop, const std::byte* in, std::byte* out) {
  constexpr auto kStep = static_cast<std::ptrdiff_t>(kBytes);
  const std::ptrdiff_t in_step = loop.in_stride * kStep;
  const std::ptrdiff_t out_step = loop.out_stride * kStep;
  for (std::int64_t i = 0; i < loop.count; ++i) {
    std::memcpy(out + i * out_step, in + i * in_step, kBytes);
  }
}

void copy_line(const CopyLoop& loop, std::ptrdiff_t element_bytes, const std::byte* in,
               std::byte* out) {
  if (is_dense(loop)) {
    std::memcpy(out, in, static_cast<std::size_t>(loop.count * element_bytes));
    return;
  }
  switch (element_bytes) {
    case 1:
      copy_line<1>(loop, in, out);
      break;
    case 2:
      copy_line<2>(loop, in, out);
      break;
    case 4:
      copy_line<4>(loop, in, out);
      break;
    case 8:
      copy_line<8>(loop, in, out);
      break;
    default:
      copy_line<16>(loop, in, out);
  }
}

/// Calls `body(in, out)` at every point of a nest.
template <typename Body>
void visit(std::span<const CopyLoop> loops, std::ptrdiff_t element_bytes, const std::byte* in,
           std::byte* out, const Body& body) {
  if (loops.empty()) {
    body(in, out);
    return;
  }
  const CopyLoop& loop = loops.front();
  for (std::int64_t i = 0; i < loop.count; ++i) {
    visit(loops.subspan(1), element_bytes, in + i * loop.in_stride * element_bytes,
          out + i * loop.out_stride * element_bytes, body);
  }
}

TransposeBand transpose_band(std::size_t element_bytes) {
#ifdef __x86_64__
  if (vectors() >= Vectors::Avx2) return avx2::transpose_band(element_bytes);
#endif
  (void)element_bytes;
  return {};
}

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A transpose: `rows` is dense in the output, `columns` in the input.
struct Transpose {
  CopyLoop rows;
  CopyLoop columns;
  std::ptrdiff_t element_bytes;
  TransposeBand band;

  const std::byte* input(const std::byte* in, std::int64_t row, std::int64_t column) const {
    return in + (row * rows.in_stride + column) * element_bytes;
  }
  std::byte* output(std::byte* out, std::int64_t row, std::int64_t column) const {
    return out + (row + column * columns.out_stride) * element_bytes;
  }

  void plain(Range some_rows, Range some_columns, const std::byte* in, std::byte* out) const {
    const CopyLoop line{some_rows.end - some_rows.begin, rows.in_stride, 1};
    for (std::int64_t i = some_columns.begin; i < some_columns.end; ++i) {
      copy_line(line, element_bytes, input(in, some_rows.begin, i),
                output(out, some_rows.begin, i));
    }
  }

  /// A few columns: as many whole bands as fit, and the rest plainly.
  void strip(Range some_rows, Range some_columns, const std::byte* in, std::byte* out) const {
    std::int64_t row = some_rows.begin;
    if (some_columns.end - some_columns.begin == band.columns) {
      row += (some_rows.end - some_rows.begin) / band.rows * band.rows;
      band.kernel(input(in, some_rows.begin, some_columns.begin), rows.in_stride * element_bytes,
                  output(out, some_rows.begin, some_columns.begin),
                  columns.out_stride * element_bytes, row - some_rows.begin);
    }
    plain({row, some_rows.end}, some_columns, in, out);
  }

  void operator()(const std::byte* in, std::byte* out) const {
    const std::int64_t width = band.kernel != nullptr
                                   ? band.columns
                                   : std::max(kPlainBytes / element_bytes, std::int64_t{1});
    for (std::int64_t row = 0; row < rows.count; row += kStripRows) {
      const Range some_rows{row, std::min(rows.count, row + kStripRows)};
      for (std::int64_t column = 0; column < columns.count; column += width) {
        strip(some_rows, {column, std::min(columns.count, column + width)}, in, out);
      }
    }
  }
};

void copy_fast(std::span<const CopyLoop> loops, std::size_t element_bytes, const std::byte* in,
               std::byte* out) {
  Nest nest = reduce(loops, element_bytes);
  if (nest.depth == 0) {
    std::memcpy(out, in, static_cast<std::size_t>(nest.element_bytes));
    return;
  }
  const CopyLoop inner = nest.inner();
  if (inner.out_stride == 1 && inner.in_stride != 1) {
    const auto dense_in = std::ranges::find(nest.all(), 1, &CopyLoop::in_stride);
    if (dense_in != nest.all().end()) {
      const Transpose transpose{inner, *dense_in, nest.element_bytes,
                                transpose_band(static_cast<std::size_t>(nest.element_bytes))};
      nest.remove(static_cast<std::size_t>(dense_in - nest.all().begin()));
      --nest.depth;
      visit(nest.all(), nest.element_bytes, in, out, transpose);
      return;
    }
  }
  visit(nest.all().first(nest.depth - 1), nest.element_bytes, in, out,
        [&](const std::byte* from, std::byte* to) {
          copy_line(inner, nest.element_bytes, from, to);
        });
}

}  // namespace

void copy_strided(std::span<const CopyLoop> loops, std::size_t element_bytes, const std::byte* in,
                  std::byte* out, KernelSet set) {
  CKFS_CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8 ||
             element_bytes == 16);
  if (std::ranges::any_of(loops, [](const CopyLoop& loop) { return loop.count <= 0; })) return;
  if (set == KernelSet::Reference || loops.size() > kMaxLoops) {
    reference::copy_strided(loops, element_bytes, in, out);
  } else {
    copy_fast(loops, element_bytes, in, out);
  }
}

}  // namespace ckfs
