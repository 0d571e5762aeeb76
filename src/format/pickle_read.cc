// Python's unpickler is a stack machine that imports names and calls them; that is how a checkpoint
// runs code. This one moves numbers of nodes on its stack and calls nothing: REDUCE makes a node
// "what f(*args) would be", BUILD and SETITEMS write into such a node, whatever f is. There is no
// list of good and bad names, because no name does anything; the reader of the tree knows the few
// functions that mean a tensor.
//
// Refuses all that Python would refuse (an empty stack, a missing mark, a key without a value):
// then two readers cannot see two different contents in one file.
#include <bit>
#include <charconv>
#include <limits>
#include <map>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/text.h"
#include "format/pickle.h"
#include "format/pickle_node.h"
#include "format/pickle_opcode.h"

namespace ckfs {
namespace {

constexpr std::size_t kSparseMemoBytes = 64;  // an entry of a map, about
constexpr int kLastProtocol = 5;

/// Elements a container has room for once it has `size`: it doubles, so that appending one by one
/// stays linear.
constexpr std::uint32_t room_for(std::uint32_t size) {
  return size == 0 ? 0 : std::bit_ceil(std::max<std::uint32_t>(size, 4));
}

constexpr std::array<std::uint32_t, 2> halves(std::uint64_t value) {
  return {static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32)};
}

}  // namespace

class PickleReader {
 public:
  PickleReader(std::span<const std::byte> text, std::string_view name, bool is_model)
      : text_(text),
        name_(name),
        is_model_(is_model),
        limit_(kPickleBase + kPickleFactor * static_cast<std::uint64_t>(text.size())) {
    pickle_.text_ = text;
    pickle_.budget_ = std::make_shared<WorkBudget>(text.size());
    for (const NodeKind kind : {NodeKind::None, NodeKind::Bool, NodeKind::Bool, NodeKind::Tuple}) {
      add({kind});
    }
  }

  Result<Pickle> read();

 private:
  using Node = Pickle::Node;

  template <typename... Args>
  Failure corrupt(fmt::format_string<Args...> text, Args&&... args) const {
    return at_position(ErrorCode::Corrupt, fmt::format(text, std::forward<Args>(args)...));
  }
  Failure unsupported(std::string_view what) const {
    return at_position(ErrorCode::Unsupported, what);
  }
  Failure at_position(ErrorCode code, std::string_view what) const {
    return fail(code, "{}: pickle byte {}: {}", name_, position_, what);
  }

  Result<void> step(const Instruction& instruction);
  /// With so many more ids in the words.
  Result<void> check_memory(std::uint64_t more = 0) const;

  void push(NodeId id) { stack_.push_back(id); }
  NodeId add(Node node);
  void push_integer(std::int64_t value);
  void push_leaf(Node node);
  /// Its integers or texts are more than values.
  void stop_being_model() {
    is_model_ = false;
    pickle_.tree_->leaves = {};
  }
  void push_slice(NodeKind kind);
  Result<NodeId> pop();
  Result<NodeId> top() const;
  Result<std::uint32_t> pop_mark();
  std::span<const NodeId> above(std::uint32_t mark) const {
    return stack_.subspan(mark, stack_.size() - mark);
  }

  std::string_view argument_text() const {
    return {reinterpret_cast<const char*>(argument_.data()), argument_.size()};
  }
  std::array<std::uint32_t, 2> argument_slice() const {
    return {static_cast<std::uint32_t>(argument_at_), static_cast<std::uint32_t>(argument_.size())};
  }
  std::uint32_t store(std::span<const NodeId> ids);
  Result<void> push_container(NodeKind kind, std::uint32_t first);
  Result<void> push_tuple(std::uint32_t count);
  Result<void> extend(NodeId target, std::uint32_t first, Opcode opcode);
  Result<void> append(std::uint32_t& at, std::uint32_t& count, std::span<const NodeId> added);
  std::uint32_t call_record(Node& call);
  Result<void> push_global();
  Result<void> push_stack_global();
  Result<void> push_call(Opcode opcode);
  Result<void> build();

