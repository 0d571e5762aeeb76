#include "cli/walls.h"

#include <spdlog/spdlog.h>
#include <vector>

namespace ckfs::cli {

Result<Walls> raise_walls(const std::string& subject, const OpenOptions& options, bool confined,
                          Sockets sockets, std::span<const std::filesystem::path> own) {
  if (const Result<void> dropped = drop_privileges(); !dropped) {
    spdlog::warn("{}: privileges are kept: {}", subject, dropped.error().message());
    return Walls{};
  }
  if (!confined) return Walls{};
  std::vector<std::filesystem::path> writable(own.begin(), own.end());
  if (options.use.spill) writable.push_back(*options.use.spill);
  CKFS_TRY(const Confinement made,
           confine_writing(writable, sockets, own.empty() ? Renaming::No : Renaming::Yes));
  if (made.landlock) return Walls{true, made.seccomp ? "" : "seccomp"};
  return Walls{true, made.seccomp ? "Landlock" : "Landlock and seccomp"};
}

void report_walls(const std::string& subject, const Walls& walls) {
  if (walls.lacking.empty()) return;
  spdlog::info("{}: confined without {}, which this system does not have", subject, walls.lacking);
}

}  // namespace ckfs::cli
