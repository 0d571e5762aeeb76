// The steps of a program on values: for evaluators, and for constants, which take their steps when
// an expression is made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "expr/tensor_expr.h"
#include "tensor/kernel.h"

namespace ckfs {

/// Takes `count` values of dtype `value` at `in` through the steps, to `out`. `in` may be `out` for
/// steps without casts. Requires: values of at most 8 bytes that take these steps.
void run_steps(DType value, std::span<const Step> steps, const std::byte* in, std::byte* out,
               std::size_t count, KernelSet kernels);

/// An element of a constant, of any width up to 16 bytes: its first bytes.
struct ConstantElement {
  explicit ConstantElement(std::int64_t bits) { std::memcpy(bytes.data(), &bits, sizeof(bits)); }
  std::array<std::byte, 16> bytes{};
};

/// The bits of one value after a step. Those behind its width are zero, before and after.
std::int64_t step_constant(DType value, std::int64_t bits, const Step& step);

/// The same after a cast; to its own dtype, it stays.
inline std::int64_t cast_constant(DType from, std::int64_t bits, DType to) {
  return step_constant(from, bits, {Step::Kind::Cast, to, 0});
}

}  // namespace ckfs
