// copy_strided: the fast set against plain loops written here, on the nests that converters make
// and on random ones.
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <rapidcheck/gtest.h>
#include <vector>

#include "tensor/kernel.h"

namespace ckfs {
namespace {

constexpr std::size_t kElementBytes[] = {1, 2, 4, 8, 16};

/// Bytes that differ from element to element, whatever the element's size.
std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

/// A nest together with buffers that hold all it touches.
struct Job {
  std::vector<CopyLoop> loops;
  std::size_t element_bytes = 1;
  std::vector<std::byte> in;
  std::size_t in_origin = 0;
  std::size_t out_size = 0;
  std::size_t out_origin = 0;
};

Job make_job(std::vector<CopyLoop> loops, std::size_t element_bytes) {
  std::int64_t in_low = 0, in_high = 0, out_low = 0, out_high = 0;
  for (const CopyLoop& loop : loops) {
    const std::int64_t last = std::max<std::int64_t>(loop.count - 1, 0);
    (loop.in_stride < 0 ? in_low : in_high) += last * loop.in_stride;
    (loop.out_stride < 0 ? out_low : out_high) += last * loop.out_stride;
  }
  const auto bytes = [element_bytes](std::int64_t n) {
    return static_cast<std::size_t>(n) * element_bytes;
  };
  Job job;
  job.loops = std::move(loops);
  job.element_bytes = element_bytes;
  job.in = numbered(bytes(in_high - in_low + 1));
  job.in_origin = bytes(-in_low);
  job.out_size = bytes(out_high - out_low + 1);
  job.out_origin = bytes(-out_low);
  return job;
}

std::vector<std::byte> run(const Job& job, KernelSet set) {
  std::vector<std::byte> out(job.out_size, std::byte{0xee});
  copy_strided(job.loops, job.element_bytes, job.in.data() + job.in_origin,
               out.data() + job.out_origin, set);
  return out;
}

/// The definition, without recursion: an odometer over the indices.
std::vector<std::byte> expected(const Job& job) {
  std::vector<std::byte> out(job.out_size, std::byte{0xee});
  std::vector<std::int64_t> index(job.loops.size(), 0);
  for (const CopyLoop& loop : job.loops) {
    if (loop.count == 0) return out;
  }
  const auto size = static_cast<std::int64_t>(job.element_bytes);
  while (true) {
    auto from = static_cast<std::int64_t>(job.in_origin);
    auto to = static_cast<std::int64_t>(job.out_origin);
    for (std::size_t i = 0; i < index.size(); ++i) {
      from += index[i] * job.loops[i].in_stride * size;
      to += index[i] * job.loops[i].out_stride * size;
    }
    std::memcpy(&out[static_cast<std::size_t>(to)], &job.in[static_cast<std::size_t>(from)],
                job.element_bytes);
    std::size_t place = index.size();
    while (place > 0 && ++index[place - 1] == job.loops[place - 1].count) index[--place] = 0;
    if (place == 0) return out;
  }
}

void expect_right(const Job& job) {
  const std::vector<std::byte> right = expected(job);
  EXPECT_TRUE(run(job, KernelSet::Reference) == right) << job.element_bytes;
  EXPECT_TRUE(run(job, KernelSet::Fast) == right) << job.element_bytes;
}

TEST(CopyStrided, NoLoopIsOneElement) {
  for (std::size_t bytes : kElementBytes) expect_right(make_job({}, bytes));
}

TEST(CopyStrided, ALoopOfNoneCopiesNothing) {
  expect_right(make_job({{4, 1, 1}, {0, 1, 4}}, 2));
  expect_right(make_job({{0, 1, 1}}, 16));
}

TEST(CopyStrided, TransposesOfAllSizes) {
  for (std::size_t bytes : kElementBytes) {
    for (std::int64_t rows : {1, 2, 7, 8, 16, 31, 33, 70, 129, 160}) {
      for (std::int64_t columns : {1, 3, 8, 16, 17, 64, 67, 131}) {
        // The input has rows of columns + 3, the output rows of rows + 5 elements.
        expect_right(make_job({{columns, 1, rows + 5}, {rows, columns + 3, 1}}, bytes));
      }
    }
  }
}

TEST(CopyStrided, TransposesInsideOtherLoops) {
  for (std::size_t bytes : kElementBytes) {
    // [3, 40, 50] to [3, 50, 40]; [40, 3, 50] to [50, 3, 40]; a stack of layers [l, r, c] to
    // [c, l, r].
    expect_right(make_job({{3, 2000, 2000}, {50, 1, 40}, {40, 50, 1}}, bytes));
    expect_right(make_job({{50, 1, 120}, {3, 50, 40}, {40, 150, 1}}, bytes));
    expect_right(make_job({{50, 1, 120}, {3, 2000, 40}, {40, 50, 1}}, bytes));
  }
}

TEST(CopyStrided, RunsSlicesStepsAndInterleaves) {
  for (std::size_t bytes : kElementBytes) {
    expect_right(make_job({{5, 100, 37}, {37, 1, 1}}, bytes));          // a slice of columns
    expect_right(make_job({{5, 20, 20}, {20, 1, 1}}, bytes));           // all dense
    expect_right(make_job({{20, 2, 1}}, bytes));                        // every second element
    expect_right(make_job({{20, 1, 2}}, bytes));                        // into every second
    expect_right(make_job({{2, 30, 1}, {30, 1, 2}}, bytes));            // interleave
    expect_right(make_job({{9, 8, 4}, {2, 4, 36}, {4, 1, 1}}, bytes));  // pieces of four
    expect_right(make_job({{9, 7, 4}, {2, 3, 36}, {3, 1, 1}}, bytes));  // pieces of three
  }
}

TEST(CopyStrided, ZeroAndNegativeStridesOfTheInput) {
  for (std::size_t bytes : kElementBytes) {
    expect_right(make_job({{6, 0, 40}, {40, 1, 1}}, bytes));
    expect_right(make_job({{40, 0, 1}}, bytes));
    expect_right(make_job({{40, -1, 1}}, bytes));
    expect_right(make_job({{33, -40, 1}, {40, 1, 33}}, bytes));
    expect_right(make_job({{33, 40, 1}, {40, -1, 33}}, bytes));
    expect_right(make_job({{33, 40, 50}, {40, 1, -1}}, bytes));
  }
}

RC_GTEST_PROP(CopyStrided, RandomNestsAreCopiedAsThePlainLoopsDo, ()) {
  // A permutation of dense output dimensions, some with gaps, gives outputs that never meet.
  const auto depth = *rc::gen::inRange<std::size_t>(0, 6);
  const std::size_t bytes = kElementBytes[*rc::gen::inRange<std::size_t>(0, 5)];
  std::vector<std::size_t> order(depth);
  std::iota(order.begin(), order.end(), 0U);
  for (std::size_t i = depth; i > 1; --i) {
    std::swap(order[i - 1], order[*rc::gen::inRange<std::size_t>(0, i)]);
  }
  std::vector<CopyLoop> loops(depth);
  std::int64_t out_stride = *rc::gen::inRange<std::int64_t>(1, 3);
  std::int64_t in_stride = 1;
  const std::int64_t most = depth <= 2 ? 150 : 9;
  for (std::size_t i = 0; i < depth; ++i) {
    CopyLoop& inner = loops[order[i]];
    inner.count = *rc::gen::inRange<std::int64_t>(1, most);
    inner.out_stride = *rc::gen::arbitrary<bool>() ? out_stride : -out_stride;
    out_stride *= inner.count + *rc::gen::inRange<std::int64_t>(0, 3);
  }
  for (CopyLoop& loop : loops) {
    switch (*rc::gen::inRange(0, 6)) {
      case 0:
        loop.in_stride = 0;
        break;
      case 1:
        loop.in_stride = *rc::gen::inRange<std::int64_t>(-20, 20);
        break;
      case 2:
        loop.in_stride = -in_stride;
        in_stride *= loop.count;
        break;
      default:
        loop.in_stride = in_stride;
        in_stride *= loop.count;
    }
  }
  const Job job = make_job(loops, bytes);
  const std::vector<std::byte> right = expected(job);
  RC_ASSERT(run(job, KernelSet::Reference) == right);
  RC_ASSERT(run(job, KernelSet::Fast) == right);
}

}  // namespace
}  // namespace ckfs
