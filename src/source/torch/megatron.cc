// Megatron writes metadata.json last, and the tracker file after that: a directory without
// metadata.json is not whole. The tracker is obeyed as Megatron obeys it. To take the newest
// iteration where it names one that is gone would show other weights than the run went on with,
// without a sign.
//
// Kinds of entries are told apart by how names begin. A weight's own name may have any word in it,
// "optimizer" and "_state" too.
#include "source/torch/megatron.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/text.h"
#include "format/json_tree.h"

namespace ckfs {
namespace {

constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt";
constexpr std::string_view kFormatName = "metadata.json";
constexpr std::string_view kPickleName = ".metadata";
constexpr std::string_view kRelease = "release";
constexpr std::string_view kNemo = "weights/";
constexpr std::string_view kIteration = "iter_";
constexpr std::size_t kIterationDigits = 7;
constexpr std::size_t kMostListed = 20;
constexpr std::size_t kMostRead = std::size_t{64} << 10;  // of metadata.json

std::optional<std::uint64_t> whole_number(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

/// Megatron's name for the directory of an iteration.
std::string directory_of_iteration(std::uint64_t number) {
  return fmt::format("iter_{:07}", number);
}

/// The number in such a name; nullopt: another name.
std::optional<std::uint64_t> iteration_of(std::string_view name) {
  if (!name.starts_with(kIteration) || name.size() < kIteration.size() + kIterationDigits)
    return {};
  const auto number = whole_number(name.substr(kIteration.size()));
  return number && directory_of_iteration(*number) == name ? number : std::nullopt;
}

/// Whether it is "mp_rank_00", "mp_rank_00_001", "mp_rank_00_001_000".
bool is_rank(std::string_view name) {
  constexpr std::string_view kRank = "mp_rank_";
  return name.starts_with(kRank) && name.size() > kRank.size() &&
         std::ranges::all_of(name.substr(kRank.size()),
                             [](char c) { return is_digit(c) || c == '_'; });
}

/// The marks of a directory.
struct MegatronMarks {
  bool format = false;    // metadata.json
  bool metadata = false;  // .metadata
  bool parts = false;     // .distcp
  std::string rank;       // a file of the legacy format

  bool any() const { return format || metadata || parts || !rank.empty(); }
};

/// Of the tree itself (""), of weights/, and of the iterations.
using MegatronDirectories = std::map<std::string, MegatronMarks, std::less<>>;

/// The file directly in a directory that may be a checkpoint: the directory with its '/', and the
/// path below it. nullopt: deeper, or elsewhere.
std::pair<std::string_view, std::string_view> place_of(std::string_view path) {
  const std::size_t slash = path.find('/');
  if (slash == std::string_view::npos) return {"", path};
  const std::string_view top = path.substr(0, slash);
  if (top == kRelease || path.starts_with(kNemo) || iteration_of(top)) {
    return {path.substr(0, slash + 1), path.substr(slash + 1)};
  }
  return {"", path};
}

MegatronDirectories find_directories(const SourceTree& tree) {
  MegatronDirectories found;
  for (const TreeFile& file : tree.files) {
    const auto [directory, path] = place_of(file.path);
    const std::size_t slash = path.find('/');
    const bool rank = slash != std::string_view::npos && is_rank(path.substr(0, slash)) &&
                      path.substr(slash + 1) == "model_optim_rng.pt";
    if (slash != std::string_view::npos && !rank) continue;
    const bool parts = path.ends_with(".distcp");
    if (!rank && !parts && path != kFormatName && path != kPickleName) continue;
    const auto at = found.try_emplace(std::string(directory)).first;
    MegatronMarks& marks = at->second;
    marks.format |= path == kFormatName;
    marks.metadata |= path == kPickleName;
    marks.parts |= parts;
    if (rank && marks.rank.empty()) marks.rank = path;
  }
  return found;
}

std::string first_text(const SourceTree& tree, const SourceFiles& files, std::string_view path,
                       std::size_t limit) {
  const TreeFile* const file = tree.find(path);
  if (file == nullptr) return {};
  const auto bytes = files.store().first_bytes(tree.location(*file), limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The member of metadata.json that names Megatron's backend; nullopt: it is another's file.
struct BackendFormat {
  std::string backend;
  double version = 0;
};
std::optional<BackendFormat> format_of(const SourceTree& tree, const SourceFiles& files,
                                       std::string_view directory) {
  const std::string path = fmt::format("{}{}", directory, kFormatName);
  const auto root =
      parse_json_tree(first_text(tree, files, path, kMostRead), path, JsonKeys::LastWins);
  const JsonNode* const backend = root ? root->find("sharded_backend") : nullptr;
  if (backend == nullptr || backend->kind != JsonNode::Kind::String) return std::nullopt;
  const JsonNode* const version = root->find("sharded_backend_version");
  return BackendFormat{backend->text, version != nullptr ? version->number : 1};
}

bool is_whole(const SourceTree& tree, const SourceFiles& files, std::string_view directory,
              const MegatronMarks& marks) {
  return !marks.rank.empty() || (marks.format && format_of(tree, files, directory));
}

bool is_iteration(std::string_view directory) {
  return !directory.empty() && directory != kNemo;
}

/// "7" or "release", of a directory with its '/'.
std::string iteration_name(std::string_view directory) {
  const std::string_view name = directory.substr(0, directory.size() - 1);
  const auto number = iteration_of(name);
  return number ? std::to_string(*number) : std::string(name);
}

/// "3, 7": the iterations that are there.
std::string list_of(const MegatronDirectories& found) {
  std::vector<std::uint64_t> numbers;
  bool release = false;
  for (const auto& [directory, marks] : found) {
    if (!is_iteration(directory)) continue;
    const auto number = iteration_of(directory.substr(0, directory.size() - 1));
    if (number) numbers.push_back(*number);
    release = release || !number;
  }
  std::ranges::sort(numbers);
  std::vector<std::string> names;
  const std::size_t skipped = numbers.size() - std::min(numbers.size(), kMostListed);
  if (skipped > 0) names.push_back(fmt::format("{} older ones", skipped));
  for (std::size_t i = skipped; i < numbers.size(); ++i)
    names.push_back(std::to_string(numbers[i]));
  if (release) names.emplace_back(kRelease);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

/// Errors: a format that ckfs does not read.
Result<void> check_format(const SourceTree& tree, const SourceFiles& files,
                          std::string_view directory, const MegatronMarks& marks) {
  const std::string shown = directory.empty() ? tree.name : std::string(directory);
  constexpr std::string_view kRemedy =
      "load it in Megatron and save it with --ckpt-format torch_dist (or --ckpt-convert-format "
      "torch_dist)";
  if (!marks.rank.empty() && !marks.format) {
    return fail(
        ErrorCode::Unsupported,
        "{}: Megatron's legacy format ({}), where each rank has a file with its own part of "
        "every tensor, and nothing says how the parts fit: {}",
        shown, marks.rank, kRemedy);
  }
  if (!marks.format) {
    return fail(ErrorCode::Unsupported,
                "{}: no {}, which Megatron writes last: the save was interrupted, or the copy is "
                "not complete{}",
                shown, kFormatName,
                marks.metadata
                    ? fmt::format(" ({}/{} by itself opens as plain DCP)", tree.name, directory)
                    : std::string());
  }
  const auto format = format_of(tree, files, directory);
  if (!format) {
    return fail(ErrorCode::Corrupt, "{}{}: names no sharded_backend", directory, kFormatName);
  }
  if (format->backend != "torch_dist") {
    return fail(ErrorCode::Unsupported,
                "{}{}: sharded_backend is {}, and ckfs reads torch_dist: {}", directory,
                kFormatName, quote(format->backend), kRemedy);
  }
  if (format->version != 1) {
    return fail(ErrorCode::Unsupported,
                "{}{}: sharded_backend_version is {}, and version 1 is known", directory,
                kFormatName, format->version);
  }
  if (!marks.metadata) {
    return fail(ErrorCode::NotFound,
                "{}{}: missing beside {} (is the copy complete? names that begin with a dot are "
                "easily left out)",
                directory, kPickleName, kFormatName);
  }
  return {};
}

/// The directory that the tracker file names.
Result<std::string> tracked_directory(const SourceTree& tree, const SourceFiles& files,
                                      const MegatronDirectories& found) {
  const std::string text = first_text(tree, files, kTracker, 64);
  const std::string_view named = trim(text);
  const auto number = whole_number(named);
  if (!number && named != kRelease) {
    return fail(ErrorCode::Corrupt, "{}: {} is neither the number of an iteration nor \"release\"",
                kTracker, quote(named));
  }
  const std::string name = number ? directory_of_iteration(*number) : std::string(kRelease);
  if (found.contains(name + "/")) return name + "/";
  return fail(ErrorCode::Unsupported,
              "{}: names {}, and there is no {} with a checkpoint (there are: {}; --step N opens "
              "one of them)",
              kTracker, number ? fmt::format("iteration {}", *number) : std::string(named), name,
              list_of(found));
}

}  // namespace

bool is_megatron(const SourceTree& tree, const SourceFiles& files) {
  if (tree.single_file) return false;
  const MegatronDirectories found = find_directories(tree);
  const bool tracked = tree.find(kTracker) != nullptr;
  return std::ranges::any_of(found, [&](const auto& entry) {
    const auto& [directory, marks] = entry;
    return (tracked && is_iteration(directory)) || is_whole(tree, files, directory, marks);
  });
}

Result<MegatronPlace> choose_megatron(const SourceTree& tree, const SourceFiles& files,
                                      const OpenCheckpointOptions& options) {
  MegatronDirectories found = find_directories(tree);
  const auto top = found.find("");
  if (top != found.end() && is_whole(tree, files, "", top->second)) {
    if (options.step) {
      return fail(ErrorCode::InvalidArgument,
                  "{}: is one checkpoint; --step chooses among the iterations of a run's directory",
                  tree.name);
    }
    CKFS_TRY_VOID(check_format(tree, files, "", top->second));
    const std::string name = tree.root.filename().string();
    const bool named = name == kRelease || iteration_of(name);
    return MegatronPlace{"", named ? iteration_name(name + "/") : std::string(), ""};
  }
  MegatronPlace place;
  const auto count =
      std::ranges::count_if(found, [](const auto& entry) { return is_iteration(entry.first); });
  if (options.step) {
    place.directory = directory_of_iteration(*options.step) + "/";
    place.chosen = "--step";
    if (!found.contains(place.directory)) {
      return fail(ErrorCode::InvalidArgument, "{}: no iteration {} (there are: {})", tree.name,
                  *options.step, list_of(found));
    }
  } else if (tree.find(kTracker) != nullptr && count > 0) {
    CKFS_TRY(place.directory, tracked_directory(tree, files, found));
    place.chosen = kTracker;
  } else if (count == 1) {
    place.directory = std::ranges::find_if(found, [](const auto& entry) {
                        return is_iteration(entry.first);
                      })->first;
    place.chosen = "the only one";
  } else if (count > 1) {
    return fail(ErrorCode::Unsupported,
                "{}: several iterations and no {}: {} (--step N opens one of them)", tree.name,
                kTracker, list_of(found));
  } else {
    place.directory = kNemo;
  }
  if (is_iteration(place.directory)) place.iteration = iteration_name(place.directory);
  CKFS_TRY_VOID(check_format(tree, files, place.directory, found.at(place.directory)));
  return place;
}

namespace {

/// Takes the word from the front of the text, if it is there.
bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// What follows "optimizer." or "chained_N.optimizer." at the front; nullopt: neither.
std::optional<std::string_view> below_optimizer(std::string_view name) {
  if (take(name, "chained_")) {
    const std::size_t digits = name.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string_view::npos) return std::nullopt;
    name.remove_prefix(digits);
    if (!take(name, ".")) return std::nullopt;
  }
  return take(name, "optimizer.") ? std::optional(name) : std::nullopt;
}

std::optional<std::string_view> below_master(std::string_view name) {
  auto rest = below_optimizer(name);
  if (!rest || !take(*rest, "state.")) return std::nullopt;
  const bool master = take(*rest, "fp32_param.") || take(*rest, "param.");
  return master && !rest->empty() ? rest : std::nullopt;
}

}  // namespace

MegatronEntry megatron_entry(std::string_view name) {
  if (below_master(name)) return MegatronEntry::Master;
  if (below_optimizer(name)) return MegatronEntry::Optimizer;
  constexpr std::array<std::string_view, 2> kRandom{"rng_state", "rerun_state_machine_state"};
  const std::string_view first = name.substr(0, name.find_first_of("./"));
  if (std::ranges::find(kRandom, first) != kRandom.end()) return MegatronEntry::RandomState;
  if (first == "common_state") return MegatronEntry::Common;
  const std::string_view module = name.substr(0, name.find("/shard_"));
  return module.ends_with("._extra_state") ? MegatronEntry::ExtraState : MegatronEntry::Weight;
}

std::string_view weight_of_master(std::string_view name) {
  return below_master(name).value();
}

}  // namespace ckfs
