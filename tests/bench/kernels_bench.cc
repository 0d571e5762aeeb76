// What the element kernels reach, as ratios to a memcpy of the same run: both read memory that no
// cache holds and write a buffer of 1 MiB that stays hot, which is how the engine uses them. Bytes
// count on the larger side of a kernel. Absolute numbers of a shared machine say little and
// google-benchmark gives nothing else, so this program takes the sides in turn, pass by pass, and
// prints the median of the passes' ratios.
//
// Usage: kernels_bench [PASSES [NAME]]: only the kernels whose name contains NAME.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/units.h"
#include "encoding/affine_codes_encoding.h"
#include "encoding/block_scale_encoding.h"
#include "encoding/quantizer.h"
#include "encoding/table_codes_encoding.h"
#include "tensor/kernel.h"

namespace {

using namespace ckfs;

constexpr std::size_t kHot = 1_MiB;
constexpr std::size_t kCold = 256_MiB;      // several times the last cache
constexpr std::size_t kMeasured = 128_MiB;  // read or written by one pass of one kernel
constexpr std::size_t kBlock = 128;

struct Bench {
  std::string name;
  double floor = 0;  // 0: shown for comparison only
  double goal = 0;
  std::size_t in_bytes = 0;  // of one call that fills or reads 1 MiB, whichever comes first
  std::function<void(const std::byte* in, std::byte* out)> call;
  const std::vector<std::byte>* source = nullptr;
};

/// Of this thread: kernels never wait, and other work on the machine then counts for less.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// Seconds for `calls` calls on fresh input, from `position` on; moves it.
double seconds(const Bench& bench, std::byte* hot, std::size_t calls, std::size_t& position) {
  const double begin = cpu_seconds();
  for (std::size_t i = 0; i < calls; ++i) {
    if (position + bench.in_bytes > bench.source->size()) position = 0;
    bench.call(bench.source->data() + position, hot);
    position += bench.in_bytes;
  }
  return cpu_seconds() - begin;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

std::size_t width(DType dtype) {
  return static_cast<std::size_t>(bits(dtype)) / 8;
}

Bench cast_bench(DType from, DType to, const std::vector<std::byte>& source) {
  const std::size_t count = kHot / std::max(width(from), width(to));
  const CastKernel kernel = find_cast(from, to);
  return {fmt::format("cast {} to {}", name(from), name(to)),
          0.5,
          0.7,
          count * width(from),
          [=](const std::byte* in, std::byte* out) { kernel(in, out, count); },
          &source};
}

Bench scale_bench(DType from, DType to, const std::vector<std::byte>& source,
                  const std::vector<float>& scales) {
  const std::size_t count = kHot / width(to);
  const ScaleBlocksKernel kernel = find_scale_blocks(from, to);
  const float* first = scales.data();
  return {fmt::format("{} by {} scaled to {}", name(from), kBlock, name(to)),
          0.4,
          0.5,
          count,
          [=](const std::byte* in, std::byte* out) { kernel(in, first, 0, kBlock, out, count); },
          &source};
}

/// Decodes all of a storage of kHot / 2 elements to BF16, whose parts of `sizes` bytes follow each
/// other in the input; `then` makes the output of what was decoded.
Bench decode_bench(std::string name, double floor, double goal,
                   std::shared_ptr<const Encoding> encoding, std::vector<std::size_t> sizes,
                   std::function<void(const std::byte* decoded, std::byte* out)> then,
                   const std::vector<std::byte>& source) {
  const std::size_t all = std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  const auto decoded = std::make_shared<std::vector<std::byte>>(kHot);
  return {std::move(name),
          floor,
          goal,
          all,
          [=](const std::byte* in, std::byte* out) {
            std::vector<PartBytes::Window> windows;
            for (const std::byte* at = in; const std::size_t size : sizes) {
              windows.push_back({{0, size}, at});
              at += size;
            }
            std::vector<std::span<const PartBytes::Window>> parts;
            for (const PartBytes::Window& window : windows) parts.emplace_back(&window, 1);
            const std::span<std::byte> target(then ? decoded->data() : out, kHot);
            const auto done = encoding->decode({0, kHot / 2}, PartBytes(parts),
                                               {DType::BF16, target, {}, KernelSet::Fast});
            CKFS_CHECK(done.has_value());
            if (then) then(decoded->data(), out);
          },
          &source};
}

/// Codes in rows with a scale for each group of a row, as compressed-tensors and gpt-oss store
/// them.
void add_row_codes(std::vector<Bench>& benches, const std::vector<std::byte>& source) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kColumns = 4096;
  constexpr std::size_t kBytes = kRows * kColumns;
  const auto add = [&](std::string name, double floor, double goal, BlockScale kind,
                       std::vector<std::size_t> sizes) {
    kind.rows = kRows;
    kind.columns = kColumns;
    kind.block_rows = 1;
    benches.push_back(decode_bench(name + " to BF16", floor, goal, block_scale_encoding(kind),
                                   std::move(sizes), {}, source));
  };
  add("int4 by 32", 0.6, 0.85,
      {.codes = DType::I32,
       .scale = DType::BF16,
       .block_columns = 32,
       .packing = {.bits = 4},
       .result = DType::BF16},
      {kBytes / 2, kBytes / 32 * 2});
  add("int4 by 128 with zeros", 0, 0,
      {.codes = DType::I32,
       .scale = DType::BF16,
       .block_columns = 128,
       .packing = {.bits = 4},
       .zeros = BlockScale::Zeros::Packed,
       .result = DType::BF16},
      {kBytes / 2, kBytes / 128 * 2, kBytes / 128 / 2});
  add("int8 by row", 0, 0,
      {.codes = DType::I8, .scale = DType::BF16, .block_columns = kColumns, .result = DType::BF16},
      {kBytes, kRows * 2});
  add("mxfp4", 0.6, 1, {.codes = DType::F4, .scale = DType::U8, .block_columns = 32},
      {kBytes / 2, kBytes / 32});
  add("gpt-oss mxfp4", 0.6, 1,
      {.codes = DType::F4, .scale = DType::U8, .block_columns = 32, .wide_exponent = true},
      {kBytes / 2, kBytes / 32});
  add("nvfp4", 0.45, 0.7,
      {.codes = DType::F4,
       .scale = DType::F8E4M3,
       .block_columns = 16,
       .global = BlockScale::Global::Divides},
      {kBytes / 2, kBytes / 16, 4});
  add("fp8 by row", 0.4, 0.5, {.scale = DType::F32, .block_columns = kColumns},
      {kBytes, kRows * 4});
}

/// Codes of 4 bits as GPTQ and AWQ store them, decoded as they lie, and as a weight.
void add_column_codes(std::vector<Bench>& benches, const std::vector<std::byte>& source) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kColumns = 4096;
  constexpr std::int64_t kGroups = kRows / kBlock;
  const auto transpose = [](const std::byte* decoded, std::byte* out) {
    const CopyLoop loops[] = {{kColumns, 1, kRows}, {kRows, kColumns, 1}};
    copy_strided(loops, 2, decoded, out);
  };
  for (const CodeOrder order : {CodeOrder::Down, CodeOrder::Awq}) {
    const auto encoding = affine_codes_encoding({.order = order,
                                                 .rows = kRows,
                                                 .columns = kColumns,
                                                 .groups = kGroups,
                                                 .group_rows = kBlock});
    const std::vector<std::size_t> sizes = {kRows * kColumns / 2, kGroups * kColumns * 2,
                                            kGroups * kColumns / 2};
    const std::string name = order == CodeOrder::Awq ? "AWQ" : "GPTQ int4";
    benches.push_back(
        decode_bench(name + " to BF16 as it lies", 0, 0, encoding, sizes, {}, source));
    benches.push_back(
        decode_bench(name + " to BF16, transposed", 0.12, 0.2, encoding, sizes, transpose, source));
  }
}

