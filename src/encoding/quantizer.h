// How values become codes, scales and the other tensors of a quantized weight: the mirror of
// Encoding (encoding.h). The only code that knows which values make which bytes.
//
// A quantizer turns a matrix of values, in row-major order, into *outputs*, tensors of their own
// beside each other in a file. A *unit* is computed at once: consecutive values that have
// consecutive bytes of an output to themselves. Sizes follow from the shape alone; no value is
// needed for them.
//
// Quantizers are small immutable objects, safe for concurrent use, and shared by all tensors of one
// kind, dtype and shape. Planners, readers, reports and labels ask the object; nothing looks at
// which quantizer it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/types.h>

#include "base/byte_range.h"
#include "base/error.h"
#include "encoding/encoding.h"
#include "tensor/dtype.h"
#include "tensor/kernel.h"

namespace ckfs {

/// A tensor that a quantizer makes.
struct QuantizedOutput {
  std::string_view suffix;  // of its name, in the place of "weight": "weight_scale_inv"
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape;
  std::uint64_t nbytes = 0;
};

class Quantizer {
 public:
  virtual ~Quantizer() = default;

  /// Of the values; BF16, F16 or F32.
  virtual DType from() const = 0;
  virtual std::int64_t numel() const = 0;

  /// The outputs in the order in which a report names them, the codes first.
  virtual std::span<const QuantizedOutput> outputs() const = 0;

  /// `elements` consecutive values, from a multiple of that number on, make `bytes` bytes of an
  /// output, from the same multiple of these on. The last unit may have fewer of both. 0 elements:
  /// the output needs no values of its own.
  struct Unit {
    std::int64_t elements = 0;
    std::uint64_t bytes = 0;
  };
  virtual Unit unit(std::size_t output) const = 0;

  /// Whether quantize() needs the largest magnitude of all values, and of those of the tensors that
  /// share a scale with this one.
  virtual bool needs_maximum() const { return false; }
  /// The same of an output by itself.
  virtual bool needs_maximum(std::size_t /*output*/) const { return needs_maximum(); }

  /// A second tensor that is read beside the values: so many values, from a multiple of that number
  /// on, go with one element of it. 0: there is none.
  virtual std::int64_t values_each() const { return 0; }
  /// Its dtype.
  virtual DType beside() const { return DType::U8; }

  /// Values in memory.
  struct Values {
    const std::byte* values = nullptr;  // of from(), for the elements that are asked for
    const std::byte* beside = nullptr;  // the elements of the second tensor that go with them
    float maximum = 0;                  // where needs_maximum(): a NaN if there is one
    KernelSet kernels = KernelSet::Fast;
  };

  /// Makes the bytes of an output that `elements` have. Requires: the elements begin at a multiple
  /// of unit(output).elements and end at one or with the tensor; out.size() is that of their bytes;
  /// without elements all bytes of the output. Errors: Unsupported (values that the form cannot
  /// hold; the caller puts the tensor's name before it).
  [[nodiscard]] virtual Result<void> quantize(std::size_t output, ElementRange elements,
                                              const Values& values,
                                              std::span<std::byte> out) const = 0;

  /// The label of its outputs.
  virtual Exactness exactness() const { return Exactness::Quantized; }

  /// The form, for people: "F8_E4M3, blocks of 128 x 128".
  virtual std::string text() const = 0;

  /// The units that bytes `bytes` of an output need, as elements.
  ElementRange elements_of(std::size_t output, ByteRange bytes) const;
  /// The bytes of an output that whole units have. Requires: as quantize() of `elements`.
  ByteRange bytes_of(std::size_t output, ElementRange elements) const;
};

/// The forms of quantized weights that known tools write (docs/FORMATS.md).
enum class QuantizedForm : std::uint8_t {
  // slime: F8_E4M3 and F32 scales.
  Fp8Block,    // a scale for each block, in weight_scale_inv
  Fp8Ue8m0,    // the same, and each scale is a power of two, as DeepGEMM makes them
  Fp8Channel,  // a scale for each row
  Fp8Tensor,   // a scale for the tensor
  // llm-compressor: scales of the weight's own dtype, or as said.
  CtFp8Channel,
  CtFp8Block,
  CtInt8Channel,
  CtInt4Group,
  CtInt4GroupAsymmetric,  // with packed zero points
  CtMxfp4,                // scales are powers of two in U8
  CtMxfp8,
  CtNvfp4,  // F8_E4M3 scales and one for a set of tensors
  // bitsandbytes: blocks of 64 of all values one after another.
  Nf4,
  // miles: FP4 with F8_E8M0 scales of 32 values as F8_E4M3 with F32 scales of 128 x 128.
  Fp4AsFp8,
};

/// The rectangle of values that share a scale, where the form leaves a choice.
struct QuantizedGranule {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
};

/// Errors: Unsupported: the form has no place for such a tensor; the text says why ("shape [72]:
/// not 2-D"). Requires: rows and columns are positive.
Result<std::shared_ptr<const Quantizer>> make_quantizer(QuantizedForm form, DType from,
                                                        std::span<const std::int64_t> shape,
                                                        QuantizedGranule granule);

}  // namespace ckfs
