// DeepSpeed's own zero_to_fp32 loads every rank's file and assembles the tensors in memory. Here a
// parameter becomes one storage laid over the ranks' files: its extents are computed from the
// lengths of the flat groups, which the pickles have. So only headers are read, and the Adam
// moments beside the masters never.
//
// That tool refuses some cases that the files decide (BF16_Optimizer, the stream of old torch,
// pipelines, files of ranks that the world no longer has); this does not. Cases that are not
// recorded (how slices of tensor parallelism fit together, which expert a partition belongs to) are
// refused.

#include <algorithm>
#include <charconv>
#include <iterator>
#include <set>
#include <spdlog/spdlog.h>
#include <utility>

#include "base/checked.h"
#include "base/parallel.h"
#include "base/text.h"
#include "source/adapters.h"
#include "source/deepspeed/deepspeed_names.h"
#include "source/deepspeed/deepspeed_tag.h"
#include "source/deepspeed/zero_layout.h"
#include "source/deepspeed/zero_state_dict.h"
#include "source/deepspeed/zero_world.h"
#include "source/model_directory.h"
#include "source/source_opener.h"

namespace ckfs {
namespace {

constexpr std::size_t kNamesInMessage = 5;
constexpr std::string_view kLatest = "latest";

bool has_optimizer(const DeepSpeedTag& tag) {
  return std::ranges::any_of(tag.cells,
                             [](const auto& cell) { return !cell.second.optimizer.empty(); });
}

/// Whether all that a tag has is the module's state, in one file (no ZeRO, or what a 16-bit copy
/// keeps): that is a file of torch like any other.
bool is_plain_module(const DeepSpeedTag& tag) {
  return tag.cells.size() == 1 && !tag.cells.begin()->second.model_shared.empty() &&
         tag.cells.begin()->second.model_ranks.empty() && !has_optimizer(tag) &&
         tag.layers.empty() && tag.experts.empty() && tag.splits.empty() && tag.twin.empty();
}

std::string first_of(std::span<const std::string> names) {
  const std::size_t shown = std::min(names.size(), kNamesInMessage);
  return fmt::format("{}{}", fmt::join(names.first(shown), ", "),
                     shown < names.size() ? fmt::format(" and {} more", names.size() - shown) : "");
}

class ZeroOpener : public SourceOpener {
 public:
  ZeroOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options)
      : SourceOpener(tree, files, options, kDeepSpeedZero.name),
        dict_(files, builder_, repeated_) {}

 private:
  Result<void> read() override {
    CKFS_TRY_VOID(choose());
    CKFS_TRY_VOID(refuse_foreign_files());
    CKFS_TRY_VOID(read_worlds());
    CKFS_TRY_VOID(check_grid());
    CKFS_TRY_VOID(assemble());
    finish();
    return add_model(tag_.prefix.empty() ? std::optional(directory_above(tree_)) : std::nullopt);
  }

  Result<void> choose() {
    std::vector<DeepSpeedTag> tags = find_deepspeed_tags(tree_);
    std::vector<std::string> names;
    for (const DeepSpeedTag& tag : tags) names.push_back(tag_name(tag));
    CKFS_TRY(const std::string chosen,
             choose_tag(names, kLatest, tree_, table(), files_, options_));
    for (DeepSpeedTag& tag : tags) {
      if (tag_name(tag) == chosen) {
        tag_ = std::move(tag);
      } else {
        other_tags_.push_back(tag_name(tag));
      }
    }
    return {};
  }

  Result<void> refuse_foreign_files() const {
    if (!tag_.splits.empty()) {
      return fail(ErrorCode::Unsupported,
                  "{}: one of several files that parallel writers cut a file into",
                  tag_.splits.front());
    }
    if (!tag_.experts.empty()) {
      return fail(ErrorCode::Unsupported, "{}: a file of experts, which ckfs cannot read",
                  tag_.experts.front());
    }
    if (!tag_.twin.empty()) {
      return fail(ErrorCode::Unsupported, "{}: another file for the same rank", tag_.twin);
    }
    return {};
  }

