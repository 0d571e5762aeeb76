// Orbax writes a step under a temporary name and renames it when all of it is there; so a step's
// name says that it is whole, as it does to Orbax. commit_success.txt says so on object stores
// only: most releases leave it out elsewhere, and none asks for it.
//
// Directories are distinguished by the files in them, never by their names: an item may have any.
#include "source/orbax/orbax_layout.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

#include "base/suggest.h"
#include "base/text.h"
#include "format/ocdbt_read.h"

namespace ckfs {
namespace {

constexpr std::string_view kTree = "_METADATA";
constexpr std::string_view kMsgpack = "checkpoint";
constexpr std::string_view kProcess = "ocdbt.process_";
constexpr std::string_view kTemporary = ".orbax-checkpoint-tmp";

/// The marks of a directory.
struct Marks {
  bool tree = false;      // _METADATA
  bool manifest = false;  // of a database
  bool msgpack = false;   // the tree of old releases
  bool arrays = false;    // a directory for each array
  std::string process;    // the database of a process

  bool is_item() const { return tree || manifest || !process.empty() || (msgpack && arrays); }
};

std::string_view up_to(std::string_view path, std::size_t at) {
  return at == std::string_view::npos ? std::string_view() : path.substr(0, at + 1);
}

/// The directory of a file, with its '/'; empty: the top.
std::string_view directory_of(std::string_view path) {
  return up_to(path, path.rfind('/'));
}

std::string_view base_name(std::string_view path) {
  return path.substr(directory_of(path).size());
}

/// Directories that have a mark, at most `depth` deep.
std::map<std::string, Marks, std::less<>> find_marks(const SourceTree& tree) {
  constexpr auto kDepth = 2;
  std::map<std::string, Marks, std::less<>> found;
  for (const TreeFile& file : tree.files) {
    const std::string_view name = base_name(file.path);
    const std::string_view directory = directory_of(file.path);
    const std::string_view outer =
        directory.empty() ? directory : directory_of(directory.substr(0, directory.size() - 1));
    const bool own = name == kTree || name == ocdbt::kManifestName || name == kMsgpack;
    const bool array = name == ".zarray" || name == "zarr.json";
    if (!own && !array) continue;
    if (array) {
      if (!directory.empty() && std::ranges::count(outer, '/') <= kDepth) {
        found[std::string(outer)].arrays = true;
      }
      continue;
    }
    const std::string_view last = directory.substr(outer.size());
    if (last.starts_with(kProcess)) {
      if (name == ocdbt::kManifestName) {
        Marks& marks = found[std::string(outer)];
        if (marks.process.empty()) marks.process = last.substr(0, last.size() - 1);
      }
      continue;
    }
    Marks& marks = found[std::string(directory)];
    marks.tree |= name == kTree;
    marks.manifest |= name == ocdbt::kManifestName;
    marks.msgpack |= name == kMsgpack;
  }
  std::erase_if(found, [](const auto& entry) {
    return !entry.second.is_item() || std::ranges::count(entry.first, '/') > kDepth;
  });
  return found;
}

using Items = std::map<std::string, Marks, std::less<>>;

bool is_temporary(std::string_view path) {
  return path.find(kTemporary) != std::string_view::npos;
}

/// "12", "step_00000100": the number; nullopt: no step has that name.
std::optional<std::uint64_t> step_of(std::string_view name) {
  const std::size_t end = name.find_last_not_of("0123456789");
  const std::string_view digits = end == std::string_view::npos ? name : name.substr(end + 1);
  const std::string_view prefix = name.substr(0, name.size() - digits.size());
  if (digits.empty() || (!prefix.empty() && !prefix.ends_with('_'))) return std::nullopt;
  if (prefix.starts_with(kProcess)) return std::nullopt;
  std::uint64_t step = 0;
  const auto [at, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || at != digits.data() + digits.size()) return std::nullopt;
  return step;
}

/// The first directory of a path with its '/'.
std::string_view top_of(std::string_view path) {
  return up_to(path, path.find('/'));
}

/// Why an item is not whole; empty: it is.
std::string fault_of(const Marks& marks) {
  if (marks.manifest || marks.process.empty()) return {};
  return fmt::format("not finished: {} was never merged (no {})", marks.process,
                     ocdbt::kManifestName);
}

/// The items of a step, by name; "" is the directory itself.
Items items_of(const Items& items, std::string_view step) {
  Items found;
  for (auto item = items.lower_bound(step); item != items.end(); ++item) {
    if (!item->first.starts_with(step)) break;
    const std::string_view rest = std::string_view(item->first).substr(step.size());
    if (std::ranges::count(rest, '/') <= 1) found.emplace(rest, item->second);
  }
  return found;
}

std::string_view shown(std::string_view directory) {
  return directory.ends_with('/') ? directory.substr(0, directory.size() - 1) : directory;
}

/// Whether the path lies in a directory that is called like a step, or was never committed.
bool is_in_a_step(std::string_view path) {
  const std::string_view top = top_of(path);
  return !top.empty() && (step_of(shown(top)) || is_temporary(top));
}

template <typename Names>
std::string list(const Names& names) {
  std::string text;
  std::size_t count = 0;
  for (const auto& name : names) {
    if (++count > 20) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  }
  return text;
}

/// The names of the model's item in MaxText, Orbax's manager, its v1 and Tunix.
constexpr std::array<std::string_view, 6> kUsual{"items",  "default", "state",
                                                 "pytree", "params",  "model_params"};

Result<void> choose_in_step(const SourceTree& tree, const Items& items,
                            const OpenCheckpointOptions& options, OrbaxPlace& place) {
  Items mine = items_of(items, place.step_directory);
  std::erase_if(mine, [&](const auto& item) {
    if (!is_temporary(item.first)) return false;
    place.notes.push_back(
        {std::string(shown(item.first)), "an item that was never committed; passed over"});
    return true;
  });
  if (mine.empty()) {
    std::vector<std::string_view> temporary;  // perhaps deeper
    for (const auto& [name, marks] : items) {
      if (is_temporary(name)) temporary.push_back(shown(name));
    }
    return fail(ErrorCode::Unsupported, "{}: no item in it was committed ({})", tree.name,
                list(temporary));
  }
  std::vector<std::string> names;
  for (const auto& [name, marks] : mine) names.emplace_back(name.empty() ? "." : shown(name));
  std::string chosen;
  if (!options.item.empty()) {
    chosen = options.item + "/";
    if (!mine.contains(chosen)) {
      const std::vector<std::string_view> known(names.begin(), names.end());
      return fail(ErrorCode::InvalidArgument, "{}: no item {}{}",
                  tree.name + "/" + std::string(shown(place.step_directory)), quote(options.item),
                  did_you_mean(options.item, known, "it has "));
    }
  } else if (mine.contains("")) {
    chosen = "";
  } else if (mine.size() == 1) {
    chosen = mine.begin()->first;
  } else {
    const auto* const usual = std::ranges::find_if(
        kUsual, [&](std::string_view name) { return mine.contains(std::string(name) + "/"); });
    if (usual == kUsual.end()) {
      return fail(ErrorCode::Unsupported, "{}: several items: {}; choose one with --item",
                  tree.name, list(names));
    }
    chosen = std::string(*usual) + "/";
  }
  if (const std::string fault = fault_of(mine.find(chosen)->second); !fault.empty()) {
    return fail(ErrorCode::Unsupported, "{}{}{}: {}", tree.name + "/", place.step_directory,
                shown(chosen), fault);
  }
  place.item_directory = chosen;
  for (const auto& [name, marks] : mine) {
    if (name != chosen) place.others.emplace_back(name.empty() ? "." : shown(name));
  }
  return {};
}

/// A step of a root.
struct Step {
  std::uint64_t number = 0;
  std::string directory;
  std::string fault;
};

std::vector<Step> find_steps(const Items& items) {
  std::vector<Step> steps;
  std::set<std::string_view> seen;
  for (const auto& [directory, marks] : items) {
    const std::string_view top = top_of(directory);
    if (top.empty() || is_temporary(top)) continue;
    const auto number = step_of(shown(top));
    if (!number || !seen.insert(top).second) continue;
    steps.push_back({*number, std::string(top), {}});
  }
  for (Step& step : steps) {
    // One item that was not finished is enough: Orbax writes all of a step, or none.
    bool any = false;
    for (const auto& [name, marks] : items_of(items, step.directory)) {
      if (is_temporary(name)) continue;
      any = true;
      if (step.fault.empty()) step.fault = fault_of(marks);
    }
    if (!any) step.fault = "not finished: no item in it was committed";
  }
  std::ranges::sort(steps, {}, &Step::number);
  return steps;
}

/// Directories of steps that are not whole, whatever is in them.
std::vector<std::string> find_temporary(const SourceTree& tree) {
  std::set<std::string> found;
  for (const TreeFile& file : tree.files) {
    const std::string_view top = top_of(file.path);
    if (is_temporary(top)) found.emplace(shown(top));
  }
  return {found.begin(), found.end()};
}

Result<void> choose_step(const SourceTree& tree, const Items& items,
                         const OpenCheckpointOptions& options, OrbaxPlace& place) {
  const std::vector<Step> steps = find_steps(items);
  const std::vector<std::string> temporary = find_temporary(tree);
  for (const std::string& name : temporary) {
    place.notes.push_back({name, "a step that was never committed; passed over"});
  }
  std::vector<const Step*> whole;
  for (const Step& step : steps) {
    if (options.step && step.number != *options.step) continue;
    if (step.fault.empty()) {
      whole.push_back(&step);
    } else if (options.step) {
      return fail(ErrorCode::Unsupported, "{}/{}: {}", tree.name, shown(step.directory),
                  step.fault);
    } else {
      place.notes.push_back({std::string(shown(step.directory)), step.fault});
    }
  }
  if (whole.empty() && options.step) {
    for (const std::string& name : temporary) {
      if (step_of(name.substr(0, name.find(kTemporary))) != options.step) continue;
      return fail(ErrorCode::Unsupported, "{}/{}: step {} was never committed (renamed from this)",
                  tree.name, name, *options.step);
    }
    std::vector<std::uint64_t> numbers;
    for (const Step& step : steps) numbers.push_back(step.number);
    return fail(ErrorCode::InvalidArgument, "{}: no step {} (it has {})", tree.name, *options.step,
                list(numbers));
  }
  if (whole.empty()) {
    return fail(ErrorCode::Unsupported, "{}: no step in it was finished ({})", tree.name,
                steps.empty() ? temporary.front() : steps.back().fault);
  }
  const Step& newest = *whole.back();
  if (whole.size() > 1 && whole[whole.size() - 2]->number == newest.number) {
    return fail(ErrorCode::Unsupported, "{}: {} and {} are the same step; open one of them",
                tree.name, shown(whole[whole.size() - 2]->directory), shown(newest.directory));
  }
  place.step_directory = newest.directory;
  place.step = newest.number;
  return {};
}

/// Whether the items lie in steps.
bool is_root(const SourceTree& tree, const Items& items) {
  bool any = false;
  for (const auto& [directory, marks] : items) {
    if (is_temporary(top_of(directory))) continue;
    if (directory.empty()) return false;
    if (step_of(shown(top_of(directory)))) any = true;
  }
  // Only steps that were not committed.
  return any ||
         (std::ranges::all_of(items, [](const auto& item) { return is_temporary(item.first); }) &&
          !find_temporary(tree).empty());
}

}  // namespace

bool is_orbax_item(const SourceTree& tree) {
  return !tree.single_file && find_marks(tree).contains("");
}

bool is_orbax(const SourceTree& tree) {
  if (tree.single_file) return false;
  const Items items = find_marks(tree);
  return std::ranges::any_of(items, [](const auto& item) {
    const std::string& directory = item.first;
    // Deeper down, only in what is called like a step.
    return std::ranges::count(directory, '/') < 2 || step_of(shown(top_of(directory))) ||
           is_temporary(directory);
  });
}

Result<OrbaxPlace> choose_orbax_item(const SourceTree& tree, const OpenCheckpointOptions& options) {
  for (const auto& directory : {tree.root, tree.root.parent_path()}) {
    if (!is_temporary(directory.filename().native())) continue;
    return fail(ErrorCode::Unsupported, "{}: not finished: Orbax renames {} when all is written",
                tree.name, directory.filename().native());
  }
  const Items items = find_marks(tree);
  OrbaxPlace place;
  if (is_root(tree, items)) {
    CKFS_TRY_VOID(choose_step(tree, items, options, place));
  } else if (options.step) {
    return fail(ErrorCode::InvalidArgument,
                "{}: step {}: a step or an item, not a directory of steps", tree.name,
                *options.step);
  }
  CKFS_TRY_VOID(choose_in_step(tree, items, options, place));
  return place;
}

SourceTree subtree(const SourceTree& tree, std::string_view directory) {
  SourceTree below;
  below.name = fmt::format("{}/{}", tree.name, shown(directory));
  below.root = tree.root / shown(directory);
  for (const TreeFile& file : tree.files) {
    if (!file.path.starts_with(directory)) continue;
    below.files.push_back({file.path.substr(directory.size()), file.is_link});
  }
  for (const std::string& path : tree.dangling) {
    if (path.starts_with(directory)) below.dangling.push_back(path.substr(directory.size()));
  }
  // The file of a mark at the top or in a cache is not known, and files that were not begun have no
  // mark: any of them may be the step's.
  for (const std::string& path : tree.incomplete) {
    if (path.starts_with(directory)) {
      below.incomplete.push_back(path.substr(directory.size()));
    } else if (!is_in_a_step(path)) {
      below.incomplete.push_back(path);
    }
  }
  std::ranges::sort(below.incomplete);
  below.complete_command = tree.complete_command;
  // Perhaps not below: whose they are was counted, not kept.
  below.outside_links = tree.outside_links;
  for (const Note& note : tree.notes) {
    if (!note.subject.starts_with(directory)) continue;
    below.notes.push_back({note.subject.substr(directory.size()), note.text});
  }
  return below;
}

}  // namespace ckfs
