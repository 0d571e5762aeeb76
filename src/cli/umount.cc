// `ckfs umount`: ends a mount, also one whose daemon is dead. A mount in use is detached: to be
// refused would leave its user with nothing but `umount -l`, which does the same.
#include "base/text.h"
#include "cli/cli.h"
#include "fuse/mount.h"

namespace ckfs::cli {

void add_umount(CLI::App& app, Action& action) {
  auto mountpoint = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("umount", "end a mount, also one whose daemon is dead");
  verb->add_option("MNT", *mountpoint, "where it is mounted")->required();
  verb->callback([mountpoint, &action] {
    action = [mountpoint]() -> Result<void> {
      CKFS_TRY(const Unmounted unmounted, unmount(*mountpoint));
      if (unmounted == Unmounted::Ended) return {};
      return print(
          one_line(fmt::format(
              "{}: in use: out of sight now, and gone when its last file is closed", *mountpoint)) +
          "\n");
    };
  });
}

}  // namespace ckfs::cli
