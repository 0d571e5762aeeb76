// Programs, people and Prometheus want the same counters, each under names of its own rules. So a
// counter is a row of one table, and each form is a loop over that table. Each form writes the rest
// (files, errors, times of reads) by hand.
#include "api/status.h"

#include <algorithm>
#include <array>
#include <fmt/chrono.h>
#include <iterator>
#include <span>

#include "api/checkpoint_impl.h"
#include "api/metrics.h"
#include "api/report.h"
#include "api/report_json.h"
#include "base/size_text.h"
#include "base/text.h"

namespace ckfs {
namespace {

using Out = std::back_insert_iterator<std::string>;

constexpr std::int64_t kEndOfYear9999 = 253'402'300'799;

enum class Unit : std::uint8_t { Count, Bytes, Budget };
enum class Type : std::uint8_t { Counter, Gauge };

/// Of the counters of `Counts`.
template <typename Counts>
struct FieldOf {
  const char* name;         // in status.json
  std::string_view label;   // in the table
  std::string_view metric;  // behind "ckfs_"; empty: metrics_text() has it by kind of file
  Type type;
  Unit unit;
  std::string_view help;
  std::uint64_t Counts::* value;
};
using Field = FieldOf<Statistics>;
using RemoteField = FieldOf<RemoteStatistics>;

constexpr std::array kFields{
    Field{"requests", "requests", "requests_total", Type::Counter, Unit::Count,
          "Reads of view files that the daemon answered.", &Statistics::requests},
    Field{"bytes_to_readers", "bytes to readers", "bytes_to_readers_total", Type::Counter,
          Unit::Bytes, "Bytes that readers got: answers, and pages put into the page cache.",
          &Statistics::bytes_to_readers},
    Field{"bytes_delivered", "bytes delivered", "bytes_delivered_total", Type::Counter, Unit::Bytes,
          "Bytes put into the page cache ahead of their reader.", &Statistics::bytes_delivered},
    Field{"source_bytes", "source bytes", "", Type::Counter, Unit::Bytes,
          "Bytes read from the source.", &Statistics::source_bytes},
    Field{"tiles", "tiles", "tiles_total", Type::Counter, Unit::Count,
          "Tiles (parts of tensors) computed.", &Statistics::tiles},
    Field{"tiles_unread", "tiles not read", "tiles_unread_total", Type::Counter, Unit::Count,
          "Tiles dropped from memory before any reader got them.", &Statistics::tiles_unread},
    Field{"hits", "tile cache hits", "hits_total", Type::Counter, Unit::Count, "Tile cache hits.",
          &Statistics::hits},
    Field{"memory", "memory", "memory_bytes", Type::Gauge, Unit::Bytes,
          "Memory of the budget in use.", &Statistics::memory},
    Field{"memory_peak", "memory peak", "memory_peak_bytes", Type::Gauge, Unit::Bytes,
          "Most memory of the budget that was in use at once.", &Statistics::memory_peak},
    Field{"memory_budget", "memory budget", "memory_budget_bytes", Type::Gauge, Unit::Budget,
          "The memory budget (--memory).", &Statistics::memory_budget},
    Field{"decoded_bytes", "decoded bytes", "decoded_bytes_total", Type::Counter, Unit::Bytes,
          "Bytes that came out of compressed chunks.", &Statistics::decoded_bytes},
    Field{"spilled_bytes", "spilled bytes", "spilled_bytes_total", Type::Counter, Unit::Bytes,
          "Bytes written to the --spill directory.", &Statistics::spilled_bytes},
};

/// Members of "remote": of sources on other machines.
constexpr std::array kRemoteFields{
    RemoteField{"requests", "server requests", "remote_requests_total", Type::Counter, Unit::Count,
                "Requests to servers, with those that were sent again.",
                &RemoteStatistics::requests},
    RemoteField{"bytes", "server bytes", "remote_bytes_total", Type::Counter, Unit::Bytes,
                "Bytes of the answers of servers.", &RemoteStatistics::bytes},
    RemoteField{"retries", "sent again", "remote_retries_total", Type::Counter, Unit::Count,
                "Requests that were sent again.", &RemoteStatistics::retries},
    RemoteField{"faults", "broken off", "remote_faults_total", Type::Counter, Unit::Count,
                "Connections to servers that failed, stalled or were cut.",
                &RemoteStatistics::faults},
    RemoteField{"window", "at once", "remote_window", Type::Gauge, Unit::Count,
                "Requests to servers that may be under way at once, now.",
                &RemoteStatistics::window},
    RemoteField{"cache_found", "found in cache", "cache_found_bytes_total", Type::Counter,
                Unit::Bytes, "Bytes that the disk cache had.", &RemoteStatistics::cache_found},
    RemoteField{"cache_missed", "not in cache", "cache_missed_bytes_total", Type::Counter,
                Unit::Bytes, "Bytes that the disk cache did not have.",
                &RemoteStatistics::cache_missed},
    RemoteField{"cache_kept", "put into cache", "cache_kept_bytes_total", Type::Counter,
                Unit::Bytes, "Bytes that were put into the disk cache.",
                &RemoteStatistics::cache_kept},
    RemoteField{"cache_left_out", "left out of cache", "cache_left_out_bytes_total", Type::Counter,
                Unit::Bytes, "Bytes that were fetched and not kept: no room, or no time.",
                &RemoteStatistics::cache_left_out},
    RemoteField{"cache_evicted", "made room", "cache_evicted_bytes_total", Type::Counter,
                Unit::Bytes, "Bytes that left the disk cache to make room.",
                &RemoteStatistics::cache_evicted},
};

// What every version's status.json has, and the rates need.
constexpr std::array kRequired{"requests", "bytes_to_readers", "source_bytes"};

std::uint64_t number(const Json& object, const char* key) {
  return object[key].get<std::uint64_t>();
}

bool has_numbers(const Json& object, std::span<const char* const> keys) {
  return object.is_object() && std::ranges::all_of(keys, [&](const char* key) {
           return object.contains(key) && object[key].is_number_unsigned();
         });
}

bool has_strings(const Json& object, std::span<const char* const> keys) {
  return object.is_object() && std::ranges::all_of(keys, [&](const char* key) {
           return object.contains(key) && object[key].is_string();
         });
}

/// The string, in one line; empty where there is none.
std::string text_of(const Json& object, const char* key) {
  return has_strings(object, std::array{key}) ? one_line(object[key].get<std::string>())
                                              : std::string();
}

/// The members of the array `key` that have these strings and numbers.
std::vector<Json> rows_of(const Json& json, const char* key, std::span<const char* const> strings,
                          std::span<const char* const> numbers) {
  std::vector<Json> rows;
  for (const Json& row : json.value(key, Json::array())) {
    if (has_strings(row, strings) && has_numbers(row, numbers)) rows.push_back(row);
  }
  return rows;
}

std::vector<Json> errors_of(const Json& json) {
  return rows_of(json, "errors", std::array{"operation", "error", "kind"}, std::array{"count"});
}

/// A status.json of a version that we know, with all members that every daemon gives.
Result<Json> parse_status(std::string_view status_json) {
  constexpr int kDepth = 16;
  bool deep = false;
  const auto is_shallow = [&](int depth, Json::parse_event_t, const Json&) {
    deep = deep || depth > kDepth;
    return !deep;
  };
  const Json json = Json::parse(status_json, is_shallow, /*allow_exceptions=*/false);
  const bool known =
      !deep && has_numbers(json, kRequired) && has_strings(json, std::array{"io"}) &&
      json.contains("version") && json["version"] == kReportVersion &&
      std::ranges::all_of(std::array{"files", "given", "errors"}, [&](const char* key) {
        return !json.contains(key) || json[key].is_array();
      });
  if (!known) {
    return fail(ErrorCode::Corrupt, "status.json: not a status of version {}", kReportVersion);
  }
  return json;
}

/// "3 d 04:05:06"
std::string duration_text(std::uint64_t seconds) {
  const std::uint64_t days = seconds / 86'400;
  return fmt::format("{}{:02}:{:02}:{:02}", days > 0 ? fmt::format("{} d ", days) : "",
                     seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
}

/// "stale 2, io 1", the most frequent first.
std::string kinds_text(const Json& json) {
  std::map<std::string, std::uint64_t> counts;
  for (const Json& row : errors_of(json)) counts[text_of(row, "kind")] += number(row, "count");
  std::vector<std::pair<std::string, std::uint64_t>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, std::greater(), &std::pair<std::string, std::uint64_t>::second);
  std::string text;
  for (const auto& [kind, count] : sorted) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, count);
  }
  return text;
}

