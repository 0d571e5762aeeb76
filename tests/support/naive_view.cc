// Floats are computed here by their definition, as exact doubles: a value is decoded with ldexp and
// rounded by counting quanta. The kernels of src/tensor work on bit patterns; to use their plain
// versions here would be shorter, but a mistake in them would then be in the model too.
#include "support/naive_view.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>

#include "encoding/block_scale_encoding.h"

namespace ckfs {
namespace {

struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  int bias = 0;

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint64_t sign_bit() const { return std::uint64_t{1} << (bits() - 1); }
  std::uint64_t infinity() const {
    return ((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits;
  }
  std::uint64_t quiet_nan() const { return infinity() | (std::uint64_t{1} << (mantissa_bits - 1)); }
};

// The formats with infinities; those are all that take steps.
FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return {11, 52, 1023};
    case DType::F32:
      return {8, 23, 127};
    case DType::BF16:
      return {8, 7, 127};
    case DType::F16:
      return {5, 10, 15};
    case DType::F8E5M2:
      return {5, 2, 15};
    default:
      ADD_FAILURE() << "no steps on " << name(dtype);
      return {8, 23, 127};
  }
}

bool is_nan(const FloatFormat& format, std::uint64_t code) {
  return (code & (format.sign_bit() - 1)) > format.infinity();
}

// sign * (1.mantissa or 0.mantissa) * 2^(exponent - bias), without special values.
double finite_value(const FloatFormat& format, std::uint64_t code) {
  const auto mantissa = code & ((std::uint64_t{1} << format.mantissa_bits) - 1);
  const auto exponent = static_cast<int>((code & (format.sign_bit() - 1)) >> format.mantissa_bits);
  const double fraction = std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits);
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - format.bias)
                                     : std::ldexp(1 + fraction, exponent - format.bias);
  return (code & format.sign_bit()) != 0 ? -value : value;
}

double value_of(const FloatFormat& format, std::uint64_t code) {
  const std::uint64_t magnitude = code & (format.sign_bit() - 1);
  if (magnitude > format.infinity()) return std::nan("");
  if (magnitude == format.infinity()) return (code & format.sign_bit()) != 0 ? -HUGE_VAL : HUGE_VAL;
  return finite_value(format, code);
}

// To nearest, ties to even; overflow to infinity. Requires: no NaN.
std::uint64_t rounded(const FloatFormat& format, double value) {
  const std::uint64_t sign = std::signbit(value) ? format.sign_bit() : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | format.infinity();
  const int lowest = 1 - format.bias;
  const int exponent = std::max(std::ilogb(magnitude), lowest);
  // In units of the last place; both scalings are exact, and nearbyint ties to even.
  double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  // Codes of one sign count upwards through subnormals, normals and infinity.
  const auto base = static_cast<std::uint64_t>(exponent - lowest) << format.mantissa_bits;
  const std::uint64_t code = base + static_cast<std::uint64_t>(units);
  return sign | std::min(code, format.infinity());
}

std::uint64_t nan_like(const FloatFormat& from, std::uint64_t code, const FloatFormat& to) {
  const std::uint64_t sign = (code & from.sign_bit()) != 0 ? to.sign_bit() : 0;
  if (to.mantissa_bits >= from.mantissa_bits && to.exponent_bits >= from.exponent_bits) {
    const std::uint64_t payload = code & ((std::uint64_t{1} << from.mantissa_bits) - 1);
    return sign | to.infinity() | payload << (to.mantissa_bits - from.mantissa_bits);
  }
  return sign | to.quiet_nan();
}

std::uint64_t cast_code(DType from_dtype, std::uint64_t code, DType to_dtype) {
  const FloatFormat from = format_of(from_dtype);
  const FloatFormat to = format_of(to_dtype);
  if (is_nan(from, code)) return nan_like(from, code, to);
  if (from_dtype == DType::F64 && to_dtype != DType::F32) {
    return cast_code(DType::F32, cast_code(DType::F64, code, DType::F32), to_dtype);
  }
  return rounded(to, value_of(from, code));
}

