// `ckfs stats`: what a mount has done so far; the same text as MNT/.ckfs/status.json.
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <poll.h>
#include <unistd.h>

#include "api/status.h"
#include "base/unique_fd.h"
#include "cli/cli.h"
#include "fuse/mount_table.h"

namespace ckfs::cli {

namespace {

using Clock = std::chrono::steady_clock;

Result<std::string> read_status(const std::string& mountpoint) {
  return read_of_mount(mountpoint, "status.json");
}

bool is_mounted(const std::filesystem::path& target) {
  const auto mounted = find_mount(target);
  return mounted && *mounted && (*mounted)->type == kFilesystemType;
}

struct StatsCommand {
  std::string mountpoint;
  bool json = false;
  bool watch = false;
  unsigned interval = 1;  // seconds
  unsigned count = 0;     // how often; 0: until a signal, or until the mount is gone
};

Result<void> stats(const StatsCommand& command) {
  CKFS_TRY(std::string text, read_status(command.mountpoint));
  CKFS_TRY(text, command.json ? checked_status(text) : status_text(text));
  return print(text);
}

/// Waits until `time`, or until no ckfs is mounted there any more. The kernel shows a change in the
/// list of mounts as an exception of mountinfo (proc(5)).
void wait_until(Clock::time_point time, const UniqueFd& mountinfo,
                const std::filesystem::path& target) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now());
    if (left.count() <= 0) return;
    pollfd poll{.fd = mountinfo.get(), .events = POLLPRI, .revents = 0};
    if (::poll(&poll, 1, static_cast<int>(left.count())) > 0 && !is_mounted(target)) return;
  }
}

/// A table over and over: on a terminal in the place of the last one.
Result<void> watch(const StatsCommand& command) {
  const UniqueFd mountinfo(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC));
  if (!mountinfo) return system_failure(errno, "/proc/self/mountinfo", "open");
  CKFS_TRY(const std::filesystem::path target, resolve_mountpoint(command.mountpoint));
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  std::string before;
  auto time = Clock::now();
  for (unsigned round = 0; command.count == 0 || round < command.count; ++round) {
    if (round > 0) {
      wait_until(time + std::chrono::seconds(command.interval), mountinfo, target);
    }
    const Result<std::string> now = read_status(command.mountpoint);
    // A mount that ends is the end of watching it, and no error.
    if (!now && round > 0 && !is_mounted(target)) return {};
    if (!now) return Failure(now.error());
    const auto here = Clock::now();
    CKFS_TRY(const std::string rates,
             status_rates(before.empty() ? *now : before, *now,
                          std::chrono::duration<double>(here - time).count()));
    CKFS_TRY(const std::string text, status_text(*now));
    const std::string table =
        fmt::format("{}{}{}{}", terminal ? "\033[H\033[J" : "", rates, text, terminal ? "" : "\n");
    CKFS_TRY(const bool read, write_stdout(std::as_bytes(std::span(table))));
    if (!read) return {};
    before = *now;
    time = here;
  }
  return {};
}

}  // namespace

void add_stats(CLI::App& app, Action& action) {
  auto command = std::make_shared<StatsCommand>();
  CLI::App* verb = app.add_subcommand("stats", "show what a mount has read and computed");
  verb->add_option("MNT", command->mountpoint, "directory where it is mounted")->required();
  CLI::Option* const json = verb->add_flag("--json", command->json, "print JSON");
  verb->add_flag("--watch", command->watch, "show a live table with rates until the mount ends")
      ->excludes(json);
  add_number(*verb, "--interval", 1, 3600, command->interval,
             "seconds between two tables of --watch (default 1)");
  add_number(*verb, "--count", 0, 1'000'000'000, command->count,
             "tables of --watch (default 0: no end)");
  verb->callback([command, &action] {
    action = [command] { return command->watch ? watch(*command) : stats(*command); };
  });
}

}  // namespace ckfs::cli
