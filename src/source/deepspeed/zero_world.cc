// Saving is not atomic over ranks, and a tag can be overwritten by a smaller world: files of two
// runs may lie beside each other. What a file says of its own world decides, not how many there
// are.
#include "source/deepspeed/zero_world.h"

#include <algorithm>

#include "base/checked.h"
#include "base/parallel.h"
#include "source/deepspeed/deepspeed_tag.h"

namespace ckfs {

Result<ZeroWorld> ZeroWorldReader::read(std::uint32_t mp, const DeepSpeedCell& cell) {
  if (cell.optimizer.empty()) {
    return fail(ErrorCode::NotFound, "{}: no *_optim_states.pt of model-parallel rank {}", tag_,
                mp);
  }
  CKFS_TRY(OptimizerStates first, read_optimizer(cell.optimizer.begin()->second));
  CKFS_TRY_VOID(check_complete(cell, first));
  std::vector<OptimizerStates> ranks(static_cast<std::size_t>(first.world));
  ranks.front() = std::move(first);
  CKFS_TRY_VOID(run_parallel(
      ranks.size() - 1,
      [&](std::size_t i) -> Result<void> {
        CKFS_TRY(ranks[i + 1],
                 read_optimizer(cell.optimizer.at(static_cast<std::uint32_t>(i + 1))));
        return {};
      },
      files_.parallel()));
  CKFS_TRY_VOID(check_ranks(ranks));
  CKFS_TRY_VOID(check_stale(cell, ranks.front().world));

  const bool partitioned = ranks.front().stage == 3;
  const auto path = model_file(cell, partitioned);
  if (!path) {
    return fail(ErrorCode::NotFound, "{}: no {} beside the optimizer's files", tag_,
                partitioned ? fmt::format("zero_pp_rank_0_mp_rank_{:02}_model_states.pt", mp)
                            : fmt::format("mp_rank_{:02}_model_states.pt", mp));
  }
  CKFS_TRY(ModelStates model, read_model_states(files_, id(*path)));
  CKFS_TRY_VOID(repeated_.add(model.file, model.torch.header_bytes()));
  if (model.has_experts) {
    return fail(ErrorCode::Unsupported, "{}: a mixture of experts, which ckfs cannot read", *path);
  }
  ZeroWorld world{mp, std::move(model), std::nullopt, std::move(ranks)};
  if (!world.model.parameters) {
    CKFS_TRY(world.old_shapes, read_old_shapes(files_, world.ranks.front().file));
    if (!world.old_shapes) {
      return fail(ErrorCode::Unsupported, "{}: no param_shapes: nothing names the parameters",
                  *path);
    }
  }
  return world;
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

/// Ranks beyond the world must be of another one, by what they say themselves.
Result<void> ZeroWorldReader::check_stale(const DeepSpeedCell& cell, std::int64_t world) {
  for (const auto& [rank, path] : cell.optimizer) {
    if (rank < world) continue;
    CKFS_TRY(const OptimizerStates states, read_optimizer(path));
    if (states.world == world) {
      return fail(ErrorCode::Corrupt,
                  "{}: rank {}, but written by a world of {} too (ranks 0 to {})", path, rank,
                  world, world - 1);
    }
    stale_.push_back(path);
  }
  return {};
}

}  // namespace ckfs
