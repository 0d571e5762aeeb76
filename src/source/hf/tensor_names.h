// The tensors of a checkpoint by name, to look up those that belong together.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "catalog/catalog.h"

namespace ckfs {

/// Provisional ids of a CatalogBuilder by the names that its tensors had, in the order of names.
/// Not a hash table: what belongs to a weight has nearly its name, so it lies beside it, and one
/// search costs as much as one look into a table of 100,000 names that no cache holds. Immutable.
class TensorNames {
 public:
  /// Names stay the builder's.
  explicit TensorNames(const CatalogBuilder& builder);

  std::size_t size() const { return entries_.size(); }

  /// Two tensors of one name, the first first; nullopt: there are none.
  std::optional<std::pair<TensorId, TensorId>> twins() const;

  /// The tensor `name` + `suffix`. `near`: one whose name is similar, for speed only.
  std::optional<TensorId> find(std::string_view name, std::string_view suffix = {},
                               TensorId near = 0) const;

 private:
  struct Entry {
    std::string_view name;
    TensorId id = 0;
  };

  std::vector<Entry> entries_;
  std::vector<std::uint32_t> place_;  // in entries_, by id
};

}  // namespace ckfs
