// `ckfs umount`: ends a mount, also one whose daemon is dead. A mount in use is detached: a refusal
// would leave its user with only `umount -l`, which does the same.
#include <algorithm>
#include <ranges>

#include "base/text.h"
#include "cli/cli.h"
#include "fuse/mount.h"
#include "fuse/mount_table.h"

namespace ckfs::cli {

namespace {

struct UmountCommand {
  std::string mountpoint;
  bool force = false;
  bool all = false;
};

Result<void> end_one(const std::string& mountpoint, bool force) {
  CKFS_TRY(const Unmounted unmounted,
           unmount(mountpoint, force ? FilesInUse::Fail : FilesInUse::LiveOn));
  if (unmounted == Unmounted::Ended) return {};
  return print(one_line(fmt::format("{}: still in use: detached now; its daemon ends when the last "
                                    "file is closed",
                                    mountpoint)) +
               "\n");
}

/// All of the caller's, the last that were made first: one may lie in another. One that cannot be
/// ended keeps no other; the first error is given.
Result<void> end_all(bool force) {
  CKFS_TRY(std::vector<MountEntry> mounts, own_mounts());
  Result<void> result;
  for (const MountEntry& mount : std::views::reverse(mounts)) {
    Result<void> ended = end_one(mount.target, force);
    if (!ended && result) result = std::move(ended);
  }
  return result;
}

}  // namespace

void add_umount(CLI::App& app, Action& action) {
  auto command = std::make_shared<UmountCommand>();
  CLI::App* verb = app.add_subcommand("umount", "unmount, even if the daemon has crashed");
  CLI::Option* const mountpoint =
      verb->add_option("MNT", command->mountpoint, "directory where it is mounted");
  verb->add_flag("-a,--all", command->all, "unmount all of your mounts of ckfs")
      ->excludes(mountpoint);
  verb->add_flag("-f,--force", command->force,
                 "make reads of open files fail, even if the source does not respond");
  verb->callback([command, &action] {
    if (!command->all && command->mountpoint.empty()) {
      throw CLI::ValidationError("MNT is required (or --all)");
    }
    action = [command] {
      return command->all ? end_all(command->force) : end_one(command->mountpoint, command->force);
    };
  });
}

}  // namespace ckfs::cli
