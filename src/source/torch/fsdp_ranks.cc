// verl's merger loads the files of all ranks into memory and concatenates what it finds in them,
// buffers that each rank has whole among it. Here only the pickles are read: they say which box
// of a tensor each rank has. Parts along the first dimension become one storage over the ranks'
// files, which reads like a plain file; any other grid (tensor parallelism) a box for each part.
//
// What a rank says is held against what the first one says: the same names, shapes and dtypes, and
// together the parts must cover each tensor, once. So a file of another run, or of another step, is
// an error and not a model with rows of two.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/checked.h"
#include "base/name_hash.h"
#include "base/parallel.h"
#include "base/text.h"
#include "base/work_budget.h"
#include "format/json_tree.h"
#include "source/adapters.h"
#include "source/box_overlap.h"
#include "source/header_loader.h"
#include "source/model_directory.h"
#include "source/source_opener.h"
#include "source/torch/fsdp_names.h"
#include "source/torch/fsdp_rank.h"
#include "source/torch/torch_tensors.h"

namespace ckfs {
namespace {

constexpr std::string_view kFsdpConfig = "fsdp_config.json";
constexpr std::string_view kLoraMeta = "lora_train_meta.json";
constexpr std::string_view kLatestIteration = "latest_checkpointed_iteration.txt";
constexpr std::string_view kHuggingFace = "huggingface/";
constexpr std::uint64_t kMaxFsdpText = 1 << 20;
constexpr std::size_t kMissingRanks = 8;

/// Parts of a training run that are not the model that it trains, in folders beside it.
constexpr std::array<std::string_view, 5> kOtherModels{"critic", "ref", "reward", "reward_model",
                                                       "rm"};

std::string_view folder_name(std::string_view prefix) {
  if (prefix.empty()) return prefix;
  prefix.remove_suffix(1);
  return prefix.substr(prefix.rfind('/') + 1);
}

/// A folder for a message: "global_step_10/actor/".
std::string list_folders(std::span<const FsdpFolder> folders) {
  constexpr std::size_t kMost = 5;
  std::string text;
  for (std::size_t i = 0; i < std::min(folders.size(), kMost); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : ", ", folders[i].prefix);
  }
  return folders.size() > kMost ? text + ", ..." : text;
}

class FsdpOpener : public SourceOpener {
 public:
  FsdpOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options)
      : SourceOpener(tree, files, options, kFsdpRanks.name), placer_(builder_) {}

 private:
  Result<void> read() override {
    CKFS_TRY_VOID(choose_folder());
    CKFS_TRY_VOID(choose_world());
    CKFS_TRY_VOID(read_ranks());
    CKFS_TRY_VOID(add_tensors());
    CKFS_TRY_VOID(note_lora());
    note_other_files();
    add_facts();
    return add_side_files();
  }

  // ---- which files

  Result<void> choose_folder() {
    std::vector<FsdpFolder> folders = find_fsdp_folders(tree_);
    const auto top = std::ranges::find(folders, "", &FsdpFolder::prefix);
    if (top != folders.end()) {
      if (options_.step) {
        return fail(ErrorCode::InvalidArgument, "{}: one step, and --step {} names another",
                    tree_.name, *options_.step);
      }
      folder_ = std::move(*top);
      return {};
    }
    CKFS_TRY(const auto step, wanted_step(folders));
    if (step) {
      const std::vector<FsdpFolder> all = folders;
      std::erase_if(folders,
                    [&](const FsdpFolder& folder) { return fsdp_step(folder.prefix) != step; });
      if (folders.empty()) {
        return fail(options_.step ? ErrorCode::InvalidArgument : ErrorCode::NotFound,
                    "{}: {} step {}, which is not here: there are {}", tree_.name,
                    options_.step ? "--step names" : "latest_checkpointed_iteration.txt names",
                    *step, list_folders(all));
      }
    }
    if (folders.size() > 1) {
      std::vector<FsdpFolder> models = folders;
      std::erase_if(models, [](const FsdpFolder& folder) {
        return std::ranges::find(kOtherModels, folder_name(folder.prefix)) != kOtherModels.end();
      });
      if (models.size() == 1) {
        for (const FsdpFolder& folder : folders) {
          if (folder.prefix == models.front().prefix) continue;
          builder_.add_note(folder.prefix,
                            "another model of the training; left out (open that directory)");
        }
        folders = std::move(models);
      }
    }
    if (folders.size() > 1) {
      return fail(ErrorCode::Unsupported,
                  "{}: {} directories with files of ranks: {}; open one of them, or choose a step "
                  "with --step N",
                  tree_.name, folders.size(), list_folders(folders));
    }
    folder_ = std::move(folders.front());
    return {};
  }

