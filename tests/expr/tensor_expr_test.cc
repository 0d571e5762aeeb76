#include "expr/tensor_expr.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <ostream>
#include <random>

#include "expr/box.h"

namespace ckfs {

// For GoogleTest's messages.
static void PrintTo(const Box& box, std::ostream* out) {
  *out << (box.is_constant() ? "zeros" : "box") << "(" << box.target_offset << ", "
       << box.source_offset;
  for (const Loop& loop : box.loops) {
    *out << ", {" << loop.count << ", " << loop.target_stride << ", " << loop.source_stride << "}";
  }
  *out << (box.program ? ", steps)" : ")");
}

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Shape = std::vector<std::int64_t>;

// One tensor over the whole of a storage; bytes are never read here, so they need not exist.
class Tensors {
 public:
  TensorExpr whole(DType dtype, const Shape& shape) {
    return boxed(dtype, shape, checked(shape), {});
  }

  TensorExpr boxed(DType dtype, const Shape& shape, std::int64_t storage_numel,
                   std::vector<StorageBox> boxes) {
    CatalogBuilder builder("test");
    const Extent extent{0, 0, nbytes(dtype, storage_numel).value()};
    const StorageId storage = builder.add_storage(dtype, storage_numel, std::span(&extent, 1));
    builder.add_tensor("t", shape, storage, std::move(boxes));
    catalogs_.push_back(std::move(builder).build());
    return TensorExpr::stored(*catalogs_.back(), 0);
  }

 private:
  static std::int64_t checked(const Shape& shape) {
    std::int64_t numel = 1;
    for (const std::int64_t extent : shape) numel *= extent;
    return numel;
  }

  std::vector<std::shared_ptr<const Catalog>> catalogs_;
};

Box box(std::int64_t target, std::int64_t source, std::vector<Loop> loops) {
  return {0, target, source, std::move(loops), nullptr};
}

Box constant(std::int64_t target, std::int64_t bits, std::vector<Loop> loops) {
  return {Box::kConstant, target, bits, std::move(loops), nullptr};
}

Box zeros(std::int64_t target, std::vector<Loop> loops) {
  return constant(target, 0, std::move(loops));
}

std::string error_of(const auto& result) {
  return result ? "no error" : result.error().message();
}

TEST(TensorExpr, WholeStorageKeepsNoListAndIsSmall) {
  EXPECT_LE(sizeof(TensorExpr), 48U);
  Tensors tensors;
  const TensorExpr expr = tensors.whole(DType::F32, {3, 4});
  ASSERT_TRUE(expr.whole().has_value());
  EXPECT_EQ(expr.whole()->program, nullptr);
  EXPECT_THAT(expr.box_list(), IsEmpty());
  EXPECT_THAT(expr.boxes(), ElementsAre(box(0, 0, {{12, 1, 1}})));
  EXPECT_EQ(expr.nbytes(), 48U);
}

TEST(TensorExpr, CastsToOneDtypeShareTheirProgram) {
  Tensors tensors;
  const TensorExpr a = tensors.whole(DType::F32, {2, 2}).cast(DType::BF16).value();
  const TensorExpr b = tensors.whole(DType::F16, {4}).cast(DType::BF16).value();
  EXPECT_EQ(a.dtype(), DType::BF16);
  EXPECT_EQ(a.nbytes(), 8U);
  ASSERT_NE(a.whole()->program, nullptr);
  EXPECT_EQ(a.whole()->program, b.whole()->program);
  EXPECT_THAT(*a.whole()->program, ElementsAre(Step{Step::Kind::Cast, DType::BF16, 0}));
}

TEST(TensorExpr, CastToTheDtypeItHasIsNoStep) {
  Tensors tensors;
  EXPECT_EQ(tensors.whole(DType::BF16, {2}).cast(DType::BF16)->whole()->program, nullptr);
  EXPECT_EQ(tensors.whole(DType::I64, {2}).cast(DType::I64)->whole()->program, nullptr);
}

TEST(TensorExpr, StepsFollowOneAnotherAlsoWhereTheyUndoEachOther) {
  Tensors tensors;
  const TensorExpr expr =
      tensors.whole(DType::F32, {2}).cast(DType::BF16).value().cast(DType::F32).value();
  EXPECT_EQ(expr.dtype(), DType::F32);
  EXPECT_THAT(*expr.whole()->program, ElementsAre(Step{Step::Kind::Cast, DType::BF16, 0},
                                                  Step{Step::Kind::Cast, DType::F32, 0}));
}

TEST(TensorExpr, ACastToMoreBytesThanCanBeCountedIsRefused) {
  const auto zeros = TensorExpr::zeros(DType::F16, std::array{std::int64_t{1} << 58});
  ASSERT_TRUE(zeros);
  EXPECT_TRUE(zeros->cast(DType::F32));
  const auto wide = zeros->cast(DType::F64);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().code(), ErrorCode::InvalidArgument);
  EXPECT_EQ(wide.error().message(),
            "shape [288230376151711744]: 288230376151711744 elements of F64 have 2^61 bytes or "
            "more");
}

