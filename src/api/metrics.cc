#include "api/metrics.h"

#include <fmt/format.h>
#include <iterator>
#include <string_view>

#include "api/checkpoint_impl.h"
#include "engine/read_plan.h"

namespace ckfs {

namespace {

constexpr std::uint64_t kFirstBucket = 16'000;  // nanoseconds

constexpr std::pair<ReadKind, std::string_view> kKinds[] = {{ReadKind::Text, "text"},
                                                            {ReadKind::Copy, "copy"},
                                                            {ReadKind::Decode, "decode"},
                                                            {ReadKind::Gather, "gather"}};

/// What kind of file of the source, by the end of its name.
std::string_view class_of(std::string_view path) {
  constexpr std::pair<std::string_view, std::string_view> kEnds[] = {
      {".safetensors", "safetensors"},
      {".bin", "torch"},
      {".pt", "torch"},
      {".pth", "torch"},
      {".distcp", "torch"}};
  for (const auto& [end, name] : kEnds) {
    if (path.ends_with(end)) return name;
  }
  return "other";
}

class Text {
 public:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    add("# HELP ckfs_{0} {1}\n# TYPE ckfs_{0} {2}\n", name, help, type);
  }
  void single(std::string_view name, std::string_view type, std::string_view help,
              std::uint64_t value) {
    head(name, type, help);
    add("ckfs_{} {}\n", name, value);
  }
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_reads(Text& text, const ReadTimes& times) {
  text.head("read_seconds", "histogram",
            "How long reads took, by how their first byte comes about.");
  for (const auto& [kind, name] : kKinds) {
    const ReadTimes::Times row = times.times(kind);
    std::uint64_t count = 0;
    std::uint64_t limit = kFirstBucket;
    for (std::size_t b = 0; b + 1 < ReadTimes::kBuckets; ++b, limit *= 4) {
      count += row.buckets[b];
      text.add("ckfs_read_seconds_bucket{{kind=\"{}\",le=\"{:.6f}\"}} {}\n", name,
               static_cast<double>(limit) / 1e9, count);
    }
    count += row.buckets.back();
    text.add("ckfs_read_seconds_bucket{{kind=\"{}\",le=\"+Inf\"}} {}\n", name, count);
    text.add("ckfs_read_seconds_sum{{kind=\"{}\"}} {:.9f}\n", name,
             static_cast<double>(row.nanoseconds) / 1e9);
    text.add("ckfs_read_seconds_count{{kind=\"{}\"}} {}\n", name, count);
  }
  text.head("read_bytes_total", "counter", "Bytes given to readers, by the same kinds.");
  for (const auto& [kind, name] : kKinds) {
    text.add("ckfs_read_bytes_total{{kind=\"{}\"}} {}\n", name, times.times(kind).bytes);
  }
}

}  // namespace

ReadKind kind_of_read(const FileLayout& layout, std::uint64_t offset) {
  const Segment& segment = layout.segments[layout.find(offset)];
  switch (segment.kind) {
    case Segment::Kind::Literal:
    case Segment::Kind::Zero:
      return ReadKind::Text;
    case Segment::Kind::File:
      return ReadKind::Copy;
    case Segment::Kind::Tensor:
      break;
  }
  const Catalog& catalog = *layout.definition->catalog;
  const TensorExpr& expr = layout.expr(segment.id);
  if (needs_tiles(catalog, expr)) return ReadKind::Gather;
  // One box stands for all: they are of one storage's kind but for padding.
  if (const auto whole = expr.whole()) {
    return is_move(catalog.storage(whole->storage), whole->program.get()) ? ReadKind::Copy
                                                                          : ReadKind::Decode;
  }
  for (const Box& box : expr.box_list()) {
    if (box.is_constant()) continue;
    return is_move(catalog.storage(box.source), expr.steps_of(box).get()) ? ReadKind::Copy
                                                                          : ReadKind::Decode;
  }
  return ReadKind::Text;
}

void ReadTimes::add(ReadKind kind, std::chrono::nanoseconds time, std::uint64_t bytes) {
  Row& row = rows_[static_cast<std::size_t>(kind)];
  const auto nanoseconds = static_cast<std::uint64_t>(time.count());
  std::size_t bucket = 0;
  for (std::uint64_t limit = kFirstBucket; bucket + 1 < kBuckets && nanoseconds > limit;
       limit *= 4) {
    ++bucket;
  }
  row.buckets[bucket].fetch_add(1, std::memory_order_relaxed);
  row.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
  row.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

ReadTimes::Times ReadTimes::times(ReadKind kind) const {
  const Row& row = rows_[static_cast<std::size_t>(kind)];
  Times times;
  for (std::size_t b = 0; b < kBuckets; ++b) {
    times.buckets[b] = row.buckets[b].load(std::memory_order_relaxed);
  }
  times.nanoseconds = row.nanoseconds.load(std::memory_order_relaxed);
  times.bytes = row.bytes.load(std::memory_order_relaxed);
  return times;
}

std::string metrics_text(const Checkpoint& checkpoint, const ErrorCounts& errors) {
  const Statistics statistics = checkpoint.statistics();
  Text text;
  text.head("info", "gauge", "What runs, and how it reads.");
  text.add("ckfs_info{{version=\"{}\",layout_version=\"{}\",io=\"{}\"}} 1\n", version(),
           kLayoutVersion, statistics.io);
  text.single("requests_total", "counter", "Reads by users of the views.", statistics.requests);
  text.single("bytes_to_readers_total", "counter",
              "Bytes that readers got: answers, and pages put into the page cache.",
              statistics.bytes_to_readers);
  text.single("bytes_delivered_total", "counter",
              "Bytes put into the page cache ahead of their reader.", statistics.bytes_delivered);
  add_reads(text, checkpoint.impl().read_times);
  text.single("tiles_total", "counter", "Tiles and pieces ahead of readers that were computed.",
              statistics.tiles);
  text.single("tiles_unread_total", "counter",
              "Tiles and pieces that went before anybody had read them.", statistics.tiles_unread);
  text.single("hits_total", "counter", "Looks for a tile that found it computed.", statistics.hits);
  text.single("memory_bytes", "gauge", "Budgeted memory in use.", statistics.memory);
  text.single("memory_peak_bytes", "gauge", "The most that was ever in use.",
              statistics.memory_peak);
  text.single("memory_budget_bytes", "gauge", "What --memory allows.", statistics.memory_budget);
  text.single("decoded_bytes_total", "counter", "Bytes made of compressed chunks.",
              statistics.decoded_bytes);
  text.single("spilled_bytes_total", "counter", "Bytes written to --spill.",
              statistics.spilled_bytes);
  std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> classes;
  for (const Statistics::File& file : statistics.source) {
    auto& [bytes, requests] = classes[class_of(file.path)];
    bytes += file.bytes;
    requests += file.requests;
  }
  text.head("source_bytes_total", "counter", "Bytes read of the source, by kind of file.");
  for (const auto& [name, sums] : classes) {
    text.add("ckfs_source_bytes_total{{class=\"{}\"}} {}\n", name, sums.first);
  }
  text.head("source_requests_total", "counter", "Reads of the source, by kind of file.");
  for (const auto& [name, sums] : classes) {
    text.add("ckfs_source_requests_total{{class=\"{}\"}} {}\n", name, sums.second);
  }
  text.head("errors_total", "counter",
            "Operations that failed; most that ask for what is not there, or for a change, are "
            "left out.");
  for (const auto& [what, count] : errors) {
    text.add("ckfs_errors_total{{operation=\"{}\",error=\"{}\"}} {}\n", what.first, what.second,
             count);
  }
  return text.take();
}

}  // namespace ckfs
