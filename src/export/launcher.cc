// Slurm sets SLURM_PROCID and SLURM_NTASKS in a batch script, too, which is one process. Only srun
// sets SLURM_STEP_NUM_TASKS. An array job has a process for each task; its numbers may begin
// anywhere and leave gaps of one size.
#include "export/launcher.h"

#include <charconv>
#include <vector>

#include "export/fleet.h"

namespace ckfs {

namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* world;  // nullptr: it has none, and --world must be given
  // Of numbers that begin elsewhere than at 0, or leave gaps.
  const char* first = nullptr;
  const char* step = nullptr;
};

constexpr Launcher kLaunchers[] = {
    {"Slurm's array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN",
     "SLURM_ARRAY_TASK_STEP"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"Kubernetes' Indexed Job", "JOB_COMPLETION_INDEX", nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE"},
};

Result<std::optional<std::uint64_t>> number(const Environment& environment, const char* name) {
  const std::optional<std::string> text = name ? environment(name) : std::nullopt;
  if (!text || text->empty()) return std::nullopt;
  std::uint64_t value = 0;
  const char* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is not a whole number", name, *text);
  }
  return value;
}

Result<void> check(std::uint64_t rank, std::uint64_t world, const std::string& source) {
  if (world == 0 || world > kMostRanks) {
    return fail(ErrorCode::InvalidArgument, "{}: {} processes (1 to {})", source, world,
                kMostRanks);
  }
  if (rank >= world) {
    return fail(ErrorCode::InvalidArgument, "{}: rank {} of {} (0 to {})", source, rank, world,
                world - 1);
  }
  return {};
}

std::string name_of(const Launcher& launcher) {
  return fmt::format("{} ({}{}{})", launcher.name, launcher.rank, launcher.world ? ", " : "",
                     launcher.world ? launcher.world : "");
}

/// What one launcher says; nullopt: it has not started this process. `world` is what the user says.
Result<std::optional<FleetPlace>> place_of(const Launcher& launcher, std::optional<unsigned> world,
                                           const Environment& environment) {
  CKFS_TRY(std::optional<std::uint64_t> rank, number(environment, launcher.rank));
  CKFS_TRY(std::optional<std::uint64_t> size, number(environment, launcher.world));
  if (!rank || (launcher.world && !size)) return std::nullopt;
  if (launcher.first) {
    CKFS_TRY(const auto first, number(environment, launcher.first));
    CKFS_TRY(const auto step, number(environment, launcher.step));
    if (first.value_or(0) > *rank || step.value_or(1) == 0) {
      return fail(ErrorCode::InvalidArgument, "{}: {} comes before {} = {}", launcher.rank, *rank,
                  launcher.first, first.value_or(0));
    }
    rank = (*rank - first.value_or(0)) / step.value_or(1);
  }
  std::string source = name_of(launcher);
  // One process for all that this launcher knows: a batch script or srun of one task within an
  // array, or an image whose RANK is always 0.
  if (size == 1U && world != 1U) return std::nullopt;
  if (world) size = *world;
  if (!size) {
    return fail(ErrorCode::InvalidArgument,
                "{}: sets number {} and not how many there are: --world N is needed", source,
                *rank);
  }
  CKFS_TRY_VOID(check(*rank, *size, source));
  return FleetPlace{static_cast<unsigned>(*rank), static_cast<unsigned>(*size), std::move(source)};
}

}  // namespace

Result<std::optional<FleetPlace>> find_place(std::optional<unsigned> rank,
                                             std::optional<unsigned> world,
                                             const Environment& environment) {
  if (rank && world) {
    CKFS_TRY_VOID(check(*rank, *world, "--rank"));
    return FleetPlace{*rank, *world, "--rank"};
  }
  if (rank) return fail(ErrorCode::InvalidArgument, "--rank needs --world N");

  std::optional<FleetPlace> found;
  for (const Launcher& launcher : kLaunchers) {
    CKFS_TRY(std::optional<FleetPlace> place, place_of(launcher, world, environment));
    if (!place) continue;
    if (found && (found->rank != place->rank || found->world != place->world)) {
      return fail(ErrorCode::InvalidArgument,
                  "{} says rank {} of {}, {} says rank {} of {} (--rank and --world decide)",
                  found->source, found->rank, found->world, place->source, place->rank,
                  place->world);
    }
    if (!found) found = std::move(place);
  }
  if (!found && world) {
    return fail(ErrorCode::InvalidArgument, "--world needs --rank R");
  }
  return found;
}

std::optional<std::string> find_launcher(Launched launched, const Environment& environment) {
  for (const Launcher& launcher : kLaunchers) {
    const auto rank = number(environment, launcher.rank);
    const auto size = number(environment, launcher.world);
    if (!rank || !*rank || !size || (launcher.world && !*size)) continue;
    if (launched == Launched::AsOneOfSeveral && *size == 1U) continue;
    return name_of(launcher);
  }
  return std::nullopt;
}

}  // namespace ckfs