  Result<void> read_worlds() {
    if (tag_.cells.empty()) {  // files of layers alone
      return fail(ErrorCode::NotFound, "{}: no *_optim_states.pt in it", tag_name(tag_));
    }
    ZeroWorldReader reader(files_, table(), repeated_, tag_name(tag_));
    std::vector<NumberedCell> others;
    for (const auto& [mp, cell] : tag_.cells) {
      const NumberedCell numbered{mp, &cell};
      if (worlds_.empty()) {  // it says how many there are
        CKFS_TRY(worlds_, reader.read(std::span(&numbered, 1)));
      } else if (is_stale_cell(mp)) {
        for (const auto& [rank, path] : cell.optimizer) stale_.push_back(path);
      } else {
        others.push_back(numbered);
      }
    }
    CKFS_TRY(std::vector<ZeroWorld> worlds, reader.read(others));
    std::ranges::move(worlds, std::back_inserter(worlds_));
    for (const std::string& path : reader.stale()) stale_.push_back(path);
    for (const Note& note : reader.warnings()) {
      spdlog::warn("{}: {}", note.subject, note.text);
      builder_.add_note(note.subject, note.text);
    }
    return {};
  }

  /// Left over from a larger grid: the first world says how many there are.
  bool is_stale_cell(std::uint32_t mp) const {
    const std::int64_t count = worlds_.front().model.model_parallel;
    return count > 0 && mp >= count;
  }

  // ---- the grid of model-parallel ranks

  Result<void> check_grid() const {
    const ZeroWorld& first = worlds_.front();
    const std::string& file = files_.name(first.model.file);
    const auto sliced = std::ranges::find_if(
        tag_.layers, [](const DeepSpeedLayer& layer) { return layer.slice > 0; });
    if (sliced != tag_.layers.end()) return refuse_slices(sliced->path);
    if (first.model.tensor_degree.value_or(1) > 1) return refuse_slices(file);

    std::int64_t expected = std::max<std::int64_t>(first.model.model_parallel, 1);
    if (first.model.pipeline_degree) expected = std::max(expected, *first.model.pipeline_degree);
    for (std::size_t i = 0; i < worlds_.size(); ++i) {
      if (worlds_[i].mp == i) continue;
      return fail(ErrorCode::NotFound, "{}: the files of model-parallel rank {} are missing",
                  tag_name(tag_), i);
    }
    if (std::cmp_less(worlds_.size(), expected)) {
      return fail(ErrorCode::NotFound,
                  "{}: one of {} model-parallel ranks, but the files of rank {} are missing", file,
                  expected, worlds_.size());
    }
    if (worlds_.size() == 1) return {};
    for (const ZeroWorld& world : worlds_) {
      if (world.model.module) return refuse_slices(files_.name(world.model.file));
      if (world.ranks.front().stage == first.ranks.front().stage) continue;
      return fail(ErrorCode::Corrupt, "{}: stage {}, but {} has stage {}",
                  files_.name(world.ranks.front().file), world.ranks.front().stage,
                  files_.name(first.ranks.front().file), first.ranks.front().stage);
    }
    return {};
  }

  static Failure refuse_slices(const std::string& path) {
    return fail(ErrorCode::Unsupported,
                "{}: slices of tensor parallelism: nothing says how they fit together (a universal "
                "checkpoint has them joined)",
                path);
  }

  // ---- the state dict

  Result<void> assemble() {
    for (const ZeroWorld& world : worlds_) CKFS_TRY_VOID(dict_.add_buffers(world.model));
    for (const ZeroWorld& world : worlds_) CKFS_TRY_VOID(add_frozen(world));
    CKFS_TRY_VOID(add_module_frozen());
    for (const ZeroWorld& world : worlds_) {
      CKFS_TRY_VOID(world.partitioned() ? add_partitioned(world) : add_flat(world));
    }
    for (const ZeroWorld& world : worlds_) CKFS_TRY_VOID(dict_.add_shared(world.model));
    return {};
  }

  Result<void> add_frozen(const ZeroWorld& world) {
    if (world.model.frozen.empty()) return {};
    if (!world.partitioned()) return dict_.add_frozen(world.model);
    const DeepSpeedCell& cell = tag_.cells.at(world.mp);
    std::vector<FileId> models;
    for (std::uint32_t rank = 0; rank < world.ranks.size(); ++rank) {
      const auto path = cell.model_ranks.find(rank);
      if (path == cell.model_ranks.end()) {
        return fail(ErrorCode::NotFound,
                    "{}: zero_pp_rank_{}_mp_rank_{:02}_model_states.pt is missing, which has a "
                    "part of frozen parameter {}",
                    tag_name(tag_), rank, world.mp, quote(world.model.frozen.front().name));
      }
      models.push_back(id(path->second));
    }
    return dict_.add_partitioned_frozen(world.model, models);
  }

