// A value's width changes from step to step, so a few values at a time go through all steps,
// between two buffers. A constant is one such value: to keep its steps instead, as a storage's
// boxes do, would make each reader of boxes compute it again.
#include "expr/steps.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/rounding.h"
#include "tensor/arithmetic.h"

namespace ckfs {

void run_steps(DType value, std::span<const Step> steps, const std::byte* in, std::byte* out,
               std::size_t count, KernelSet kernels) {
  constexpr std::size_t kAtOnce = 2048;  // they stay in a CPU's nearest cache
  constexpr std::size_t kMostWidth = 8;  // bytes
  alignas(kBufferAlignment) std::array<std::array<std::byte, kAtOnce * kMostWidth>, 2> scratch;
  for (std::size_t done = 0; done < count; done += kAtOnce) {
    const std::size_t piece = std::min(kAtOnce, count - done);
    std::byte* current = scratch[0].data();
    std::byte* other = scratch[1].data();
    DType dtype = value;
    std::memcpy(current, in + done * bytes_of(dtype, 1), piece * bytes_of(dtype, 1));
    for (const Step& step : steps) {
      switch (step.kind) {
        case Step::Kind::Cast:
        case Step::Kind::CastKeepingNan:
          if (step.dtype != dtype) {
            find_cast(dtype, step.dtype, kernels)(current, other, piece);
            if (step.kind == Step::Kind::CastKeepingNan) {
              keep_payloads(dtype, current, step.dtype, other, piece);
            }
            std::swap(current, other);
            dtype = step.dtype;
          }
          break;
        case Step::Kind::Multiply:
          multiply(dtype, step.operand, current, piece);
          break;
        case Step::Kind::Add:
          add(dtype, step.operand, current, piece);
          break;
        case Step::Kind::FlushSubnormals:
          flush_subnormals(dtype, current, piece);
          break;
        case Step::Kind::CanonicalNan:
          canonical_nan(dtype, current, piece);
          break;
      }
    }
    std::memcpy(out + done * bytes_of(dtype, 1), current, piece * bytes_of(dtype, 1));
  }
}

std::int64_t step_constant(DType value, std::int64_t bits, const Step& step) {
  std::array<std::byte, sizeof(bits)> before{}, after{};
  std::memcpy(before.data(), &bits, sizeof(bits));
  run_steps(value, std::span(&step, 1), before.data(), after.data(), 1, KernelSet::Reference);
  std::memcpy(&bits, after.data(), sizeof(bits));
  return bits;
}

}  // namespace ckfs
