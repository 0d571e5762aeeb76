// `ckfs umount`: ends a mount, also one whose daemon is dead.
#include "cli/cli.h"
#include "fuse/mount.h"

namespace ckfs::cli {

void add_umount(CLI::App& app, Action& action) {
  auto mountpoint = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("umount", "end a mount, also one whose daemon is dead");
  verb->add_option("MNT", *mountpoint, "where it is mounted")->required();
  verb->callback([mountpoint, &action] { action = [mountpoint] { return unmount(*mountpoint); }; });
}

}  // namespace ckfs::cli