  void memoize(std::uint32_t index, NodeId id);
  Result<void> get(std::uint32_t index);
  Result<std::uint32_t> line_number() const;

  std::span<const std::byte> text_;
  std::string_view name_;
  bool is_model_;
  std::uint64_t limit_;
  Pickle pickle_;
  std::uint64_t position_ = 0;
  std::span<const std::byte> argument_;
  std::uint64_t argument_at_ = 0;  // in text_

  GrowingArray<NodeId> stack_;
  GrowingArray<std::uint32_t> marks_;  // sizes of stack_
  GrowingArray<NodeId> memo_;
  // Keys are > memo_.size(). Ordered: keys that all fall into one bucket of a hash are easily made.
  std::map<std::uint32_t, NodeId> sparse_memo_;
  bool stopped_ = false;
};

Result<Pickle> parse_pickle(std::span<const std::byte> bytes, std::string_view name) {
  return PickleReader(bytes, name, false).read();
}

Result<Pickle> parse_model_pickle(std::span<const std::byte> bytes, std::string_view name) {
  return PickleReader(bytes, name, true).read();
}

Result<Pickle> PickleReader::read() {
  if (text_.size() > kMaxPickle) {
    return fail(ErrorCode::Unsupported, "{}: a pickle of {} bytes (limit {})", name_, text_.size(),
                kMaxPickle);
  }
  while (!stopped_) {
    if (position_ == text_.size()) return corrupt("ends without STOP");
    const auto rest = text_.subspan(position_);
    const Instruction instruction = read_instruction(rest);
    if (instruction.size == 0) {
      return corrupt("no opcode {:#04x}", static_cast<unsigned>(instruction.opcode));
    }
    if (instruction.size > rest.size()) {
      return corrupt("opcode {:#04x} needs {} bytes (limit {})",
                     static_cast<unsigned>(instruction.opcode), instruction.size, rest.size());
    }
    argument_at_ = position_ + instruction.argument;
    argument_ = text_.subspan(argument_at_, instruction.argument_size);
    CKFS_TRY_VOID(step(instruction));
    CKFS_TRY_VOID(check_memory());
    position_ += instruction.size;
  }
  pickle_.consumed_ = position_;
  pickle_.tree_->nodes.shrink_to_fit();
  pickle_.tree_->words.shrink_to_fit();
  pickle_.tree_->leaves.shrink_to_fit();
  return std::move(pickle_);
}

Result<void> PickleReader::check_memory(std::uint64_t more) const {
  const std::uint64_t ids =
      pickle_.tree_->words.size() + stack_.size() + marks_.size() + memo_.size() + more;
  const std::uint64_t bytes = pickle_.tree_->nodes.size() * sizeof(Node) + ids * sizeof(NodeId) +
                              pickle_.tree_->leaves.size() * sizeof(Pickle::Leaf) +
                              sparse_memo_.size() * kSparseMemoBytes;
  if (bytes <= limit_) return {};
  return corrupt("its objects need more than {} bytes", limit_);
}

