// Random checkpoints in memory and random expressions over them, each together with what it must
// be: a dense list that says for every element of the target where it comes from. The list is made
// by carrying out each operation on lists of elements, never on boxes.
//
//   rc::prop("...", [] {
//     const Choose choose = rapidcheck_choices();          // shrinks
//     RandomCheckpoint checkpoint = random_checkpoint(choose);
//     RandomExpr random = random_expr(choose, checkpoint);
//   });
//
//   const Choose choose = seeded_choices(4711);            // the same without RapidCheck
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expr/tensor_expr.h"
#include "source/catalog.h"
#include "support/memory_source.h"

namespace ckfs {

/// Gives a number from 0 to n - 1. Requires: n > 0. Simple cases come from small numbers.
using Choose = std::function<std::int64_t(std::int64_t n)>;

Choose seeded_choices(std::uint64_t seed);

/// Draws from RapidCheck, so that failures shrink; within rc::prop or RC_GTEST_PROP only.
Choose rapidcheck_choices();

/// Plain, strided and multi-box tensors of many dtypes, whole-byte elements, and FP8 block scales,
/// over several files at odd offsets, with storages of several extents. Bytes are random: NaN,
/// infinities and subnormals are frequent.
struct RandomCheckpoint {
  std::unique_ptr<MemorySource> source;
  std::shared_ptr<const Catalog> catalog;
  std::vector<TensorId> tensors;  // the ones to show: no companions
};

struct RandomOptions {
  std::int64_t max_tensors = 4;
  std::int64_t max_numel = 400;  // of a stored tensor
};

RandomCheckpoint random_checkpoint(const Choose& choose, const RandomOptions& options = {});

/// Where an element of the target comes from, and what happens to it on the way.
struct Origin {
  StorageId storage = Box::kConstant;  // kConstant: a zero
  std::int64_t index = 0;              // element of the storage
  Program program;

  bool operator==(const Origin&) const = default;
};

/// A tensor as the list of its elements in row-major order.
struct DenseTensor {
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<Origin> elements;

  bool operator==(const DenseTensor&) const = default;
};

DenseTensor dense_stored(const Catalog& catalog, TensorId tensor);
DenseTensor dense_transpose(const DenseTensor& tensor, const std::vector<std::int64_t>& order);
DenseTensor dense_slice(const DenseTensor& tensor, std::int64_t dim, std::int64_t begin,
                        std::int64_t count, std::int64_t step);
DenseTensor dense_pad(const DenseTensor& tensor, std::int64_t dim, std::int64_t before,
                      std::int64_t after);
DenseTensor dense_then(const DenseTensor& tensor, const Step& step);
DenseTensor dense_concat(const std::vector<DenseTensor>& parts, std::int64_t dim);
DenseTensor dense_stack(const std::vector<DenseTensor>& parts, std::int64_t dim);
DenseTensor dense_interleave(const std::vector<DenseTensor>& parts, std::int64_t dim);

/// What the boxes of `expr` say of each element. Fails the running test when they do not visit each
/// exactly once, or break a rule of their normal form.
DenseTensor dense_boxes(const TensorExpr& expr);

struct RandomExpr {
  TensorExpr expr;
  DenseTensor value;
  std::string text;  // how it was made, for the message of a failure
};

/// `operations`: at most so many one after another. The result has at most 20,000 elements.
RandomExpr random_expr(const Choose& choose, const RandomCheckpoint& checkpoint,
                       std::int64_t operations = 5);

}  // namespace ckfs