TEST(TensorExpr, AProgramThatChangesNothingIsNone) {
  Tensors tensors;
  const TensorExpr reshaped = tensors.whole(DType::F16, {4}).reshape(Shape{2, 2}).value();
  for (const Program& none : {Program{}, Program{{Step::Kind::Cast, DType::F16, 0}}}) {
    const auto same = reshaped.then(std::make_shared<const Program>(none));
    ASSERT_TRUE(same);
    EXPECT_EQ(same->whole()->program, nullptr);
  }
  const Step twice{Step::Kind::Multiply, DType::F32, 2};
  const auto shared =
      std::make_shared<const Program>(Program{{Step::Kind::Cast, DType::F32, 0}, twice});
  const auto doubled = tensors.whole(DType::F32, {4}).then(shared);
  ASSERT_TRUE(doubled);
  EXPECT_EQ(*doubled->whole()->program, Program{twice});
}

TEST(TensorExpr, IntegersAreNeverCast) {
  Tensors tensors;
  EXPECT_THAT(error_of(tensors.whole(DType::I32, {2}).cast(DType::F32)), HasSubstr("from I32"));
  EXPECT_THAT(error_of(tensors.whole(DType::F32, {2}).cast(DType::I32)), HasSubstr("to I32"));
  EXPECT_THAT(error_of(tensors.whole(DType::F8E4M3, {2}).cast(DType::F32)), HasSubstr("F8"));
}

TEST(TensorExpr, StepsNameTheDtypeOfTheValues) {
  Tensors tensors;
  const TensorExpr expr = tensors.whole(DType::F32, {2});
  EXPECT_THAT(error_of(expr.then({Step::Kind::Multiply, DType::BF16, 2})), HasSubstr("cast first"));
  EXPECT_TRUE(expr.then({Step::Kind::Multiply, DType::F32, 2}).has_value());
  EXPECT_THAT(error_of(tensors.whole(DType::U8, {2}).then({Step::Kind::Add, DType::U8, 1})),
              HasSubstr("only F64"));
}

TEST(TensorExpr, PaddingTakesStepsWhenTheyAreAdded) {
  Tensors tensors;
  const TensorExpr padded = tensors.whole(DType::F32, {2}).pad(0, 0, 1).value();
  struct Case {
    Step step;
    std::int64_t bits;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Case& one :
       {Case{{Step::Kind::Multiply, DType::F32, 2}, 0}, Case{{Step::Kind::Cast, DType::BF16, 0}, 0},
        Case{{Step::Kind::Add, DType::F32, 1}, 0x3f800000},
        Case{{Step::Kind::Multiply, DType::F32, -1}, 0x80000000},
        Case{{Step::Kind::Multiply, DType::F32, -0.0}, 0x80000000},
        Case{{Step::Kind::Multiply, DType::F32, infinity}, 0x7fc00000}}) {
    const TensorExpr stepped = padded.then(one.step).value();
    EXPECT_EQ(stepped.boxes().back(), constant(2, one.bits, {}));
    EXPECT_EQ(stepped.boxes(2, 3).back(), constant(2, one.bits, {}));
  }
}

