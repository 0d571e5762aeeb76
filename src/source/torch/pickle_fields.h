// Fields of pickled objects, whatever their classes are called.
#pragma once

#include <optional>
#include <string_view>

#include "format/pickle.h"

namespace ckfs {

/// A field of an object: its state is a dictionary, or with slots a pair (None, dictionary).
inline std::optional<NodeId> field(const Pickle& pickle, NodeId object, std::string_view name) {
  const NodeId state = pickle.state(object);
  if (const auto value = pickle.find(state, name)) return value;
  const auto parts = pickle.sequence(state);
  return parts.size() == 2 ? pickle.find(parts[1], name) : std::nullopt;
}

}  // namespace ckfs
