#include "source/hf/scheme.h"

#include "source/hf/schemes/schemes.h"

namespace ckfs {

std::span<const Scheme> quantization_schemes() {
  // Those that would take another's codes for theirs come last.
  static const std::array kAll = {kFp8, kGptq, kBitsandbytes4, kBitsandbytes8, kForeign};
  return kAll;
}

bool is_f8(DType dtype) {
  return dtype == DType::F8E4M3 || dtype == DType::F8E5M2 || dtype == DType::F8E4M3FNUZ ||
         dtype == DType::F8E5M2FNUZ;
}

std::string_view without(std::string_view name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

}  // namespace ckfs