Result<void> PickleReader::step(const Instruction& instruction) {
  const Opcode opcode = instruction.opcode;
  switch (opcode) {
    case Opcode::Proto:
      if (std::to_integer<int>(argument_[0]) > kLastProtocol) {
        return unsupported(fmt::format("protocol {} (limit {})", std::to_integer<int>(argument_[0]),
                                       kLastProtocol));
      }
      return {};
    case Opcode::Frame: {
      const auto size = load_le<std::uint64_t>(argument_);
      const std::uint64_t rest = text_.size() - argument_at_ - argument_.size();
      if (size > rest) return corrupt("a frame of {} bytes (limit {})", size, rest);
      stop_being_model();
      return {};
    }
    case Opcode::Stop: {
      CKFS_TRY(pickle_.root_, pop());
      stopped_ = true;
      return {};
    }

    case Opcode::Mark:
      marks_.push_back(static_cast<std::uint32_t>(stack_.size()));
      return {};
    case Opcode::Pop:
      // Python pops the mark if that is what is on top.
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
        return {};
      }
      CKFS_TRY_VOID(pop());
      return {};
    case Opcode::PopMark: {
      CKFS_TRY(const std::uint32_t mark, pop_mark());
      stack_.resize(mark);
      return {};
    }
    case Opcode::Dup: {
      CKFS_TRY(const NodeId id, top());
      push(id);
      return {};
    }

    case Opcode::None:
      push(kNoneNode);
      return {};
    case Opcode::NewTrue:
      push(kTrueNode);
      return {};
    case Opcode::NewFalse:
      push(kFalseNode);
      return {};
    case Opcode::BinInt1:
    case Opcode::BinInt2:
    case Opcode::BinInt:
    case Opcode::Long1:
    case Opcode::Long4:
      if (const auto value = integer_of(opcode, argument_)) {
        push_integer(*value);
      } else {
        push(add({NodeKind::Int, kBigInteger, argument_slice()}));
      }
      return {};
    case Opcode::BinFloat: {
      // The one big-endian number of the format.
      const auto bits = __builtin_bswap64(load_le<std::uint64_t>(argument_));
      push(add({NodeKind::Float, 0, halves(bits)}));
      return {};
    }
    case Opcode::BinUnicode:
    case Opcode::ShortBinUnicode:
    case Opcode::BinUnicode8:
      if (!is_python_text(argument_text())) return corrupt("a text that is not UTF-8");
      push_slice(NodeKind::String);
      return {};
    case Opcode::BinString:  // of Python 2, whose str names tensors, and holds any bytes
    case Opcode::ShortBinString:
      push_slice(is_utf8(argument_text()) ? NodeKind::String : NodeKind::Bytes);
      return {};
    case Opcode::BinBytes:
    case Opcode::ShortBinBytes:
    case Opcode::BinBytes8:
    case Opcode::ByteArray8:
      push_slice(NodeKind::Bytes);
      return {};

    case Opcode::EmptyTuple:
      push(kEmptyTupleNode);
      return {};
    case Opcode::EmptyList:
      push(add({NodeKind::List}));
      return {};
    case Opcode::EmptyDict:
      push(add({NodeKind::Dict}));
      return {};
    case Opcode::EmptySet:
      push(add({NodeKind::Set}));
      return {};
    case Opcode::Tuple1:
      return push_tuple(1);
    case Opcode::Tuple2:
      return push_tuple(2);
    case Opcode::Tuple3:
      return push_tuple(3);
    case Opcode::Tuple:
    case Opcode::List:
    case Opcode::FrozenSet:
    case Opcode::Dict: {
      CKFS_TRY(const std::uint32_t mark, pop_mark());
      if (opcode == Opcode::Dict && above(mark).size() % 2 != 0) {
        return corrupt("a key without a value");
      }
      return push_container(opcode == Opcode::Tuple  ? NodeKind::Tuple
                            : opcode == Opcode::List ? NodeKind::List
                            : opcode == Opcode::Dict ? NodeKind::Dict
                                                     : NodeKind::Set,
                            mark);
    }
    case Opcode::Append:
    case Opcode::SetItem: {
      const std::size_t count = opcode == Opcode::Append ? 1 : 2;
      const std::size_t floor = marks_.empty() ? 0 : marks_.back();
      if (stack_.size() - floor < count + 1) return corrupt("the stack is empty");
      const auto first = static_cast<std::uint32_t>(stack_.size() - count);
      return extend(stack_[first - 1], first, opcode);
    }
    case Opcode::Appends:
    case Opcode::SetItems:
    case Opcode::AddItems: {
      CKFS_TRY(const std::uint32_t mark, pop_mark());
      const std::uint32_t floor = marks_.empty() ? 0 : marks_.back();
      if (mark == floor) return corrupt("the stack is empty");
      return extend(stack_[mark - 1], mark, opcode);
    }

    case Opcode::Global:
      return push_global();
    case Opcode::StackGlobal:
      return push_stack_global();
    case Opcode::Reduce:
    case Opcode::NewObj:
    case Opcode::NewObjEx:
      return push_call(opcode);
    case Opcode::Build:
      return build();
    case Opcode::BinPersId: {
      CKFS_TRY(const NodeId id, pop());
      push(add({NodeKind::PersistentId, 0, {id}}));
      return {};
    }

    case Opcode::BinPut:
    case Opcode::LongBinPut:
    case Opcode::Put:
    case Opcode::Memoize: {
      CKFS_TRY(const NodeId id, top());
      std::uint32_t index = 0;
      if (opcode == Opcode::BinPut) index = load_le<std::uint8_t>(argument_);
      if (opcode == Opcode::LongBinPut) index = load_le<std::uint32_t>(argument_);
      if (opcode == Opcode::Put) {
        CKFS_TRY(index, line_number());
      }
      if (opcode == Opcode::Memoize) {
        // Python counts entries, each once; sparse ones only come from hand-made pickles.
        index = static_cast<std::uint32_t>(memo_.size() + sparse_memo_.size());
      }
      memoize(index, id);
      return {};
    }
    case Opcode::BinGet:
      return get(load_le<std::uint8_t>(argument_));
    case Opcode::LongBinGet:
      return get(load_le<std::uint32_t>(argument_));
    case Opcode::Get: {
      CKFS_TRY(const std::uint32_t index, line_number());
      return get(index);
    }

    case Opcode::Float:
    case Opcode::Int:
    case Opcode::Long:
    case Opcode::String:
    case Opcode::Unicode:
    case Opcode::PersId:
    case Opcode::Inst:
    case Opcode::Obj:
      return unsupported(fmt::format("opcode '{}' of protocols 0 and 1, which torch does not write",
                                     static_cast<char>(opcode)));
    case Opcode::Ext1:
    case Opcode::Ext2:
    case Opcode::Ext4:
      return unsupported("an extension code, whose meaning is not in the file");
    case Opcode::NextBuffer:
    case Opcode::ReadOnlyBuffer:
      return unsupported("an out-of-band buffer, which is not in the file");
  }
  return corrupt("no opcode {:#04x}", static_cast<unsigned>(opcode));
}