  /// By the option, or by the file that names the last one. nullopt: nothing says.
  Result<std::optional<std::uint64_t>> wanted_step(std::span<const FsdpFolder> folders) {
    if (options_.step) return options_.step;
    const auto file = find(kLatestIteration);
    const bool has_steps = std::ranges::any_of(
        folders, [](const FsdpFolder& folder) { return fsdp_step(folder.prefix).has_value(); });
    if (!file || !has_steps) return std::optional<std::uint64_t>();
    CKFS_TRY(const std::string text, read_once(*file, kMaxFsdpText));
    const std::string_view written = trim(text);
    const auto step = fsdp_step(fmt::format("global_step_{}/", written));
    if (!step) {
      return fail(ErrorCode::Corrupt, "{}: names {}, which is not a step", kLatestIteration,
                  quote(written));
    }
    return step;
  }

  /// A text of the folder's, parsed; nullopt: there is none.
  Result<std::optional<JsonNode>> json(std::string_view name) {
    const std::string path = folder_.prefix + std::string(name);
    const auto file = tree_.single_file ? std::nullopt : find(path);
    if (!file) return std::optional<JsonNode>();
    CKFS_TRY(const std::string text, read_once(*file, kMaxFsdpText));
    CKFS_TRY(JsonNode tree, parse_json_tree(text, path, JsonKeys::LastWins));
    return std::optional(std::move(tree));
  }

  Result<void> choose_world() {
    CKFS_TRY(const auto config, json(kFsdpConfig));
    std::optional<double> stated;
    if (config) {
      const JsonNode* const world = config->find("world_size");
      if (world != nullptr && world->kind == JsonNode::Kind::Number) stated = world->number;
    }
    const auto& worlds = folder_.worlds;
    auto chosen = worlds.begin();
    if (worlds.size() > 1) {
      chosen = std::ranges::find_if(
          worlds, [&](const auto& world) { return stated && *stated == world.first; });
      if (chosen == worlds.end() || !missing(chosen->first).empty()) {
        return fail(ErrorCode::Unsupported,
                    "{}: files of runs on {} and on {} ranks: move those of one of them away",
                    where(), worlds.begin()->first, std::next(worlds.begin())->first);
      }
      for (const auto& [world, files] : worlds) {
        if (world == chosen->first) continue;
        builder_.add_note(files.begin()->second,
                          fmt::format("of a run on {} ranks; left out, as {} says {}", world,
                                      kFsdpConfig, chosen->first));
      }
    } else if (stated && *stated != chosen->first) {
      return fail(ErrorCode::Corrupt,
                  "{}{}: world_size {}, but the files are of a world of {} ranks", folder_.prefix,
                  kFsdpConfig, *stated, chosen->first);
    }
    world_ = chosen->first;
    if (tree_.single_file && world_ != 1) {
      return fail(ErrorCode::Unsupported,
                  "{}: rank {} of {}: it has its part of each tensor alone (open the directory, "
                  "with the files of all ranks)",
                  tree_.name, chosen->second.begin()->first, world_);
    }
    const auto beyond = chosen->second.lower_bound(world_);
    if (beyond != chosen->second.end()) {
      return fail(ErrorCode::Corrupt, "{}: rank {} of {} (0 to {})", beyond->second, beyond->first,
                  world_, std::int64_t{world_} - 1);
    }
    if (const std::vector<std::string> absent = missing(world_); !absent.empty()) {
      return fail(ErrorCode::NotFound,
                  "{}: one of {} ranks, and {} missing{} (each node writes those of its own ranks: "
                  "copy those of all nodes into one directory)",
                  chosen->second.empty() ? where() : chosen->second.begin()->second, world_,
                  fmt::format("{} {}", fmt::join(absent, ", "), absent.size() == 1 ? "is" : "are"),
                  absent.size() == kMissingRanks ? ", and perhaps more" : "");
    }
    for (const auto& [rank, path] : chosen->second) ranks_.push_back(id(path));
    return {};
  }

