// Sources whose tensors have the names and shapes of a training program, Megatron-Core, torchtitan
// or prime-rl, and the way from there to those of Hugging Face, by the rules of the model's family.
//
// Rules only move data: values are as they are stored, and a view casts what they give.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "view/recipes/recipe.h"
#include "view/view.h"

namespace ckfs {

/// Programs, as families call them.
inline constexpr std::string_view kMegatronNames = "megatron";
inline constexpr std::string_view kTorchTitanNames = "torchtitan";
inline constexpr std::string_view kPrimeRlNames = "prime-rl";

/// The program in messages: "Megatron".
std::string_view shown_program(std::string_view program);

/// The program whose names the catalog's tensors have, as families call it. Empty: they are shown
/// by the names that they have. Megatron's are known by the names alone, or by the kind of
/// checkpoint; torchtitan's in DCP checkpoints with a config.json only, because Meta's own files
/// have nearly the same names.
std::string_view program_of(const Catalog& catalog);

/// The model under Hugging Face's names, in their natural order; or why there is none.
struct FoundNames {
  const Catalog* catalog = nullptr;
  Result<std::shared_ptr<const TensorList>> model;
  std::vector<std::string> keep = {};  // as ProgramRules::keep
};

/// Applies the rules. Done once for a checkpoint, and kept in Recipes::named. Requires:
/// program_of() is not empty.
std::shared_ptr<const FoundNames> find_names(const Catalog& catalog, const Recipes& recipes);

/// Which data a view shows.
enum class Weights : bool {
  Stored,
  Masters,  // of the optimizer: F32
};

/// The model's tensors, which share names and boxes with the model that was found. With a `dtype`
/// all floats are cast to it but those of buffers, and of tensors that the rules
/// name, if they are kept. Requires: program_of() is not
/// empty. Errors: Unsupported (no family, no config.json; what does not fit the rules, with file,
/// line and tensor; no masters), Corrupt (config.json).
struct NameOptions {
  Weights weights = Weights::Stored;
  std::optional<DType> dtype = {};
  bool keep_buffers = false;
};
Result<TensorList> named_tensors(const Catalog& catalog, const NameOptions& options,
                                 const Recipes& recipes);

/// Sets `view.layers`, which rules ask for: the layers of config.json, and those that predict
/// further tokens as far as the tensors have some. They may be left out, and config.json does not
/// say so.
void set_layers(ConfigNumbers& config, std::span<const ModelTensor> tensors);

/// Why the source cannot be shown under Hugging Face's names; empty: it can.
std::vector<Obstacle> name_obstacles(const Catalog& catalog, const Recipes& recipes);

/// A remark on such names that are shown as they are. nullopt: there is none.
std::optional<Note> name_remark(const Catalog& catalog);

}  // namespace ckfs
