// The directory zero/ has more names than parameters: the converter writes an fp32.pt for buffers,
// frozen parameters and tied names too, cast from the 16-bit module, which is not their value (an
// integer beyond 2^24, a tied weight's master). So only the names that the model file's
// param_shapes has are taken from there, and the rest from the model file itself.
//
// Their shapes, too, are those of zero/: where the converter has joined slices of tensor
// parallelism, or cut off the padding of a vocabulary, param_shapes is still that of one rank.

#include <algorithm>
#include <map>
#include <set>
#include <spdlog/spdlog.h>

#include "base/checked.h"
#include "base/parallel.h"
#include "base/text.h"
#include "source/adapters.h"
#include "source/deepspeed/deepspeed_names.h"
#include "source/deepspeed/deepspeed_states.h"
#include "source/deepspeed/deepspeed_tag.h"
#include "source/deepspeed/zero_state_dict.h"
#include "source/model_directory.h"
#include "source/source_opener.h"

namespace ckfs {
namespace {

constexpr std::string_view kLatestUniversal = "latest_universal";

/// A parameter as the model files know it.
struct Parameter {
  const NamedShape* named = nullptr;             // of the first that has it
  std::optional<std::int64_t> numel_of_all = 0;  // elements in all that have it; nullopt: too many
};

/// A parameter's master, read by one of several threads.
struct Master {
  FileId file = 0;
  TorchTensor tensor;
  ByteRange bytes;
  std::uint64_t header_bytes = 0;
  std::vector<std::int64_t> shape;
};

/// Whether the converter may have made `shape` from the model files: the first's own shape (copies,
/// an average), or slices joined, which have no fewer elements than the first, and no more than all
/// have together. They may differ in size, have a part that is the same in all (the keys of
/// multi-query attention), or be there once for each stage of a pipeline; parts of a parameter may
/// get a dimension of their own. Of a vocabulary rows are cut off.
bool is_joined(const std::vector<std::int64_t>& shape, const Parameter& parameter,
               bool cut_vocabulary) {
  const NamedShape& first = *parameter.named;
  if (shape == first.shape) return true;
  const auto numel = checked_numel(shape);
  if (!numel || *numel == 0 || !parameter.numel_of_all) return false;
  if (cut_vocabulary && shape.size() == first.shape.size() &&
      std::ranges::equal(std::span(shape).subspan(1), std::span(first.shape).subspan(1))) {
    return *numel <= *parameter.numel_of_all;
  }
  return *numel >= first.numel && *numel <= *parameter.numel_of_all;
}

Result<Master> read_master(ByteSource& source, FileId file, const Parameter& sliced) {
  const NamedShape& parameter = *sliced.named;
  const std::string& file_name = source.name(file);
  CKFS_TRY(const TorchFile torch, TorchFile::open(source, file, ByteRange{0, source.size(file)}));
  NodeId node = torch.root();
  const auto whole = torch.pickle().find(node, "param");  // of ZeRO-3 it is the bare flat vector
  if (whole) node = *whole;
  Master master{file, {}, {}, torch.header_bytes(), parameter.shape};
  const bool cut_vocabulary = whole && torch.pickle().find(torch.root(), "vocab_tensor");
  auto tensor = torch.tensor(node);
  CKFS_TRY_VOID(torch.pickle().budget()->check(file_name));
  if (!tensor) return Failure(tensor_error(tensor.error(), file_name, parameter.name));
  master.tensor = *std::move(tensor);
  if (whole) master.shape = master.tensor.shape;
  const bool fits = whole ? is_joined(master.shape, sliced, cut_vocabulary)
                          : master.tensor.shape == std::vector{parameter.numel};
  if (!fits) {
    return fail(ErrorCode::Corrupt, "{}: shape [{}], but param_shapes says [{}]", file_name,
                fmt::join(master.tensor.shape, ", "), fmt::join(parameter.shape, ", "));
  }
  if (!whole && !is_contiguous(master.tensor)) {
    return fail(ErrorCode::Corrupt, "{}: not a flat vector", file_name);
  }
  if (std::ranges::find(master.shape, 0) == master.shape.end()) {
    CKFS_TRY(master.bytes, torch.storage_bytes(master.tensor.storage));
  }
  return master;
}

class UniversalOpener : public SourceOpener {
 public:
  UniversalOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options)
      : SourceOpener(tree, files, options, kUniversal.name), dict_(files, builder_, repeated_) {}

 private:
  Result<void> read() override {
    CKFS_TRY_VOID(choose());
    CKFS_TRY_VOID(read_models());
    CKFS_TRY_VOID(read_masters());
    for (const ModelStates& model : models_) CKFS_TRY_VOID(dict_.add_buffers(model));
    for (const ModelStates& model : models_) CKFS_TRY_VOID(add_frozen(model));
    CKFS_TRY_VOID(add_module_frozen());
    add_masters();
    for (const ModelStates& model : models_) CKFS_TRY_VOID(dict_.add_shared(model));
    finish();
    return add_model(prefix_.empty() ? std::optional(directory_above(tree_)) : std::nullopt);
  }

