// Kinds are told apart by the files in the directory, in the order of one table: first come, first
// served, so a directory that several kinds could claim is opened as the most specific. Trying each
// adapter until one succeeds would turn every broken checkpoint into "not a checkpoint".
#include "source/open_checkpoint.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "source/adapters.h"
#include "source/file_role.h"
#include "source/hub_cache.h"
#include "source/source_tree.h"

namespace ckfs {
namespace {

// A training run's directory may have a model in safetensors at its top, and below it the state to
// resume from; a user who opens that directory with ckfs means the state. A model's directory may
// have any other format beside its safetensors, all of the same weights. (An Orbax item may have
// safetensors files for its data files.)
constexpr std::array<const Adapter*, 12> kAdapters = {
    &kFsdpRanksTop, &kTorchFile,     &kDeepSpeedZero, &kUniversal, &kMegatron,  &kTorchDcpTop,
    &kOrbaxItem,    &kHfSafetensors, &kOrbax,         &kTorchDcp,  &kFsdpRanks, &kTorchFiles};

/// Models below a directory that are counted: each is compared with those before it.
constexpr std::size_t kMostModels = 1000;

/// N of "checkpoint-N", as transformers' Trainer calls its directories.
std::optional<std::uint64_t> checkpoint_number(std::string_view name) {
  constexpr std::string_view kPrefix = "checkpoint-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::string_view last_part(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

std::string_view parent_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

/// The directory to open for the weights at `path`: a repository of the hub's cache, what the
/// Trainer saved, the directory above a DeepSpeed tag, or the one that they lie in.
std::string_view model_of(std::string_view path) {
  if (const auto repository = repository_directory(path); !repository.empty()) return repository;
  for (std::string_view part = parent_of(path); !part.empty(); part = parent_of(part)) {
    if (checkpoint_number(last_part(part))) return part;
  }
  const std::string_view directory = parent_of(path);
  const std::string_view above = parent_of(directory);
  return last_part(directory).starts_with("global_step") && !above.empty() ? above : directory;
}

/// What to do about weights that are there, `paths`.
std::string hint(const SourceTree& tree, const std::vector<std::string_view>& paths) {
  constexpr std::size_t kMostListed = 5;
  if (paths.empty()) return {};
  std::vector<std::string_view> models;
  for (const std::string_view path : paths) {
    if (path.find('/') == std::string_view::npos) {
      return fmt::format(" (it has {}, which ckfs cannot read)", path);
    }
    const std::string_view model = model_of(path);
    if (std::ranges::find(models, model) == models.end()) models.push_back(model);
    if (models.size() > kMostModels) break;
  }
  std::string_view top = tree.name;
  while (top.size() > 1 && top.ends_with('/')) top.remove_suffix(1);
  const auto command = [&](std::string_view model) {
    return fmt::format(" (try: ckfs inspect {}/{}", top, model);
  };
  const auto is_checkpoint = [&](std::string_view model) {
    return checkpoint_number(last_part(model)) && parent_of(model) == parent_of(models.front());
  };
  if (std::ranges::all_of(models, is_checkpoint)) {
    const auto newest = std::ranges::max_element(
        models, {}, [](std::string_view model) { return *checkpoint_number(last_part(model)); });
    return command(*newest) + (models.size() > 1
                                   ? fmt::format(", the newest of {} checkpoints)", models.size())
                                   : ")");
  }
  if (models.size() == 1) return command(models.front()) + ")";
  const std::span<const std::string_view> listed(models.data(),
                                                 std::min(models.size(), kMostListed));
  return command(models.front()) + fmt::format("; there are {} models: {}{})", models.size(),
                                               fmt::join(listed, ", "),
                                               models.size() > kMostListed ? ", ..." : "");
}

Failure not_a_checkpoint(const SourceTree& tree, const SourceFiles& files) {
  if (tree.files.empty() && tree.dangling.empty()) {
    return fail(ErrorCode::Unsupported, "{}: not a checkpoint: the directory is empty", tree.name);
  }
  const auto part = std::ranges::find_if(
      tree.files, [](const TreeFile& file) { return file.path.ends_with(".distcp"); });
  if (part != tree.files.end()) {
    return fail(ErrorCode::Unsupported,
                "{}: a part of a DCP checkpoint ({}), and .metadata is not here: it lies on the "
                "first node that saved it (copy the files of all nodes into one directory)",
                tree.name, part->path);
  }
  std::vector<std::string_view> weights;
  for (const TreeFile& file : tree.files) {
    if (role_of(file.path) == FileRole::Weights) weights.push_back(file.path);
  }
  const auto pointers = find_lfs_pointers(
      tree, files, [](const TreeFile& file) { return role_of(file.path) == FileRole::Weights; });
  if (!pointers.empty()) return refuse_lfs_pointer(pointers.front()->path);
  return fail(ErrorCode::Unsupported,
              "{}: not a checkpoint: no *.safetensors file, none of torch, DeepSpeed or Orbax{}",
              tree.name, hint(tree, weights));
}

}  // namespace

Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files,
                                                       const OpenCheckpointOptions& options) {
  CKFS_TRY(const SourceTree tree, list_source(path, files));
  for (const Adapter* adapter : kAdapters) {
    if (!adapter->recognizes(tree, files, options)) continue;
    const bool has_items = adapter == &kOrbax || adapter == &kOrbaxItem;
    const bool has_steps = has_items || adapter == &kMegatron || adapter->name == kFsdpRanks.name;
    if ((options.step && !has_steps) || (!options.item.empty() && !has_items)) {
      // The options may mean files still to come; the files that are there, whole by themselves,
      // are not what was named.
      if (!tree.incomplete.empty()) return refuse_unfinished(tree);
      const bool step = options.step && !has_steps;
      return fail(
          ErrorCode::InvalidArgument, "{}: only {} have {}", tree.name,
          step ? "Orbax and Megatron checkpoints and files of FSDP ranks" : "Orbax checkpoints",
          step ? "steps" : "items");
    }
    return adapter->open(tree, files, options);
  }
  return not_a_checkpoint(tree, files);
}

}  // namespace ckfs
