// What a mount has done, as Prometheus reads it (text format 0.0.4): .ckfs/metrics.
//
// Safe for concurrent use.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <ckfs/checkpoint.h>

#include "container/file_layout.h"

namespace ckfs {

/// How the first byte of a read comes about (engine/engine.h).
enum class ReadKind : std::uint8_t { Text, Copy, Decode, Gather };

/// Requires: offset < layout.size.
ReadKind kind_of_read(const FileLayout& layout, std::uint64_t offset);

/// How long reads took, by kind.
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

/// By operation and name of the errno: {"read", "EIO"}.
using ErrorCounts = std::map<std::pair<std::string, std::string>, std::uint64_t>;

std::string metrics_text(const Checkpoint& checkpoint, const ErrorCounts& errors);

}  // namespace ckfs