NodeId PickleReader::add(Node node) {
  pickle_.tree_->nodes.push_back(node);
  return static_cast<NodeId>(pickle_.tree_->nodes.size() - 1);
}

void PickleReader::push_leaf(Node node) {
  const NodeId id = add(node);
  if (is_model_) {
    pickle_.tree_->leaves.push_back({static_cast<std::uint32_t>(position_), id});
  }
  push(id);
}

void PickleReader::push_integer(std::int64_t value) {
  if (value >= 0 && value < kSmallInteger && !is_model_) {
    push(kSmallInteger | static_cast<NodeId>(value));
    return;
  }
  push_leaf({NodeKind::Int, 0, halves(std::bit_cast<std::uint64_t>(value))});
}

void PickleReader::push_slice(NodeKind kind) {
  if (kind == NodeKind::String) {
    push_leaf({kind, 0, argument_slice()});
  } else {
    push(add({kind, 0, argument_slice()}));
  }
}

Result<NodeId> PickleReader::top() const {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) return corrupt("the stack is empty");
  return stack_.back();
}

Result<NodeId> PickleReader::pop() {
  CKFS_TRY(const NodeId id, top());
  stack_.pop_back();
  return id;
}

Result<std::uint32_t> PickleReader::pop_mark() {
  if (marks_.empty()) return corrupt("no mark on the stack");
  const std::uint32_t mark = marks_.back();
  marks_.pop_back();
  return mark;
}

