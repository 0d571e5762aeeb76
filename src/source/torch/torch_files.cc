// A torch file is known by its first bytes, not by its name: .bin, .pt, .pth, .ckpt and no ending
// at all are in use, and other formats share the first two. In a directory the model must be told
// apart from the files that a trainer leaves beside it: names decide, and where they do not, the
// user.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "base/parallel.h"
#include "base/text.h"
#include "format/hf_index.h"
#include "source/adapters.h"
#include "source/file_role.h"
#include "source/header_loader.h"
#include "source/model_directory.h"
#include "source/numbered_files.h"
#include "source/source_opener.h"
#include "source/torch/torch_state_dict.h"
#include "source/torch/torch_tensors.h"

namespace ckfs {
namespace {

constexpr std::size_t kTensorBytes = 384;  // kept for a tensor in all, about
constexpr std::size_t kPrefix = 512;       // bytes that show a torch file
constexpr std::string_view kIndexEnding = ".bin.index.json";
constexpr std::string_view kEnding = ".bin";

/// Names that models have, in the order in which they count.
constexpr std::array<std::string_view, 5> kModelNames = {
    "pytorch_model.bin", "pytorch_model_fsdp.bin", "model.bin", "model.pt", "model.pth"};

/// First words of names that trainers give to files other than models.
constexpr std::array<std::string_view, 10> kOtherNames = {
    "optimizer",     "optim",  "scheduler", "training_args",     "rng_state",
    "random_states", "scaler", "sampler",   "custom_checkpoint", "meta.pt"};

/// Endings of text and of other formats: not worth a look inside.
constexpr std::array<std::string_view, 18> kOtherEndings = {
    ".json", ".txt", ".py",          ".md",   ".model",  ".yaml", ".yml", ".jinja",   ".log",
    ".onnx", ".h5",  ".safetensors", ".gguf", ".distcp", ".npz",  ".zip", ".msgpack", ".ot"};

bool is_top_level(std::string_view path) {
  return path.find('/') == std::string_view::npos;
}

bool looks_like_torch(const SourceTree& tree, const TreeFile& file, const SourceFiles& files) {
  return TorchFile::recognize(files.store().first_bytes(tree.location(file), kPrefix));
}

bool is_index(const TreeFile& file) {
  return is_top_level(file.path) && file.path.ends_with(kIndexEnding);
}

/// Torch files at the top of a directory that may be models; by path.
std::vector<std::string> find_candidates(const SourceTree& tree, const SourceFiles& files) {
  std::vector<const TreeFile*> named;
  for (const TreeFile& file : tree.files) {
    if (!is_top_level(file.path) || file.path.starts_with('.')) continue;
    const std::string_view path = file.path;
    if (role_of(path) == FileRole::Adapter) continue;
    const auto begins = [&](std::string_view word) { return path.starts_with(word); };
    const auto ends = [&](std::string_view word) { return path.ends_with(word); };
    if (std::ranges::any_of(kOtherNames, begins) || std::ranges::any_of(kOtherEndings, ends)) {
      continue;
    }
    named.push_back(&file);
  }
  std::vector<char> is_torch(named.size());  // no bits: each thread writes its own
  const Result<void> looked = run_parallel(
      named.size(),
      [&](std::size_t i) -> Result<void> {
        is_torch[i] = looks_like_torch(tree, *named[i], files) ? 1 : 0;
        return {};
      },
      files.parallel());
  std::vector<std::string> found;
  for (std::size_t i = 0; i < named.size() && looked; ++i) {
    if (is_torch[i] != 0) found.push_back(named[i]->path);
  }
  return found;
}

/// Which files to open.
struct Choice {
  std::string index;  // empty: none
  std::vector<std::string> files;
};

/// Adapters at the top that are files of torch, and those of safetensors beside them.
std::vector<std::string> find_adapters(const SourceTree& tree) {
  std::vector<std::string_view> paths;
  for (const TreeFile& file : tree.files) {
    if (is_top_level(file.path)) paths.push_back(file.path);
  }
  return shown_adapters(paths);
}

Result<Choice> choose_files(const SourceTree& tree, const SourceFiles& source) {
  if (tree.single_file) return Choice{{}, {tree.files.front().path}};
  const auto indexes = std::ranges::count_if(tree.files, is_index);
  if (indexes > 1) {
    return fail(ErrorCode::Unsupported, "{}: {} files *{}: ckfs cannot tell which to use",
                tree.name, indexes, kIndexEnding);
  }
  if (indexes == 1) return Choice{std::ranges::find_if(tree.files, is_index)->path, {}};

  std::vector<std::string> files = find_candidates(tree, source);
  if (files.empty() && !find_adapters(tree).empty()) return Choice{};
  if (files.empty()) {  // one was there a moment ago
    return fail(ErrorCode::Io, "{}: none of its files is a readable torch file any more",
                tree.name);
  }
  const auto is_numbered = [](const std::string& path) {
    return parse_numbered(path, kEnding).has_value();
  };
  if (!files.empty() && std::ranges::all_of(files, is_numbered)) {
    CKFS_TRY_VOID(check_series(files, kEnding, ""));
    return Choice{{}, std::move(files)};
  }
  for (const std::string_view name : kModelNames) {
    if (std::ranges::find(files, name) != files.end()) return Choice{{}, {std::string(name)}};
  }
  const auto slices = find_slices(files);
  std::erase_if(files, [&](const std::string& path) { return slices.contains(path); });
  if (files.empty()) return refuse_slices(slices.begin()->first, slices.begin()->second);
  if (files.size() == 1) return Choice{{}, std::move(files)};
  return fail(ErrorCode::Unsupported, "{}: several torch files: {}{}; open one of them", tree.name,
              fmt::join(std::span(files).first(std::min<std::size_t>(files.size(), 5)), ", "),
              files.size() > 5 ? ", ..." : "");
}

/// A tensor of a file, looked up but not yet placed.
struct Found {
  std::string name;
  TorchTensor tensor;
  ByteRange bytes;
};

/// What one file gives, read by one of several threads.
struct Loaded {
  std::vector<Found> tensors;
  std::vector<Note> not_shown;  // tensors
  std::vector<Note> notes;
  std::uint64_t header_bytes = 0;
};

Result<Loaded> load(ByteSource& source, FileId file, std::string_view key) {
  const std::string& file_name = source.name(file);
  CKFS_TRY(const TorchFile torch, TorchFile::open(source, file, ByteRange{0, source.size(file)}));
  CKFS_TRY(TorchStateDict dict, find_state_dict(torch, key, file_name));
  Loaded loaded{{}, {}, std::move(dict.notes), torch.header_bytes()};
  std::vector<std::uint32_t> storages;  // of the tensors that have elements
  WorkBudget& budget = *torch.pickle().budget();
  for (NamedNode& named : dict.tensors) {
    if (!budget.hold(kTensorBytes + named.name.size())) break;
    auto tensor = torch.tensor(named.node);
    if (!tensor && tensor.error().code() == ErrorCode::Unsupported) {
      if (!budget.hold(kTensorBytes)) break;
      loaded.not_shown.push_back(
          {named.name, fmt::format("left out: {}", tensor.error().message())});
      continue;
    }
    CKFS_TRY_VOID(budget.check(file_name));
    if (!tensor) return Failure(tensor_error(tensor.error(), file_name, named.name));
    if (!run_of(*tensor).empty()) storages.push_back(tensor->storage);
    loaded.tensors.push_back({std::move(named.name), *std::move(tensor), {}});
  }
  CKFS_TRY_VOID(budget.check(file_name));
  CKFS_TRY(const std::vector<ByteRange> bytes, torch.storage_bytes(storages));
  std::size_t next = 0;
  for (Found& found : loaded.tensors) {
    if (!run_of(found.tensor).empty()) found.bytes = bytes[next++];
  }
  return loaded;
}

class TorchFilesOpener : public SourceOpener {
 public:
  TorchFilesOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options)
      : SourceOpener(tree, files, options, kTorchFile.name), placer_(builder_) {}