  /// Tensors that only the module's own state has. With stage 3 that has placeholders only.
  Result<void> add_module_frozen() {
    std::set<std::string_view> known;
    for (const ZeroWorld& world : worlds_) {
      for (const ParameterGroup& group : world.groups()) {
        for (const NamedShape& parameter : group) known.insert(parameter.name);
      }
      for (const auto& [alias, origin] : world.model.shared) known.insert(alias);
    }
    const auto is_known = [&](std::string_view name, NodeId /*tensor*/) {
      return known.contains(name);
    };
    for (const ZeroWorld& world : worlds_) {
      if (world.partitioned() || !world.model.module) continue;
      CKFS_TRY_VOID(dict_.add_module_frozen(world.model.torch, world.model.file,
                                            *world.model.module, "", is_known));
    }
    const bool is_pipeline =
        worlds_.size() > 1 || (!worlds_.front().partitioned() && !worlds_.front().model.module);
    return is_pipeline ? add_layers(known) : Result<void>();
  }

  /// Masters do not need the files of layers; but without its file the rest of a layer is not
  /// known.
  void note_missing_layers(const std::set<std::string_view>& known) {
    std::set<std::uint32_t> missing;
    for (const std::string_view name : known) {
      std::uint32_t layer = 0;
      const char* const end = name.data() + name.size();
      const auto parsed = std::from_chars(name.data(), end, layer);
      if (parsed.ec == std::errc() && parsed.ptr != end && *parsed.ptr == '.')
        missing.insert(layer);
    }
    for (const DeepSpeedLayer& layer : tag_.layers) missing.erase(layer.layer);
    for (const std::uint32_t layer : missing) {
      const std::string file = fmt::format("{}layer_{:02}-model_states.pt", tag_.prefix, layer);
      const std::string_view text = "missing; frozen weights that only it has are not shown";
      spdlog::warn("{}: {}", file, text);
      builder_.add_note(file, std::string(text));
    }
  }

  /// Under a pipeline, of one stage, too, the module's state is in a file for each layer, under the
  /// layer's own names.
  Result<void> add_layers(const std::set<std::string_view>& known) {
    note_missing_layers(known);
    // A tied layer's parameters have one name for all its places: tied_modules.<key>.<name>. (The
    // name of a module, so the key, has no dot.)
    constexpr std::string_view kTied = "tied_modules.";
    constexpr std::size_t kNone = std::string_view::npos;
    std::set<std::pair<std::string_view, std::vector<std::int64_t>>> tied;
    for (const ZeroWorld& world : worlds_) {
      for (const ParameterGroup& group : world.groups()) {
        for (const auto& [name, shape, numel] : group) {
          const std::size_t dot = name.starts_with(kTied) ? name.find('.', kTied.size()) : kNone;
          if (dot != kNone) tied.emplace(name.substr(dot + 1), shape);
        }
      }
    }
    std::vector<std::optional<TorchFile>> opened(tag_.layers.size());
    const auto open = [&](std::size_t i) -> Result<void> {
      const FileId file = id(tag_.layers[i].path);
      CKFS_TRY(TorchFile torch, TorchFile::open(files_, file, ByteRange{0, files_.size(file)}));
      CKFS_TRY_VOID(repeated_.add(file, torch.header_bytes()));
      opened[i].emplace(std::move(torch));
      return {};
    };
    const auto take = [&](std::size_t i) -> Result<void> {
      const TorchFile torch = *std::exchange(opened[i], std::nullopt);
      const std::string prefix = fmt::format("{}.", tag_.layers[i].layer);
      const auto is_known = [&](std::string_view name, NodeId node) {
        if (known.contains(name)) return true;
        const auto tensor = torch.tensor(node);
        return tensor && tied.contains({name.substr(prefix.size()), tensor->shape});
      };
      return dict_.add_module_frozen(torch, id(tag_.layers[i].path), torch.root(), prefix,
                                     is_known);
    };
    return run_in_order(tag_.layers.size(), open, take, files_.parallel());
  }

  /// Of a pipeline's stages the first has the say over a tied parameter.
  bool take(const ZeroWorld& world, const NamedShape& parameter, Result<void>& result) const {
    if (&world == &worlds_.front() || !dict_.contains(parameter.name)) return true;
    if (!parameter.name.starts_with("tied_modules.")) {
      result = refuse_slices(files_.name(world.model.file));
    }
    return false;
  }

  Result<void> check_group_count(const ZeroWorld& world) const {
    const OptimizerStates& first = world.ranks.front();
    if (first.groups.size() == world.groups().size()) return {};
    return fail(ErrorCode::Corrupt, "{}: {} groups of parameters, but param_shapes has {}",
                files_.name(first.file), first.groups.size(), world.groups().size());
  }