std::uint32_t PickleReader::store(std::span<const NodeId> ids) {
  const auto at = static_cast<std::uint32_t>(pickle_.tree_->words.size());
  pickle_.tree_->words.append(ids);
  return at;
}

Result<void> PickleReader::push_container(NodeKind kind, std::uint32_t first) {
  const auto ids = above(first);
  const auto count = static_cast<std::uint32_t>(ids.size());
  if (kind == NodeKind::Tuple && count <= kTupleInNode) {
    Node node{kind, static_cast<std::uint8_t>(count)};
    std::ranges::copy(ids, node.data.begin());
    stack_.resize(first);
    push(count == 0 ? kEmptyTupleNode : add(node));
    return {};
  }
  // What may grow has the room that append() expects of its size.
  const std::uint32_t room = kind == NodeKind::Tuple ? count : room_for(count);
  CKFS_TRY_VOID(check_memory(room));
  const std::uint32_t at = store(ids);
  pickle_.tree_->words.resize(at + room);
  stack_.resize(first);
  push(add({kind, 0, {at, count}}));
  return {};
}

Result<void> PickleReader::push_tuple(std::uint32_t count) {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() - floor < count) return corrupt("the stack is empty");
  return push_container(NodeKind::Tuple, static_cast<std::uint32_t>(stack_.size() - count));
}

Result<void> PickleReader::append(std::uint32_t& at, std::uint32_t& count,
                                  std::span<const NodeId> added) {
  auto& words = pickle_.tree_->words;
  const std::uint32_t old_room = room_for(count);
  const auto new_count = static_cast<std::uint32_t>(count + added.size());
  const std::uint32_t new_room = room_for(new_count);
  if (new_room > old_room) {
    // At the end of the words there is nothing to move.
    const bool last = count != 0 && at + old_room == words.size();
    const auto to = last ? at : static_cast<std::uint32_t>(words.size());
    CKFS_TRY_VOID(check_memory(to + std::uint64_t{new_room} - words.size()));
    words.resize(std::size_t{to} + new_room);
    if (!last) std::copy_n(words.begin() + at, count, words.begin() + to);
    at = to;
  }
  std::copy(added.begin(), added.end(), words.begin() + at + count);
  count = new_count;
  return {};
}

Result<void> PickleReader::extend(NodeId target, std::uint32_t first, Opcode opcode) {
  const bool pairs = opcode == Opcode::SetItem || opcode == Opcode::SetItems;
  const NodeKind plain = pairs                        ? NodeKind::Dict
                         : opcode == Opcode::AddItems ? NodeKind::Set
                                                      : NodeKind::List;
  const auto added = above(first);
  if (pairs && added.size() % 2 != 0) return corrupt("a key without a value");
  const NodeKind kind = pickle_.kind(target);
  if (!added.empty()) {
    if (kind != plain && kind != NodeKind::Call) {
      return corrupt(
          "opcode '{}' on a value that is neither a container of that kind nor an object",
          static_cast<char>(opcode));
    }
    Node& node = pickle_.tree_->nodes[target];
    if (kind == NodeKind::Call) {
      if ((node.flag & (pairs ? kAppendsItems : kSetsItems)) != 0) {
        return corrupt("an object with both elements and pairs");
      }
      const std::uint32_t record = call_record(node);
      node.flag |= pairs ? kSetsItems : kAppendsItems;
      std::uint32_t at = pickle_.tree_->words[record + kCallItems];
      std::uint32_t count = pickle_.tree_->words[record + kCallCount];
      CKFS_TRY_VOID(append(at, count, added));
      pickle_.tree_->words[record + kCallItems] = at;
      pickle_.tree_->words[record + kCallCount] = count;
    } else {
      CKFS_TRY_VOID(append(node.data[0], node.data[1], added));
    }
  }
  stack_.resize(first);
  return {};
}

