// `ckfs umount`: ends a mount, also one whose daemon is dead. A mount in use is detached: to be
// refused would leave its user with nothing but `umount -l`, which does the same.
#include "base/text.h"
#include "cli/cli.h"
#include "fuse/mount.h"

namespace ckfs::cli {

void add_umount(CLI::App& app, Action& action) {
  auto mountpoint = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("umount", "end a mount, also one whose daemon is dead");
  auto force = std::make_shared<bool>(false);
  verb->add_option("MNT", *mountpoint, "where it is mounted")->required();
  verb->add_flag("-f,--force", *force,
                 "files that are open fail, also where a source that hangs is waited for");
  verb->callback([mountpoint, force, &action] {
    action = [mountpoint, force]() -> Result<void> {
      CKFS_TRY(const Unmounted unmounted,
               unmount(*mountpoint, *force ? FilesInUse::Fail : FilesInUse::LiveOn));
      if (unmounted == Unmounted::Ended) return {};
      return print(
          one_line(fmt::format(
              "{}: in use: out of sight now, and gone when its last file is closed", *mountpoint)) +
          "\n");
    };
  });
}

}  // namespace ckfs::cli