  Result<void> choose() {
    const std::set<std::string> tags = find_universal_tags(tree_);
    CKFS_TRY(tag_, choose_tag({tags.begin(), tags.end()}, kLatestUniversal, tree_, table(), files_,
                              options_));
    prefix_ = tag_ == "." ? "" : tag_ + "/";
    for (DeepSpeedTag& tag : find_deepspeed_tags(tree_)) {
      if (tag.prefix == prefix_) model_files_ = std::move(tag);
    }
    return {};
  }

  Result<std::optional<ModelStates>> read_model(FileId file) {
    CKFS_TRY(ModelStates model, read_model_states(files_, file));
    CKFS_TRY_VOID(repeated_.add(file, model.torch.header_bytes()));
    if (model.has_experts) {
      return fail(ErrorCode::Unsupported, "{}: a mixture of experts, which ckfs cannot read",
                  files_.name(file));
    }
    if (!model.parameters) {
      return fail(ErrorCode::Unsupported, "{}: no param_shapes: nothing names the parameters",
                  files_.name(file));
    }
    return std::optional(std::move(model));
  }

  Result<void> read_models() {
    std::vector<FileId> found;
    for (const auto& [mp, cell] : model_files_.cells) {
      const auto path = model_file(cell, false);
      if (!path) continue;
      found.push_back(id(*path));
      ranks_.push_back(&cell);
    }
    std::vector<std::optional<ModelStates>> read(found.size());
    CKFS_TRY_VOID(run_in_order(
        found.size(),
        [&](std::size_t i) -> Result<void> {
          CKFS_TRY(read[i], read_model(found[i]));
          return {};
        },
        [&](std::size_t i) -> Result<void> {
          models_.push_back(*std::move(read[i]));
          return {};
        },
        files_.parallel()));
    if (models_.empty()) {
      return fail(ErrorCode::NotFound, "{}: no *_model_states.pt, which has the parameters' names",
                  tag_);
    }
    const std::int64_t expected = models_.front().model_parallel;
    if (std::cmp_less(models_.size(), expected)) {
      return fail(ErrorCode::NotFound, "{}: one of {} model-parallel ranks, but only {} are there",
                  files_.name(models_.front().file), expected, models_.size());
    }
    return {};
  }

  const DeepSpeedCell& cell_of(const ModelStates& model) const {
    return *ranks_[static_cast<std::size_t>(&model - models_.data())];
  }

  /// Copies of a ZeRO-3 checkpoint's model files: one for each rank, and no shared one.
  bool partitioned(const ModelStates& model) const { return cell_of(model).model_shared.empty(); }

  Result<void> add_frozen(const ModelStates& model) {
    if (model.frozen.empty()) return {};
    if (has_slices_) {
      return fail(
          ErrorCode::Unsupported,
          "{}: frozen parameter {}: a slice of tensor parallelism, which the converter does "
          "not join",
          files_.name(model.file), quote(model.frozen.front().name));
    }
    if (!partitioned(model)) return dict_.add_frozen(model);
    const auto& paths = cell_of(model).model_ranks;
    std::vector<FileId> files;
    for (const auto& [rank, path] : paths) {
      if (rank == files.size()) files.push_back(id(path));
    }
    if (std::cmp_not_equal(files.size(), model.world)) {
      return fail(ErrorCode::NotFound,
                  "{}: one of {} ranks, but the model file of rank {} is missing, which has a part "
                  "of frozen parameter {}",
                  files_.name(model.file), model.world, files.size(),
                  quote(model.frozen.front().name));
    }
    return dict_.add_partitioned_frozen(model, files);
  }

  Result<void> add_module_frozen() {
    if (has_slices_) {
      builder_.add_note(
          tag_,
          "slices of tensor parallelism, joined by the converter; tensors that only the "
          "module's state has are left out");
      return {};
    }
    std::set<std::string_view> known;
    for (const ModelStates& model : models_) {
      for (const ParameterGroup& group : *model.parameters) {
        for (const NamedShape& parameter : group) known.insert(parameter.name);
      }
      for (const auto& [alias, origin] : model.shared) known.insert(alias);
    }
    for (const ModelStates& model : models_) {
      if (partitioned(model) || !model.module) continue;
      CKFS_TRY_VOID(dict_.add_module_frozen(
          model.torch, model.file, *model.module, "",
          [&](std::string_view name, NodeId /*tensor*/) { return known.contains(name); }));
    }
    return {};
  }

