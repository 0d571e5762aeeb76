// The state dict of a ZeRO checkpoint, as zero_to_fp32 puts it together: the same names in the same
// order, but of places in files instead of values.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/deepspeed/deepspeed_states.h"
#include "source/deepspeed/extent_budget.h"
#include "source/repeated_headers.h"
#include "source/torch/torch_tensors.h"

namespace ckfs {

/// Counts of a state dict's entries, for `ckfs inspect`.
struct ZeroCounts {
  std::size_t parameters = 0, frozen = 0, buffers = 0, aliases = 0;
  std::int64_t parameter_numel = 0;
  std::uint64_t bytes = 0;                 // of all but module_frozen
  std::vector<std::string> module_frozen;  // names that zero_to_fp32 drops
};

/// Names keep the place of their first entry and the value of their last, as in Python. Not for
/// concurrent use. Errors, of all that add: Corrupt, Unsupported, OutOfMemory, and those of
/// TorchFile.
class ZeroStateDict {
 public:
  /// All must outlive it.
  ZeroStateDict(SourceFiles& files, CatalogBuilder& builder, RepeatedHeaders& repeated)
      : files_(files),
        builder_(builder),
        repeated_(repeated),
        placer_(builder),
        extent_budget_(files) {}

  /// Buffers, from the module's state, in its order.
  Result<void> add_buffers(const ModelStates& states);

  /// Frozen parameters whose tensors `states` holds whole (stage 2).
  Result<void> add_frozen(const ModelStates& states);
  /// Adds frozen parameters that are split over the model files of `ranks` (stage 3); `states` are
  /// those of rank 0. Opens the others' files.
  Result<void> add_partitioned_frozen(const ModelStates& states, std::span<const FileId> ranks);

  /// Whether a module's tensor, by its whole name and its node, is one of those that are there.
  using KnownTensor = std::function<bool(std::string_view name, NodeId tensor)>;
  /// Adds tensors of a module's state that are neither here yet, as buffers are, nor `known`:
  /// parameters that were frozen without a record of it (stage 1). One that cannot be shown becomes
  /// a note. `prefix` goes before each name.
  Result<void> add_module_frozen(const TorchFile& torch, FileId file, NodeId module,
                                 const std::string& prefix, const KnownTensor& known);

  /// A trainable parameter that is the whole of its storage.
  void add_parameter(std::string_view name, std::span<const std::int64_t> shape, StorageId storage);
  /// The same where its place is a tensor's.
  void add_parameter(std::string_view name, PlacedTensor tensor);

  /// Adds other names of tensors that are already there; other names of absent tensors are left
  /// out. Errors: Corrupt (as read_model_states()).
  Result<void> add_shared(const ModelStates& states);

  bool contains(std::string_view name) const { return places_.contains(name); }

  /// Hands everything to the builder, as its only shard.
  ZeroCounts finish() &&;

  TensorPlacer& placer() { return placer_; }
  /// What pays for parameters that are in parts.
  ExtentBudget& extent_budget() { return extent_budget_; }

 private:
  static constexpr std::size_t kAlone = ~std::size_t{0};

  struct Entry {
    std::string name;
    PlacedTensor tensor;
    Role role = Role::Weight;
    std::size_t sharers = kAlone;  // in sharers_
  };

  /// Entries that are one tensor: one of them, and its aliases.
  struct Sharers {
    std::size_t source = 0;
    std::set<std::size_t> aliases;
  };

  std::size_t set(Entry entry);
  /// Takes an entry that is about to change out of its sharers. Where it was their source, the
  /// first alias becomes that.
  void leave_sharers(std::size_t entry);
  std::size_t source_of(std::size_t entry) const {
    const std::size_t sharers = entries_[entry].sharers;
    return sharers == kAlone ? entry : sharers_[sharers].source;
  }

  SourceFiles& files_;
  CatalogBuilder& builder_;
  RepeatedHeaders& repeated_;
  TensorPlacer placer_;
  ExtentBudget extent_budget_;
  std::vector<Entry> entries_;
  std::vector<Sharers> sharers_;
  std::map<std::string, std::size_t, std::less<>> places_;
};

/// Adds the counts, except the bytes, to the facts of `builder`, and a note for each of
/// module_frozen.
void add_count_facts(CatalogBuilder& builder, const ZeroCounts& counts);

}  // namespace ckfs
