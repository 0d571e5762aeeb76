// Facts from names: which tensors decode others, and which integers are tables, not codes.
//
// Tools have no common names for the parts of a quantized weight (`W_q` and `scale`, `codes` and
// `codebooks`, `weight._data` and `weight._scale`), but all use words for the kind of part. So a
// name is read as words, and a tensor whose last words are such a part belongs to the module that
// the words before name.
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/name_hash.h"
#include "catalog/catalog.h"

namespace ckfs {

/// Whether it is a scale of activations or of the key-value cache: these belong to a way of running
/// the model, and decode no weight.
bool is_runtime_scale(std::string_view name);

/// Whether the last word says that the tensor decodes another: "weight_scale", "absmax", "zeros".
bool is_part_name(std::string_view name);

/// Whether the last word says that the tensor holds codes: "qweight", "W_q", "up_proj_blocks". A
/// "weight" and a "proj" are among them: an integer tensor of that name holds codes.
bool is_code_name(std::string_view name);

/// Whether the last word means integers that are not codes: positions, masks, ids, tables from one
/// kind of numbers to another ("tid2eid").
bool is_table_name(std::string_view name);

/// The tensors that decode others, by their names.
class ScaleNames {
 public:
  /// Takes the tensor into account, if its name is that of a part. The name must stay.
  void add(TensorId id, std::string_view name);

  /// How sure a name is.
  enum class Kinship : std::uint8_t {
    Own,     // the part's name is that of the codes and more: `W` and `W_scale`, `W_q` and `W_zero`
    Module,  // a part of the codes' module: `M.codes` and `M.scales`
    Loose,   // the same, of a name with other words in it: `M.codes` and `M.my_scale`
  };
  struct Found {
    TensorId part = 0;
    Kinship kinship = Kinship::Own;
  };
  /// A tensor that decodes the one of that name, the surest; nullopt: there is none.
  std::optional<Found> find(std::string_view codes) const;

 private:
  using Names = std::unordered_map<std::string_view, TensorId, NameHash>;
  Names of_names_, of_modules_, loose_;
};

}  // namespace ckfs
