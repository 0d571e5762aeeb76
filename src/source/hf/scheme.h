// One way in which tools store quantized weights: how its tensors are recognised, and what becomes
// of them. quantization_schemes() is the table of all; quantization.cc asks each tensor against it.
//
// A scheme decides by tensors: names, dtypes and shapes. The configuration fills in what they
// cannot say (the block of a grid with a partial block, the packing of an odd width); where the two
// contradict each other in that, it is an obstacle which names both. So it is where quant_method or
// the format of compressed-tensors is another, and for what a scheme names (bits and groups of
// GPTQ, type and zero points of packed codes). The rest of it is not compared with what tensors say
// themselves: "strategy", "num_bits" of whole bytes, "symmetric" with their zero points
// (compressed-tensors left out those that are all 0, and decodes without).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catalog/catalog.h"
#include "encoding/block_scale_encoding.h"
#include "format/quantization_config.h"

namespace ckfs {

/// How codes are decoded. Thousands of weights share one.
struct WeightKind {
  std::shared_ptr<const Encoding> encoding;
  std::string format;  // for people: "int4, BF16 scale for each 1 x 32"
};

/// What a scheme may ask about a checkpoint.
class HeldTensors {
 public:
  virtual ~HeldTensors() = default;

  /// The tensor `name` + `suffix`.
  virtual std::optional<TensorId> find(std::string_view name,
                                       std::string_view suffix = {}) const = 0;
  virtual std::string_view name(TensorId id) const = 0;
  virtual std::span<const std::int64_t> shape(TensorId id) const = 0;
  /// What the header calls the elements.
  virtual DType dtype(TensorId id) const = 0;

  /// The bytes of a tensor that the scheme named as wanted; empty where it was not read.
  virtual std::span<const std::byte> content(TensorId id) const = 0;

  /// What the configuration says; empty where there is none.
  virtual const QuantizationConfig& config() const = 0;
  /// The one of config().groups that speaks of the module, as ModuleTargets::find() does.
  virtual const QuantizationGroup* group(std::string_view module) const = 0;

  /// The result of `make`, made once for each key of kind_key().
  virtual std::shared_ptr<const WeightKind> shared(
      std::string key, const std::function<WeightKind()>& make) const = 0;
};

/// What a quantized weight is.
struct QuantizedWeight {
  std::string name;                 // a view's; empty: the stored tensor's
  std::vector<std::int64_t> shape;  // logical, as views show it
  std::shared_ptr<const WeightKind> kind;
  std::vector<TensorId> companions;  // as the encoding numbers them
  std::int64_t numel = 0;            // elements of the storage, those that no view shows included
  /// Where the storage's elements are not the tensor's in row-major order; `storage` is set by the
  /// framework, to the storage of the codes.
  std::vector<StorageBox> boxes;
  std::vector<TensorId> left_out;  // tensors that come with the weight and decode nothing
};

/// A tensor whose content a scheme looks at.
struct WantedTensor {
  TensorId id = 0;
  /// Whether it only repeats what shapes say: read where a checkpoint has few of them
  /// (kMaxChecked), because thousands of small reads all over it take longer than anything else at
  /// a mount.
  bool is_check = false;
};

struct Scheme {
  std::string_view name;  // "pack-quantized"
  /// Values of quant_method that may go with such tensors; none: any.
  std::vector<std::string_view> methods;
  /// Values of compressed-tensors' `format` that may go with them; none: any.
  std::vector<std::string_view> formats = {};
  /// Endings of tensors that mean nothing without their weight: ".weight_scale". In a quantized
  /// checkpoint one whose weight is plain, or not there, is left out.
  std::vector<std::string_view> auxiliaries;

  /// Whether the tensor holds the codes of a weight of this scheme. Called for every tensor: looks
  /// at its dtype, its shape or its name's end before it looks for other tensors.
  bool (*recognizes)(const HeldTensors& tensors, TensorId codes) = nullptr;
  /// Appends the tensors (small ones) whose content read() looks at. nullptr: none.
  void (*wants)(const HeldTensors& tensors, TensorId codes,
                std::vector<WantedTensor>& out) = nullptr;
  /// Errors: cannot_decode().
  Result<QuantizedWeight> (*read)(const HeldTensors& tensors, TensorId codes) = nullptr;
  /// Whether its own tool casts the tensors that are not quantized, too.
  bool casts_all = false;
};

/// All schemes. Of several that recognise a tensor the first counts.
std::span<const Scheme> quantization_schemes();

/// The most bytes of a tensor that a scheme may want.
inline constexpr std::uint64_t kMaxWanted = std::uint64_t{64} << 10;

/// The most tensors that are read of a checkpoint only to check them.
inline constexpr std::size_t kMaxChecked = 1024;

// What several schemes need.

/// The module whose tensor it is: the name up to its last dot, all of it where there is none.
std::string_view module_of(std::string_view name);

/// A key for a kind of weights: its encoding and its numbers.
std::string kind_key(std::string_view encoding, std::span<const std::int64_t> numbers);

/// The kind of weights of that encoding and shape.
std::shared_ptr<const WeightKind> block_scale_kind(const HeldTensors& tensors,
                                                   const BlockScale& scale);

/// The block of a weight of `shape` whose scales have that shape: one for the matrix (for each of a
/// batch, not one for all), for each row, for each equal group of a row, or for each column. Each
/// dimension of the scales is of that of the weight; those of 1 at their end may be left out, and
/// the one number of one matrix may have any dimensions of 1. nullopt: none of these. Requires:
/// `shape` has two dimensions at least.
std::optional<std::array<std::int64_t, 2>> block_of_scales(std::span<const std::int64_t> shape,
                                                           std::span<const std::int64_t> scales);

/// "each tensor", "each row", "each column", "each 1 x 32": for people.
std::string block_text(const BlockScale& scale);

/// The name without its last `suffix`. Requires: it ends so.
std::string_view without(std::string_view name, std::string_view suffix);

/// The result of read() for a weight that cannot be decoded: `return cannot_decode("its scale is
/// {}", ...);`
template <typename... Args>
[[nodiscard]] Failure cannot_decode(fmt::format_string<Args...> reason, Args&&... args) {
  return Failure(Error(ErrorCode::Unsupported, fmt::format(reason, std::forward<Args>(args)...)));
}

}  // namespace ckfs