  std::vector<RankPiece> pieces_of(const ZeroWorld& world, std::size_t group) const {
    std::vector<RankPiece> pieces;
    for (const OptimizerStates& rank : world.ranks) {
      pieces.push_back({rank.file, rank.groups[group].offset, rank.groups[group].numel});
    }
    return pieces;
  }

  static std::uint64_t width(DType dtype) { return static_cast<std::uint64_t>(bits(dtype)) / 8; }

  Result<void> add(const ZeroWorld& world, const NamedShape& parameter, DType dtype,
                   std::span<const Extent> extents) {
    Result<void> result;
    if (!take(world, parameter, result)) return result;
    const StorageId storage = builder_.add_storage(dtype, parameter.numel, extents);
    dict_.add_parameter(parameter.name, parameter.shape, storage);
    return {};
  }

  // ---- stages 1 and 2

  Result<void> add_flat(const ZeroWorld& world) {
    CKFS_TRY_VOID(check_group_count(world));
    std::vector<Extent> extents;
    for (std::size_t g = 0; g < world.groups().size(); ++g) {
      const ParameterGroup& group = world.groups()[g];
      const DType dtype = world.ranks.front().groups[g].dtype;
      CKFS_TRY(const std::vector<std::int64_t> begins, flat_begins(world, g));
      const FlatVector flat(pieces_of(world, g), width(dtype));
      CKFS_TRY_VOID(check_flat(world, g, begins.back(), flat.numel()));
      for (std::size_t i = 0; i < group.size(); ++i) {
        extents.clear();
        flat.append_extents(begins[i], group[i].numel, extents);
        CKFS_TRY_VOID(add(world, group[i], dtype, extents));
      }
    }
    return {};
  }

  /// Where each parameter of a group begins, and where the last ends.
  Result<std::vector<std::int64_t>> flat_begins(const ZeroWorld& world, std::size_t g) const {
    const ParameterGroup& group = world.groups()[g];
    const OptimizerStates& first = world.ranks.front();
    const auto paddings = first.alignment.empty()      ? std::vector<std::int64_t>(group.size(), 0)
                          : g < first.alignment.size() ? first.alignment[g]
                                                       : std::vector<std::int64_t>{};
    if (paddings.size() != group.size()) {
      return fail(ErrorCode::Corrupt, "{}: group {}: {} alignment paddings for {} parameters",
                  files_.name(first.file), g, paddings.size(), group.size());
    }
    std::vector<std::int64_t> begins = {0};
    for (std::size_t i = 0; i < group.size(); ++i) {
      const auto end = checked_add(begins.back(), group[i].numel);
      const auto next = end ? checked_add(*end, paddings[i]) : std::nullopt;
      if (!next) {
        return fail(ErrorCode::Corrupt, "{}: group {}: more elements than there can be",
                    files_.name(world.model.file), g);
      }
      begins.push_back(*next);
    }
    return begins;
  }

  /// Ranks save up to twice-the-world alignment more than the parameters have, never less.
  Result<void> check_flat(const ZeroWorld& world, std::size_t g, std::int64_t needed,
                          std::int64_t saved) const {
    const std::int64_t unit = 2 * static_cast<std::int64_t>(world.ranks.size());
    if (saved >= needed && partition_numel(saved, unit) == partition_numel(needed, unit)) return {};
    const std::string& file = files_.name(world.ranks.front().file);
    if (saved == 0) {
      return fail(
          ErrorCode::Unsupported,
          "{}: group {} is empty on all ranks (its parameters have {} elements): offloaded, "
          "not in the checkpoint",
          file, g, needed);
    }
    return fail(ErrorCode::Corrupt,
                "{}: group {}: {} elements on all ranks, but its parameters {} {}", file, g, saved,
                saved < needed ? "need" : "have only", needed);
  }

  // ---- stage 3

  Result<void> add_partitioned(const ZeroWorld& world) {
    CKFS_TRY_VOID(check_group_count(world));
    const auto count = static_cast<std::int64_t>(world.ranks.size());
    std::vector<Extent> extents;
    for (std::size_t g = 0; g < world.groups().size(); ++g) {
      const ParameterGroup& group = world.groups()[g];
      const DType dtype = world.ranks.front().groups[g].dtype;
      const std::vector<RankPiece> pieces = pieces_of(world, g);
      std::vector<std::int64_t> begins = {0};
      for (const NamedShape& parameter : group) {
        const auto next = checked_add(begins.back(), partition_numel(parameter.numel, count));
        if (!next) {
          return fail(ErrorCode::Corrupt, "{}: sub-group {}: more elements than there can be",
                      files_.name(world.model.file), g);
        }
        begins.push_back(*next);
      }
      CKFS_TRY_VOID(check_partitioned(world, g, begins.back()));
      dict_.extent_budget().add_files(pieces);
      for (std::size_t i = 0; i < group.size(); ++i) {
        extents.clear();
        append_partitioned(pieces, width(dtype), begins[i], group[i].numel, extents);
        CKFS_TRY_VOID(dict_.extent_budget().take(group[i].name, pieces.size(), extents.size()));
        CKFS_TRY_VOID(add(world, group[i], dtype, extents));
      }
    }
    return {};
  }