  std::string where() const { return folder_.prefix.empty() ? tree_.name : folder_.prefix; }

  /// The names of absent files, the first few. At most one step for each file that is there.
  std::vector<std::string> missing(std::uint32_t world) const {
    const auto& files = folder_.worlds.at(world);
    std::vector<std::string> absent;
    for (std::uint32_t rank = 0; rank < world && absent.size() < kMissingRanks; ++rank) {
      if (!files.contains(rank)) absent.push_back(fsdp_file_name(world, rank));
    }
    return absent;
  }

  // ---- the ranks

  /// A rank's part of a tensor.
  struct Part {
    FileId file = 0;
    std::uint32_t rank = 0;
    std::uint32_t box = 0;     // number in Whole::boxes
    std::uint32_t stride = 0;  // one more than its number in Whole::strides; 0: row-major order
    std::uint64_t offset = 0, nbytes = 0;
  };

  struct Whole {
    std::shared_ptr<const RankFacts> facts;  // of the first rank
    std::uint32_t last = 0;                  // rank that had it
    std::vector<Part> parts;
    std::vector<std::int64_t> boxes, strides;

    std::size_t rank() const { return facts->shape.size(); }
    std::span<const std::int64_t> begin(const Part& part) const {
      return std::span(boxes).subspan(2 * rank() * part.box, rank());
    }
    std::span<const std::int64_t> count(const Part& part) const {
      return std::span(boxes).subspan((2 * std::size_t{part.box} + 1) * rank(), rank());
    }
    std::span<const std::int64_t> stride(const Part& part) const {
      return std::span(strides).subspan(rank() * (part.stride - 1), rank());
    }
  };

  Result<void> read_ranks() {
    std::vector<std::optional<RankState>> states(ranks_.size());
    FsdpRankReader reader(files_, world_, options_.key);
    const auto read = [&](std::size_t i) -> Result<void> {
      CKFS_TRY(states[i], reader.read(ranks_[i], static_cast<std::uint32_t>(i)));
      return repeated_.add(ranks_[i], states[i]->header_bytes);
    };
    CKFS_TRY_VOID(read(0));  // by itself: it is the model of the others
    return run_in_order(
        ranks_.size(), [&](std::size_t i) { return i == 0 ? Result<void>() : read(i); },
        [&](std::size_t i) -> Result<void> {
          const auto rank = static_cast<std::uint32_t>(i);
          RankState state = *std::exchange(states[i], std::nullopt);
          header_bytes_ += state.header_bytes;
          return rank == 0 ? take_first(std::move(state)) : take(rank, std::move(state));
        },
        files_.parallel());
  }

  Result<void> take_first(RankState state) {
    for (Note& note : state.notes) builder_.add_note(std::move(note.subject), std::move(note.text));
    wholes_.reserve(state.tensors.size());
    for (RankTensor& tensor : state.tensors) {
      Whole& whole = wholes_.emplace_back();
      whole.facts = std::move(tensor.said);
      CKFS_TRY_VOID(add_parts(whole, 0, tensor.pieces));
    }
    // Their names stay where they are from here on.
    for (std::size_t i = 0; i < wholes_.size(); ++i) by_name_.emplace(wholes_[i].facts->name, i);
    return {};
  }

