#include "export/split.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace ckfs {
namespace {

/// Files of some spans, many of them small, some large and some gathered.
std::vector<FileCost> random_files(std::mt19937& random, std::uint64_t scale) {
  std::vector<FileCost> files(1 + random() % 12);
  for (FileCost& file : files) {
    std::uint64_t end = 0;
    for (unsigned left = static_cast<unsigned>(random() % 20); left > 0; --left) {
      const std::uint64_t size = 1 + random() % (random() % 3 == 0 ? scale : 5000);
      end += size;
      const std::uint64_t cost = size + (random() % 2 == 0 ? size / 2 : 0);
      file.spans.push_back({.end = end, .cost = cost, .tiled = random() % 3 == 0});
    }
  }
  return files;
}

/// The cost of a range, as if each byte of a span cost the same.
double cost_of(const FileCost& file, ByteRange range) {
  double cost = 0;
  std::uint64_t begin = 0;
  for (const CostSpan& span : file.spans) {
    const ByteRange all{begin, span.end};
    cost += static_cast<double>(span.cost) * static_cast<double>(range.intersect(all).size()) /
            static_cast<double>(all.size());
    begin = span.end;
  }
  return cost;
}

TEST(Split, CoversEveryByteOnceAndSharesNoPage) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<FileCost> files = random_files(random, 1 + random() % 3'000'000);
    const auto parts = 1 + static_cast<unsigned>(random() % 40);
    const Split split = random() % 4 == 0 ? Split::Files : Split::Ranges;
    std::vector<std::vector<ByteRange>> written(files.size());
    for (const auto& steps : split_steps(files, parts, split)) {
      for (const ExportStep& step : steps) {
        ASSERT_LT(step.range.begin, step.range.end);
        written[step.file].push_back(step.range);
      }
    }
    for (std::size_t file = 0; file < files.size(); ++file) {
      std::ranges::sort(written[file], {}, &ByteRange::begin);
      std::uint64_t at = 0;
      for (const ByteRange range : written[file]) {
        ASSERT_EQ(range.begin, at);
        ASSERT_EQ(range.begin % kSplitUnit, 0U);
        at = range.end;
      }
      ASSERT_EQ(at, files[file].size());
      if (split == Split::Files) {
        ASSERT_LE(written[file].size(), 1U);
      }
    }
  }
}

TEST(Split, PartsCostTheSame) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const std::vector<FileCost> files = random_files(random, 4_GiB - 1);
    const unsigned parts = 1 + static_cast<unsigned>(random() % 30);
    double total = 0;
    for (const FileCost& file : files) total += static_cast<double>(file.cost());
    const double mean = total / parts;
    for (const auto& steps : split_steps(files, parts, Split::Ranges)) {
      double cost = 0;
      for (const ExportStep& step : steps) cost += cost_of(files[step.file], step.range);
      // A border's share, and a unit at each end: of bytes, or of tiles.
      EXPECT_LE(cost, mean * (1 + 2.0 / kBorderShare) + 2 * 1.5 * kTiledUnit);
    }
  }
}

TEST(Split, CutsWhereATensorBeginsIfOneIsNear) {
  // Three tensors of about a third each: the cuts go to their borders, at a page of the tensor
  // that is not computed in tiles.
  const std::vector<FileCost> files{
      {{{.end = 100, .cost = 100},
        {.end = 1'000'000'100, .cost = 1'000'000'000, .tiled = true},
        {.end = 2'001'000'000, .cost = 1'000'999'900},
        {.end = 3'001'000'500, .cost = 1'000'000'500, .tiled = true}}}};
  const auto parts = split_steps(files, 3, Split::Ranges);
  const auto up = [](std::uint64_t at) { return (at + 4095) / 4096 * 4096; };
  EXPECT_EQ(parts[0], (std::vector<ExportStep>{{0, {0, up(1'000'000'100)}}}));
  EXPECT_EQ(parts[1],
            (std::vector<ExportStep>{{0, {up(1'000'000'100), up(2'001'000'000) - 4096}}}));
}

TEST(Split, WithMoreProcessesThanBytesSomeHaveNothing) {
  const std::vector<FileCost> files{{{{.end = 5000, .cost = 5000}}}, {}};
  std::size_t steps = 0;
  for (const auto& part : split_steps(files, 1000, Split::Ranges)) steps += part.size();
  EXPECT_EQ(steps, 2U);
}

}  // namespace
}  // namespace ckfs
