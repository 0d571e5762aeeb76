// The table of views and their parameters, for the code of this folder: parsing, listing and
// defining all read the same rows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/dtype.h"
#include "view/view.h"

namespace ckfs {

/// Values other than a list of words.
enum class ParameterForm : std::uint8_t {
  Usual,    // as ParameterRow's other members say
  Block,    // ROWSxCOLUMNS, or one of the choices
  Modules,  // names of modules, or re: and a pattern of Python, separated by ';'
};

/// A parameter of a view. Its values are one of `choices`, or sizes where there are none, or whole
/// numbers from 1 where there is a greatest one.
struct ParameterRow {
  std::string_view key;
  std::span<const std::string_view> choices;
  /// Left out of canonical names; empty: absence has a meaning of its own.
  std::string_view default_value;
  std::uint64_t greatest = 0;
  ParameterForm form = ParameterForm::Usual;

  bool is_size() const { return choices.empty() && greatest == 0 && form == ParameterForm::Usual; }
};

struct ViewRow {
  std::string_view name;
  std::string_view description;
  /// None: the source's files as they are. The parameter `format` may choose another.
  ContainerKind container = ContainerKind::None;
  /// Mirrored: where mirrors_source(), but with neither max_shard nor another layout of experts.
  Placement placement = Placement::Split;
  /// Of cast tensors; nullopt: none is cast, but as the parameter `dtype` says.
  std::optional<DType> dtype;
  std::span<const ParameterRow> parameters;
  /// Weights are quantized (quantizing_view.h).
  bool quantizes = false;
};

/// In the order of the docs.
std::span<const ViewRow> view_table();

/// The row for a recipe's view in that container, without a name.
const ViewRow& recipe_view_row(ContainerKind container);

/// The value of the parameter; `otherwise` if it is left out.
std::string_view parameter_of(const ViewSpec& spec, std::string_view key,
                              std::string_view otherwise);

/// A block as ParameterForm::Block spells it, "128x128"; nullopt: no such spelling.
std::optional<std::array<std::int64_t, 2>> parse_block(std::string_view text);

/// The dtype that `dtype` chooses: "bf16", "fp16", "fp32"; nullopt: that of the source.
std::optional<DType> dtype_named(std::string_view name);

/// The parameter `unscaled`, for F8 without a scale.
enum class Unscaled : std::uint8_t {
  Unsaid,  // it stays as it is, but is an obstacle where the checkpoint has F8 with scales
  One,     // its values are what the bits say
  Keep,    // it stays as it is
  Drop,    // no view has it
};
Unscaled unscaled_of(const ViewSpec& spec);
/// The obstacles of a catalog for a view that says so.
std::vector<Obstacle> catalog_obstacles(const Catalog& catalog, Unscaled unscaled);
/// Whether it is F8 that no scale comes with.
bool is_unscaled(const Catalog& catalog, TensorId id);

/// The parameter `storage` of a view in Orbax.
ArrayStorage storage_of(const ViewSpec& spec);

/// nullptr: no such view.
const ViewRow* find_view_row(std::string_view name);

}  // namespace ckfs
