// Times of reads, and the grammar of Prometheus' text format 0.0.4. metrics_text() (api/status.h)
// decides which samples are written.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckfs/checkpoint.h>

#include "container/file_layout.h"

namespace ckfs {

/// How the first byte of a read comes about (engine/engine.h).
enum class ReadKind : std::uint8_t { Text, Copy, Decode, Gather };

/// Requires: offset < layout.size.
ReadKind kind_of_read(const FileLayout& layout, std::uint64_t offset);

/// How long reads took, by kind. Safe for concurrent use.
class ReadTimes {
 public:
  void add(ReadKind kind, std::chrono::nanoseconds time, std::uint64_t bytes);

  /// Bucket b has the reads that took at most 16 us * 4^b and are in none before; the last has all
  /// others.
  static constexpr std::size_t kBuckets = 11;
  struct Times {
    std::array<std::uint64_t, kBuckets> buckets{};
    std::uint64_t nanoseconds = 0;
    std::uint64_t bytes = 0;
  };
  Times times(ReadKind kind) const;

 private:
  struct Row {
    std::array<std::atomic<std::uint64_t>, kBuckets> buckets{};
    std::atomic<std::uint64_t> nanoseconds = 0;
    std::atomic<std::uint64_t> bytes = 0;
  };
  std::array<Row, 4> rows_;
};

/// A text of metrics. Every sample has the labels that were given first, and then its own.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string>>;

  explicit MetricsText(const Labels& everywhere);

  /// Comes before the samples of `name`, which is written with "ckfs_" before it.
  void head(std::string_view name, std::string_view type, std::string_view help);
  void sample(std::string_view name, const Labels& labels, std::uint64_t value);
  void sample(std::string_view name, const Labels& labels, double value);
  std::string take() { return std::move(text_); }

 private:
  void add(std::string_view name, const Labels& labels, std::string_view value);

  std::string everywhere_;
  std::string text_;
};

void add_reads(MetricsText& text, const ReadTimes& times);
void add_source(MetricsText& text, std::span<const Statistics::File> files);

}  // namespace ckfs
