// There is no standard for the layout of a training checkpoint, only habits. A usual key counts
// before tensors at the top level, because a checkpoint may have a stray tensor there (a random
// state), while a state dict has no dictionary of tensors under the name "state_dict".
//
// Nodes of a pickle are shared and may form circles, so nothing here walks deeper than two levels.
#include "source/torch/torch_state_dict.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::array<std::string_view, 4> kUsualKeys = {"state_dict", "model", "module",
                                                        "model_state_dict"};
constexpr std::array<std::string_view, 9> kTrainingKeys = {
    "optimizer",    "optimizers",    "optim",      "optimizer_states", "optimizer_state_dict",
    "lr_scheduler", "lr_schedulers", "dataloader", "dataloaders"};
constexpr std::size_t kNamesInMessage = 8;

/// Bytes kept for a tensor and for a key, about, without their names.
constexpr std::size_t kPickledTensorBytes = 160;
constexpr std::size_t kKeyBytes = 96;

/// The name that a key gives its tensor; nullopt: it is neither a string nor a whole number.
std::optional<std::string> name_of(const Pickle& pickle, NodeId key) {
  if (const auto text = pickle.string(key)) return std::string(*text);
  if (pickle.kind(key) != NodeKind::Int) return std::nullopt;
  const auto number = pickle.integer(key);
  return number ? std::optional(std::to_string(*number)) : std::nullopt;
}

/// The kind of a value other than a tensor, for people.
std::string kind_of(const Pickle& pickle, NodeId node) {
  switch (pickle.kind(node)) {
    case NodeKind::None:
      return "None";
    case NodeKind::Bool:
    case NodeKind::Int:
    case NodeKind::Float:
      return "a number";
    case NodeKind::String:
      return "a string";
    case NodeKind::Bytes:
      return "bytes";
    case NodeKind::List:
    case NodeKind::Tuple:
    case NodeKind::Set:
      return "a list";
    case NodeKind::Dict:
      return "a dictionary";
    case NodeKind::Global:
      return "a class";
    case NodeKind::PersistentId:
      return "a storage";
    case NodeKind::Call: {
      if (pickle.is_mapping(node)) return "a dictionary";
      const Pickle::GlobalName global = pickle.global(pickle.callable(node));
      return fmt::format("an object of {}", quote(fmt::format("{}.{}", global.module,  //
                                                              global.name)));
    }
  }
  return "an object";
}

/// A key in a note: its start and its end, if it is very long.
std::string shortened(std::string_view key) {
  constexpr std::size_t kLongest = 512;
  if (key.size() <= kLongest) return std::string(key);
  const std::size_t end = key.size() - kLongest / 2;
  return fmt::format("{}...{}", key.substr(0, kLongest / 2), key.substr(end));
}

class StateDictFinder {
 public:
  StateDictFinder(const TorchFile& torch, const std::string& file_name)
      : torch_(torch), pickle_(torch.pickle()), file_name_(file_name) {}

  Result<TorchStateDict> find(std::string_view key) {
    const NodeId root = pickle_.root();
    if (!key.empty()) {
      Tried tried;
      const auto node = descend(root, key, tried);
      if (!node) {
        return fail(ErrorCode::InvalidArgument, "{}: no key {} (it has {})", file_name_, quote(key),
                    keys_of(root));
      }
      return take(*node);
    }
    for (const std::string_view usual : kUsualKeys) {
      const auto node = pickle_.find(root, usual);
      if (!node || !has_tensors(*node)) continue;
      for (const DictItem& item : pickle_.mapping(root)) {
        if (item.value != *node) note("", item, "beside the tensors");
      }
      return take(*node);
    }
    return take(root);
  }

 private:
  /// Looked at once, however many keys lead to it.
  bool has_tensors(NodeId mapping) {
    if (!pickle_.is_mapping(mapping)) return false;
    const auto known = with_tensors_.find(mapping);
    if (known != with_tensors_.end()) return known->second;
    const std::vector<DictItem> items = pickle_.mapping(mapping);
    const bool has = std::ranges::any_of(
        items, [&](const DictItem& item) { return torch_.is_tensor(item.value); });
    if (pickle_.budget()->hold(kKeyBytes)) with_tensors_.emplace(mapping, has);
    return has;
  }

  /// Of a string, or else of the whole number that has this name.
  std::optional<NodeId> find(NodeId node, std::string_view key) const {
    if (const auto value = pickle_.find(node, key)) return value;
    if (!pickle_.is_mapping(node) || key.find_first_not_of("-0123456789") != std::string_view::npos)
      return {};
    std::optional<NodeId> found;
    for (const DictItem& item : pickle_.mapping(node)) {
      if (name_of(pickle_, item.key) == key) found = item.value;
    }
    return found;
  }

  using Tried = std::set<std::pair<NodeId, std::size_t>>;