std::uint64_t compute(const Step& step, std::uint64_t code) {
  const FloatFormat format = format_of(step.dtype);
  const bool multiply = step.kind == Step::Kind::Multiply;
  const double value = value_of(format, code);
  double result = 0;
  if (step.dtype == DType::F64) {
    result = multiply ? value * step.operand : value + step.operand;
  } else {
    const auto narrow = static_cast<float>(value);
    const auto operand = static_cast<float>(step.operand);
    result = static_cast<double>(multiply ? narrow * operand : narrow + operand);
  }
  if (std::isnan(result)) return (code & format.sign_bit()) | format.quiet_nan();
  return rounded(format, result);
}

std::uint64_t step_code(const Step& step, DType dtype, std::uint64_t code) {
  if (step.kind == Step::Kind::Cast) {
    return dtype == step.dtype ? code : cast_code(dtype, code, step.dtype);
  }
  if (step.kind == Step::Kind::CastKeepingNan) {
    const FloatFormat from = format_of(dtype), to = format_of(step.dtype);
    if (dtype == step.dtype || !is_nan(from, code)) {
      return dtype == step.dtype ? code : cast_code(dtype, code, step.dtype);
    }
    std::uint64_t payload = code & ((std::uint64_t{1} << from.mantissa_bits) - 1);
    payload = payload << (52 - from.mantissa_bits) >> (52 - to.mantissa_bits);
    return ((code & from.sign_bit()) != 0 ? to.sign_bit() : 0) | to.infinity() |
           std::max<std::uint64_t>(payload, 1);
  }
  const FloatFormat format = format_of(step.dtype);
  const std::uint64_t magnitude = code & (format.sign_bit() - 1);
  switch (step.kind) {
    case Step::Kind::FlushSubnormals:
      return magnitude >> format.mantissa_bits == 0 ? code & format.sign_bit() : code;
    case Step::Kind::CanonicalNan:
      return is_nan(format, code) ? format.quiet_nan() : code;
    default:
      return compute(step, code);
  }
}

std::size_t element_bytes(DType dtype) {
  EXPECT_EQ(bits(dtype) % 8, 0) << name(dtype);
  return static_cast<std::size_t>(bits(dtype) / 8);
}

// The value of one FP8 code; a NaN where it is none.
float fp8_value(DType dtype, std::uint64_t code) {
  const std::uint64_t magnitude = code & 0x7f;
  switch (dtype) {
    case DType::F8E4M3:
      return magnitude == 0x7f ? std::nanf("") : static_cast<float>(finite_value({4, 3, 7}, code));
    case DType::F8E5M2:
      return static_cast<float>(value_of({5, 2, 15}, code));
    case DType::F8E4M3FNUZ:
      return code == 0x80 ? std::nanf("") : static_cast<float>(finite_value({4, 3, 8}, code));
    case DType::F8E5M2FNUZ:
      return code == 0x80 ? std::nanf("") : static_cast<float>(finite_value({5, 2, 16}, code));
    default:
      ADD_FAILURE() << "no block scales on " << name(dtype);
      return 0;
  }
}

float scale_value(DType dtype, std::uint64_t code) {
  switch (dtype) {
    case DType::F32:
      return std::bit_cast<float>(static_cast<std::uint32_t>(code));
    case DType::BF16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(code << 16));
    case DType::F8E8M0:
      return code == 255 ? std::nanf("") : std::ldexp(1.0F, static_cast<int>(code) - 127);
    case DType::U8:
      return std::ldexp(1.0F, static_cast<int>(code) - 127);
    default:
      ADD_FAILURE() << "no scale of " << name(dtype);
      return 0;
  }
}