Result<void> PickleReader::push_global() {
  // Both lines are in the argument, newlines and all.
  const auto begin = argument_.begin();
  const auto middle = std::find(begin, argument_.end(), std::byte{'\n'});
  const auto module_size = static_cast<std::uint32_t>(middle - begin);
  const auto name_size = static_cast<std::uint32_t>(argument_.size() - module_size - 2);
  const auto module_at = static_cast<std::uint32_t>(argument_at_);
  const std::uint32_t record[] = {module_at, module_size, module_at + module_size + 1, name_size};
  push(add({NodeKind::Global, 0, {store(record)}}));
  return {};
}

Result<void> PickleReader::push_stack_global() {
  stop_being_model();
  CKFS_TRY(const NodeId name, pop());
  CKFS_TRY(const NodeId module, pop());
  if (pickle_.kind(name) != NodeKind::String || pickle_.kind(module) != NodeKind::String) {
    return corrupt("a global whose name is not a string");
  }
  const auto [module_at, module_size] = pickle_.node(module).data;
  const auto [name_at, name_size] = pickle_.node(name).data;
  const std::uint32_t record[] = {module_at, module_size, name_at, name_size};
  push(add({NodeKind::Global, 0, {store(record)}}));
  return {};
}

Result<void> PickleReader::push_call(Opcode opcode) {
  // Keyword arguments only come with __getnewargs_ex__, which nothing we look for has.
  if (opcode == Opcode::NewObjEx) CKFS_TRY_VOID(pop());
  CKFS_TRY(const NodeId args, pop());
  CKFS_TRY(const NodeId callable, pop());
  push(add({NodeKind::Call, 0, {callable, args}}));
  return {};
}

std::uint32_t PickleReader::call_record(Node& call) {
  if ((call.flag & kHasRecord) == 0) {
    const NodeId record[kCallWords] = {call.data[0], call.data[1], kNoneNode, 0, 0};
    call.data = {store(record)};
    call.flag |= kHasRecord;
  }
  return call.data[0];
}

Result<void> PickleReader::build() {
  CKFS_TRY(const NodeId state, pop());
  CKFS_TRY(const NodeId target, top());
  // On anything but an object BUILD fails in Python, or has a meaning that ckfs does not use.
  if (pickle_.kind(target) == NodeKind::Call) {
    const std::uint32_t record = call_record(pickle_.tree_->nodes[target]);
    pickle_.tree_->words[record + kCallState] = state;
  }
  return {};
}

void PickleReader::memoize(std::uint32_t index, NodeId id) {
  // Writers number from 0; a pickle that does not must not decide how long an array is.
  if (index < memo_.size()) {
    memo_[index] = id;
  } else if (index > memo_.size()) {
    sparse_memo_[index] = id;
  } else {
    memo_.push_back(id);
    // Sparse entries that now follow are moved: an entry in both places would be counted twice, and
    // the next MEMOIZE would get another number than in Python.
    for (;;) {
      const auto next = sparse_memo_.find(static_cast<std::uint32_t>(memo_.size()));
      if (next == sparse_memo_.end()) break;
      memo_.push_back(next->second);
      sparse_memo_.erase(next);
    }
  }
}

Result<void> PickleReader::get(std::uint32_t index) {
  if (index < memo_.size()) {
    push(memo_[index]);
    return {};
  }
  const auto found = sparse_memo_.find(index);
  if (found == sparse_memo_.end()) return corrupt("nothing at {} of the memo", index);
  push(found->second);
  return {};
}

Result<std::uint32_t> PickleReader::line_number() const {
  const auto* const begin = reinterpret_cast<const char*>(argument_.data());
  const char* const end = begin + argument_.size() - 1;  // without the newline
  std::uint32_t number = 0;
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end) return corrupt("a memo index that is not a number");
  return number;
}

}  // namespace ckfs