/// Codes of weights in BF16, with the scales that they need. The larger side is the values.
void add_quantizers(std::vector<Bench>& benches, const std::vector<std::byte>& source) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kColumns = 4096;
  static_assert(kRows * kColumns * 2 == kHot);
  const auto add = [&](std::string_view codes, QuantizedForm form, QuantizedGranule granule,
                       double floor, double goal) {
    auto quantizer = make_quantizer(form, DType::BF16, std::array{kRows, kColumns}, granule);
    CKFS_CHECK(quantizer.has_value());
    const std::size_t bytes = (*quantizer)->outputs()[0].nbytes;
    benches.push_back({fmt::format("BF16 to {}", codes), floor, goal, kHot,
                       [=, quantizer = *quantizer](const std::byte* in, std::byte* out) {
                         const auto done = quantizer->quantize(
                             0, {0, kRows * kColumns}, {.values = in}, std::span(out, bytes));
                         CKFS_CHECK(done.has_value());
                       },
                       &source});
  };
  add("FP8, blocks of 128 x 128", QuantizedForm::Fp8Block, {128, 128}, 0.25, 0.4);
  add("FP8 by row", QuantizedForm::CtFp8Channel, {1, kColumns}, 0.25, 0.4);
  add("INT8 by row", QuantizedForm::CtInt8Channel, {1, kColumns}, 0.25, 0.4);
  add("INT4 by 128", QuantizedForm::CtInt4Group, {1, 128}, 0.25, 0.4);
  add("NVFP4", QuantizedForm::CtNvfp4, {1, 16}, 0.25, 0.4);
  add("MXFP4", QuantizedForm::CtMxfp4, {1, 32}, 0.25, 0.4);
  add("nf4", QuantizedForm::Nf4, {1, 64}, 0, 0);
}

