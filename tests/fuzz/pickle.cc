// Fuzz target: a pickle. What is accepted can be asked anything about any of its nodes.
#include "format/pickle.h"

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const auto pickle = parse_pickle(std::as_bytes(std::span(data, size)), "f");
  if (!pickle) {
    CKFS_CHECK(pickle.error().message().find('\n') == std::string::npos);
    return 0;
  }
  CKFS_CHECK(pickle->consumed() <= size && pickle->consumed() > 0);
  CKFS_CHECK(pickle->memory() <= kPickleBase + (kPickleFactor + 1) * size);
  const auto check = [&](NodeId id) {
    CKFS_CHECK(pickle->kind(id) == NodeKind::Int || id < pickle->node_count());
  };
  check(pickle->root());
  for (NodeId node = 0; node < pickle->node_count(); ++node) {
    for (const NodeId item : pickle->items(node)) check(item);
    check(pickle->callable(node));
    check(pickle->args(node));
    check(pickle->state(node));
    check(pickle->persistent_id(node));
    CKFS_CHECK(pickle->is_mapping(node) || pickle->mapping(node).empty());
    const auto integers = pickle->integers(node);
    CKFS_CHECK(!integers || integers->size() == pickle->sequence(node).size());
    // Slices lie in the text.
    std::size_t bytes = pickle->bytes(node).size() + pickle->big_integer(node).size() +
                        pickle->string(node).value_or("").size();
    CKFS_CHECK(bytes <= size && pickle->global(node).name.size() <= size);
    static_cast<void>(pickle->find(node, "w"));
  }
  return 0;
}
