// A view as content: Catalog + parameters -> model tensors and side files. In which files the
// tensors lie, under which names and where, is the business of src/container.
//
// The table of views and parameters is src/view/view.cc; nothing else lists them. Views share names
// and boxes with the catalog, so one costs about 75 bytes a tensor.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ckfs/types.h>

#include "base/error.h"
#include "catalog/catalog.h"
#include "encoding/quantizer.h"
#include "expr/tensor_expr.h"

namespace ckfs {

struct Recipes;
/// The families of models that ckfs knows, without a user's views.
const Recipes& built_in_recipes();

/// A view's name and its parameters: `<view>` or `<view>@key=value,key=value`.
struct ViewSpec {
  std::string view;
  std::map<std::string, std::string, std::less<>> parameters;

  /// Keys sorted; of parameters as parse_view_spec() gives them, defaults left out, sizes in their
  /// shortest spelling.
  std::string canonical() const;
};

/// Parses and normalizes a directory name. Errors: NotFound (unknown view, or not such a name),
/// InvalidArgument (unknown key, bad value, key twice); of an unknown view or key the message names
/// the closest one and lists all.
Result<ViewSpec> parse_view_spec(std::string_view spelling,
                                 const Recipes& recipes = built_in_recipes());

/// All names that parse_view_spec() knows, in the order of the docs; they live as long as
/// `recipes`.
std::vector<std::string_view> names_of_views(const Recipes& recipes = built_in_recipes());

/// A parameter of a view, for help texts and completions.
struct ViewParameterHelp {
  std::string_view key;
  std::string values;  // "quantized|all", "SIZE", "N"
  std::string_view text;
};
struct ViewHelp {
  std::string_view name;
  std::string_view description;
  std::vector<ViewParameterHelp> parameters;
};
/// Every view that ckfs knows, in the order of the docs; those of recipes not among them.
std::vector<ViewHelp> help_on_views();

/// A tensor of the model that a view shows.
struct ModelTensor {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::string_view name;  // owned by the catalog, by Definition::names or Definition::lender
  TensorExpr expr;
  Exactness exactness = Exactness::BitExact;  // its label
  Role role = Role::Weight;
  std::uint8_t output = 0;  // of a quantized weight: which of its quantizer's outputs
  /// Index of the tensor before it that it is another name of, of one dtype and shape, which is
  /// another name of none: containers that can do so give both the same bytes.
  std::uint32_t same_as = kNone;
  /// The shard of the source that it comes from (the first of them): index in Catalog::shards().
  std::uint32_t shard = kNone;
  /// How the devices of the target's mesh share it: index in Definition::splits.
  std::uint32_t split = kNone;
  /// The weight that it is an output of: index in Definition::weights. `expr` then only has its
  /// dtype and shape.
  std::uint32_t weight = kNone;
  /// The storage whose bytes it is, undecoded, in its dtype and shape; `expr` only has these.
  StorageId stored = kNone;
};

/// A weight that a view quantizes.
struct QuantizedTensor {
  std::string_view name;                       // as ModelTensor::name; for messages
  TensorExpr values;                           // of the plain view
  std::shared_ptr<const TensorExpr> beside;    // Quantizer::values_each(); else nullptr
  std::shared_ptr<const Quantizer> quantizer;  // many weights share one
  std::uint32_t set = ModelTensor::kNone;      // index in Definition::sets
};

/// A tensor that a quantizing view shows as it is, and why.
struct LeftTensor {
  std::string_view name;
  std::string rule;  // "re:.*lm_head$"
};

/// How exact a stored tensor is when it is decoded and cast to `to`: the least exact of its
/// encodings' answers for the storages it lies in.
Exactness exactness_of(const Catalog& catalog, TensorId tensor, DType to);
/// The same of an expression without steps.
Exactness exactness_of(const Catalog& catalog, const TensorExpr& expr, DType to);

/// A file whose whole text is known, small: config.json.
struct TextFile {
  std::string path;
  std::string text;
};

/// What the tensors are packed in.
enum class ContainerKind : std::uint8_t {
  None,         // there are none
  Safetensors,  // shards and an index
  TorchZip,     // what torch.save writes, and an index
  Orbax,        // an Orbax checkpoint: chunks of arrays
  Dcp,          // a checkpoint of torch.distributed.checkpoint: chunks of tensors in torch files
};

/// Which tensors share a file.
enum class Placement : std::uint8_t {
  Mirrored,  // those that share a shard of the source
  Split,     // as many as fit into max_shard bytes
  ByLayer,   // those of a layer
};

/// Where the chunks of an Orbax item lie.
enum class ArrayStorage : std::uint8_t {
  Ocdbt,  // in data files under one database; arrays are zarr3
  Zarr3,  // one file each, in a directory for each array
  Zarr2,  // the same in zarr's second version
};

/// An Orbax item beside its arrays. Names of tensors are paths, joined by '.'.
struct OrbaxItem {
  ArrayStorage storage = ArrayStorage::Ocdbt;
  /// The item within the view, "0/items/"; empty: the view's directory is the item.
  std::string directory = {};
  /// The leaves are those of the catalog's tree: its tensors, in its order, are the definition's.
  bool whole_tree = false;
  std::uint64_t max_chunk = 0;                // bytes; 0: the container's own
  bool step = false;                          // a leaf `step`: an int64 scalar, 0
  std::vector<std::string> empty_dicts = {};  // leaves that are dicts without members: opt_state
};

/// A DCP checkpoint beside its tensors, whose chunks are the parts of ModelTensor::split, and runs
/// of rows of these where they are large.
struct DcpFolder {
  std::string directory = {};  // within the view, "release/"; empty: the view's directory
  bool planner = false;        // with the data of the planner that flattened a dictionary
  std::uint64_t max_chunk = std::uint64_t{1} << 28;  // bytes that rows are cut at
};

/// The choices of a view's row and parameters for its container.
struct Packaging {
  ContainerKind container = ContainerKind::None;
  Placement placement = Placement::Split;
  std::uint64_t max_shard = 0;  // bytes; of Placement::Split
  std::string index = {};       // its path, where it is not what loaders of whole models look for
  OrbaxItem orbax = {};         // of ContainerKind::Orbax
  DcpFolder dcp = {};           // of ContainerKind::Dcp
};

struct Definition;

/// The content of a view's folder, in containers of its own: CatalogPart.
struct DefinitionPart {
  std::string directory;  // "2_Dense/"
  std::shared_ptr<const Definition> definition;
};

/// All that a view is.
struct Definition {
  ViewSpec spec;
  Packaging packaging;
  std::shared_ptr<const Catalog> catalog;
  std::list<std::string> names;        // of tensors that the catalog does not name
  std::shared_ptr<const void> lender;  // the same: what the view was made of
  std::vector<ModelTensor> tensors;
  /// The weights that it quantizes, and the sets of them that share a largest value. Quantizing
  /// views only.
  std::vector<QuantizedTensor> weights;
  std::vector<std::vector<std::uint32_t>> sets;
  std::vector<LeftTensor> left;
  /// Whose bytes the quantized tensors are equal to: "slime 624b824 on CPU".
  std::string tool;
  /// Names the sets in caches of this process.
  std::uint64_t serial = 0;
  /// Into how many equal parts each dimension of a tensor is cut; many tensors share a list. No
  /// part of what a container stores apart (a chunk) crosses such a border.
  std::vector<std::vector<std::int64_t>> splits;
  std::vector<TextFile> texts;
  std::span<const SourceFile> side_files;  // of the catalog
  std::vector<DefinitionPart> parts;       // these have none
};

/// The facts of a view that are known without building it.
struct ViewSummary {
  std::string name;
  std::string description;
  std::vector<Obstacle> obstacles;  // not empty: the view is absent
  std::vector<Note> remarks;        // what passes unchanged or is left out
  /// The view, where it had to be made to know that there is no obstacle; nullptr otherwise.
  std::shared_ptr<const Definition> definition = {};
};

/// Every view that ckfs knows, in the order of the docs, as this catalog can or cannot give it.
/// Then those of recipes, which are not tried: define_view() tells whether they are available. With
/// `many` tensors and more a second thread helps: for fewer it costs more than it saves.
std::vector<ViewSummary> list_views(const std::shared_ptr<const Catalog>& catalog,
                                    const Recipes& recipes = built_in_recipes(),
                                    std::size_t many = 10'000);

/// Whether the view of that name mirrors the shards of this source, unless max_shard or another
/// layout of experts is asked for.
bool mirrors_source(const Catalog& catalog, std::string_view view);

/// Of the views of Hugging Face models the definition's spec is canonical for this catalog:
/// parameters that say what the source gets anyway are left out. Of others it is `spec`. Errors:
/// NotFound (no such view); Unsupported where list_views() names an obstacle (the first few are in
/// the message), what a recipe finds (with file, line and tensor), and parameters that the source
/// or its family has nothing for (experts, mtp, maxtext, a mesh that does not divide); Corrupt
/// (config.json). Requires: `spec` is as parse_view_spec() gives it.
Result<std::shared_ptr<const Definition>> define_view(std::shared_ptr<const Catalog> catalog,
                                                      const ViewSpec& spec,
                                                      const Recipes& recipes = built_in_recipes());

}  // namespace ckfs