  /// Keys may contain dots themselves: the longest that is there is tried first. `tried`: nodes,
  /// and how much of the key was left.
  std::optional<NodeId> descend(NodeId node, std::string_view key, Tried& tried) const {
    if (!tried.emplace(node, key.size()).second) return std::nullopt;
    if (const auto last = find(node, key)) return last;
    constexpr std::size_t kNone = std::string_view::npos;
    for (std::size_t dot = key.rfind('.'); dot != kNone;
         dot = dot == 0 ? kNone : key.rfind('.', dot - 1)) {
      const auto next = find(node, key.substr(0, dot));
      const auto found = next ? descend(*next, key.substr(dot + 1), tried) : std::nullopt;
      if (found) return found;
    }
    return std::nullopt;
  }

  std::string keys_of(NodeId mapping) const {
    std::vector<std::string> names;
    for (const DictItem& item : pickle_.mapping(mapping)) {
      if (names.size() == kNamesInMessage) {
        names.emplace_back("...");
        break;
      }
      names.push_back(quote(key_text(item.key)));
    }
    return names.empty() ? "no keys" : fmt::format("{}", fmt::join(names, ", "));
  }

  Result<TorchStateDict> take(NodeId node) {
    if (!pickle_.is_mapping(node)) {
      return fail(ErrorCode::Unsupported, "{}: {}, not a dictionary of tensors", file_name_,
                  torch_.is_tensor(node) ? "a tensor without a name" : kind_of(pickle_, node));
    }
    const bool flat = has_tensors(node);
    for (const DictItem& item : items_of(node)) {
      const auto name = name_of(pickle_, item.key);
      if (flat || !name || is_training_state(*name) || !has_tensors(item.value)) {
        CKFS_TRY_VOID(add(item, ""));
        continue;
      }
      const std::string prefix = *name + ".";
      for (const DictItem& inner : items_of(item.value)) CKFS_TRY_VOID(add(inner, prefix));
    }
    if (found_.tensors.empty()) {
      return fail(ErrorCode::Unsupported, "{}: no tensors in it (its keys: {})", file_name_,
                  keys_of(node));
    }
    return std::move(found_);
  }

  /// For people.
  std::string key_text(NodeId key) const {
    return name_of(pickle_, key).value_or(fmt::format("({})", kind_of(pickle_, key)));
  }

  /// A mapping as Python has it: a key that comes twice is at its first place, with its last value.
  std::vector<DictItem> items_of(NodeId mapping) const {
    std::vector<DictItem> items;
    std::map<std::pair<NodeKind, std::string>, std::size_t> places;
    for (const DictItem& item : pickle_.mapping(mapping)) {
      if (const auto name = name_of(pickle_, item.key)) {
        if (!pickle_.budget()->hold(kKeyBytes + name->size())) break;
        const auto [place, is_new] =
            places.emplace(std::pair(pickle_.kind(item.key), *name), items.size());
        if (!is_new) {
          items[place->second] = item;
          continue;
        }
      }
      items.push_back(item);
    }
    return items;
  }

  /// Different keys may make one name: 1 and "1", or "b.c" below "a" and "c" below "a.b".
  Result<void> add(const DictItem& item, const std::string& prefix) {
    const auto key = name_of(pickle_, item.key);
    if (!key || !torch_.is_tensor(item.value)) {
      note(prefix, item, key ? "not a tensor" : "its key is not a name");
      return {};
    }
    if (!pickle_.budget()->hold(kPickledTensorBytes + 3 * (prefix.size() + key->size()))) {
      return pickle_.budget()->check(file_name_);
    }
    const auto [name, is_new] = names_.insert(prefix + *key);
    if (!is_new) {
      return fail(ErrorCode::Unsupported, "{}: tensor {}: two keys make this name", file_name_,
                  quote(*name));
    }
    found_.tensors.push_back({*name, item.value});
    return {};
  }

  void note(std::string_view prefix, const DictItem& item, std::string_view why) {
    const NodeId node = item.value;
    if (found_.notes.size() < kMaxNotes) {
      const std::string name = shortened(prefix) + shortened(key_text(item.key));
      const std::string kind = torch_.is_tensor(node) ? "a tensor" : kind_of(pickle_, node);
      const std::string_view hint = has_tensors(node) ? ", whose tensors --key shows" : "";
      found_.notes.push_back({name, fmt::format("{} ({}{}); left out", why, kind, hint)});
    } else if (found_.notes.size() == kMaxNotes) {
      found_.notes.push_back({file_name_, "more values that are not tensors; left out"});
    }
  }

  const TorchFile& torch_;
  const Pickle& pickle_;
  const std::string& file_name_;
  TorchStateDict found_;
  std::set<std::string> names_;          // of found_.tensors
  std::map<NodeId, bool> with_tensors_;  // mappings that were asked for
};

}  // namespace

Result<TorchStateDict> find_state_dict(const TorchFile& torch, std::string_view key,
                                       const std::string& file_name) {
  return torch.pickle().within_budget(file_name, StateDictFinder(torch, file_name).find(key));
}

std::span<const std::string_view> usual_keys() {
  return kUsualKeys;
}

bool is_training_state(std::string_view name) {
  return std::ranges::find(kTrainingKeys, name) != kTrainingKeys.end();
}

}  // namespace ckfs
