// Which of several processes this one is: a table of launchers, and of the environment variables
// that they set.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"

namespace ckfs {

struct FleetPlace {
  unsigned rank = 0;
  unsigned world = 1;
  std::string source;  // "srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)", or "--rank"

  bool operator==(const FleetPlace&) const = default;
};

/// The value of an environment variable; nullopt: it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// The place of this process. `rank` and `world` are the user's options, and come before the
/// environment. `world` may be given alone where a launcher sets the rank, and must be where that
/// sets no world (a Kubernetes Job). A launcher of one process says nothing where `world` is
/// larger. nullopt: this is the only process, or no launcher has started it. Errors:
/// InvalidArgument (two launchers contradict each other; a variable is not a number, or is out of
/// range; `rank` without `world`, or `world` without any rank).
Result<std::optional<FleetPlace>> find_place(std::optional<unsigned> rank,
                                             std::optional<unsigned> world,
                                             const Environment& environment);

enum class Launched : bool { AsOneOfSeveral, AtAll };
/// The launcher that has started this process, as FleetPlace::source names it: for messages. With
/// AsOneOfSeveral, one that has started others, too. nullopt: none.
std::optional<std::string> find_launcher(Launched launched, const Environment& environment);

}  // namespace ckfs
