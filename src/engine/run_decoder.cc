// Companions are not cached: the scales that belong to a run are read with it, in the same batch.
// A request of 1 MiB then reads at most one row of scales that its neighbour has read too (some
// hundred bytes in half a MiB), which is cheaper than a cache with its own place in the budget, and
// a read needs nothing but its own staging.
#include "engine/run_decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/load_le.h"
#include "tensor/arithmetic.h"

namespace ckfs {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::size_t>(count) * static_cast<std::size_t>(bits(dtype)) / 8;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

void add_storage_reads(const Storage& storage, std::int64_t first, std::int64_t count,
                       std::span<std::byte> into, std::vector<ReadRequest>& batch) {
  std::size_t done = 0;
  const std::uint64_t begin = bytes_of(storage.dtype, first);
  for_each_extent(storage, {begin, begin + bytes_of(storage.dtype, count)},
                  [&](FileId file, std::uint64_t offset, std::uint64_t nbytes) {
                    batch.push_back({file, offset, into.subspan(done, nbytes)});
                    done += nbytes;
                  });
  CKFS_CHECK(done == bytes_of(storage.dtype, count));
}

/// Where in the scale's storage the scales of a run lie: the grid's rows [row_begin, row_end), and
/// of those the columns [column_begin, column_end); all columns unless the run lies in one row.
struct ScaleWindow {
  std::int64_t grid_columns;
  std::int64_t row_begin, row_end;
  std::int64_t column_begin, column_end;

  std::int64_t columns() const { return column_end - column_begin; }
  std::int64_t count() const { return (row_end - row_begin) * columns(); }
  std::int64_t first() const { return row_begin * grid_columns + column_begin; }
};

/// The grid's row for row `row` of the storage seen as [batch * rows, columns].
std::int64_t grid_row(const BlockScale& scale, std::int64_t row) {
  return row / scale.rows * ceil_div(scale.rows, scale.block_rows) +
         row % scale.rows / scale.block_rows;
}

ScaleWindow scale_window(const BlockScale& scale, std::int64_t first, std::int64_t count) {
  const std::int64_t last = first + count - 1;
  ScaleWindow window{};
  window.grid_columns = ceil_div(scale.columns, scale.block_columns);
  window.row_begin = grid_row(scale, first / scale.columns);
  window.row_end = grid_row(scale, last / scale.columns) + 1;
  window.column_begin = 0;
  window.column_end = window.grid_columns;
  if (first / scale.columns == last / scale.columns) {
    window.column_begin = first % scale.columns / scale.block_columns;
    window.column_end = last % scale.columns / scale.block_columns + 1;
  }
  return window;
}

/// One row of scales as floats.
void widen_scales(DType dtype, std::span<const std::byte> in, float* out, std::int64_t count,
                  KernelSet kernels) {
  const auto n = static_cast<std::size_t>(count);
  if (dtype == DType::F32) {
    std::memcpy(out, in.data(), n * sizeof(float));
  } else if (dtype == DType::U8) {
    // Raw e8m0 bytes: 2^(b - 127), of which 255 overflows to infinity (source/catalog.h).
    for (std::size_t i = 0; i < n; ++i) {
      out[i] = std::ldexp(1.0F, static_cast<int>(in[i]) - 127);
    }
  } else {
    find_cast(dtype, DType::F32, kernels)(in.data(), reinterpret_cast<std::byte*>(out), n);
  }
}

/// The three parts of a block-scaled run's staging.
struct BlockStaging {
  std::size_t weights, scales, row;  // sizes, aligned
  std::size_t total() const { return weights + scales + row; }
};

BlockStaging block_staging(const Catalog& catalog, const Storage& storage, const BlockScale& scale,
                           const ElementRun& run) {
  const ScaleWindow window = scale_window(scale, run.first, run.count);
  return {aligned(bytes_of(storage.dtype, run.count)),
          aligned(bytes_of(catalog.storage(scale.scale).dtype, window.count())),
          aligned(static_cast<std::size_t>(window.columns()) * sizeof(float))};
}

/// Decodes [offset, offset + count) of a block-scaled run to `to` (F32, F16 or BF16), row by row.
void decode_blocks(const Catalog& catalog, const Storage& storage, const BlockScale& scale,
                   const ElementRun& run, std::span<std::byte> staging, std::int64_t offset,
                   std::int64_t count, DType to, std::byte* out, KernelSet kernels) {
  const BlockStaging sizes = block_staging(catalog, storage, scale, run);
  const ScaleWindow window = scale_window(scale, run.first, run.count);
  const DType scale_dtype = catalog.storage(scale.scale).dtype;
  const std::span<const std::byte> scales = staging.subspan(sizes.weights, sizes.scales);
  // Staging is aligned to 64 bytes and ours: its third part is an array of floats.
  auto* const row_scales = reinterpret_cast<float*>(staging.data() + sizes.weights + sizes.scales);
  const ScaleBlocksKernel kernel = find_scale_blocks(storage.dtype, to, kernels);
  CKFS_CHECK(kernel != nullptr);
  const std::size_t width = bytes_of(to, 1);

  std::int64_t loaded = -1;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t element = run.first + offset + done;
    const std::int64_t row = grid_row(scale, element / scale.columns);
    const std::int64_t column = element % scale.columns;
    const std::int64_t piece = std::min(scale.columns - column, count - done);
    if (row != loaded) {
      const std::size_t at = bytes_of(scale_dtype, (row - window.row_begin) * window.columns());
      widen_scales(scale_dtype, scales.subspan(at), row_scales, window.columns(), kernels);
      loaded = row;
    }
    kernel(staging.data() + offset + done, row_scales,
           static_cast<std::size_t>(column - window.column_begin * scale.block_columns),
           static_cast<std::size_t>(scale.block_columns),
           out + static_cast<std::size_t>(done) * width, static_cast<std::size_t>(piece));
    done += piece;
  }
}