Result<std::vector<std::byte>> stored_bytes(const Storage& storage, ByteSource& source) {
  std::vector<std::byte> bytes;
  for (const Extent& extent : storage.extents) {
    std::vector<std::byte> part(extent.nbytes);
    if (!part.empty()) CKFS_TRY_VOID(source.read_at(extent.file, extent.offset, part));
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

std::vector<Element> elements_in(const std::vector<std::byte>& bytes, DType dtype) {
  const std::size_t size = element_bytes(dtype);
  std::vector<Element> elements(bytes.size() / size);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    std::memcpy(&elements[i].low, &bytes[i * size], std::min<std::size_t>(size, 8));
    if (size > 8) std::memcpy(&elements[i].high, &bytes[i * size + 8], size - 8);
  }
  return elements;
}

Result<std::vector<Element>> stored_elements(const Storage& storage, ByteSource& source) {
  CKFS_TRY(const std::vector<std::byte> bytes, stored_bytes(storage, source));
  return elements_in(bytes, storage.dtype);
}

// By the encoding's own plain code, all at once, from all bytes of its parts: so that what is
// checked is what it says of parts of them.
Result<std::vector<Element>> decoded_elements(const Catalog& catalog, const Storage& storage,
                                              ByteSource& source) {
  if (storage.numel == 0) return std::vector<Element>();
  std::vector<const Storage*> parts{&storage};
  for (const StorageId companion : storage.companions()) {
    parts.push_back(&catalog.storage(companion));
  }
  std::deque<std::vector<std::byte>> bytes;
  std::vector<PartBytes::Window> windows;
  for (const Storage* part : parts) {
    CKFS_TRY(bytes.emplace_back(), stored_bytes(*part, source));
    windows.push_back({{0, bytes.back().size()}, bytes.back().data()});
  }
  std::vector<std::span<const PartBytes::Window>> views;
  for (const PartBytes::Window& window : windows) views.emplace_back(&window, 1);
  const DType dtype = storage.value_dtype();
  std::vector<std::byte> values(static_cast<std::size_t>(storage.numel) * element_bytes(dtype));
  std::vector<std::byte> scratch(storage.encoding->scratch(storage.numel));
  CKFS_TRY_VOID(storage.encoding->decode({0, storage.numel}, PartBytes(views),
                                         {dtype, values, scratch, KernelSet::Reference}));
  return elements_in(values, dtype);
}

}  // namespace

Result<std::vector<Element>> naive_storage(const Catalog& catalog, ByteSource& source,
                                           StorageId id) {
  const Storage& storage = catalog.storage(id);
  if (storage.encoding->is_plain()) return stored_elements(storage, source);
  const BlockScale* const found = find_block_scale(*storage.encoding);
  if (found == nullptr) return decoded_elements(catalog, storage, source);
  const BlockScale& encoding = *found;
  CKFS_TRY(std::vector<Element> elements, stored_elements(storage, source));
  const Storage& scale_storage = catalog.storage(storage.companions()[0]);
  CKFS_TRY(const std::vector<Element> scales, stored_elements(scale_storage, source));
  const std::int64_t block_row_count =
      (encoding.rows + encoding.block_rows - 1) / encoding.block_rows;
  const std::int64_t block_column_count =
      (encoding.columns + encoding.block_columns - 1) / encoding.block_columns;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    const auto flat = static_cast<std::int64_t>(i);
    const std::int64_t column = flat % encoding.columns;
    const std::int64_t row = flat / encoding.columns % encoding.rows;
    const std::int64_t batch = flat / encoding.columns / encoding.rows;
    const std::int64_t block =
        (batch * block_row_count + row / encoding.block_rows) * block_column_count +
        column / encoding.block_columns;
    const std::uint64_t code = elements[i].low;
    const float value =
        fp8_value(storage.dtype, code) *
        scale_value(scale_storage.dtype, scales[static_cast<std::size_t>(block)].low);
    const std::uint32_t nan = (code & 0x80) != 0 ? 0xffc00000U : 0x7fc00000U;
    elements[i].low = std::isnan(value) ? nan : std::bit_cast<std::uint32_t>(value);
  }
  return elements;
}

Element naive_steps(Element element, DType dtype, const Program& program) {
  for (const Step& step : program) {
    element.low = step_code(step, dtype, element.low);
    dtype = step.dtype;
  }
  return element;
}