  /// Of one file beside the weights of `whole`.
  TorchFilesOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options,
                   SourceOpener& whole)
      : SourceOpener(tree, files, options, kTorchFile.name, &whole),
        is_part_(true),
        placer_(builder_) {}

 private:
  Result<void> read() override {
    if (is_part_) return read_part();
    if (tree_.single_file) {
      CKFS_TRY_VOID(refuse_slice(tree_, files_));
      adapters_ = find_adapters(tree_);
    }
    if (adapters_.empty()) {
      CKFS_TRY(choice_, choose_files(tree_, files_));
    }
    if (!tree_.single_file) adapters_ = find_adapters(tree_);
    CKFS_TRY_VOID(add_adapters(adapters_));
    if (!choice_.index.empty() || !choice_.files.empty()) {
      CKFS_TRY_VOID(read_index());
      CKFS_TRY_VOID(read_files());
    }
    CKFS_TRY_VOID(add_model(tree_.single_file ? std::optional(tree_.root) : std::nullopt));
    note_other_weights();
    add_facts();
    builder_.add_only_shard(std::move(order_));
    return {};
  }

  /// Its loader looks for safetensors first, and knows the file by its name.
  Result<void> read_part() {
    choice_.files = {tree_.files.front().path};
    CKFS_TRY_VOID(read_files());
    const std::string& path = choice_.files.front();
    builder_.add_shard(
        {path.substr(0, path.rfind('.')) + ".safetensors", id(path), std::move(order_)});
    return {};
  }