TEST(TensorExpr, AFilledTensorIsOneConstantBox) {
  const TensorExpr ones = TensorExpr::filled(DType::BF16, Shape{2, 3}, 1).value();
  EXPECT_EQ(ones.dtype(), DType::BF16);
  EXPECT_THAT(ones.shape(), ElementsAre(2, 3));
  EXPECT_THAT(ones.boxes(), ElementsAre(constant(0, 0x3f80, {{6, 1, 0}})));
  // Rounded to the dtype, as a cast does; several casts round each.
  const TensorExpr third = TensorExpr::filled(DType::F32, Shape{}, 1.0 / 3).value();
  EXPECT_THAT(third.boxes(), ElementsAre(constant(0, 0x3eaaaaab, {})));
  EXPECT_THAT(third.cast(DType::BF16)->boxes(), ElementsAre(constant(0, 0x3eab, {})));
  EXPECT_THAT(third.cast(DType::BF16)->cast(DType::F64)->boxes(),
              ElementsAre(constant(0, 0x3fd5600000000000, {})));
  EXPECT_THAT(TensorExpr::filled(DType::F64, Shape{0}, 1)->boxes(), ElementsAre());
}

TEST(TensorExpr, ConstantsOfOtherValuesStayApart) {
  const auto filled = [](double value) {
    return TensorExpr::filled(DType::F32, Shape{2}, value).value();
  };
  const std::vector<TensorExpr> parts{filled(1), filled(1), filled(2), filled(-0.0)};
  EXPECT_THAT(
      TensorExpr::concat(parts, 0)->boxes(),
      ElementsAre(constant(0, 0x3f800000, {{4, 1, 0}}), constant(4, 0x40000000, {{2, 1, 0}}),
                  constant(6, 0x80000000, {{2, 1, 0}})));
  // As the bits of neighbours that count on.
  const auto whole = [](double value) {
    return TensorExpr::filled(DType::I32, Shape{1}, value).value();
  };
  const std::vector<TensorExpr> numbers{whole(5), whole(6), whole(7)};
  EXPECT_EQ(TensorExpr::concat(numbers, 0)->boxes().size(), 3U);
}

TEST(TensorExpr, AFilledIntegerIsTheNumber) {
  const auto bits_of = [](DType dtype, double value) {
    return TensorExpr::filled(dtype, Shape{}, value)->boxes().front().source_offset;
  };
  EXPECT_EQ(bits_of(DType::I8, -128), 0x80);
  EXPECT_EQ(bits_of(DType::U8, 255), 0xff);
  EXPECT_EQ(bits_of(DType::I32, -1), 0xffffffff);
  EXPECT_EQ(bits_of(DType::I64, -1), -1);
  EXPECT_EQ(bits_of(DType::U64, 9007199254740992), 9007199254740992);
  for (const auto& [dtype, value] :
       {std::pair(DType::I8, 128.0), std::pair(DType::U8, -1.0), std::pair(DType::I32, 0.5),
        std::pair(DType::I64, 1e16), std::pair(DType::F16, 65520.0), std::pair(DType::F32, 1e39),
        std::pair(DType::F64, std::numeric_limits<double>::infinity())}) {
    EXPECT_THAT(error_of(TensorExpr::filled(dtype, Shape{}, value)), HasSubstr("does not hold"));
  }
  EXPECT_THAT(error_of(TensorExpr::filled(DType::F8E4M3, Shape{}, 1)), HasSubstr("neither"));
  EXPECT_THAT(error_of(TensorExpr::filled(DType::F32, Shape{-1}, 1)), HasSubstr("-1"));
}