  Result<void> take(std::uint32_t rank, RankState state) {
    const std::string& file = files_.name(ranks_[rank]);
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      const RankTensor& tensor = state.tensors[i];
      std::size_t at = i;  // where the order is the same
      const RankFacts& facts = *tensor.said;
      const bool is_same = at < wholes_.size() && wholes_[at].facts == tensor.said;
      if (!is_same && (at >= wholes_.size() || wholes_[at].facts->name != facts.name)) {
        const auto found = by_name_.find(facts.name);
        if (found == by_name_.end()) {
          return fail(ErrorCode::Corrupt, "{}: tensor {}: {} does not have it", file,
                      quote(facts.name), files_.name(ranks_[0]));
        }
        at = found->second;
      }
      Whole& whole = wholes_[at];
      whole.last = rank;
      if (whole.facts != tensor.said) CKFS_TRY_VOID(compare(*whole.facts, facts, file));
      CKFS_TRY_VOID(add_parts(whole, rank, tensor.pieces));
    }
    if (state.tensors.size() == wholes_.size()) return {};
    const auto absent =
        std::ranges::find_if(wholes_, [&](const Whole& whole) { return whole.last != rank; });
    return fail(ErrorCode::Corrupt, "{}: no tensor {}, which {} has", file,
                quote(absent->facts->name), files_.name(ranks_[0]));
  }

  static std::string_view kind_text(RankFacts::Kind kind) {
    switch (kind) {
      case RankFacts::Kind::Plain:
        return "whole";
      case RankFacts::Kind::DTensor:
        return "a DTensor";
      case RankFacts::Kind::Sharded:
        return "a ShardedTensor";
    }
    return "";
  }

  Result<void> compare(const RankFacts& first, const RankFacts& other, std::string_view file) {
    const std::string& first_file = files_.name(ranks_[0]);
    if (!first.left_out.empty() && !other.left_out.empty()) return {};
    if (first.left_out != other.left_out) {
      const bool is_first = !first.left_out.empty();
      return fail(ErrorCode::Unsupported, "{}: tensor {}: {}, but not in {}",
                  is_first ? first_file : file, quote(first.name),
                  is_first ? first.left_out : other.left_out, is_first ? file : first_file);
    }
    if (first.kind != other.kind) {
      return fail(ErrorCode::Corrupt, "{}: tensor {}: {}, but in {} {}", file, quote(first.name),
                  kind_text(other.kind), first_file, kind_text(first.kind));
    }
    if (first.dtype != other.dtype || first.shape != other.shape) {
      return fail(ErrorCode::Corrupt,
                  "{}: tensor {}: {} [{}], but {} has it as {} [{}]: files of two runs, or of two "
                  "steps",
                  file, quote(first.name), name(other.dtype), fmt::join(other.shape, ", "),
                  first_file, name(first.dtype), fmt::join(first.shape, ", "));
    }
    if (first.all_shards != other.all_shards && *first.all_shards != *other.all_shards) {
      return fail(ErrorCode::Corrupt,
                  "{}: tensor {}: its metadata list other shards than those in {}", file,
                  quote(first.name), first_file);
    }
    return {};
  }

  /// Parts are paid for by the pickles that have them: shared nodes of a small one may list any
  /// number.
  Result<void> add_parts(Whole& whole, std::uint32_t rank,
                         std::span<const RankTensor::Piece> pieces) {
    for (const RankTensor::Piece& piece : pieces) {
      const ByteRange run = run_of(piece.local);
      Part part{.file = ranks_[rank],
                .rank = rank,
                .offset = piece.bytes.begin + run.begin,
                .nbytes = run.size()};
      const std::size_t dims = std::max<std::size_t>(whole.rank(), 1);
      part.box = static_cast<std::uint32_t>(whole.boxes.size() / (2 * dims));
      whole.boxes.insert(whole.boxes.end(), piece.begin.begin(), piece.begin.end());
      whole.boxes.insert(whole.boxes.end(), piece.local.shape.begin(), piece.local.shape.end());
      if (!is_contiguous(piece.local)) {
        whole.strides.insert(whole.strides.end(), piece.local.stride.begin(),
                             piece.local.stride.end());
        part.stride = static_cast<std::uint32_t>(whole.strides.size() / dims);
      }
      whole.parts.push_back(part);
      kept_bytes_ += sizeof(Part) + 3 * sizeof(std::int64_t) * whole.rank();
    }
    const std::uint64_t most = kHoldBase + kHoldFactor * header_bytes_;
    if (kept_bytes_ <= most) return {};
    return fail(ErrorCode::Corrupt,
                "{}: tensor {}: its parts and those before it need more than {} bytes, which the "
                "files' headers of {} bytes cannot mean",
                files_.name(ranks_[rank]), quote(whole.facts->name), most, header_bytes_);
  }

  // ---- the tensors

  Result<void> add_tensors() {
    WorkBudget budget(header_bytes_);
    for (Whole& whole : wholes_) {
      if (!whole.facts->left_out.empty()) {
        builder_.add_note(whole.facts->name, fmt::format("left out: {}", whole.facts->left_out));
        continue;
      }
      CKFS_TRY_VOID(check_cover(whole, budget));
      add_tensor(whole);
      whole.boxes.shrink_to_fit();
    }
    if (order_.empty()) {
      return fail(ErrorCode::Unsupported, "{}: none of its {} tensors can be shown", where(),
                  wholes_.size());
    }
    builder_.add_only_shard(order_);
    return {};
  }

  /// Leaves one of parts that are the same box, and checks that the boxes tile the tensor.
  Result<void> check_cover(Whole& whole, WorkBudget& budget) const {
    const auto begin = [&](const Part& part) { return whole.begin(part); };
    std::ranges::stable_sort(
        whole.parts, [](auto a, auto b) { return std::ranges::lexicographical_compare(a, b); },
        begin);
    const auto replicas = std::ranges::unique(whole.parts, [&](const Part& a, const Part& b) {
      return std::ranges::equal(whole.begin(a), whole.begin(b)) &&
             std::ranges::equal(whole.count(a), whole.count(b));
    });
    whole.parts.erase(replicas.begin(), replicas.end());
    whole.parts.shrink_to_fit();
    const std::string subject = fmt::format("{}: tensor {}", where(), quote(whole.facts->name));
    const auto box = [&](std::uint32_t i) {
      return BoxView{whole.begin(whole.parts[i]), whole.count(whole.parts[i])};
    };
    const auto [found, irregular] =
        find_overlap(whole.parts.size(), whole.rank(), box,
                     [&](std::uint64_t steps) { return budget.spend(steps); });
    CKFS_TRY_VOID(budget.check(where()));
    if (irregular > 0) {
      return fail(ErrorCode::Unsupported, "{}: {} parts that form no grid (limit {})", subject,
                  irregular, kMaxIrregular);
    }
    if (found) {
      const Part& a = whole.parts[found->first];
      const Part& b = whole.parts[found->second];
      return fail(ErrorCode::Corrupt,
                  "{}: the parts of rank {}, [{}] from [{}], and of rank {}, [{}] from [{}], "
                  "overlap",
                  subject, a.rank, fmt::join(whole.count(a), ", "), fmt::join(whole.begin(a), ", "),
                  b.rank, fmt::join(whole.count(b), ", "), fmt::join(whole.begin(b), ", "));
    }
    std::int64_t covered = 0;  // of boxes inside the tensor that do not overlap
    for (const Part& part : whole.parts) covered += checked_numel(whole.count(part)).value();
    const std::int64_t numel = checked_numel(whole.facts->shape).value();
    if (covered == numel) return {};
    return fail(ErrorCode::Corrupt,
                "{}: the {} ranks have {} elements of it together, its shape [{}] has {}", subject,
                world_, covered, fmt::join(whole.facts->shape, ", "), numel);
  }

  /// Whether the parts in their order, one behind the other, are the tensor.
  static bool is_concatenation(const Whole& whole) {
    if (whole.parts.size() == 1 && whole.parts.front().stride == 0) return true;
    const auto inner = std::span(whole.facts->shape).subspan(whole.rank() == 0 ? 0 : 1);
    return std::ranges::all_of(whole.parts, [&](const Part& part) {
      return part.stride == 0 && whole.rank() > 0 &&
             std::ranges::equal(whole.count(part).subspan(1), inner);
    });
  }

  void add_tensor(const Whole& whole) {
    if (const Whole* const origin = twin_of(whole)) {
      order_.push_back(builder_.add_alias(whole.facts->name, ids_.at(origin)));
      ++aliases_;
      return;
    }
    StorageId storage = 0;
    std::vector<StorageBox> boxes;
    const std::int64_t numel = checked_numel(whole.facts->shape).value();
    if (is_concatenation(whole) || whole.parts.empty()) {
      std::vector<Extent> extents;
      extents.reserve(whole.parts.size());
      for (const Part& part : whole.parts) extents.push_back({part.file, part.offset, part.nbytes});
      storage = builder_.add_storage(whole.facts->dtype, numel, extents);
    } else {
      for (const Part& part : whole.parts) boxes.push_back(box_of_part(whole, part));
      storage = boxes.front().storage;
    }
    for (const Part& part : whole.parts) bytes_ += part.nbytes;
    const TensorId id =
        builder_.add_tensor(whole.facts->name, whole.facts->shape, storage, std::move(boxes));
    order_.push_back(id);
    ids_.emplace(&whole, id);
    if (!whole.parts.empty()) {
      origins_.emplace(std::pair(whole.parts.front().file, whole.parts.front().offset), &whole);
    }
  }

  StorageBox box_of_part(const Whole& whole, const Part& part) {
    const auto count = whole.count(part);
    TorchTensor tensor{.dtype = whole.facts->dtype,
                       .shape = {count.begin(), count.end()},
                       .stride = std::vector<std::int64_t>(count.size())};
    std::int64_t dense = 1;
    for (std::size_t d = count.size(); d-- > 0;) {
      tensor.stride[d] = part.stride == 0 ? dense : whole.stride(part)[d];
      dense *= count[d];
    }
    const auto begin = whole.begin(part);
    StorageBox box{0, 0, {begin.begin(), begin.end()}, tensor.shape, tensor.stride};
    box.storage =
        placer_.place(tensor, part.file, {part.offset, part.offset + part.nbytes}).storage;
    return box;
  }

  /// The tensor of another name that has the very bytes of this one; nullptr: none.
  const Whole* twin_of(const Whole& whole) const {
    if (whole.parts.empty()) return nullptr;
    const auto found =
        origins_.find(std::pair(whole.parts.front().file, whole.parts.front().offset));
    if (found == origins_.end()) return nullptr;
    const Whole& other = *found->second;
    const bool same =
        other.facts->dtype == whole.facts->dtype && other.facts->shape == whole.facts->shape &&
        std::ranges::equal(other.parts, whole.parts, [&](const Part& a, const Part& b) {
          return a.file == b.file && a.offset == b.offset && a.nbytes == b.nbytes &&
                 std::ranges::equal(other.begin(a), whole.begin(b)) &&
                 std::ranges::equal(other.count(a), whole.count(b)) &&
                 (a.stride == 0) == (b.stride == 0) &&
                 (a.stride == 0 || std::ranges::equal(other.stride(a), whole.stride(b)));
        });
    return same ? &other : nullptr;
  }

  // ---- what is beside them

  static bool is_lora(std::string_view name) {
    return name.find("lora_") != std::string_view::npos ||
           name.find(".adapter_") != std::string_view::npos;
  }

  Result<void> note_lora() {
    const auto parts = static_cast<std::size_t>(std::ranges::count_if(
        wholes_, [](const Whole& whole) { return is_lora(whole.facts->name); }));
    if (parts == 0) return {};
    CKFS_TRY(const auto meta, json(kLoraMeta));
    std::string numbers;
    for (const std::string_view key : {"r", "lora_alpha"}) {
      const JsonNode* const node = meta ? meta->find(key) : nullptr;
      if (node == nullptr || node->kind != JsonNode::Kind::Number) continue;
      numbers += fmt::format("{}{} {}", numbers.empty() ? " (" : ", ", key, node->number);
    }
    if (!numbers.empty()) numbers += ")";
    lora_only_ = parts == wholes_.size();
    const bool has_folder = std::ranges::any_of(tree_.files, [&](const TreeFile& file) {
      return file.path.starts_with(folder_.prefix + "lora_adapter/");
    });
    builder_.add_fact(
        "LoRA",
        lora_only_
            ? fmt::format("the files have LoRA parts alone{}, without the base model{}", numbers,
                          has_folder ? "; lora_adapter/ has them as PEFT reads them" : "")
            : fmt::format("{} of {} tensors are LoRA parts{}, which no view merges", parts,
                          wholes_.size(), numbers));
    return {};
  }

  void note_other_files() {
    if (tree_.single_file) return;
    std::map<std::string, std::size_t> counts;
    for (const TreeFile& file : tree_.files) {
      if (!file.path.starts_with(folder_.prefix)) continue;
      const std::string_view name = std::string_view(file.path).substr(folder_.prefix.size());
      if (name.starts_with("optim_world_size_")) ++counts["optim_world_size_*"];
      if (name.starts_with("extra_state_world_size_")) ++counts["extra_state_world_size_*"];
      if (name.starts_with(kHuggingFace) && name.ends_with(".safetensors")) {
        ++counts["huggingface/*.safetensors"];
      }
    }
    for (const auto& [what, count] : counts) {
      builder_.add_note(folder_.prefix + what,
                        fmt::format("{} files of {}; never read", count,
                                    what.starts_with(kHuggingFace)
                                        ? "weights that the run saved beside the ranks'"
                                        : "the training's state"));
    }
  }

  void add_facts() {
    if (!folder_.prefix.empty()) builder_.add_fact("directory", folder_.prefix);
    builder_.add_fact("ranks", std::to_string(world_));
    builder_.add_fact("tensors", std::to_string(order_.size()));
    builder_.add_fact("shared", std::to_string(aliases_));
    std::uint64_t total = 0;
    for (const FileId file : ranks_) total += files_.size(file);
    add_byte_facts(bytes_, total);
  }

  /// Those of huggingface/, else those beside the ranks' files. None of a LoRA by itself: its
  /// config.json is that of the base model, which is not here.
  Result<void> add_side_files() {
    if (lora_only_ && !options_.config) return {};
    if (tree_.single_file) {
      return add_model(tree_.root / std::string(kHuggingFace.substr(0, kHuggingFace.size() - 1)));
    }
    const std::string inner = folder_.prefix + std::string(kHuggingFace);
    const bool has_inner = tree_.find(inner + "config.json") != nullptr;
    const std::string& folder = has_inner ? inner : folder_.prefix;
    SourceTree model;
    model.name = fmt::format("{}/{}", tree_.name, folder);
    model.root = tree_.root / folder;
    for (const TreeFile& file : tree_.files) {
      if (!file.path.starts_with(folder)) continue;
      model.files.push_back({file.path.substr(folder.size()), file.is_link});
    }
    CKFS_TRY(ModelDirectory found,
             find_model_directory(model, table().below(folder), files_, builder_, options_));
    if (found.config && !options_.config && !folder.empty()) {
      builder_.add_fact("config", fmt::format("{}config.json", folder));
    }
    builder_.set_model(std::move(found));
    return {};
  }

  TensorPlacer placer_;
  FsdpFolder folder_;
  std::uint32_t world_ = 0;
  std::vector<FileId> ranks_;
  std::vector<Whole> wholes_;  // in the order of the first rank
  std::unordered_map<std::string_view, std::size_t, NameHash> by_name_;
  std::map<const Whole*, TensorId> ids_;
  std::map<std::pair<FileId, std::uint64_t>, const Whole*> origins_;
  std::vector<TensorId> order_;  // provisional ids
  std::uint64_t header_bytes_ = 0, kept_bytes_ = 0, bytes_ = 0;
  std::size_t aliases_ = 0;
  bool lora_only_ = false;
};

bool has_top_folder(const SourceTree& tree) {
  const std::vector<FsdpFolder> folders = find_fsdp_folders(tree);
  return std::ranges::find(folders, "", &FsdpFolder::prefix) != folders.end();
}

bool recognizes_fsdp_top(const SourceTree& tree, const SourceFiles& /*files*/,
                         const OpenCheckpointOptions& /*options*/) {
  return has_top_folder(tree);
}

bool recognizes_fsdp(const SourceTree& tree, const SourceFiles& /*files*/,
                     const OpenCheckpointOptions& /*options*/) {
  return !find_fsdp_folders(tree).empty();
}

Result<std::shared_ptr<const Catalog>> open_fsdp(const SourceTree& tree, SourceFiles& files,
                                                 const OpenCheckpointOptions& options) {
  if (!options.tag.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: only DeepSpeed checkpoints have tags", tree.name);
  }
  return FsdpOpener(tree, files, options).open();
}

}  // namespace

const Adapter kFsdpRanksTop{"fsdp_ranks", recognizes_fsdp_top, open_fsdp};
const Adapter kFsdpRanks{"fsdp_ranks", recognizes_fsdp, open_fsdp};

}  // namespace ckfs
