// The accessors of Pickle; pickle_read.cc makes one.
//
// A node is 12 bytes and its children are numbers in one array of words, because a real state dict
// has ten nodes for a tensor and a rank's file a hundred thousand tensors: as objects with pointers
// they would be ten times the pickle. The commonest values (None, booleans, the empty tuple,
// integers below 2^31) take no memory at all.
#include "format/pickle.h"

#include <algorithm>
#include <bit>

#include "format/pickle_node.h"

namespace ckfs {
namespace {

constexpr std::size_t kMapEntryBytes = 64;  // about

}  // namespace

const Pickle::Node& Pickle::node(NodeId id) const {
  CKFS_CHECK(id < tree_->nodes.size());
  return tree_->nodes[id];
}

const Pickle::Node* Pickle::changed(NodeId id) const {
  if (changes_ == nullptr || !changes_->is_changed[id]) return nullptr;
  return &std::ranges::lower_bound(changes_->nodes, id, {}, &std::pair<NodeId, Node>::first)
              ->second;
}

bool Pickle::answers_as_model(const PickleTrace& trace) const {
  if (changes_ == nullptr) return true;
  const auto same = [&](NodeId id) { return !changes_->is_changed[id]; };
  const auto says_same = [&](const auto& compared) {
    const auto& [id, text] = compared;
    return same(id) || (text_of(id) == text) == (slice(node(id).data[0], node(id).data[1]) == text);
  };
  return std::ranges::all_of(trace.read, same) && std::ranges::all_of(trace.compared, says_same);
}

PickleTrace* Pickle::trace(PickleTrace* to) const {
  if (to != nullptr && to->number == 0) {
    traced_.resize(tree_->nodes.size());
    to->number = ++traces_;
  }
  return std::exchange(trace_, to);
}

std::string_view Pickle::slice(std::uint32_t offset, std::uint32_t size) const {
  const auto bytes = text_.subspan(offset, size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};  // char may alias anything
}

NodeKind Pickle::kind(NodeId id) const {
  return is_small_integer(id) ? NodeKind::Int : node(id).kind;
}

std::optional<bool> Pickle::boolean(NodeId id) const {
  if (kind(id) != NodeKind::Bool) return std::nullopt;
  return id == kTrueNode;
}

std::optional<std::int64_t> Pickle::integer(NodeId id) const {
  if (is_small_integer(id)) return small_integer(id);
  const Node* const other = changed(id);
  const Node& n = other != nullptr ? *other : node(id);
  if (n.kind != NodeKind::Int || n.flag == kBigInteger) return std::nullopt;
  note(id);
  return std::bit_cast<std::int64_t>(join(n.data[0], n.data[1]));
}

std::span<const std::byte> Pickle::big_integer(NodeId id) const {
  if (kind(id) != NodeKind::Int || is_small_integer(id)) return {};
  const Node& n = node(id);
  if (n.flag != kBigInteger) return {};
  return text_.subspan(n.data[0], n.data[1]);
}

std::optional<double> Pickle::real(NodeId id) const {
  if (kind(id) != NodeKind::Float) return std::nullopt;
  const Node& n = node(id);
  return std::bit_cast<double>(join(n.data[0], n.data[1]));
}

std::string_view Pickle::text_of(NodeId id) const {
  const Node* const other = changed(id);
  if (other == nullptr) return slice(node(id).data[0], node(id).data[1]);
  const auto bytes = changes_->text.subspan(other->data[0], other->data[1]);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};  // char may alias anything
}

std::optional<std::string_view> Pickle::string(NodeId id) const {
  if (kind(id) != NodeKind::String) return std::nullopt;
  const std::string_view text = text_of(id);
  if (!budget_->spend_text(text.size())) return std::nullopt;
  note(id);
  return text;
}

bool Pickle::says(NodeId id, std::string_view text) const {
  if (kind(id) != NodeKind::String) return false;
  if (trace_ != nullptr) trace_->compared.emplace_back(id, text);
  return text_of(id) == text;
}

bool Pickle::is_string(NodeId id, std::string_view text) const {
  if (kind(id) != NodeKind::String) return false;
  note(id);
  return text_of(id) == text;
}

std::span<const std::byte> Pickle::bytes(NodeId id) const {
  if (kind(id) != NodeKind::Bytes) return {};
  return text_.subspan(node(id).data[0], node(id).data[1]);
}

std::span<const NodeId> Pickle::items(NodeId id) const {
  const auto all = stored_items(id);
  return budget_->spend(all.size()) ? all : std::span<const NodeId>();
}

std::span<const NodeId> Pickle::stored_items(NodeId id) const {
  switch (kind(id)) {
    case NodeKind::Tuple:
      if (node(id).flag != 0) return std::span(node(id).data).first(node(id).flag);
      [[fallthrough]];
    case NodeKind::List:
    case NodeKind::Dict:
    case NodeKind::Set:
      return tree_->words.subspan(node(id).data[0], node(id).data[1]);
    case NodeKind::Call: {
      if ((node(id).flag & kHasRecord) == 0) return {};
      const std::uint32_t record = node(id).data[0];
      return tree_->words.subspan(tree_->words[record + kCallItems],
                                  tree_->words[record + kCallCount]);
    }
    default:
      return {};
  }
}

