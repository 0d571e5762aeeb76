// The reference model: what the bytes of a view are, computed in the dullest way.
//
// Whole storages are read, every element is decoded and stepped alone with scalar arithmetic, and
// placed by walking the loops of its box. It shares no code with src/engine, the fast kernels, or
// clip(), so that an agreement means something. For tests with small tensors only.
#pragma once

#include <cstddef>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"
#include "container/file_layout.h"
#include "expr/tensor_expr.h"
#include "tensor/dtype.h"

namespace ckfs {

/// An element as its bits, in the low bytes; 16 bytes for C128.
struct Element {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const Element&) const = default;
};

/// The elements of a storage as a view sees them before its steps: decoded where encoded.
/// Requires: whole bytes for each element (no F4, F6). Errors: those of the source.
Result<std::vector<Element>> naive_storage(const Catalog& catalog, ByteSource& source,
                                           StorageId storage);

/// One element after `program`; `dtype` is that of `element`.
Element naive_steps(Element element, DType dtype, const Program& program);

/// The bytes of elements of `dtype`, one after another.
std::vector<std::byte> naive_bytes(const std::vector<Element>& elements, DType dtype);

/// All bytes of a target tensor. Fails the running test (and gives Internal) when the boxes do not
/// visit each element exactly once.
Result<std::vector<std::byte>> naive_tensor(const Catalog& catalog, ByteSource& source,
                                            const TensorExpr& expr);

/// All bytes of a target file.
Result<std::vector<std::byte>> naive_file(const FileLayout& file, ByteSource& source);

}  // namespace ckfs