std::uint64_t errors_count(const Json& json) {
  std::uint64_t count = 0;
  for (const Json& row : errors_of(json)) count += number(row, "count");
  return count;
}

/// "2026-11-29 10:00:12 UTC: MESSAGE"; empty: none.
std::string last_error_text(const Json& json) {
  const auto last = json.find("last_error");
  if (last == json.end() || !has_strings(*last, std::array{"message"}) ||
      !has_numbers(*last, std::array{"time"})) {
    return {};
  }
  const auto time = std::min<std::uint64_t>(number(*last, "time"), kEndOfYear9999 + 1);
  return fmt::format("{}: {}", date_text(static_cast<std::int64_t>(time)),
                     text_of(*last, "message"));
}

/// The head of the table: the process that serves, its source, and its errors.
void add_mount(const Json& json, std::string& text) {
  for (const char* key : {"mountpoint", "source", "log"}) {
    const std::string value = text_of(json, key);
    if (!value.empty()) fmt::format_to(Out(text), "{:<18} {}\n", key, value);
  }
  if (has_numbers(json, std::array{"pid", "uptime"}) && number(json, "pid") > 0) {
    fmt::format_to(Out(text), "{:<18} {}\n{:<18} {}\n", "pid", number(json, "pid"), "uptime",
                   duration_text(number(json, "uptime")));
  }
  if (!json.contains("errors")) return;  // a daemon of an earlier version
  const std::string kinds = kinds_text(json);
  fmt::format_to(Out(text), "{:<18} {:>15}{}\n", "errors", errors_count(json),
                 kinds.empty() ? "" : "  " + kinds);
  const std::string last = last_error_text(json);
  if (!last.empty()) fmt::format_to(Out(text), "{:<18} {}\n", "last error", last);
}

}  // namespace

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::NotFound:
      return "not_found";
    case ErrorCode::Corrupt:
      return "corrupt";
    case ErrorCode::Unsupported:
      return "unsupported";
    case ErrorCode::InvalidArgument:
      return "invalid_argument";
    case ErrorCode::Io:
      return "io";
    case ErrorCode::Stale:
      return "stale";
    case ErrorCode::OutOfMemory:
      return "out_of_memory";
    case ErrorCode::Internal:
      return "internal";
    case ErrorCode::Stopped:
      return "stopped";
    case ErrorCode::NotDirectory:
      return "not_directory";
    case ErrorCode::IsDirectory:
      return "is_directory";
    case ErrorCode::ReadOnly:
      return "read_only";
    case ErrorCode::BadHandle:
      return "bad_handle";
    case ErrorCode::NoAttribute:
      return "no_attribute";
  }
  return "internal";
}

