#include "api/metrics.h"

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <string_view>

#include "base/text.h"
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

/// As Prometheus reads it back: only backslash, quotes and line ends are escaped, and the text is
/// UTF-8. Names of files need not be: a byte that is not gets U+FFFD in its place.
std::string escaped(std::string_view value) {
  std::string text;
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t length = utf8_length(value, at);
    const std::string_view character = value.substr(at, std::max<std::size_t>(length, 1));
    at += character.size();
    if (length == 0) {
      text += "\uFFFD";
    } else if (character == "\n") {
      text += "\\n";
    } else {
      if (character == "\\" || character == "\"") text += '\\';
      text += character;
    }
  }
  return text;
}

std::string label_list(const MetricsText::Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, escaped(value));
  }
  return text;
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
  if (needs_tiles(layout, segment.id)) return ReadKind::Gather;
  // One box speaks for all: padding aside, the storages of a tensor are of one kind.
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

MetricsText::MetricsText(const Labels& everywhere) : everywhere_(label_list(everywhere)) {}

void MetricsText::head(std::string_view name, std::string_view type, std::string_view help) {
  text_ += fmt::format("# HELP ckfs_{0} {1}\n# TYPE ckfs_{0} {2}\n", name, help, type);
}

void MetricsText::sample(std::string_view name, const Labels& labels, std::uint64_t value) {
  add(name, labels, fmt::format("{}", value));
}

void MetricsText::sample(std::string_view name, const Labels& labels, double value) {
  add(name, labels, fmt::format("{:.9f}", value));
}

void MetricsText::add(std::string_view name, const Labels& labels, std::string_view value) {
  const std::string own = label_list(labels);
  text_ +=
      fmt::format("ckfs_{}{{{}{}{}}} {}\n", name, everywhere_, own.empty() ? "" : ",", own, value);
}

void add_reads(MetricsText& text, const ReadTimes& times) {
  text.head("read_seconds", "histogram", "How long reads took, by how their first byte is made.");
  for (const auto& [kind, word] : kKinds) {
    const std::string name(word);
    const ReadTimes::Times row = times.times(kind);
    std::uint64_t count = 0;
    std::uint64_t limit = kFirstBucket;
    for (std::size_t b = 0; b + 1 < ReadTimes::kBuckets; ++b, limit *= 4) {
      count += row.buckets[b];
      const std::string le = fmt::format("{:.6f}", static_cast<double>(limit) / 1e9);
      text.sample("read_seconds_bucket", {{"kind", name}, {"le", le}}, count);
    }
    count += row.buckets.back();
    text.sample("read_seconds_bucket", {{"kind", name}, {"le", "+Inf"}}, count);
    text.sample("read_seconds_sum", {{"kind", name}}, static_cast<double>(row.nanoseconds) / 1e9);
    text.sample("read_seconds_count", {{"kind", name}}, count);
  }
  text.head("read_bytes_total", "counter",
            "Bytes of answers to reads, by kind; pages put into the page cache are not counted.");
  for (const auto& [kind, word] : kKinds) {
    text.sample("read_bytes_total", {{"kind", std::string(word)}}, times.times(kind).bytes);
  }
}

void add_source(MetricsText& text, std::span<const Statistics::File> files) {
  std::map<std::string_view, std::pair<std::uint64_t, std::uint64_t>> classes;
  for (const Statistics::File& file : files) {
    auto& [bytes, requests] = classes[class_of(file.path)];
    bytes += file.bytes;
    requests += file.requests;
  }
  text.head("source_bytes_total", "counter", "Bytes read from the source, by kind of file.");
  for (const auto& [name, sums] : classes) {
    text.sample("source_bytes_total", {{"class", std::string(name)}}, sums.first);
  }
  text.head("source_requests_total", "counter", "Reads of the source, by kind of file.");
  for (const auto& [name, sums] : classes) {
    text.sample("source_requests_total", {{"class", std::string(name)}}, sums.second);
  }
}

}  // namespace ckfs
