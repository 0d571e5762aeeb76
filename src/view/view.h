// A view as tensors and names, before any byte position is known: Catalog + parameters -> target
// tensors, split over shards, and side files. src/container turns it into file layouts.
//
// The table of views and parameters is src/view/view.cc; nothing else lists them. Views share names
// and boxes with the catalog, so one costs about 100 bytes a tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ckfs/types.h>

#include "base/error.h"
#include "catalog/catalog.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// A view's name and its parameters: `<view>` or `<view>@key=value,key=value`.
struct ViewSpec {
  std::string view;
  std::map<std::string, std::string, std::less<>> parameters;

  /// Keys sorted, defaults left out, sizes in their shortest spelling.
  std::string canonical() const;
};

/// Parses and normalizes a directory name. Errors: NotFound (unknown view, or not such a name),
/// InvalidArgument (unknown key, bad value, key twice).
Result<ViewSpec> parse_view_spec(std::string_view spelling);

/// "5GB" = 5 * 10^9, "64MiB" = 64 * 2^20, "4096" = 4096.
Result<std::uint64_t> parse_size(std::string_view text);

/// A target tensor.
struct ViewTensor {
  static constexpr std::uint32_t kOwnBytes = ~std::uint32_t{0};

  std::string_view name;  // owned by the catalog, or by Definition::names
  TensorExpr expr;
  Exactness exactness = Exactness::BitExact;
  /// Index of the tensor before it whose bytes it shares in containers that can (TorchZip): both
  /// have one dtype and shape, and are in one file.
  std::uint32_t same_as = kOwnBytes;
};

/// How a stored tensor, as it is decoded and cast to `to`, stands to its source: the least exact of
/// what its encodings say of the storages it lies in.
Exactness exactness_of(const Catalog& catalog, TensorId tensor, DType to);

/// A file of tensors in some container.
struct TensorFile {
  std::string path;
  std::vector<std::uint32_t> tensors;  // indices in Definition::tensors, in the view's own order
};

/// A file whose whole text is known: config.json.
struct TextFile {
  std::string path;
  std::string text;
};

enum class Container : std::uint8_t {
  None,
  Safetensors,
  TorchZip,  // what torch.save writes
};

/// All that a view is.
struct Definition {
  ViewSpec spec;
  Container container = Container::None;
  std::shared_ptr<const Catalog> catalog;
  std::vector<std::string> names;  // of tensors that the catalog does not name
  std::vector<ViewTensor> tensors;
  std::vector<TensorFile> files;
  /// Path of the index over `files`; empty: none.
  std::string index;
  std::vector<TextFile> texts;
  std::vector<SourceFile> side_files;
};

/// What can be said of a view without building it.
struct ViewSummary {
  std::string name;
  std::string description;
  std::vector<Obstacle> obstacles;  // not empty: the view is absent
  std::vector<Note> remarks;        // what passes unchanged or is left out
};

/// Every view that ckfs knows, in the order of the docs, as this catalog can or cannot give it.
std::vector<ViewSummary> list_views(const Catalog& catalog);

/// The definition's spec is canonical for this catalog: parameters that say what the source gets
/// anyway are left out. Errors: Unsupported where list_views() names an obstacle (the first few are
/// in the message), InvalidArgument (a max_shard that makes more than 100,000 files).
Result<std::shared_ptr<const Definition>> define_view(std::shared_ptr<const Catalog> catalog,
                                                      const ViewSpec& spec);

}  // namespace ckfs
