// A model under the names and shapes of a training program, by the `write` rules of its family:
// what the views begin with that such a program loads.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "view/recipes/recipe.h"
#include "view/view.h"

namespace ckfs {

/// `spec` is of the view that has the model, whose `dtype` and `unscaled` choose the Hugging Face
/// view that the rules begin with. `numbers` are what the rules ask of the view: {"view.stacked",
/// 1}; the rules also have `view.layers`, how many layers the model has.
struct ProgramModelOptions {
  std::string_view program;  // as families call it
  const ViewSpec& spec;
  std::map<std::string, double> numbers = {};
};

/// The model, its tensors in the natural order of their names, with config.json and side files of
/// the Hugging Face view. What the rules keep, and routers' biases, stay F32 where the source has
/// them so. The caller says how it is packed. Requires: the Hugging Face view of the dtype has
/// no obstacles. Errors: those of define_hf_model(); Unsupported (no rules for this model;
/// what does not fit them, with file, line and tensor).
Result<std::shared_ptr<Definition>> define_program_model(std::shared_ptr<const Catalog> catalog,
                                                         const ProgramModelOptions& options,
                                                         const Recipes& recipes);

}  // namespace ckfs