  Result<void> read_index() {
    if (choice_.index.empty()) return {};
    CKFS_TRY(index_text_, read_once(id(choice_.index), kMaxIndex));
    CKFS_TRY(index_, parse_hf_index(index_text_, choice_.index));
    choice_.files.assign(index_->files().begin(), index_->files().end());
    for (const std::string& path : choice_.files) {
      if (find(path)) continue;
      return fail(ErrorCode::NotFound, "{}: names {}, which is absent", choice_.index, quote(path));
    }
    return {};
  }

  /// A file is opened once, however many of its names the index has.
  Result<void> read_files() {
    std::vector<std::size_t> distinct;  // numbers of choice_.files, the first of each file
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::size_t> known;  // by device and inode
    for (std::size_t i = 0; i < choice_.files.size(); ++i) {
      const Fingerprint& fingerprint = files_.fingerprint(id(choice_.files[i]));
      const auto [first, is_new] =
          known.try_emplace(std::pair(fingerprint.device, fingerprint.inode), i);
      // Where a file system has no inodes, 0, nothing is known of names.
      const bool is_own = is_new || fingerprint.inode == 0;
      same_as_.push_back(is_own ? i : first->second);
      if (is_own) distinct.push_back(i);
    }
    std::vector<Loaded> loaded(distinct.size());
    CKFS_TRY_VOID(run_parallel(
        loaded.size(),
        [&](std::size_t i) -> Result<void> {
          const FileId file = id(choice_.files[distinct[i]]);
          CKFS_TRY(loaded[i], load(files_, file, options_.key));
          return repeated_.add(file, loaded[i].header_bytes);
        },
        files_.parallel()));
    for (std::size_t i = 0; i < loaded.size(); ++i) {
      CKFS_TRY_VOID(add(distinct[i], std::exchange(loaded[i], {})));
    }
    CKFS_TRY_VOID(check_index());
    if (order_.empty()) {
      return fail(ErrorCode::Unsupported, "{}: none of its {} tensors can be shown",
                  choice_.files.front(), not_shown_.size());
    }
    return {};
  }

  /// Whether the index says that the tensor lies in that file.
  bool is_indexed(std::string_view tensor, std::size_t number, std::size_t& near) const {
    const auto file = index_->find(tensor, near);
    return file && same_as_[*file] == number;
  }

  Result<void> add(std::size_t number, const Loaded& loaded) {
    const std::string& path = choice_.files[number];
    const FileId file = id(path);
    for (const Note& note : loaded.notes) builder_.add_note(note.subject, note.text);
    std::size_t near = 0;  // in the index
    for (const Note& note : loaded.not_shown) {
      builder_.add_note(note.subject, note.text);
      if (!index_ || is_indexed(note.subject, number, near)) not_shown_.insert(note.subject);
    }
    for (const Found& found : loaded.tensors) {
      if (index_ && !is_indexed(found.name, number, near)) {
        if (++not_indexed_ <= kMaxNotes) {
          builder_.add_note(found.name,
                            fmt::format("left out of {}: the index does not put it there", path));
        }
        continue;
      }
      const auto twin = names_.find(found.name);
      if (twin != names_.end()) {
        return fail(ErrorCode::Corrupt, "{}: tensor {}: also in another file, and no index decides",
                    path, quote(found.name));
      }
      add_tensor(found, file);
    }
    return {};
  }

  void add_tensor(const Found& found, FileId file) {
    PlacedTensor placed = placer_.place(found.tensor, file, found.bytes);
    const bool has_elements = builder_.storage(placed.storage).numel > 0;
    std::vector<std::int64_t> strides;  // of the one box; without one the order is row-major
    if (!placed.boxes.empty()) strides = placed.boxes.front().stride;
    const auto key = std::tuple(placed.storage, placed.shape, std::move(strides));
    const auto origin = origins_.find(key);
    TensorId id = 0;
    if (has_elements && origin != origins_.end()) {
      id = builder_.add_alias(found.name, origin->second);
      ++aliases_;
    } else {
      id = builder_.add_tensor(found.name, placed.shape, placed.storage, std::move(placed.boxes));
      origins_.emplace(key, id);
    }
    names_.emplace(builder_.tensor(id).name, id);
    order_.push_back(id);
  }

