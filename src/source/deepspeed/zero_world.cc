// Saving is not atomic over ranks, and a tag can be overwritten by a smaller world: files of two
// runs may lie beside each other. What a file says of its own world decides, not how many there
// are.
#include "source/deepspeed/zero_world.h"

#include <algorithm>

#include "base/checked.h"
#include "base/parallel.h"
#include "source/deepspeed/deepspeed_tag.h"

namespace ckfs {

Result<std::vector<ZeroWorld>> ZeroWorldReader::read(std::span<const NumberedCell> cells) {
  CKFS_TRY(std::vector<Ranks> ranks, read_ranks(cells));
  for (const Ranks& cell : ranks) CKFS_TRY_VOID(check_ranks(cell));
  CKFS_TRY_VOID(check_stale(cells, ranks));
  std::vector<std::optional<ZeroWorld>> made(cells.size());
  std::vector<ZeroWorld> worlds;
  CKFS_TRY_VOID(run_in_order(
      cells.size(),
      [&](std::size_t i) -> Result<void> {
        CKFS_TRY(made[i], read_model(cells[i], std::move(ranks[i])));
        return {};
      },
      [&](std::size_t i) -> Result<void> {
        worlds.push_back(*std::move(made[i]));
        return {};
      },
      files_.parallel()));
  return worlds;
}

Result<std::vector<ZeroWorldReader::Ranks>> ZeroWorldReader::read_ranks(
    std::span<const NumberedCell> cells) const {
  std::vector<Ranks> ranks(cells.size());
  // The first of each says how many there are.
  CKFS_TRY_VOID(run_parallel(
      cells.size(),
      [&](std::size_t i) -> Result<void> {
        CKFS_TRY(OptimizerStates first, read_first(cells[i]));
        ranks[i].resize(static_cast<std::size_t>(first.world));
        ranks[i].front() = std::move(first);
        return {};
      },
      files_.parallel()));
  std::vector<std::pair<std::size_t, std::uint32_t>> others;  // cell, rank
  for (std::size_t i = 0; i < cells.size(); ++i) {
    for (std::uint32_t rank = 1; rank < ranks[i].size(); ++rank) others.emplace_back(i, rank);
  }
  CKFS_TRY_VOID(run_parallel(
      others.size(),
      [&](std::size_t k) -> Result<void> {
        const auto& [i, rank] = others[k];
        CKFS_TRY(ranks[i][rank], read_optimizer(cells[i].files->optimizer.at(rank)));
        return {};
      },
      files_.parallel()));
  return ranks;
}

Result<OptimizerStates> ZeroWorldReader::read_first(const NumberedCell& cell) const {
  if (cell.files->optimizer.empty()) {
    return fail(ErrorCode::NotFound, "{}: no *_optim_states.pt of model-parallel rank {}", tag_,
                cell.mp);
  }
  CKFS_TRY(OptimizerStates first, read_optimizer(cell.files->optimizer.begin()->second));
  CKFS_TRY_VOID(check_complete(*cell.files, first));
  return first;
}

Result<std::optional<ZeroWorld>> ZeroWorldReader::read_model(const NumberedCell& cell,
                                                             Ranks ranks) const {
  const bool partitioned = ranks.front().stage == 3;
  const auto path = model_file(*cell.files, partitioned);
  if (!path) {
    return fail(ErrorCode::NotFound, "{}: no {} beside the optimizer's files", tag_,
                partitioned ? fmt::format("zero_pp_rank_0_mp_rank_{:02}_model_states.pt", cell.mp)
                            : fmt::format("mp_rank_{:02}_model_states.pt", cell.mp));
  }
  CKFS_TRY(ModelStates model, read_model_states(files_, id(*path)));
  CKFS_TRY_VOID(repeated_.add(model.file, model.torch.header_bytes()));
  if (model.has_experts) {
    return fail(ErrorCode::Unsupported, "{}: a mixture of experts, which ckfs cannot read", *path);
  }
  ZeroWorld world{cell.mp, std::move(model), std::nullopt, std::move(ranks)};
  if (!world.model.parameters) {
    CKFS_TRY(world.old_shapes, read_old_shapes(files_, world.ranks.front().file));
    if (!world.old_shapes) {
      return fail(ErrorCode::Unsupported, "{}: no param_shapes: nothing names the parameters",
                  *path);
    }
    CKFS_TRY_VOID(repeated_.add(world.ranks.front().file, world.old_shapes->torch.header_bytes()));
  }
  return std::optional(std::move(world));
}

Result<OptimizerStates> ZeroWorldReader::read_optimizer(const std::string& path) const {
  CKFS_TRY(OptimizerStates states, read_optimizer_states(files_, id(path)));
  CKFS_TRY_VOID(repeated_.add(states.file, states.header_bytes));
  return states;
}

Result<void> ZeroWorldReader::check_complete(const DeepSpeedCell& cell,
                                             const OptimizerStates& first) const {
  std::vector<std::string> missing;
  for (std::int64_t rank = 0; rank < first.world && missing.size() < 8; ++rank) {
    const auto number = checked_cast<std::uint32_t>(rank);
    if (number && cell.optimizer.contains(*number)) continue;
    missing.push_back(std::to_string(rank));
  }
  if (missing.empty()) return {};
  return fail(ErrorCode::NotFound, "{}: one of {} ranks, but the {} of rank {} {} missing{}",
              files_.name(first.file), first.world, missing.size() == 1 ? "file" : "files",
              fmt::join(missing, ", "), missing.size() == 1 ? "is" : "are",
              missing.size() == 8 ? " (and perhaps more)" : "");
}

Result<void> ZeroWorldReader::check_ranks(std::span<const OptimizerStates> ranks) {
  const OptimizerStates& first = ranks.front();
  const std::string& first_name = files_.name(first.file);
  for (const OptimizerStates& rank : ranks) {
    const std::string& name = files_.name(rank.file);
    if (rank.world != first.world || rank.stage != first.stage) {
      return fail(ErrorCode::Corrupt,
                  "{}: stage {} with {} partitions, but {}: stage {} with {}: files of two runs",
                  name, rank.stage, rank.world, first_name, first.stage, first.world);
    }
    if (rank.groups.size() != first.groups.size()) {
      return fail(ErrorCode::Corrupt, "{}: {} groups of parameters, but {} has {}", name,
                  rank.groups.size(), first_name, first.groups.size());
    }
    for (std::size_t g = 0; g < rank.groups.size(); ++g) {
      if (rank.groups[g].dtype == first.groups[g].dtype) continue;
      return fail(ErrorCode::Corrupt, "{}: group {} is {}, but {} has it as {}", name, g,
                  ckfs::name(rank.groups[g].dtype), first_name, ckfs::name(first.groups[g].dtype));
    }
    if (rank.version != first.version && warnings_.empty()) {
      warnings_.push_back({name, fmt::format("written by DeepSpeed {}, {} by {}", rank.version,
                                             first_name, first.version)});
    }
  }
  return {};
}

/// Ranks beyond the world must say themselves that they are of another one.
Result<void> ZeroWorldReader::check_stale(std::span<const NumberedCell> cells,
                                          std::span<const Ranks> ranks) {
  struct Beyond {
    std::uint32_t rank = 0;
    std::int64_t world = 0;
    const std::string* path = nullptr;
  };
  std::vector<Beyond> beyond;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::int64_t world = ranks[i].front().world;
    for (const auto& [rank, path] : cells[i].files->optimizer) {
      if (rank >= world) beyond.push_back({rank, world, &path});
    }
  }
  return run_in_order(
      beyond.size(),
      [&](std::size_t i) -> Result<void> {
        const auto& [rank, world, path] = beyond[i];
        CKFS_TRY(const OptimizerStates states, read_optimizer(*path));
        if (states.world != world) return {};
        return fail(ErrorCode::Corrupt,
                    "{}: rank {}, but written by a world of {} too (ranks 0 to {})", *path, rank,
                    world, world - 1);
      },
      [&](std::size_t i) -> Result<void> {
        stale_.push_back(*beyond[i].path);
        return {};
      },
      files_.parallel());
}

}  // namespace ckfs
