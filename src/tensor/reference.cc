// The plain kernels: one element after the other, each as float_bits.h defines it. They are what
// the fast kernels are tested against, what runs where the CPU has no vectors we know, and what the
// fast kernels call for the few elements at an end. Tables of 256 or 65,536 results would be faster
// but would have to be filled by this same code.
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "tensor/float_bits.h"
#include "tensor/integers.h"
#include "tensor/kernel_sets.h"
#include "tensor/select.h"

namespace ckfs::reference {
namespace {

using bits_of::Format;

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

template <DType kFrom, DType kTo>
void cast_elements(const std::byte* in, std::byte* out, std::size_t count) {
  using In = typename Format<kFrom>::Code;
  using Out = typename Format<kTo>::Code;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t f32 = Format<kFrom>::widen(load<In>(in + i * sizeof(In)));
    store<Out>(out + i * sizeof(Out), Format<kTo>::narrow(f32));
  }
}

template <typename Integer, DType kTo>
void cast_integers(const std::byte* in, std::byte* out, std::size_t count) {
  using Out = typename Format<kTo>::Code;
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = load<Integer>(in + i * sizeof(Integer));
    if constexpr (kTo == DType::F64) {
      store(out + i * sizeof(Out), static_cast<double>(value));
    } else {
      const auto f32 = std::bit_cast<std::uint32_t>(static_cast<float>(value));
      store<Out>(out + i * sizeof(Out), Format<kTo>::narrow(f32));
    }
  }
}

template <typename Integer>
CastKernel cast_from(DType to) {
  return select_float(to, []<DType kTo>() -> CastKernel { return cast_integers<Integer, kTo>; });
}

CastKernel cast_integer(DType from, DType to) {
  switch (from) {
    case DType::U8:
      return cast_from<std::uint8_t>(to);
    case DType::I8:
      return cast_from<std::int8_t>(to);
    case DType::I16:
      return cast_from<std::int16_t>(to);
    case DType::U16:
      return cast_from<std::uint16_t>(to);
    case DType::I32:
      return cast_from<std::int32_t>(to);
    case DType::U32:
      return cast_from<std::uint32_t>(to);
    case DType::I64:
      return cast_from<std::int64_t>(to);
    default:
      return cast_from<std::uint64_t>(to);
  }
}

template <DType kFrom, DType kTo>
typename Format<kTo>::Code scaled(std::uint8_t code, float scale) {
  const float product = std::bit_cast<float>(Format<kFrom>::widen(code)) * scale;
  const auto f32 = std::bit_cast<std::uint32_t>(product);
  // Which NaN a multiplication gives differs between CPUs, so its sign is taken from the code.
  const std::uint32_t nan = (std::uint32_t{code} >> 7 << 31) | bits_of::kF32Nan;
  return Format<kTo>::narrow(bits_of::is_f32_nan(f32) ? nan : f32);
}

template <DType kFrom, DType kTo>
void scale_elements(const std::byte* in, float scale, std::byte* out, std::size_t count) {
  using Out = typename Format<kTo>::Code;
  for (std::size_t i = 0; i < count; ++i) {
    store<Out>(out + i * sizeof(Out),
               scaled<kFrom, kTo>(std::to_integer<std::uint8_t>(in[i]), scale));
  }
}

template <DType kFrom, DType kTo>
void scale_elements_by_block(const std::byte* in, const float* scales, std::size_t first,
                             std::size_t block, std::byte* out, std::size_t count) {
  using Out = typename Format<kTo>::Code;
  for (std::size_t i = 0; i < count; ++i) {
    store<Out>(out + i * sizeof(Out), scaled<kFrom, kTo>(std::to_integer<std::uint8_t>(in[i]),
                                                         scales[(first + i) / block]));
  }
}

template <typename Use>
auto select_kernel(DType from, DType to, Use use) {
  return select_scaled<DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ>(from, to,
                                                                                           use);
}

void copy_nest(std::span<const CopyLoop> loops, std::ptrdiff_t element_bytes, const std::byte* in,
               std::byte* out) {
  if (loops.empty()) {
    std::memcpy(out, in, static_cast<std::size_t>(element_bytes));
    return;
  }
  const CopyLoop& loop = loops.front();
  for (std::int64_t i = 0; i < loop.count; ++i) {
    copy_nest(loops.subspan(1), element_bytes, in + i * loop.in_stride * element_bytes,
              out + i * loop.out_stride * element_bytes);
  }
}

}  // namespace

CastKernel cast(DType from, DType to) {
  if (from == to) return nullptr;
  if (is_castable_float(from)) {
    return select_float(from, [to]<DType kFrom>() {
      return select_float(to, []<DType kTo>() -> CastKernel { return cast_elements<kFrom, kTo>; });
    });
  }
  if (is_integer(from)) return cast_integer(from, to);
  if (to != DType::F32) return nullptr;
  return select<DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ, DType::F8E8M0>(
      from, []<DType kFrom>() -> CastKernel { return cast_elements<kFrom, DType::F32>; });
}

ScaleKernel scale(DType from, DType to) {
  return select_kernel(
      from, to, []<DType kFrom, DType kTo>() -> ScaleKernel { return scale_elements<kFrom, kTo>; });
}

ScaleBlocksKernel scale_blocks(DType from, DType to) {
  return select_kernel(from, to, []<DType kFrom, DType kTo>() -> ScaleBlocksKernel {
    return scale_elements_by_block<kFrom, kTo>;
  });
}

void copy_strided(std::span<const CopyLoop> loops, std::size_t element_bytes, const std::byte* in,
                  std::byte* out) {
  copy_nest(loops, static_cast<std::ptrdiff_t>(element_bytes), in, out);
}

}  // namespace ckfs::reference
