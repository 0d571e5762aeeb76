// Which of several processes this one is, as whoever started them says: a table of launchers and
// their environment variables.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"

namespace ckfs {

struct FleetPlace {
  unsigned rank = 0;
  unsigned world = 1;
  std::string source;  // who says so: "srun (SLURM_PROCID, SLURM_STEP_NUM_TASKS)"; or "--rank"

  bool operator==(const FleetPlace&) const = default;
};

/// The value of an environment variable; nullopt: it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// nullopt: this is the only process. `rank` and `world` are what the user says and come before the
/// environment. `world` may be given alone where a launcher says the rank, and its own world unless
/// it has no variable for one (a Kubernetes Job); `rank` alone may not. A launcher of one process
/// says nothing of a larger world. Errors: InvalidArgument: two launchers contradict each other, a
/// number is none, or out of range, or one of the two is missing.
Result<std::optional<FleetPlace>> find_place(std::optional<unsigned> rank,
                                             std::optional<unsigned> world,
                                             const Environment& environment);

}  // namespace ckfs
