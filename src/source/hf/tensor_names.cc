#include "source/hf/tensor_names.h"

#include <algorithm>

#include "base/gallop.h"

namespace ckfs {

TensorNames::TensorNames(const CatalogBuilder& builder) {
  entries_.reserve(builder.tensor_count());
  for (TensorId id = 0; id < builder.tensor_count(); ++id) {
    entries_.push_back({builder.tensor(id).name, id});
  }
  std::ranges::sort(entries_, [](const Entry& a, const Entry& b) {
    const auto order = a.name <=> b.name;
    return order == 0 ? a.id < b.id : order < 0;
  });
  place_.resize(entries_.size());
  for (std::uint32_t at = 0; at < entries_.size(); ++at) place_[entries_[at].id] = at;
}

std::optional<std::pair<TensorId, TensorId>> TensorNames::twins() const {
  const auto first = std::ranges::adjacent_find(entries_, {}, &Entry::name);
  if (first == entries_.end()) return std::nullopt;
  return std::pair(first->id, std::next(first)->id);
}

std::optional<TensorId> TensorNames::find(std::string_view name, std::string_view suffix,
                                          TensorId near) const {
  const auto compare = [&](const Entry& entry) {
    const auto head = entry.name.substr(0, name.size()) <=> name;
    return head != 0 ? head : entry.name.substr(name.size()) <=> suffix;
  };
  const std::size_t from = near < place_.size() ? place_[near] : 0;
  const std::size_t at =
      gallop(entries_.size(), from, [&](std::size_t i) { return compare(entries_[i]) < 0; });
  if (at == entries_.size() || compare(entries_[at]) != 0) return std::nullopt;
  return entries_[at].id;
}

}  // namespace ckfs