std::string date_text(std::int64_t time) {
  if (time < 0 || time > kEndOfYear9999) return fmt::format("{} s since 1970", time);
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(time)));
}

std::string status_json(const Checkpoint& checkpoint, const MountFacts& mount,
                        const MountErrors& errors, std::int64_t now) {
  const Statistics statistics = checkpoint.statistics();
  Json json = versioned();
  json["mountpoint"] = mount.mountpoint;
  json["source"] = mount.source;
  json["log"] = mount.log;
  json["pid"] = mount.pid;
  json["started"] = mount.started;
  json["uptime"] = std::max<std::int64_t>(0, now - mount.started);
  json["errors"] = Json::array();
  for (const auto& [error, count] : errors.counts) {
    json["errors"].push_back({{"operation", error.operation},
                              {"error", error.error},
                              {"kind", error.kind},
                              {"count", count}});
  }
  if (errors.last) {
    json["last_error"] = {{"time", errors.last->time},
                          {"operation", errors.last->error.operation},
                          {"error", errors.last->error.error},
                          {"kind", errors.last->error.kind},
                          {"message", errors.last->message}};
  }
  for (const Field& field : kFields) json[field.name] = statistics.*field.value;
  json["io"] = statistics.io;
  if (statistics.remote) {
    for (const RemoteField& field : kRemoteFields) {
      json["remote"][field.name] = (*statistics.remote).*field.value;
    }
  }
  json["files"] = Json::array();
  for (const Statistics::File& file : statistics.source) {
    json["files"].push_back({{"path", file.path},
                             {"bytes", file.bytes},
                             {"requests", file.requests},
                             {"size", file.size}});
  }
  json["given"] = Json::array();
  for (const Statistics::Given& file : statistics.given) {
    json["given"].push_back({{"view", file.view}, {"path", file.path}, {"bytes", file.bytes}});
  }
  return render(json);
}

