// The speed is that of the whole run: what an earlier run has done does not count.
#include "cli/progress.h"

#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include <ckfs/report.h>

#include "base/size_text.h"
#include "base/text.h"

namespace ckfs::cli {

namespace {

constexpr std::pair<std::string_view, ProgressMode> kModes[] = {{"auto", ProgressMode::Auto},
                                                                {"plain", ProgressMode::Plain},
                                                                {"json", ProgressMode::Json},
                                                                {"none", ProgressMode::None}};

constexpr std::chrono::milliseconds kBarInterval{100};
constexpr std::chrono::milliseconds kJsonInterval{1000};
constexpr std::chrono::milliseconds kPlainInterval{30'000};

}  // namespace

void add_progress(CLI::App& verb, ProgressOptions& options) {
  verb.add_option_function<std::string>(
          "--progress",
          [&options](const std::string& value) {
            const auto* const found =
                std::ranges::find(kModes, value, &std::pair<std::string_view, ProgressMode>::first);
            if (found == std::end(kModes)) {
              throw CLI::ValidationError(fmt::format(
                  "--progress: \"{}\" is not one of auto, plain, json, none", one_line(value)));
            }
            options.mode = found->second;
          },
          "show progress on standard error: as lines, as JSON, or not at all (default auto: a bar "
          "on a terminal, else a line every 30 seconds)")
      ->type_name("auto|plain|json|none");
  verb.add_option_function<std::string>(
          "--progress-interval",
          [&options](const std::string& value) {
            const Result<std::uint64_t> number = parse_number("--progress-interval", value);
            if (!number) throw CLI::ValidationError(number.error().message());
            options.interval = std::chrono::milliseconds(
                static_cast<std::int64_t>(std::min<std::uint64_t>(*number, 1'000'000'000)));
          },
          "milliseconds between two lines; for tests")
      ->type_name("N")
      ->group("");
}

void say_what_is_fetched(const ProgressOptions& options, const View& view,
                         const std::string& source) {
  if (options.mode == ProgressMode::None || options.mode == ProgressMode::Json) return;
  const std::uint64_t bytes = bytes_elsewhere(view);
  if (bytes == 0) return;
  const std::string line =
      one_line(fmt::format("{}: {} to fetch for {}, less what the disk cache has",
                           shown_source(source), human_size(bytes), view.name()));
  std::fprintf(stderr, "%s\n", line.c_str());
}

Progress::Progress(const ProgressOptions& options, std::string verb)
    : verb_(std::move(verb)),
      form_(Form::None),
      brief_(options.mode == ProgressMode::Auto),
      begin_(Clock::now()),
      last_(begin_) {
  switch (options.mode) {
    case ProgressMode::Auto:
      form_ = ::isatty(STDERR_FILENO) == 1 ? Form::Bar : Form::Plain;
      break;
    case ProgressMode::Plain:
      form_ = Form::Plain;
      break;
    case ProgressMode::Json:
      form_ = Form::Json;
      break;
    case ProgressMode::None:
      break;
  }
  interval_ = options.interval.value_or(form_ == Form::Bar    ? kBarInterval
                                        : form_ == Form::Json ? kJsonInterval
                                                              : kPlainInterval);
}

void Progress::show(std::uint64_t done, std::uint64_t total) {
  if (!begun_) at_start_ = done;
  const bool first = !std::exchange(begun_, true);
  done_ = done;
  total_ = total;
  if (form_ == Form::None) return;
  const Clock::time_point now = Clock::now();
  const bool due = now - last_ >= interval_;
  if (form_ == Form::Bar) {
    if (!due && !first && done < total) return;
    last_ = now;
    draw_bar();
  } else if (due || (first && form_ == Form::Json)) {
    last_ = now;
    write_line();
  }
}

void Progress::end() {
  if (form_ == Form::Bar && drawn_) {
    std::fputs("\r\033[K", stderr);
  } else if (form_ != Form::Bar && form_ != Form::None && begun_ && (drawn_ || !brief_)) {
    write_line();
  }
  form_ = Form::None;
}

/// "3.4 GB of 17.7 GB  278 MB/s  0:00:51 left"
std::string Progress::text() const {
  const double passed = seconds();
  const double speed = passed > 0 ? static_cast<double>(done_ - at_start_) / passed : 0;
  const double part = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1;
  const bool known = speed > 0 && done_ < total_;
  const double left = known ? static_cast<double>(total_ - done_) / speed : 0;
  if (form_ == Form::Json) {
    return fmt::format(
        R"({{"version": 1, "verb": "{}", "done": {}, "total": {}, "seconds": {:.3f}, )"
        R"("bytes_per_second": {:.0f}, "seconds_left": {}}})",
        verb_, done_, total_, passed, speed, known ? fmt::format("{:.0f}", left) : "null");
  }
  std::string line = fmt::format("{:3.0f}%  {} of {}  {}/s", part * 100, human_size(done_),
                                 human_size(total_), human_size(static_cast<std::uint64_t>(speed)));
  if (known) {
    const auto whole = static_cast<std::uint64_t>(left);
    line += fmt::format("  {}:{:02}:{:02} left", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return line;
}

void Progress::write_line() {
  drawn_ = true;
  std::fprintf(stderr, form_ == Form::Json ? "%s%s\n" : "ckfs: %s: %s\n",
               form_ == Form::Json ? "" : verb_.c_str(), text().c_str());
  std::fflush(stderr);
}

void Progress::draw_bar() {
  drawn_ = true;
  std::string line = text();
  const double part = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1;
  winsize window{};
  const std::size_t columns =
      ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
  if (columns > line.size() + 8) {
    const std::size_t width = std::min<std::size_t>(columns - line.size() - 5, 40);
    const auto filled = static_cast<std::size_t>(part * static_cast<double>(width));
    line = fmt::format("[{:<{}}] {}", std::string(std::min(filled, width), '#'), width, line);
  }
  std::fprintf(stderr, "\r%s\033[K", line.substr(0, columns - 1).c_str());
  std::fflush(stderr);
}

Failure interrupted(const std::string& thing, const Progress& progress, std::string_view hint) {
  return fail(ErrorCode::Stopped, "{}: interrupted after {} of {} ({})", thing,
              human_size(progress.done()), human_size(progress.total()), hint);
}

}  // namespace ckfs::cli
