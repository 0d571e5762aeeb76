// A pickle, read without running it. The stack machine of the format is followed exactly, but where
// Python would import and call, a node records the callable and its arguments. So here a pickle is
// only a tree (or, by its memo, a graph) of values. (What no Python writes is refused where it
// would need more: an object with both elements and pairs.)
//
// Nodes are numbers in arenas: reading, holding and freeing a pickle never recurses, objects may
// contain themselves, and memory is bounded by the size of the pickle (kPickleBase, kPickleFactor;
// and as much again as the pickle's bytes for what a model of read_alike() and its traces keep).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/growing_array.h"
#include "base/work_budget.h"

namespace ckfs {

inline constexpr std::uint64_t kMaxPickle = std::uint64_t{1} << 30;  // bytes

/// What a pickle's objects may take in memory while it is read: kPickleBase + kPickleFactor times
/// its bytes; half as much again may be kept for more of them. Real ones need one to two times
/// their bytes.
inline constexpr std::uint64_t kPickleBase = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kPickleFactor = 3;

/// A node of its Pickle; meaningless in another.
using NodeId = std::uint32_t;

enum class NodeKind : std::uint8_t {
  None,
  Bool,
  Int,
  Float,
  String,
  Bytes,  // and a str of Python 2 that is not UTF-8
  List,
  Tuple,
  Dict,
  Set,
  Global,        // module.name: a class or function, known by name only
  Call,          // what callable(*args) would have given
  PersistentId,  // torch: a storage
};

/// The integers and texts of a pickle that an answer depends on, beside the pickle's structure.
struct PickleTrace {
  std::uint32_t number = 0;  // of the pickle's traces
  std::vector<NodeId> read;  // few of them twice
  std::vector<std::pair<NodeId, std::string_view>> compared;
};

/// A pair of a mapping.
struct DictItem {
  NodeId key = 0;
  NodeId value = 0;
};

/// Immutable after parsing. Strings are slices of the bytes that were parsed, which must outlive
/// it. A question that does not fit a node's kind gets the empty answer (nullopt, an empty span,
/// the node None), never an abort: callers ask for the kind first, or take the empty answer as
/// "something else". Only a number that is not a node of this pickle aborts.
///
/// Nodes are shared, so walking them as a tree may take exponential time or never end. Walk known
/// paths, to a known depth. The pickle's budget pays for a walk: each function that gives elements
/// or text charges for all of it, however little is then looked at. When the budget is spent, these
/// functions give the empty answer: ask within_budget() before using the result of a walk.
class Pickle {
 public:
  /// Charges for other memory that a walk allocates and keeps.
  const std::shared_ptr<WorkBudget>& budget() const { return budget_; }
  /// `result`, or where the budget is at its end that as the error; `name` goes before it.
  template <typename T>
  Result<T> within_budget(std::string_view name, Result<T> result) const {
    CKFS_TRY_VOID(budget_->check(name));
    return result;
  }

  NodeId root() const { return root_; }
  /// Bytes up to and with the STOP that ended it.
  std::size_t consumed() const { return consumed_; }

  NodeKind kind(NodeId id) const;
  bool is_none(NodeId id) const { return kind(id) == NodeKind::None; }
  std::optional<bool> boolean(NodeId id) const;
  /// An Int that is stored in at most 8 bytes; nullopt for longer ones too.
  std::optional<std::int64_t> integer(NodeId id) const;
  /// The little-endian two's complement of an Int of more bytes.
  std::span<const std::byte> big_integer(NodeId id) const;
  std::optional<double> real(NodeId id) const;
  /// As stored: UTF-8, with what surrogates Python leaves in.
  std::optional<std::string_view> string(NodeId id) const;
  /// Whether the node is this text, which must live as long as traces of it.
  bool says(NodeId id, std::string_view text) const;
  /// Not charged to the budget: the caller that looks at them pays.
  std::span<const std::byte> bytes(NodeId id) const;

  /// Elements of a List, Tuple or Set; of a Dict key, value, key, value...; of a Call what was
  /// appended (elements) or set (key, value...) on it afterwards, see sets_items(). Valid as long
  /// as the pickle.
  std::span<const NodeId> items(NodeId id) const;

  /// Of a Global; empty names otherwise.
  struct GlobalName {
    std::string_view module;
    std::string_view name;
    bool operator==(const GlobalName&) const = default;
  };
  GlobalName global(NodeId id) const;

  /// Of a Call: how the object would have been made (REDUCE, NEWOBJ; NEWOBJ_EX without its keyword
  /// arguments). `callable` and `args` may be any kind (`args` is a Tuple in all pickles that
  /// Python can load), `state` is what BUILD gave last (else the node None).
  NodeId callable(NodeId id) const;
  NodeId args(NodeId id) const;
  NodeId state(NodeId id) const;
  /// Whether items(call) are pairs (SETITEMS), as those of an OrderedDict.
  bool sets_items(NodeId call) const;

  /// What a PersistentId names.
  NodeId persistent_id(NodeId id) const;