TEST(TensorExpr, IntegersBecomeFloatsWhereThatIsAsked) {
  Tensors tensors;
  const TensorExpr expr = tensors.whole(DType::I64, {2});
  const TensorExpr floats = expr.integers_as(DType::BF16).value();
  EXPECT_EQ(floats.dtype(), DType::BF16);
  EXPECT_EQ(*floats.whole()->program, (Program{{Step::Kind::Cast, DType::BF16, 0}}));
  EXPECT_THAT(TensorExpr::filled(DType::I64, Shape{}, 3)->integers_as(DType::BF16)->boxes(),
              ElementsAre(constant(0, 0x4040, {})));
  EXPECT_THAT(error_of(expr.integers_as(DType::I32)), HasSubstr("only integers become"));
  EXPECT_THAT(error_of(tensors.whole(DType::BF16, {2}).integers_as(DType::F32)),
              HasSubstr("only integers become"));
  EXPECT_THAT(error_of(tensors.whole(DType::Bool, {2}).integers_as(DType::F32)),
              HasSubstr("only integers become"));
}

TEST(TensorExpr, StoredViewsAreOneBoxWithTheirStrides) {
  Tensors tensors;
  // Rows 1 and 2 of a 4 x 3 matrix, transposed.
  const TensorExpr expr =
      tensors.boxed(DType::F32, {3, 2}, 12, {StorageBox{0, 3, {0, 0}, {3, 2}, {1, 3}}});
  EXPECT_FALSE(expr.whole().has_value());
  EXPECT_THAT(expr.boxes(), ElementsAre(box(0, 3, {{3, 2, 1}, {2, 1, 3}})));
}

TEST(TensorExpr, NeighboursInOneStorageBecomeOneBox) {
  Tensors tensors;
  const TensorExpr expr = tensors.boxed(
      DType::F32, {4, 3}, 12,
      {StorageBox{0, 6, {2, 0}, {2, 3}, {3, 1}}, StorageBox{0, 0, {0, 0}, {2, 3}, {3, 1}}});
  EXPECT_THAT(expr.boxes(), ElementsAre(box(0, 0, {{12, 1, 1}})));
}

TEST(TensorExpr, TransposeIsTwoLoops) {
  Tensors tensors;
  const TensorExpr expr = tensors.whole(DType::F32, {2, 3}).transpose(Shape{1, 0}).value();
  EXPECT_THAT(expr.shape(), ElementsAre(3, 2));
  EXPECT_THAT(expr.boxes(), ElementsAre(box(0, 0, {{3, 2, 1}, {2, 1, 3}})));
  // ... and back is the storage as it lies there.
  EXPECT_THAT(expr.transpose(Shape{1, 0})->boxes(), ElementsAre(box(0, 0, {{6, 1, 1}})));
}

TEST(TensorExpr, TransposeOfASplitDimensionNeedsNoCut) {
  Tensors tensors;
  // Heads: [heads * width, hidden] -> [hidden, heads, width] as MaxText stores q_proj.
  const TensorExpr expr = tensors.whole(DType::BF16, {6, 5})
                              .reshape(Shape{2, 3, 5})
                              .value()
                              .transpose(Shape{2, 0, 1})
                              .value();
  EXPECT_THAT(expr.boxes(), ElementsAre(box(0, 0, {{5, 6, 1}, {6, 1, 5}})));
}