std::vector<std::byte> naive_bytes(const std::vector<Element>& elements, DType dtype) {
  const std::size_t size = element_bytes(dtype);
  std::vector<std::byte> bytes(elements.size() * size);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    std::memcpy(&bytes[i * size], &elements[i].low, std::min<std::size_t>(size, 8));
    if (size > 8) std::memcpy(&bytes[i * size + 8], &elements[i].high, size - 8);
  }
  return bytes;
}

Result<std::vector<std::byte>> naive_tensor(const Catalog& catalog, ByteSource& source,
                                            const TensorExpr& expr) {
  if (bits(expr.dtype()) % 8 != 0) {
    // Elements within bytes are moved as a whole tensor only.
    const auto whole = expr.whole();
    if (!whole || whole->program) return fail(ErrorCode::Internal, "not a move of whole bytes");
    return stored_bytes(catalog.storage(whole->storage), source);
  }
  std::vector<Element> target(static_cast<std::size_t>(expr.numel()));
  std::vector<int> visits(target.size(), 0);
  for (const Box& box : expr.boxes()) {
    std::vector<Element> storage;
    DType dtype = expr.dtype();
    if (!box.is_constant()) {
      CKFS_TRY(storage, naive_storage(catalog, source, box.source));
      dtype = catalog.storage(box.source).value_dtype();
    }
    std::vector<std::int64_t> turn(box.loops.size(), 0);
    for (bool more = true; more;) {
      std::int64_t to = box.target_offset;
      std::int64_t from = box.source_offset;
      for (std::size_t i = 0; i < turn.size(); ++i) {
        to += turn[i] * box.loops[i].target_stride;
        from += turn[i] * box.loops[i].source_stride;
      }
      Element element;
      if (box.is_constant()) {
        element.low = static_cast<std::uint64_t>(box.source_offset);
      } else {
        element = storage.at(static_cast<std::size_t>(from));
      }
      if (box.program) element = naive_steps(element, dtype, *box.program);
      target.at(static_cast<std::size_t>(to)) = element;
      ++visits[static_cast<std::size_t>(to)];
      more = false;
      for (std::size_t i = turn.size(); i > 0 && !more; --i) {
        more = ++turn[i - 1] < box.loops[i - 1].count;
        if (!more) turn[i - 1] = 0;
      }
    }
  }
  for (std::size_t i = 0; i < visits.size(); ++i) {
    if (visits[i] == 1) continue;
    ADD_FAILURE() << "element " << i << " is visited " << visits[i] << " times";
    return fail(ErrorCode::Internal, "boxes do not tile the tensor");
  }
  return naive_bytes(target, expr.dtype());
}

Result<std::vector<std::byte>> naive_file(const FileLayout& file, ByteSource& source) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < file.segments.size(); ++i) {
    const Segment& segment = file.segments[i];
    const std::uint64_t end = i + 1 < file.segments.size() ? file.segments[i + 1].begin : file.size;
    EXPECT_EQ(segment.begin, bytes.size()) << file.path << ": segment " << i;
    std::vector<std::byte> part(end - segment.begin);
    switch (segment.kind) {
      case Segment::Kind::Literal: {
        const std::string text = file.render(segment.id);
        EXPECT_EQ(text.size(), file.literals.at(segment.id)) << file.path;
        const std::string piece = text.substr(segment.source_offset, part.size());
        EXPECT_EQ(piece.size(), part.size()) << file.path << ": literal " << segment.id;
        std::memcpy(part.data(), piece.data(), piece.size());
        break;
      }
      case Segment::Kind::Tensor: {
        const ModelTensor& tensor = file.definition->tensors.at(file.tensor(segment.id));
        CKFS_TRY(part, naive_tensor(*file.definition->catalog, source, file.expr(segment.id)));
        EXPECT_EQ(part.size(), end - segment.begin) << file.path << ": " << tensor.name;
        break;
      }
      case Segment::Kind::File:
        if (!part.empty()) {
          CKFS_TRY_VOID(source.read_at(segment.id, segment.source_offset, part));
        }
        break;
      case Segment::Kind::Zero:
        break;
    }
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  EXPECT_EQ(bytes.size(), file.size) << file.path;
  return bytes;
}

}  // namespace ckfs
