// The ranks of a training run pickle the same objects, each with a few numbers of its own: its
// place in a mesh, the rows that it has. So their pickles are one sequence of instructions, and
// reading the second by the first is a comparison of bytes. Where bytes differ, that must be inside
// of an instruction that makes an integer or a text, and the other pickle must have one at that
// place, perhaps of another length. The bytes between two such places are the same, so
// the instructions are: by induction both pickles do the same, except for these values.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "format/pickle.h"
#include "format/pickle_node.h"
#include "format/pickle_opcode.h"

namespace ckfs {
namespace {

using Bytes = std::span<const std::byte>;

/// A change costs its memory: as much as the pickle has bytes, and they are not much alike.
constexpr std::size_t kChangeBytes = 16;

std::size_t common_prefix(Bytes a, Bytes b) {
  constexpr std::size_t kBlock = 256;  // far fewer instructions than byte by byte
  const std::size_t most = std::min(a.size(), b.size());
  std::size_t at = 0;
  while (most - at >= kBlock && std::memcmp(a.data() + at, b.data() + at, kBlock) == 0)
    at += kBlock;
  while (at < most && a[at] == b[at]) ++at;
  return at;
}

bool is_text(Opcode opcode) {
  return opcode == Opcode::BinUnicode || opcode == Opcode::ShortBinUnicode ||
         opcode == Opcode::BinUnicode8;
}

}  // namespace

std::optional<Pickle> read_alike(const Pickle& model, Bytes bytes) {
  const auto& tree = *model.tree_;
  const Bytes old = model.text_.first(model.consumed_);
  if (bytes.size() > kMaxPickle) return std::nullopt;
  auto changes = std::make_shared<Pickle::Changes>();
  changes->text = bytes;
  std::size_t at = 0, here = 0;  // in `old`, in `bytes`
  while (true) {
    const std::size_t same = common_prefix(old.subspan(at), bytes.subspan(here));
    at += same;
    here += same;
    if (at == old.size()) break;  // behind STOP
    const auto behind = std::ranges::upper_bound(tree.leaves, at, {}, &Pickle::Leaf::position);
    if (behind == tree.leaves.begin()) return std::nullopt;
    const Pickle::Leaf leaf = *(behind - 1);
    const std::size_t leaf_end = leaf.position + read_instruction(old.subspan(leaf.position)).size;
    // The leaf begins behind the last change: where it is before `at`, its first bytes are the
    // same.
    if (leaf_end <= at) return std::nullopt;
    here -= at - leaf.position;
    if (here == bytes.size()) return std::nullopt;
    const Instruction other = read_instruction(bytes.subspan(here));
    if (other.size == 0 || other.size > bytes.size() - here) return std::nullopt;
    const Bytes argument = bytes.subspan(here + other.argument, other.argument_size);
    const NodeKind kind = tree.nodes[leaf.node].kind;
    Pickle::Node node{kind};
    if (const auto value = integer_of(other.opcode, argument); value && kind == NodeKind::Int) {
      const auto stored = static_cast<std::uint64_t>(*value);
      node.data = {static_cast<std::uint32_t>(stored), static_cast<std::uint32_t>(stored >> 32)};
    } else if (is_text(other.opcode) && kind == NodeKind::String &&
               is_python_text({reinterpret_cast<const char*>(argument.data()), argument.size()})) {
      node.data = {static_cast<std::uint32_t>(here + other.argument),
                   static_cast<std::uint32_t>(argument.size())};
    } else {
      return std::nullopt;
    }
    if (changes->nodes.size() * kChangeBytes >= bytes.size()) return std::nullopt;
    changes->nodes.emplace_back(leaf.node, node);
    at = leaf_end;
    here += other.size;
  }

  Pickle pickle;
  pickle.text_ = model.text_;
  pickle.tree_ = model.tree_;
  pickle.budget_ = std::make_shared<WorkBudget>(bytes.size());
  pickle.root_ = model.root_;
  pickle.consumed_ = here;
  if (!changes->nodes.empty()) {
    changes->is_changed.resize(tree.nodes.size());
    for (const auto& [id, node] : changes->nodes) changes->is_changed[id] = true;
    pickle.changes_ = std::move(changes);
  }
  return pickle;
}

}  // namespace ckfs