TEST(TensorExpr, BoxesAreCutWhereALoopCrossesADimension) {
  Tensors tensors;
  // Elements 2 to 9 as a vector, seen as 2 rows of 4, then columns first: nothing crosses.
  const TensorExpr vector = tensors.whole(DType::F32, {12}).slice(0, 2, 8).value();
  EXPECT_THAT(vector.reshape(Shape{2, 4})->transpose(Shape{1, 0})->boxes(),
              ElementsAre(box(0, 2, {{4, 2, 1}, {2, 1, 4}})));
  // Padded by one in front the storage begins in the middle of a row: a head, and the other rows.
  const TensorExpr padded = vector.pad(0, 1, 3).value();
  // Rows: 0 2 3 4 | 5 6 7 8 | 9 0 0 0.
  EXPECT_THAT(padded.reshape(Shape{3, 4})->transpose(Shape{1, 0})->boxes(),
              ElementsAre(zeros(0, {}), box(1, 5, {{4, 3, 1}}), box(2, 9, {}),
                          box(3, 2, {{3, 3, 1}}), zeros(5, {{3, 3, 0}})));
}

TEST(TensorExpr, InterleaveAlternates) {
  Tensors tensors;
  const std::vector<TensorExpr> parts{
      tensors.whole(DType::F32, {3}),
      tensors.whole(DType::F32, {3}).cast(DType::F16)->cast(DType::F32).value()};
  const TensorExpr expr = TensorExpr::interleave(parts, 0).value();
  EXPECT_THAT(expr.shape(), ElementsAre(6));
  const std::vector<Box> boxes = expr.boxes();
  ASSERT_EQ(boxes.size(), 2U);
  EXPECT_THAT(boxes[0].loops, ElementsAre(Loop{3, 2, 1}));
  EXPECT_EQ(boxes[1].target_offset, 1);
  EXPECT_THAT(boxes[1].loops, ElementsAre(Loop{3, 2, 1}));
  EXPECT_EQ(boxes[0].program, nullptr);
  EXPECT_EQ(boxes[1].program->size(), 2U);
}

TEST(TensorExpr, DeinterleavingGivesBackTheHalves) {
  Tensors tensors;
  // gpt_oss: gate and up alternate in the last dimension.
  const TensorExpr fused = tensors.whole(DType::BF16, {2, 3, 8});
  EXPECT_THAT(fused.slice(2, 1, 4, 2)->boxes(), ElementsAre(box(0, 1, {{24, 1, 2}})));
}

TEST(TensorExpr, SlicesOfSlicesOfWholeRowsStayRuns) {
  Tensors tensors;
  const TensorExpr fused = tensors.whole(DType::BF16, {4, 6, 5});
  const TensorExpr up = fused.slice(0, 2, 1)->slice(1, 3, 3)->reshape(Shape{3, 5}).value();
  EXPECT_THAT(up.boxes(), ElementsAre(box(0, 2 * 30 + 15, {{15, 1, 1}})));
}

TEST(TensorExpr, SliceWithAStepThroughFactoredDimensions) {
  Tensors tensors;
  // [4, 2] transposed and flattened: the dimension of 8 has two digits. Every third of them.
  const TensorExpr flat =
      tensors.whole(DType::F32, {4, 2}).transpose(Shape{1, 0}).value().reshape(Shape{8}).value();
  EXPECT_THAT(flat.slice(0, 0, 3, 3)->boxes(), ElementsAre(box(0, 0, {{2, 1, 6}}), box(2, 5, {})));
}

TEST(TensorExpr, ScalarsAndEmptyTensorsGoThroughEverything) {
  Tensors tensors;
  const TensorExpr scalar = tensors.whole(DType::F32, {});
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_THAT(scalar.boxes(), ElementsAre(box(0, 0, {})));
  EXPECT_TRUE(scalar.transpose(Shape{}).has_value());
  EXPECT_THAT(TensorExpr::stack(std::vector{scalar, scalar}, 0)->boxes(),
              ElementsAre(box(0, 0, {{2, 1, 0}})));
  EXPECT_THAT(scalar.reshape(Shape{1, 1})->pad(1, 1, 0)->boxes(),
              ElementsAre(zeros(0, {}), box(1, 0, {})));

  const TensorExpr empty = tensors.whole(DType::F32, {3, 0, 2});
  EXPECT_THAT(empty.boxes(), IsEmpty());
  EXPECT_EQ(empty.nbytes(), 0U);
  EXPECT_THAT(empty.transpose(Shape{1, 0, 2})->shape(), ElementsAre(0, 3, 2));
  EXPECT_THAT(empty.reshape(Shape{0, 7})->boxes(), IsEmpty());
  EXPECT_THAT(empty.slice(0, 1, 2)->boxes(), IsEmpty());
  EXPECT_THAT(empty.cast(DType::BF16)->boxes(), IsEmpty());
  EXPECT_THAT(empty.pad(1, 1, 0)->boxes(), ElementsAre(zeros(0, {{6, 1, 0}})));
  EXPECT_THAT(TensorExpr::interleave(std::vector{empty, empty}, 1)->shape(), ElementsAre(3, 0, 2));
  EXPECT_EQ(empty.split(1, 1)->size(), 1U);
}

