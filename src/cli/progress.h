// How far long work is, on standard error: a bar on a terminal, lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/cli.h"

namespace ckfs::cli {

enum class ProgressMode : std::uint8_t {
  Auto,   // a bar on a terminal; elsewhere a line every 30 seconds, and none for less than that
  Plain,  // a line every 30 seconds and one at the end
  Json,   // a JSON object a line (docs/schema/progress.json), every second and at the end
  None,
};

struct ProgressOptions {
  ProgressMode mode = ProgressMode::Auto;
  /// Between two lines. nullopt: that of the mode. Others are for tests.
  std::optional<std::chrono::milliseconds> interval{};
};

/// Adds --progress to a verb.
void add_progress(CLI::App& verb, ProgressOptions& options);

/// Says on standard error how many bytes a reader of the view will fetch from another machine,
/// unless there are none, or no progress is to be shown for people. Before they are fetched: it may
/// take hours, and be paid for.
void say_what_is_fetched(const ProgressOptions& options, const View& view,
                         const std::string& source);

/// The progress of one verb.
class Progress {
 public:
  /// The clock starts here.
  Progress(const ProgressOptions& options, std::string verb);
  ~Progress() { end(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Bytes done and in total. Call it from one thread at a time.
  void show(std::uint64_t done, std::uint64_t total);
  /// Clears the bar, or writes the last line. Nothing is shown afterwards.
  void end();

  /// What show() was last told.
  std::uint64_t done() const { return done_; }
  std::uint64_t total() const { return total_; }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Form : std::uint8_t { Bar, Plain, Json, None };

  std::string text() const;
  void draw_bar();
  void write_line();

  const std::string verb_;
  Form form_;
  bool brief_;  // short work shows no line
  std::chrono::milliseconds interval_;
  bool begun_ = false;
  bool drawn_ = false;
  std::uint64_t done_ = 0, total_ = 0, at_start_ = 0;
  Clock::time_point begin_, last_;
};

/// The error of work that SIGINT or SIGTERM ended: "THING: interrupted after 3.4 GB of 17.7 GB
/// (HINT)".
[[nodiscard]] Failure interrupted(const std::string& thing, const Progress& progress,
                                  std::string_view hint);

}  // namespace ckfs::cli