/// Takes `count` values of dtype `value` at `in` through the steps. `in` may be `out` for a program
/// without casts.
void run_steps(DType value, std::span<const Step> steps, std::byte* in, std::byte* out,
               std::size_t count, KernelSet kernels) {
  constexpr std::size_t kPiece = 2048;
  alignas(kAlignment) std::array<std::array<std::byte, kPiece * 8>, 2> scratch;
  for (std::size_t done = 0; done < count; done += kPiece) {
    const std::size_t piece = std::min(kPiece, count - done);
    std::byte* current = scratch[0].data();
    std::byte* other = scratch[1].data();
    DType dtype = value;
    std::memcpy(current, in + done * bytes_of(dtype, 1), piece * bytes_of(dtype, 1));
    for (const Step& step : steps) {
      switch (step.kind) {
        case Step::Kind::Cast:
          if (step.dtype != dtype) {
            find_cast(dtype, step.dtype, kernels)(current, other, piece);
            std::swap(current, other);
            dtype = step.dtype;
          }
          break;
        case Step::Kind::Multiply:
          multiply(dtype, step.operand, current, piece);
          break;
        case Step::Kind::Add:
          add(dtype, step.operand, current, piece);
          break;
        case Step::Kind::FlushSubnormals:
          flush_subnormals(dtype, current, piece);
          break;
        case Step::Kind::CanonicalNan:
          canonical_nan(dtype, current, piece);
          break;
      }
    }
    std::memcpy(out + done * bytes_of(dtype, 1), current, piece * bytes_of(dtype, 1));
  }
}

std::span<const Step> steps_of(const ElementRun& run) {
  return run.program == nullptr ? std::span<const Step>() : std::span<const Step>(*run.program);
}

const BlockScale* block_scale(const Storage& storage) {
  return storage.encoding == nullptr ? nullptr : std::get_if<BlockScale>(storage.encoding);
}

}  // namespace

RunNeeds run_needs(const Catalog& catalog, const ElementRun& run) {
  const Storage& storage = catalog.storage(run.storage);
  const DType result = result_dtype(storage.value_dtype(), run.program);
  RunNeeds needs{aligned(bytes_of(storage.dtype, run.count)), bytes_of(result, run.count)};
  if (const BlockScale* scale = block_scale(storage); scale != nullptr && run.count > 0) {
    needs.staging = block_staging(catalog, storage, *scale, run).total();
  }
  return needs;
}