  Result<void> read_masters() {
    std::map<std::string_view, std::size_t> places;
    for (const ModelStates& model : models_) {
      for (const ParameterGroup& group : *model.parameters) {
        for (const NamedShape& parameter : group) {
          const auto [place, is_new] = places.emplace(parameter.name, parameters_.size());
          if (is_new) parameters_.push_back({&parameter, 0});
          auto& all = parameters_[place->second].numel_of_all;
          if (all) all = checked_add(*all, parameter.numel);
        }
      }
    }
    masters_.resize(parameters_.size());
    CKFS_TRY_VOID(run_parallel(
        parameters_.size(),
        [&](std::size_t i) -> Result<void> {
          const std::string path =
              fmt::format("{}zero/{}/fp32.pt", prefix_, parameters_[i].named->name);
          const auto file = find(path);
          if (!file) {
            return fail(ErrorCode::NotFound, "{}: missing, but param_shapes names the parameter",
                        path);
          }
          CKFS_TRY(masters_[i], read_master(files_, *file, parameters_[i]));
          return repeated_.add(*file, masters_[i].header_bytes);
        },
        files_.parallel()));
    // Several that are not a pipeline's stages (those keep modules in files of their own) are
    // slices, even if some of their parameters were joined.
    has_slices_ = models_.size() > 1 && std::ranges::any_of(models_, [](const ModelStates& model) {
                    return model.module.has_value();
                  });
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const std::int64_t numel = checked_numel(masters_[i].shape).value_or(0);
      has_slices_ = has_slices_ || numel > parameters_[i].named->numel;
    }
    return has_slices_ ? check_gradients() : Result<void>();
  }

  /// For a parameter that never got a gradient the optimizer has no state, and the converter takes
  /// the first rank's slice from its module and joins nothing. That looks like a parameter that all
  /// ranks have a copy of, except for the missing states (exp_avg.pt, say, or step.pt).
  Result<void> check_gradients() const {
    const auto has_state = [&](const Parameter& parameter) {
      const std::string folder = fmt::format("{}zero/{}/", prefix_, parameter.named->name);
      auto file = std::ranges::lower_bound(tree_.files, folder, {}, &TreeFile::path);
      for (; file != tree_.files.end() && file->path.starts_with(folder); ++file) {
        if (file->path != folder + "fp32.pt" && file->path.ends_with(".pt")) return true;
      }
      return false;
    };
    // If all states were left out, a missing one means nothing.
    if (std::ranges::none_of(parameters_, has_state)) return {};
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const NamedShape& first = *parameters_[i].named;
      const bool may_be_slice =
          masters_[i].shape == first.shape && parameters_[i].numel_of_all != first.numel;
      if (!may_be_slice || has_state(parameters_[i])) continue;
      return fail(
          ErrorCode::Unsupported,
          "{}: parameter {} never got a gradient: the converter kept the slice of the first "
          "of {} ranks, and joined none",
          tag_, quote(first.name), models_.size());
    }
    return {};
  }

  void add_masters() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Master& master = masters_[i];
      PlacedTensor tensor = dict_.placer().place(master.tensor, master.file, master.bytes);
      tensor.shape = master.shape;
      dict_.add_parameter(parameters_[i].named->name, std::move(tensor));
    }
  }

  void finish() {
    const ZeroCounts counts = std::move(dict_).finish();
    builder_.add_fact("tag", tag_);
    add_count_facts(builder_, counts);
    add_byte_facts(counts.bytes, bytes_of(prefix_));
    if (counts.module_frozen.empty()) return;
    spdlog::warn(
        "{}: {} tensors are in the module's state only; the views leave them out unless "
        "@frozen=module",
        tag_, counts.module_frozen.size());
  }

  ZeroStateDict dict_;
  std::string tag_, prefix_;
  DeepSpeedTag model_files_;
  std::vector<ModelStates> models_;          // by model-parallel rank
  std::vector<const DeepSpeedCell*> ranks_;  // of models_
  std::vector<Parameter> parameters_;
  std::vector<Master> masters_;  // of parameters_
  bool has_slices_ = false;      // the model files are of tensor parallelism
};

bool recognizes_universal(const SourceTree& tree, const SourceFiles& /*files*/,
                          const OpenCheckpointOptions& options) {
  return !tree.single_file &&
         std::ranges::any_of(find_universal_tags(tree), [&](const std::string& tag) {
           return may_have_tag(tree, tag, kLatestUniversal, options);
         });
}

Result<std::shared_ptr<const Catalog>> open_universal(const SourceTree& tree, SourceFiles& files,
                                                      const OpenCheckpointOptions& options) {
  if (!options.key.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: a universal checkpoint takes no key", tree.name);
  }
  return UniversalOpener(tree, files, options).open();
}

}  // namespace

const Adapter kUniversal{"universal", recognizes_universal, open_universal};

}  // namespace ckfs
