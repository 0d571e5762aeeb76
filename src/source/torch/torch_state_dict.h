// Where in the object of a torch file the state dict is: frameworks wrap it in one more dictionary,
// beside the optimizer, the epoch and whatever the user had.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "format/torch_file.h"

namespace ckfs {

struct NamedNode {
  std::string name;
  NodeId node = 0;
};

struct TorchStateDict {
  std::vector<NamedNode> tensors;  // names once each, in the order of the pickle
  std::vector<Note> notes;         // left-out entries, with the reasons
};

/// The tensors of the dictionary at `key` (a key, or keys joined by '.', which may
/// have dots themselves: a longer key comes first); with an empty key of the
/// one that is at a usual place ("state_dict", "model"...), else of the top level. Where that has
/// none itself, those one level below it, with names joined by '.', but not below a key that
/// is_training_state(). Errors: InvalidArgument (no such key), Unsupported (no dictionary, no
/// tensors, or two of one name), Corrupt (the pickle's budget is at its end), each naming the file.
Result<TorchStateDict> find_state_dict(const TorchFile& torch, std::string_view key,
                                       const std::string& file_name);

/// The keys below which frameworks have the tensors, by habit; the first that has some counts.
std::span<const std::string_view> usual_keys();

/// Whether a part of a training checkpoint of this name is for going on with the training only.
bool is_training_state(std::string_view name);

}  // namespace ckfs