/// Bands of a matrix with 2,048 rows of 14,336 bytes, each to a tile of 1 MiB.
Bench transpose_bench(std::size_t element_bytes, const std::vector<std::byte>& source) {
  constexpr std::int64_t kRows = 2048;
  constexpr std::int64_t kRowBytes = 14336;
  const auto size = static_cast<std::int64_t>(element_bytes);
  const std::int64_t columns = static_cast<std::int64_t>(kHot) / kRows / size;
  const std::int64_t bands = kRowBytes / size / columns;
  const auto matrices = static_cast<std::int64_t>(source.size()) / (kRows * kRowBytes);
  return {
      fmt::format("transpose of {}-byte elements", element_bytes), element_bytes == 2 ? 0.18 : 0.15,
      element_bytes == 2 ? 0.28 : 0.2, kHot,
      // The input is not one piece: each call takes the next band of the next matrix.
      [=, call = std::int64_t{0}, base = source.data()](const std::byte*, std::byte* out) mutable {
        const std::int64_t matrix = call / bands % matrices;
        const std::int64_t band = call % bands;
        const CopyLoop loops[] = {{columns, 1, kRows}, {kRows, kRowBytes / size, 1}};
        copy_strided(loops, element_bytes,
                     base + matrix * kRows * kRowBytes + band * columns * size, out);
        ++call;
      },
      &source};
}

}  // namespace

int main(int argc, char** argv) {
  const int passes = argc > 1 ? std::max(5, std::atoi(argv[1])) : 9;
  std::mt19937_64 random(1);

  std::vector<std::byte> any(kCold);  // all F8 codes, NaN too
  for (std::size_t i = 0; i < any.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(&any[i], &word, 8);
  }
  // Numbers between 2^-7 and 1 in BF16 and F32, and ordinary ones in F16 and F64.
  std::vector<std::byte> numbers(kCold);
  for (std::size_t i = 0; i < numbers.size(); i += 8) {
    const std::uint64_t word = (random() & 0x837f837f837f837f) | 0x3c003c003c003c00;
    std::memcpy(&numbers[i], &word, 8);
  }
  std::vector<float> scales(kHot / kBlock);
  for (float& scale : scales) scale = static_cast<float>(random() % 1000 + 1) * 0x1p-20F;

  std::vector<Bench> benches;
  benches.push_back({"memcpy", 0, 0, kHot,
                     [](const std::byte* in, std::byte* out) { std::memcpy(out, in, kHot); },
                     &numbers});
  for (DType from : {DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ}) {
    for (DType to : {DType::BF16, DType::F16, DType::F32}) {
      benches.push_back(scale_bench(from, to, any, scales));
    }
  }
  constexpr DType kFloats[] = {DType::BF16, DType::F16, DType::F32, DType::F64};
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      if (from != to) benches.push_back(cast_bench(from, to, numbers));
    }
  }
  // Scales of any dtype that are finite and normal.
  std::vector<std::byte> moderate(kCold);
  for (std::size_t i = 0; i < moderate.size(); i += 8) {
    const std::uint64_t word = (random() & 0x0707070707070707) | 0x3838383838383838;
    std::memcpy(&moderate[i], &word, 8);
  }
  add_row_codes(benches, moderate);
  add_column_codes(benches, numbers);
  benches.push_back(decode_bench("nf4 by 64 to BF16", 0.4, 0.6,
                                 table_codes_encoding({.values = DType::BF16, .block = 64}),
                                 {kHot / 4, kHot / 2 / 64 * 4, 64}, {}, numbers));
  add_quantizers(benches, numbers);
  for (std::size_t element_bytes : {1, 2, 4, 8}) {
    benches.push_back(transpose_bench(element_bytes, numbers));
  }

  if (argc > 2) {
    std::erase_if(benches, [&](const Bench& bench) {
      return bench.name != "memcpy" && bench.name.find(argv[2]) == std::string::npos;
    });
  }

  std::vector<std::byte> hot(kHot);
  std::vector<std::vector<double>> ratios(benches.size());
  std::vector<double> memcpy_rates;
  constexpr std::size_t kCalls = kMeasured / kHot;
  std::size_t position = 0;
  for (int pass = -1; pass < passes; ++pass) {  // the first one warms up
    for (std::size_t i = 0; i < benches.size(); ++i) {
      const double copied = seconds(benches[0], hot.data(), kCalls, position);
      const double worked = seconds(benches[i], hot.data(), kCalls, position);
      if (pass < 0) continue;
      ratios[i].push_back(copied / worked);
      memcpy_rates.push_back(static_cast<double>(kMeasured) / copied / 1e9);
    }
  }

  fmt::print("memory to a hot 1 MiB buffer, {} passes; memcpy {:.1f} GB/s (median)\n\n", passes,
             median(memcpy_rates));
  fmt::print("{:<34} {:>7} {:>6} {:>5}\n", "kernel", "ratio", "floor", "goal");
  bool missed = false;
  for (std::size_t i = 1; i < benches.size(); ++i) {
    const double ratio = median(ratios[i]);
    const bool low = ratio < benches[i].floor;
    missed = missed || low;
    fmt::print("{:<34} {:>7.2f} {:>6.2f} {:>5.2f}{}\n", benches[i].name, ratio, benches[i].floor,
               benches[i].goal, low ? "  below the floor" : "");
  }
  return missed ? 1 : 0;
}
