// Random checkpoints in memory and random expressions over them, each together with what it must
// be: a dense list that says for every element of the target where it comes from.
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

#include "catalog/catalog.h"
#include "expr/tensor_expr.h"
#include "support/dense_tensor.h"
#include "support/memory_source.h"

namespace ckfs {

/// Gives a number from 0 to n - 1. Requires: n > 0. Simple cases come from small numbers.
using Choose = std::function<std::int64_t(std::int64_t n)>;

Choose seeded_choices(std::uint64_t seed);

/// Draws from RapidCheck, so that failures shrink; within rc::prop or RC_GTEST_PROP only.
Choose rapidcheck_choices();

/// Plain, strided and multi-box tensors of many dtypes, whole-byte elements, FP8 block scales and
/// the kinds of test_encodings.h, over several files at odd offsets, with storages of several
/// extents. Bytes are random: NaN, infinities and subnormals are frequent.
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

struct RandomExpr {
  TensorExpr expr;
  DenseTensor value;
  std::string text;  // how it was made, for the message of a failure
};

/// `operations`: at most so many one after another. The result has at most 20,000 elements.
RandomExpr random_expr(const Choose& choose, const RandomCheckpoint& checkpoint,
                       std::int64_t operations = 5);

}  // namespace ckfs
