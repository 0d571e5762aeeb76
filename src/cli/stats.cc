// `ckfs stats`: what a mount has done so far; the same text as MNT/.ckfs/status.json.
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "api/report.h"
#include "base/unique_fd.h"
#include "cli/cli.h"

namespace ckfs::cli {

namespace {

Result<std::string> read_status(const std::string& mountpoint) {
  const UniqueFd fd(::open((mountpoint + "/.ckfs/status.json").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOTCONN) {
    return fail(ErrorCode::Io, "{}: the mount's daemon is dead (ckfs umount clears it)",
                mountpoint);
  }
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) {
    return fail(ErrorCode::InvalidArgument, "{}: not a ckfs mount", mountpoint);
  }
  if (!fd) return system_failure(errno, mountpoint, "open its status");
  std::string text;
  char piece[65536];
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(errno, mountpoint, "read its status");
    if (got == 0) return text;
    text.append(piece, static_cast<std::size_t>(got));
  }
}

Result<void> stats(const std::string& mountpoint, bool json) {
  CKFS_TRY(std::string text, read_status(mountpoint));
  if (!json) {
    CKFS_TRY(text, status_text(text));
  }
  return print(text);
}

}  // namespace

void add_stats(CLI::App& app, Action& action) {
  struct Command {
    std::string mountpoint;
    bool json = false;
  };
  auto command = std::make_shared<Command>();
  CLI::App* verb = app.add_subcommand("stats", "print what a mount has done so far");
  verb->add_option("MNT", command->mountpoint, "where it is mounted")->required();
  verb->add_flag("--json", command->json, "print JSON");
  verb->callback([command, &action] {
    action = [command] { return stats(command->mountpoint, command->json); };
  });
}

}  // namespace ckfs::cli
