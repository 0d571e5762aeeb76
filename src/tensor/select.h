// From a dtype known at run time to one known to the compiler.
#pragma once

#include "tensor/column_codes.h"
#include "tensor/dtype.h"

namespace ckfs {

/// `use.operator()<D>()` for the D of the list that equals `dtype`; nullptr, or whatever an empty
/// result of its type is, where none does.
template <DType kFirst, DType... kRest, typename Use>
auto select(DType dtype, Use use) {
  using Selected = decltype(use.template operator()<kFirst>());
  if (dtype == kFirst) return use.template operator()<kFirst>();
  if constexpr (sizeof...(kRest) > 0) {
    return select<kRest...>(dtype, use);
  } else {
    return Selected{};
  }
}

/// The dtypes that casts touch.
template <typename Use>
auto select_float(DType dtype, Use use) {
  return select<DType::F64, DType::F32, DType::F16, DType::BF16>(dtype, use);
}

/// `use.operator()<kFrom, kTo>()` for scaled F8: `from` is one of the list, `to` what it may be
/// decoded to.
template <DType... kFroms, typename Use>
auto select_scaled(DType from, DType to, Use use) {
  return select<kFroms...>(from, [&]<DType kFrom>() {
    return select<DType::F32, DType::F16, DType::BF16>(
        to, [&]<DType kTo>() { return use.template operator()<kFrom, kTo>(); });
  });
}

/// `use.operator()<kOrder, kScale, kTo>()` for codes with a zero point and a scale.
template <typename Use>
auto select_affine(CodeOrder order, DType scale, DType to, Use use) {
  const auto with_order = [&]<CodeOrder kOrder>() {
    return select<DType::F32, DType::F16, DType::BF16>(scale, [&]<DType kScale>() {
      return select<DType::F32, DType::F16, DType::BF16>(
          to, [&]<DType kTo>() { return use.template operator()<kOrder, kScale, kTo>(); });
    });
  };
  return order == CodeOrder::Awq ? with_order.template operator()<CodeOrder::Awq>()
                                 : with_order.template operator()<CodeOrder::Down>();
}

}  // namespace ckfs