  Result<void> check_partitioned(const ZeroWorld& world, std::size_t g,
                                 std::int64_t expected) const {
    for (const OptimizerStates& rank : world.ranks) {
      const std::int64_t saved = rank.groups[g].numel;
      if (saved == expected) continue;
      const std::string& file = files_.name(rank.file);
      if (saved == 0) {
        return fail(
            ErrorCode::Unsupported,
            "{}: sub-group {} is empty (its parameters have {} elements here): offloaded to "
            "NVMe, not in the checkpoint",
            file, g, expected);
      }
      return fail(ErrorCode::Corrupt, "{}: sub-group {} has {} elements, its parameters {}", file,
                  g, saved, expected);
    }
    return {};
  }

  // ---- facts and notes

  void finish() {
    const ZeroCounts counts = std::move(dict_).finish();
    const ZeroWorld& first = worlds_.front();
    const OptimizerStates& rank = first.ranks.front();
    builder_.add_fact("tag", tag_name(tag_));
    if (!other_tags_.empty()) builder_.add_fact("other tags", first_of(other_tags_));
    builder_.add_fact("ZeRO stage", std::to_string(rank.stage));
    builder_.add_fact("world size", std::to_string(first.ranks.size()));
    if (worlds_.size() > 1) builder_.add_fact("pipeline stages", std::to_string(worlds_.size()));
    if (!rank.version.empty()) builder_.add_fact("written by", "DeepSpeed " + rank.version);
    add_count_facts(builder_, counts);
    add_byte_facts(counts.bytes, bytes_of(tag_.prefix));
    for (const std::string& path : stale_) {
      builder_.add_note(path, "of a larger world that was there before; left out");
    }
    if (!stale_.empty()) {
      spdlog::warn("{}: files of a larger world that was there before are left out: {}",
                   tag_name(tag_), first_of(stale_));
    }
    if (!counts.module_frozen.empty()) {
      spdlog::warn(
          "{}: {} tensors are in the module's state only (frozen parameters); zero_to_fp32 drops "
          "them, so do the views unless @frozen=module: {}",
          tag_name(tag_), counts.module_frozen.size(), first_of(counts.module_frozen));
    }
  }

  ZeroStateDict dict_;
  DeepSpeedTag tag_;
  std::vector<std::string> other_tags_;
  std::vector<ZeroWorld> worlds_;  // by model-parallel rank
  std::vector<std::string> stale_;
};

bool recognizes_zero(const SourceTree& tree, const SourceFiles& /*files*/,
                     const OpenCheckpointOptions& options) {
  if (tree.single_file) return false;
  const std::vector<DeepSpeedTag> tags = find_deepspeed_tags(tree);
  const auto is_zero = [&](const DeepSpeedTag& tag) {
    if (!may_have_tag(tree, tag_name(tag), kLatest, options)) return false;
    return !tag.experts.empty() || !tag.splits.empty() || has_optimizer(tag);
  };
  // A universal checkpoint is usually made beside the one it was made of; only its tag decides.
  return std::ranges::any_of(tags, is_zero) && !find_universal_tags(tree).contains(options.tag);
}

Result<std::shared_ptr<const Catalog>> open_zero(const SourceTree& tree, SourceFiles& files,
                                                 const OpenCheckpointOptions& options) {
  if (!options.key.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: a DeepSpeed checkpoint takes no key", tree.name);
  }
  if (!options.tag.empty()) {
    for (const DeepSpeedTag& tag : find_deepspeed_tags(tree)) {
      if (tag_name(tag) != options.tag || !is_plain_module(tag)) continue;
      OpenCheckpointOptions by_itself = options;
      by_itself.tag = {};
      return open_checkpoint(tree.root / tag.prefix, files, by_itself);
    }
  }
  return ZeroOpener(tree, files, options).open();
}

}  // namespace

const Adapter kDeepSpeedZero{"deepspeed_zero", recognizes_zero, open_zero};

}  // namespace ckfs
