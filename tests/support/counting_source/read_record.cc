// Everything is exact and nothing is sampled: a test's source is read some ten thousand times at
// most. Only the log is bounded, because a test that loops would otherwise eat the machine before
// it is stopped.
#include "support/counting_source/read_record.h"

#include <cerrno>
#include <charconv>
#include <fmt/format.h>
#include <iterator>

namespace ckfs {
namespace {

constexpr std::size_t kLogLimit = 1'000'000;
constexpr std::uint64_t kEnd = ~std::uint64_t{0};
constexpr std::uint64_t kMostErrno = 4095;
constexpr std::uint64_t kMostMilliseconds = 60'000;

std::optional<std::uint64_t> number(std::string_view text) {
  if (text == "end") return kEnd;
  std::uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Takes the last word off `text`.
std::string_view last_word(std::string_view& text) {
  const std::size_t space = text.rfind(' ');
  if (space == std::string_view::npos) return {};
  const std::string_view word = text.substr(space + 1);
  text = text.substr(0, space);
  return word;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void ReadRecord::reset() {
  files_.clear();
  events_.clear();
  poisoned_.clear();
  failed_reads_ = 0;
}

bool ReadRecord::slows(std::string_view verb, std::string_view rest) {
  if (verb == "cloud-disk" && rest.empty()) {
    slow_.set(SlowSource::Speed::cloud_disk());
    return true;
  }
  const auto value = number(rest);
  if (!value) return false;
  const std::uint64_t limit = *value == kEnd ? 0 : *value;
  SlowSource::Speed speed = slow_.speed();
  if (verb == "delay" || verb == "jump") {
    if (*value > kMostMilliseconds) return false;
    (verb == "delay" ? speed.delay : speed.jump) = std::chrono::milliseconds(*value);
  } else if (verb == "bandwidth") {
    speed.request_bandwidth = limit;
  } else if (verb == "total-bandwidth") {
    speed.total_bandwidth = limit;
  } else if (verb == "in-flight") {
    speed.in_flight = limit;
  } else {
    return false;
  }
  slow_.set(speed);
  return true;
}

bool ReadRecord::command(std::string_view line) {
  const std::size_t space = line.find(' ');
  const std::string_view verb = line.substr(0, space);
  std::string_view rest =
      space == std::string_view::npos ? std::string_view{} : line.substr(space + 1);
  const std::lock_guard lock(mutex_);
  if (verb == "reset" && rest.empty()) {
    reset();
    return true;
  }
  if (verb == "clear" && rest.empty()) {
    rules_.clear();
    slow_.set({});
    limit_ = kEnd;
    return true;
  }
  if (verb == "short") {
    const auto value = number(rest);
    if (!value || *value == 0) return false;  // the reader would take 0 for the end of the file
    limit_ = *value;
    return true;
  }
  if (slows(verb, rest)) return true;
  if (verb != "poison" && verb != "fail" && verb != "late") return false;
  // The file's name comes first and may hold spaces; so the numbers are taken from the end.
  int last = EIO;
  if (verb != "poison") {
    const auto value = number(last_word(rest));
    const std::uint64_t most = verb == "fail" ? kMostErrno : kMostMilliseconds;
    if (!value || *value == 0 || *value > most) return false;
    last = static_cast<int>(*value);
  }
  const auto end = number(last_word(rest));
  const auto begin = number(last_word(rest));
  if (!begin || !end || *begin > *end || rest.empty()) return false;
  const Kind kind = verb == "poison" ? Kind::Poison : verb == "fail" ? Kind::Fail : Kind::Late;
  rules_.push_back({kind, std::string(rest), *begin, *end, last});
  return true;
}

Verdict ReadRecord::judge(const std::string& file, std::uint64_t offset, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  Verdict verdict{.limit = limit_};
  for (const Rule& rule : rules_) {
    if ((rule.file != "*" && rule.file != file) || offset >= rule.end ||
        offset + size <= rule.begin) {
      continue;
    }
    if (rule.kind == Kind::Late) {
      verdict.late += std::chrono::milliseconds(rule.number);
      continue;
    }
    const Event event{file, offset, -std::int64_t{rule.number}};
    if (rule.kind == Kind::Poison) poisoned_.push_back({file, offset, std::int64_t(size)});
    if (events_.size() < kLogLimit) events_.push_back(event);
    ++failed_reads_;
    verdict.error = rule.number;
    return verdict;
  }
  return verdict;
}

void ReadRecord::count(const std::string& file, std::uint64_t offset, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (events_.size() < kLogLimit) events_.push_back({file, offset, std::int64_t(size)});
  File& of = files_[file];
  ++of.requests;
  of.bytes += size;
  if (size == 0) return;
  std::uint64_t begin = offset, end = offset + size;
  auto next = of.ranges.upper_bound(begin);
  if (next != of.ranges.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != of.ranges.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = of.ranges.erase(next);
  }
  of.ranges.emplace(begin, end);
}

void ReadRecord::count_open(const std::string& file) {
  const std::lock_guard lock(mutex_);
  ++files_[file].opens;
}

std::string ReadRecord::counts_json() const {
  const std::lock_guard lock(mutex_);
  std::string files, poisoned;
  std::uint64_t bytes = 0, requests = 0;
  for (const auto& [name, file] : files_) {
    std::string ranges;
    std::uint64_t unique = 0;
    for (const auto& [begin, end] : file.ranges) {
      ranges += fmt::format("{}[{},{}]", ranges.empty() ? "" : ",", begin, end);
      unique += end - begin;
    }
    files += fmt::format(
        "{}{}:{{\"bytes\":{},\"requests\":{},\"opens\":{},\"unique_bytes\":{},\"ranges\":[{}]}}",
        files.empty() ? "" : ",", quoted(name), file.bytes, file.requests, file.opens, unique,
        ranges);
    bytes += file.bytes;
    requests += file.requests;
  }
  for (const Event& event : poisoned_) {
    poisoned += fmt::format("{}[{},{},{}]", poisoned.empty() ? "" : ",", quoted(event.file),
                            event.offset, event.offset + std::uint64_t(event.result));
  }
  return fmt::format(
      "{{\"files\":{{{}}},\"bytes\":{},\"requests\":{},\"poisoned_reads\":{},\"poisoned\":[{}],"
      "\"failed_reads\":{}}}\n",
      files, bytes, requests, poisoned_.size(), poisoned, failed_reads_);
}

std::string ReadRecord::log_text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Event& event : events_) {
    fmt::format_to(std::back_inserter(text), "{} {} {}\n", event.offset, event.result, event.file);
  }
  return text;
}

}  // namespace ckfs
