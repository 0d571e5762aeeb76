// By hand: strptime() follows the locale, and knows neither fractions nor offsets everywhere.

#include "wire/times.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <fmt/format.h>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr auto kMonths = std::to_array<std::string_view>(
    {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"});
constexpr auto kDays =
    std::to_array<std::string_view>({"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"});

std::tm parts_of(std::int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return parts;
}

/// Takes that many digits off `text`.
std::optional<int> take_number(std::string_view& text, std::size_t digits) {
  int value = 0;
  if (text.size() < digits || !std::ranges::all_of(text.substr(0, digits), is_digit)) {
    return std::nullopt;
  }
  std::from_chars(text.data(), text.data() + digits, value);
  text.remove_prefix(digits);
  return value;
}

bool take_mark(std::string_view& text, std::string_view mark) {
  if (!text.starts_with(mark)) return false;
  text.remove_prefix(mark.size());
  return true;
}

std::optional<std::int64_t> seconds_of(int year, int month, int day, int hour, int minute,
                                       int second) {
  if (year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 ||
      second > 60) {
    return std::nullopt;
  }
  std::tm parts{};
  parts.tm_year = year - 1900;
  parts.tm_mon = month - 1;
  parts.tm_mday = day;
  parts.tm_hour = hour;
  parts.tm_min = minute;
  parts.tm_sec = second;
  return std::int64_t{::timegm(&parts)};
}

/// "HH:MM:SS"
struct TimeOfDay {
  int hour, minute, second;
};
std::optional<TimeOfDay> take_time(std::string_view& text) {
  const auto hour = take_number(text, 2);
  const auto minute = hour && take_mark(text, ":") ? take_number(text, 2) : std::nullopt;
  const auto second = minute && take_mark(text, ":") ? take_number(text, 2) : std::nullopt;
  if (!second) return std::nullopt;
  return TimeOfDay{*hour, *minute, *second};
}

}  // namespace

std::optional<std::int64_t> parse_iso_time(std::string_view text) {
  const auto year = take_number(text, 4);
  const auto month = year && take_mark(text, "-") ? take_number(text, 2) : std::nullopt;
  const auto day = month && take_mark(text, "-") ? take_number(text, 2) : std::nullopt;
  const auto time = day && take_mark(text, "T") ? take_time(text) : std::nullopt;
  if (!time) return std::nullopt;
  if (take_mark(text, ".")) {
    text.remove_prefix(std::min(text.find_first_not_of("0123456789"), text.size()));
  }
  auto seconds = seconds_of(*year, *month, *day, time->hour, time->minute, time->second);
  if (!seconds || text == "Z") return seconds;
  const int sign = text.starts_with('+') ? 1 : -1;
  if (!take_mark(text, "+") && !take_mark(text, "-")) return std::nullopt;
  const auto hours = take_number(text, 2);
  take_mark(text, ":");
  const auto minutes = hours ? take_number(text, 2) : std::nullopt;
  if (!minutes || !text.empty()) return std::nullopt;
  return *seconds - std::int64_t{sign} * (*hours * 3600 + *minutes * 60);
}

std::optional<std::int64_t> parse_http_time(std::string_view text) {
  const std::size_t comma = text.find(", ");
  if (comma != 3) return std::nullopt;
  text.remove_prefix(5);
  const auto day = take_number(text, 2);
  if (!day || !take_mark(text, " ")) return std::nullopt;
  const auto month = std::ranges::find(kMonths, text.substr(0, 3));
  if (month == kMonths.end()) return std::nullopt;
  text.remove_prefix(3);
  const auto year = take_mark(text, " ") ? take_number(text, 4) : std::nullopt;
  const auto time = year && take_mark(text, " ") ? take_time(text) : std::nullopt;
  if (!time || text != " GMT") return std::nullopt;
  return seconds_of(*year, static_cast<int>(month - kMonths.begin()) + 1, *day, time->hour,
                    time->minute, time->second);
}

std::string iso_time(std::int64_t unix_seconds) {
  const std::tm parts = parts_of(unix_seconds);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.000Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string http_time(std::int64_t unix_seconds) {
  const std::tm parts = parts_of(unix_seconds);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
                     kDays[static_cast<std::size_t>(parts.tm_wday)], parts.tm_mday,
                     kMonths[static_cast<std::size_t>(parts.tm_mon)], parts.tm_year + 1900,
                     parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace ckfs