TEST(TensorExpr, PartsOfBytesAreMovedAsAWholeOnly) {
  Tensors tensors;
  const TensorExpr expr = tensors.whole(DType::F4, {4, 6});
  EXPECT_EQ(expr.nbytes(), 12U);
  EXPECT_TRUE(expr.reshape(Shape{24}).has_value());
  EXPECT_TRUE(expr.transpose(Shape{0, 1}).has_value());
  EXPECT_THAT(error_of(expr.transpose(Shape{1, 0})), HasSubstr("4 bits"));
  EXPECT_THAT(error_of(expr.slice(0, 1, 2)), HasSubstr("4 bits"));
  EXPECT_THAT(error_of(expr.pad(0, 1, 0)), HasSubstr("4 bits"));
}

TEST(TensorExpr, EveryWrongArgumentIsAnErrorThatSaysTheRule) {
  Tensors tensors;
  const TensorExpr expr = tensors.whole(DType::F32, {2, 3});
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  for (const Shape& order : {Shape{0}, Shape{0, 0}, Shape{0, 2}, Shape{-1, 0}, Shape{0, 1, 2}}) {
    EXPECT_THAT(error_of(expr.transpose(order)), HasSubstr("not a permutation"));
  }
  EXPECT_THAT(error_of(expr.reshape(Shape{7})), HasSubstr("6 elements become 7"));
  EXPECT_THAT(error_of(expr.reshape(Shape{-2, -3})), HasSubstr("negative"));
  EXPECT_THAT(error_of(expr.reshape(Shape{kHuge, kHuge})), HasSubstr("more than"));
  EXPECT_THAT(error_of(expr.slice(2, 0, 1)), HasSubstr("dimension 2 of shape [2, 3]"));
  EXPECT_THAT(error_of(expr.slice(-1, 0, 1)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(expr.slice(1, 0, 4)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(expr.slice(1, 3, 1)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(expr.slice(1, -1, 1)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(expr.slice(1, 0, 2, 3)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(expr.slice(1, 0, 2, 0)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(expr.slice(1, 0, kHuge, kHuge)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(expr.slice(1, kHuge, kHuge, 1)), HasSubstr("out of range"));
  EXPECT_TRUE(expr.slice(1, 3, 0).has_value());
  EXPECT_THAT(error_of(expr.pad(0, -1, 0)), HasSubstr("-1 before"));
  EXPECT_THAT(error_of(expr.pad(0, kHuge, 0)), HasSubstr("more than"));
  EXPECT_THAT(error_of(expr.pad(0, kHuge / 8, kHuge / 8)), HasSubstr("more than"));
  EXPECT_THAT(error_of(expr.split(1, 2)), HasSubstr("3 elements in 2"));
  EXPECT_THAT(error_of(expr.split(1, 0)), HasSubstr("in 0"));
  const TensorExpr other = tensors.whole(DType::F32, {3, 3});
  EXPECT_THAT(error_of(TensorExpr::concat(std::vector{expr, other}, 1)), HasSubstr("part 1"));
  EXPECT_THAT(error_of(TensorExpr::concat(std::vector{expr, other}, 2)), HasSubstr("out of range"));
  EXPECT_THAT(error_of(TensorExpr::stack(std::vector{expr, other}, 0)), HasSubstr("[3, 3]"));
  EXPECT_THAT(error_of(TensorExpr::stack(std::vector{expr, expr}, 3)), HasSubstr("0 to 2"));
  EXPECT_THAT(error_of(TensorExpr::interleave(std::vector{expr, expr}, 2)),
              HasSubstr("out of range"));
  const TensorExpr half = tensors.whole(DType::F16, {2, 3});
  EXPECT_THAT(error_of(TensorExpr::concat(std::vector{expr, half}, 0)), HasSubstr("cast first"));
  EXPECT_THAT(error_of(TensorExpr::concat({}, 0)), HasSubstr("no tensors"));
  EXPECT_THAT(error_of(TensorExpr::stack({}, 0)), HasSubstr("no tensors"));
  EXPECT_THAT(error_of(TensorExpr::interleave({}, 0)), HasSubstr("no tensors"));
}

TEST(TensorExpr, MoreBoxesThanTheLimitIsAnError) {
  Tensors tensors;
  // Two vectors alternate, and the result is read in columns of odd length: every other element of
  // a row is of the first vector, and which ones differs from row to row.
  const auto woven = [&](std::int64_t rows, std::int64_t columns) {
    const TensorExpr half = tensors.whole(DType::U8, {rows * columns / 2});
    return TensorExpr::interleave(std::vector{half, half}, 0)
        ->reshape(Shape{rows, columns})
        ->transpose(Shape{1, 0});
  };
  const Result<TensorExpr> few = woven(6, 1000003);
  ASSERT_TRUE(few.has_value()) << error_of(few);
  EXPECT_LE(few->boxes().size(), 12U);
  EXPECT_THAT(error_of(woven(2000006, 1000003)), HasSubstr("more boxes than 262144"));
}

// A source may have them: it has paid for each with bytes.
TEST(TensorExpr, OfMoreStoredBoxesThanTheLimitOnlyOuterPiecesAreMade) {
  Tensors tensors;
  constexpr std::int64_t kRows = std::int64_t{2 * kMaxBoxes} + 1000;
  std::vector<std::int64_t> order(kRows);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, std::mt19937(1));
  std::vector<StorageBox> rows;
  for (std::int64_t row = 0; row < kRows; ++row) {
    rows.push_back({0, 2 * order[static_cast<std::size_t>(row)], {row, 0}, {1, 2}, {2, 1}});
  }
  const TensorExpr expr = tensors.boxed(DType::U8, {kRows, 2}, 2 * kRows, std::move(rows));
  const std::size_t boxes = expr.boxes().size();  // a few continue their neighbours
  ASSERT_GT(boxes, kMaxBoxes);
  EXPECT_TRUE(expr.slice(0, 1, 1000));
  const std::string text = std::to_string(boxes) + " boxes (limit 262144)";
  EXPECT_THAT(error_of(expr.slice(1, 0, 1)), HasSubstr(text));
  EXPECT_THAT(error_of(expr.transpose(Shape{1, 0})), HasSubstr(text));
}

TEST(TensorExpr, CopiesShareTheirBoxes) {
  Tensors tensors;
  const TensorExpr expr = tensors.whole(DType::F32, {4, 4}).transpose(Shape{1, 0}).value();
  const TensorExpr copy = expr;
  const TensorExpr reshaped = expr.reshape(Shape{16}).value();
  EXPECT_EQ(copy.box_list().data(), expr.box_list().data());
  EXPECT_EQ(reshaped.box_list().data(), expr.box_list().data());
}

// Views that differ in their dtype alone keep one list: 46,000 tensors in each of four of them.
TEST(TensorExpr, ACastOfWhatIsOnlyMovedSharesItsBoxes) {
  Tensors tensors;
  const TensorExpr padded =
      tensors.whole(DType::BF16, {4, 4}).transpose(Shape{1, 0})->pad(0, 0, 2).value();
  const TensorExpr cast = padded.cast(DType::F32).value();
  EXPECT_EQ(cast.box_list().data(), padded.box_list().data());
  const Program to_f32{{Step::Kind::Cast, DType::F32, 0}};
  const auto has_steps = [](const std::vector<Box>& boxes, const Program& steps) {
    return !boxes.empty() && std::ranges::all_of(boxes, [&](const Box& box) {
      return box.is_constant() ? box.program == nullptr : box.program && *box.program == steps;
    });
  };
  EXPECT_TRUE(has_steps(cast.boxes(), to_f32));
  EXPECT_TRUE(has_steps(cast.boxes(3, 20), to_f32));
  EXPECT_TRUE(has_steps(cast.reshape(Shape{24})->boxes(), to_f32));
  EXPECT_TRUE(has_steps(cast.slice(0, 1, 4)->boxes(), to_f32));
  EXPECT_EQ(*cast.steps_of(cast.box_list().front()), to_f32);
  EXPECT_EQ(cast.steps_of(cast.box_list().back()), nullptr);  // the padding
  const Program doubled{{Step::Kind::Cast, DType::F32, 0}, {Step::Kind::Multiply, DType::F32, 2}};
  const TensorExpr longer = cast.then({Step::Kind::Multiply, DType::F32, 2}).value();
  EXPECT_TRUE(has_steps(longer.boxes(), doubled));
  EXPECT_EQ(padded.boxes().front().program, nullptr);
  // Of a reshaped whole storage, too.
  const TensorExpr whole = tensors.whole(DType::BF16, {4, 4}).reshape(Shape{16}).value();
  EXPECT_EQ(*whole.cast(DType::F32)->reshape(Shape{2, 8})->whole()->program, to_f32);
  EXPECT_EQ(*whole.cast(DType::F32)->then({Step::Kind::Multiply, DType::F32, 2})->whole()->program,
            doubled);
}

TEST(Clip, CutsHeadsAndTailsOfEachLoop) {
  const Box rows = box(10, 0, {{4, 10, 100}, {5, 1, 1}});  // 10..14, 20..24, 30..34, 40..44
  EXPECT_THAT(clip(rows, 0, 100), ElementsAre(rows));
  EXPECT_THAT(clip(rows, 12, 32), ElementsAre(box(12, 2, {{3, 1, 1}}), box(20, 100, {{5, 1, 1}}),
                                              box(30, 200, {{2, 1, 1}})));
  EXPECT_THAT(clip(rows, 20, 40), ElementsAre(box(20, 100, {{2, 10, 100}, {5, 1, 1}})));
  EXPECT_THAT(clip(rows, 22, 23), ElementsAre(box(22, 102, {})));
  EXPECT_THAT(clip(rows, 25, 30), IsEmpty());
  EXPECT_THAT(clip(rows, 45, 99), IsEmpty());
  EXPECT_THAT(clip(rows, 30, 30), IsEmpty());
  EXPECT_THAT(clip(rows, 0, 10), IsEmpty());
}

TEST(Clip, TakesTheWholeRangeOfIndices) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const Box all = box(0, 0, {{kMax, 1, 1}});
  EXPECT_THAT(clip(all, std::numeric_limits<std::int64_t>::min(), kMax), ElementsAre(all));
  EXPECT_THAT(clip(all, kMax - 1, kMax), ElementsAre(box(kMax - 1, kMax - 1, {})));
}

TEST(Box, ComparesProgramsByValue) {
  Box a = box(0, 0, {{2, 1, 1}});
  Box b = a;
  a.program = std::make_shared<const Program>(Program{{Step::Kind::Cast, DType::BF16, 0}});
  EXPECT_FALSE(a == b);
  b.program = std::make_shared<const Program>(*a.program);
  EXPECT_TRUE(a == b);
}

}  // namespace
}  // namespace ckfs