RunNeeds most_needs(const Catalog& catalog, StorageId storage_id, std::int64_t count,
                    const Program* program) {
  const Storage& storage = catalog.storage(storage_id);
  RunNeeds needs = run_needs(catalog, {storage_id, 0, count, program});
  if (const BlockScale* scale = block_scale(storage)) {
    // A run that begins inside a row touches one row more than one that begins with it, and with
    // it one row of the grid more, of which all columns are read.
    const ScaleWindow aligned_window = scale_window(*scale, 0, count);
    const std::int64_t rows = aligned_window.row_end - aligned_window.row_begin + 2;
    const DType dtype = catalog.storage(scale->scale).dtype;
    needs.staging = aligned(bytes_of(storage.dtype, count)) +
                    aligned(bytes_of(dtype, rows * aligned_window.grid_columns)) +
                    aligned(static_cast<std::size_t>(aligned_window.grid_columns) * sizeof(float));
  }
  return needs;
}

bool is_move(const Storage& storage, const Program* program) {
  return storage.encoding == nullptr && (program == nullptr || program->empty());
}

void add_reads(const Catalog& catalog, const ElementRun& run, std::span<std::byte> staging,
               std::vector<ReadRequest>& batch) {
  if (run.count == 0) return;
  const Storage& storage = catalog.storage(run.storage);
  add_storage_reads(storage, run.first, run.count, staging, batch);
  if (const BlockScale* scale = block_scale(storage)) {
    const ScaleWindow window = scale_window(*scale, run.first, run.count);
    const BlockStaging sizes = block_staging(catalog, storage, *scale, run);
    // Columns are a part of the row only where the window has one row, so it is always one run.
    add_storage_reads(catalog.storage(scale->scale), window.first(), window.count(),
                      staging.subspan(sizes.weights, sizes.scales), batch);
  }
}

void add_ranges(const Catalog& catalog, const ElementRun& run, std::vector<FileRange>& ranges) {
  const auto add = [&](const Storage& storage, std::int64_t first, std::int64_t count) {
    const std::uint64_t begin = bytes_of(storage.dtype, first);
    for_each_extent(storage, {begin, begin + bytes_of(storage.dtype, count)},
                    [&](FileId file, std::uint64_t offset, std::uint64_t nbytes) {
                      ranges.push_back({file, offset, nbytes});
                    });
  };
  const Storage& storage = catalog.storage(run.storage);
  add(storage, run.first, run.count);
  if (const BlockScale* scale = block_scale(storage); scale != nullptr && run.count > 0) {
    const ScaleWindow window = scale_window(*scale, run.first, run.count);
    add(catalog.storage(scale->scale), window.first(), window.count());
  }
}

void decode_run(const Catalog& catalog, const ElementRun& run, std::span<std::byte> staging,
                std::span<std::byte> out, KernelSet kernels) {
  if (run.count == 0) return;
  const Storage& storage = catalog.storage(run.storage);
  const std::span<const Step> steps = steps_of(run);
  const auto count = static_cast<std::size_t>(run.count);
  const bool one_cast = steps.size() == 1 && steps[0].kind == Step::Kind::Cast;

  if (const BlockScale* scale = block_scale(storage)) {
    const bool fused =
        steps.empty() ||
        (one_cast && find_scale_blocks(storage.dtype, steps[0].dtype, kernels) != nullptr);
    if (fused) {
      decode_blocks(catalog, storage, *scale, run, staging, 0, run.count,
                    steps.empty() ? DType::F32 : steps[0].dtype, out.data(), kernels);
      return;
    }
    constexpr std::int64_t kPiece = 2048;
    alignas(kAlignment) std::array<std::byte, kPiece * 4> values;
    const std::size_t width = out.size() / count;
    for (std::int64_t done = 0; done < run.count; done += kPiece) {
      const std::int64_t piece = std::min(kPiece, run.count - done);
      decode_blocks(catalog, storage, *scale, run, staging, done, piece, DType::F32, values.data(),
                    kernels);
      run_steps(DType::F32, steps, values.data(),
                out.data() + static_cast<std::size_t>(done) * width,
                static_cast<std::size_t>(piece), kernels);
    }
    return;
  }
  if (steps.empty()) {
    std::memcpy(out.data(), staging.data(), out.size());
  } else if (one_cast && steps[0].dtype != storage.dtype) {
    find_cast(storage.dtype, steps[0].dtype, kernels)(staging.data(), out.data(), count);
  } else {
    run_steps(storage.dtype, steps, staging.data(), out.data(), count, kernels);
  }
}

}  // namespace ckfs