Pickle::GlobalName Pickle::global(NodeId id) const {
  if (kind(id) != NodeKind::Global) return {};
  const auto record = tree_->words.subspan(node(id).data[0], 4);
  if (!budget_->spend_text(std::size_t{record[1]} + record[3])) return {};
  return {slice(record[0], record[1]), slice(record[2], record[3])};
}

NodeId Pickle::callable(NodeId id) const {
  if (kind(id) != NodeKind::Call) return kNoneNode;
  const Node& n = node(id);
  return (n.flag & kHasRecord) != 0 ? tree_->words[n.data[0] + kCallCallable] : n.data[0];
}

NodeId Pickle::args(NodeId id) const {
  if (kind(id) != NodeKind::Call) return kNoneNode;
  const Node& n = node(id);
  return (n.flag & kHasRecord) != 0 ? tree_->words[n.data[0] + kCallArgs] : n.data[1];
}

NodeId Pickle::state(NodeId id) const {
  if (kind(id) != NodeKind::Call || (node(id).flag & kHasRecord) == 0) return kNoneNode;
  return tree_->words[node(id).data[0] + kCallState];
}

bool Pickle::sets_items(NodeId call) const {
  return kind(call) == NodeKind::Call && (node(call).flag & kSetsItems) != 0;
}

NodeId Pickle::persistent_id(NodeId id) const {
  return kind(id) == NodeKind::PersistentId ? node(id).data[0] : kNoneNode;
}

namespace {

bool is_ordered_dict(const Pickle& pickle, NodeId id) {
  return pickle.kind(id) == NodeKind::Call &&
         pickle.global(pickle.callable(id)) == Pickle::GlobalName{"collections", "OrderedDict"};
}

/// The pairs that an OrderedDict was made of: OrderedDict([[key, value], ...]).
std::span<const NodeId> first_pairs(const Pickle& pickle, NodeId id) {
  if (!is_ordered_dict(pickle, id)) return {};
  const auto args = pickle.items(pickle.args(id));
  return args.empty() ? args : pickle.sequence(args.front());
}

std::optional<DictItem> pair_of(const Pickle& pickle, NodeId id) {
  const auto pair = pickle.sequence(id);
  if (pair.size() != 2) return std::nullopt;
  return DictItem{pair[0], pair[1]};
}

}  // namespace

bool Pickle::is_mapping(NodeId id) const {
  return kind(id) == NodeKind::Dict || sets_items(id) || is_ordered_dict(*this, id);
}

std::vector<DictItem> Pickle::mapping(NodeId id) const {
  std::vector<DictItem> pairs;
  if (!is_mapping(id)) return pairs;
  const auto first = first_pairs(*this, id);
  const auto set =
      sets_items(id) || kind(id) == NodeKind::Dict ? items(id) : std::span<const NodeId>();
  pairs.reserve(first.size() + set.size() / 2);
  for (const NodeId element : first) {
    if (const auto pair = pair_of(*this, element)) pairs.push_back(*pair);
  }
  for (std::size_t i = 0; i + 1 < set.size(); i += 2) pairs.push_back({set[i], set[i + 1]});
  return pairs;
}

std::optional<NodeId> Pickle::find(NodeId id, std::string_view key) const {
  if (!is_mapping(id)) return std::nullopt;
  if (sets_items(id) || kind(id) == NodeKind::Dict) {
    const auto set = items(id);
    for (std::size_t i = set.size(); i >= 2; i -= 2) {
      if (is_string(set[i - 2], key)) return set[i - 1];
    }
  }
  const auto first = first_pairs(*this, id);
  for (std::size_t i = first.size(); i-- > 0;) {
    const auto pair = pair_of(*this, first[i]);
    if (pair && is_string(pair->key, key)) return pair->value;
  }
  return std::nullopt;
}

std::map<std::string_view, NodeId> Pickle::find_all(NodeId id) const {
  std::map<std::string_view, NodeId> found;
  for (const DictItem& item : mapping(id)) {
    const auto key = string(item.key);
    if (key && budget_->hold(kMapEntryBytes)) found.insert_or_assign(*key, item.value);
  }
  return found;
}

std::optional<std::span<const NodeId>> Pickle::elements(NodeId id) const {
  if (kind(id) == NodeKind::Call && global(callable(id)) == GlobalName{"torch", "Size"}) {
    const auto of = items(args(id));
    if (of.empty()) return of;
    id = of.front();
  }
  const NodeKind what = kind(id);
  if (what != NodeKind::Tuple && what != NodeKind::List) return std::nullopt;
  return items(id);
}

std::span<const NodeId> Pickle::sequence(NodeId id) const {
  return elements(id).value_or(std::span<const NodeId>());
}

std::optional<std::vector<std::int64_t>> Pickle::integers(NodeId id) const {
  const auto ids = elements(id);
  if (!ids || !budget_->hold(ids->size() * sizeof(std::int64_t))) return std::nullopt;
  std::vector<std::int64_t> values;
  values.reserve(ids->size());
  for (const NodeId element : *ids) {
    const auto value = integer(element);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

}  // namespace ckfs