std::string metrics_text(const Checkpoint& checkpoint, const MountFacts& mount,
                         const MountErrors& errors) {
  const Statistics statistics = checkpoint.statistics();
  MetricsText text({{"mount", mount.mountpoint}, {"source", mount.source}});
  text.head("info", "gauge", "Always 1; the labels say what runs, and how it reads.");
  text.sample("info",
              {{"version", std::string(version())},
               {"layout_version", fmt::format("{}", kLayoutVersion)},
               {"io", statistics.io}},
              std::uint64_t{1});
  if (mount.started > 0) {
    text.head("start_time_seconds", "gauge", "When the daemon began, in seconds since 1970.");
    text.sample("start_time_seconds", {}, static_cast<std::uint64_t>(mount.started));
  }
  for (const Field& field : kFields) {
    if (field.metric.empty()) continue;
    text.head(field.metric, field.type == Type::Counter ? "counter" : "gauge", field.help);
    text.sample(field.metric, {}, statistics.*field.value);
  }
  if (statistics.remote) {
    for (const RemoteField& field : kRemoteFields) {
      text.head(field.metric, field.type == Type::Counter ? "counter" : "gauge", field.help);
      text.sample(field.metric, {}, (*statistics.remote).*field.value);
    }
  }
  add_reads(text, impl_of(checkpoint).read_times);
  add_source(text, statistics.source);
  text.head("errors_total", "counter",
            "Operations that failed, by error and kind. A name that is not there is no error.");
  for (const auto& [error, count] : errors.counts) {
    text.sample("errors_total",
                {{"operation", error.operation}, {"error", error.error}, {"kind", error.kind}},
                count);
  }
  if (errors.last) {
    text.head("last_error_time_seconds", "gauge",
              "When an operation last failed by no mistake of its caller, in seconds since 1970.");
    text.sample("last_error_time_seconds", {}, static_cast<std::uint64_t>(errors.last->time));
  }
  return text.take();
}

Result<std::string> checked_status(std::string_view status_json) {
  CKFS_TRY(const Json json, parse_status(status_json));
  return render(json);
}

Result<std::string> status_text(std::string_view status_json) {
  CKFS_TRY(const Json json, parse_status(status_json));
  std::string text;
  const Out out(text);
  add_mount(json, text);
  const auto add = [&](const Json& counts, const auto& field) {
    // A daemon of an earlier version does not have all.
    if (!has_numbers(counts, std::array{field.name})) return;
    const std::uint64_t value = number(counts, field.name);
    // The budget in the unit in which it was given.
    const std::string size = field.unit == Unit::Bytes    ? "  " + human_size(value)
                             : field.unit == Unit::Budget ? "  " + size_text(value)
                                                          : "";
    fmt::format_to(out, "{:<18} {:>15}{}\n", field.label, value, size);
  };
  for (const Field& field : kFields) add(json, field);
  if (const auto remote = json.find("remote"); remote != json.end()) {
    for (const RemoteField& field : kRemoteFields) add(*remote, field);
  }
  fmt::format_to(out, "{:<18} {:>15}\n", "io", text_of(json, "io"));
  for (const Json& file :
       rows_of(json, "files", std::array{"path"}, std::array{"bytes", "requests"})) {
    // How often it was read, where that can be told.
    const std::uint64_t size = has_numbers(file, std::array{"size"}) ? number(file, "size") : 0;
    const std::string share =
        size == 0 ? std::string(7, ' ')
                  : fmt::format("{:>6.2f}x", static_cast<double>(number(file, "bytes")) /
                                                 static_cast<double>(size));
    fmt::format_to(out, "{:>15} bytes {:>10} requests {}  {}\n", number(file, "bytes"),
                   number(file, "requests"), share, text_of(file, "path"));
  }
  for (const Json& file : rows_of(json, "given", std::array{"view", "path"}, std::array{"bytes"})) {
    fmt::format_to(out, "{:>15} bytes given          {}/{}\n", number(file, "bytes"),
                   text_of(file, "view"), text_of(file, "path"));
  }
  return text;
}

Result<std::string> status_rates(std::string_view before, std::string_view now, double seconds) {
  CKFS_TRY(const Json first, parse_status(before));
  CKFS_TRY(const Json last, parse_status(now));
  const auto change = [&](const char* key) {
    // A mount that was made anew counts from 0.
    const std::uint64_t from = number(first, key), to = number(last, key);
    return to < from || seconds <= 0 ? 0.0 : static_cast<double>(to - from) / seconds;
  };
  const auto size = [&](const char* key) {
    return human_size(static_cast<std::uint64_t>(change(key)));
  };
  std::string text;
  fmt::format_to(Out(text), "{:<18} {:>15.0f} /s\n{:<18} {:>15} /s\n{:<18} {:>15} /s\n", "requests",
                 change("requests"), "to readers", size("bytes_to_readers"), "of the source",
                 size("source_bytes"));
  return text;
}

Result<StatusErrors> status_errors(std::string_view status_json) {
  CKFS_TRY(const Json json, parse_status(status_json));
  StatusErrors errors{.count = errors_count(json),
                      .last = last_error_text(json),
                      .source = text_of(json, "source"),
                      .log = text_of(json, "log")};
  errors.stale = std::ranges::any_of(errors_of(json), [](const Json& row) {
    return text_of(row, "kind") == name(ErrorCode::Stale);
  });
  return errors;
}

}  // namespace ckfs