  /// Dict, OrderedDict (made of pairs, too) and any other Call on which items were set.
  bool is_mapping(NodeId id) const;
  /// The pairs of a mapping in the order of the pickle. A key that comes twice is given twice: in
  /// Python the last counts, at the place of the first.
  std::vector<DictItem> mapping(NodeId id) const;
  /// The value of a string key of a mapping (the last one), without building anything: for few keys
  /// of a mapping.
  std::optional<NodeId> find(NodeId id, std::string_view key) const;
  /// All string keys of a mapping and their values (the last of each): for many.
  std::map<std::string_view, NodeId> find_all(NodeId id) const;

  /// The integers of a Tuple, a List or a torch.Size; nullopt if anything else is in it. They are
  /// paid for as bytes that are kept.
  std::optional<std::vector<std::int64_t>> integers(NodeId id) const;
  /// Elements of a Tuple, a List or a torch.Size.
  std::span<const NodeId> sequence(NodeId id) const;

  /// Where integers and texts are noted that are asked for from here on; nullptr: nowhere. Gives
  /// where they were before. Not while another thread uses the pickle.
  PickleTrace* trace(PickleTrace* to) const;
  /// Of a pickle of read_alike(): whether what a trace of its model saw is here as it is there.
  /// Then the same questions have the same answers.
  bool answers_as_model(const PickleTrace& trace) const;

  /// All nodes but small integers have ids below this; those made first have the lower ids.
  NodeId node_count() const { return static_cast<NodeId>(tree_->nodes.size()); }

 private:
  friend class PickleReader;
  friend std::optional<Pickle> read_alike(const Pickle& model, std::span<const std::byte> bytes);

  // 12 bytes a node; what does not fit is a record in Tree::words.
  struct Node {
    NodeKind kind = NodeKind::None;
    std::uint8_t flag = 0;
    std::array<std::uint32_t, 2> data = {};
  };

  /// An instruction that makes an integer or a text.
  struct Leaf {
    std::uint32_t position = 0;
    NodeId node = 0;
  };
  struct Tree {
    GrowingArray<Node> nodes;
    GrowingArray<std::uint32_t> words;
    GrowingArray<Leaf> leaves;  // of a model, by position
  };
  /// Integers and texts that are others than in the tree.
  struct Changes {
    std::span<const std::byte> text;
    std::vector<std::pair<NodeId, Node>> nodes;  // by number
    std::vector<bool> is_changed;
  };

  const Node& node(NodeId id) const;
  const Node* changed(NodeId id) const;
  void note(NodeId id) const {
    if (trace_ == nullptr || traced_[id] == trace_->number) return;
    traced_[id] = trace_->number;
    trace_->read.push_back(id);
  }
  std::string_view text_of(NodeId id) const;
  std::span<const NodeId> stored_items(NodeId id) const;
  bool is_string(NodeId id, std::string_view text) const;
  std::optional<std::span<const NodeId>> elements(NodeId id) const;
  std::string_view slice(std::uint32_t offset, std::uint32_t size) const;

  std::span<const std::byte> text_;
  std::shared_ptr<WorkBudget> budget_ = std::make_shared<WorkBudget>(0);
  std::shared_ptr<Tree> tree_ = std::make_shared<Tree>();
  std::shared_ptr<const Changes> changes_;  // nullptr: none
  mutable PickleTrace* trace_ = nullptr;
  mutable std::vector<std::uint32_t> traced_;  // for each node, the last trace that has it
  mutable std::uint32_t traces_ = 0;
  NodeId root_ = 0;
  std::size_t consumed_ = 0;
};

/// Reads the pickle at the start of `bytes`. Of protocols 0 and 1 the opcodes are known that later
/// ones still use or could (PUT, GET, GLOBAL), not those for values as text, INST and OBJ. `name`
/// is for messages. Errors: Corrupt, Unsupported (one of those, an extension, an out-of-band
/// buffer, protocol 6, more than kMaxPickle bytes).
Result<Pickle> parse_pickle(std::span<const std::byte> bytes, std::string_view name);

/// The same of a pickle that others may be read by. It has a node for each integer too, within the
/// same limit, so it may need too much where parse_pickle() does not.
Result<Pickle> parse_model_pickle(std::span<const std::byte> bytes, std::string_view name);

/// A pickle of the same instructions as `model`, of parse_model_pickle(), except for the values
/// of integers of at most 8 bytes and of texts; nullopt: it is not one, or it changes too many to
/// be worth it. It equals what parse_pickle() makes of it, with the model's numbers of nodes and
/// limits of memory, and a budget of its own. Its cost is a comparison of bytes, its memory that of
/// the changes: it shares the model's nodes, and the bytes of both must outlive it. (Pickles with
/// frames, or with names of globals that are texts, are alike only if they are the same. torch.save
/// writes neither.)
std::optional<Pickle> read_alike(const Pickle& model, std::span<const std::byte> bytes);

}  // namespace ckfs