  /// Every name of the index must be there; one that cannot be shown is.
  Result<void> check_index() const {
    if (!index_ || names_.size() == index_->size()) return {};
    for (std::size_t i = 0; i < index_->size(); ++i) {
      const HfIndex::Entry entry = (*index_)[i];
      if (names_.contains(entry.name) || not_shown_.contains(entry.name)) continue;
      return fail(ErrorCode::Corrupt, "{}: tensor {}: in {}, not in the file",
                  choice_.files[entry.file], quote(entry.name), choice_.index);
    }
    return {};
  }

  void note_other_weights() {
    if (tree_.single_file) return;
    std::set<std::string_view> chosen(choice_.files.begin(), choice_.files.end());
    chosen.insert(adapters_.begin(), adapters_.end());
    std::vector<std::string> others;
    for (const TreeFile& file : tree_.files) {
      const FileRole role = role_of(file.path);
      const bool is_weights = role == FileRole::Weights || role == FileRole::Adapter;
      if (!is_top_level(file.path) || !is_weights || chosen.contains(file.path)) continue;
      others.push_back(file.path);
    }
    const auto slices = find_slices(others);
    for (const std::string& path : others) {
      const auto slice = slices.find(path);
      builder_.add_note(path, fmt::format("{}; converted views leave it out",
                                          slice == slices.end() ? "other weights or training state"
                                                                : slice->second));
    }
  }

  void add_facts() {
    std::uint64_t total = 0;
    std::uint64_t bytes = 0;
    for (const std::string& path : choice_.files) total += files_.size(id(path));
    std::set<StorageId> counted;
    for (const auto& [what, tensor] : origins_) {
      if (!counted.insert(std::get<0>(what)).second) continue;
      for (const Extent& extent : builder_.storage(std::get<0>(what)).extents) {
        bytes += extent.nbytes;
      }
    }
    builder_.add_fact("files", std::to_string(choice_.files.size()));
    builder_.add_fact("tensors", std::to_string(order_.size()));
    builder_.add_fact("shared", std::to_string(aliases_));
    add_byte_facts(bytes, total);
  }

  const bool is_part_ = false;
  TensorPlacer placer_;
  Choice choice_;
  std::vector<std::string> adapters_;  // by path
  std::vector<std::size_t> same_as_;   // by file of choice_: the first that is the same
  std::string index_text_;
  std::optional<HfIndex> index_;
  std::vector<TensorId> order_;  // provisional ids
  std::map<std::string_view, TensorId> names_;
  /// Tensors that are not aliases, by storage, shape and strides.
  std::map<std::tuple<StorageId, std::vector<std::int64_t>, std::vector<std::int64_t>>, TensorId>
      origins_;
  std::set<std::string, std::less<>> not_shown_;  // names of tensors
  std::size_t not_indexed_ = 0, aliases_ = 0;
};

bool recognizes_file(const SourceTree& tree, const SourceFiles& files,
                     const OpenCheckpointOptions& /*options*/) {
  return tree.single_file && looks_like_torch(tree, tree.files.front(), files);
}

bool recognizes_directory(const SourceTree& tree, const SourceFiles& files,
                          const OpenCheckpointOptions& /*options*/) {
  if (tree.single_file) return false;
  if (std::ranges::any_of(tree.files, is_index) || !find_candidates(tree, files).empty()) {
    return true;
  }
  return std::ranges::any_of(tree.files, [&](const TreeFile& file) {
    return is_top_level(file.path) && role_of(file.path) == FileRole::Adapter &&
           looks_like_torch(tree, file, files);
  });
}

Result<std::shared_ptr<const Catalog>> open_torch(const SourceTree& tree, SourceFiles& files,
                                                  const OpenCheckpointOptions& options) {
  if (!options.tag.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: only DeepSpeed checkpoints have tags", tree.name);
  }
  return TorchFilesOpener(tree, files, options).open();
}

Result<std::shared_ptr<const Catalog>> open_torch_file(const SourceTree& tree, SourceFiles& files,
                                                       SourceOpener& whole,
                                                       const FileTable& table) {
  const OpenCheckpointOptions options;
  return TorchFilesOpener(tree, files, options, whole).open_part(table);
}

}  // namespace

const Adapter kTorchFile{"torch_file", recognizes_file, open_torch, open_torch_file};
const Adapter kTorchFiles{"torch_file", recognizes_directory, open_torch};

}  // namespace ckfs
