// The generator aims at what breaks index arithmetic: dimensions of 0 and 1, dimensions without a
// common factor (so that boxes must be cut into heads and tails), strides that are zero or
// negative, elements that several target indices share, and storages cut into extents of a few
// bytes. Shapes stay small: the model walks every element for every operation.
#include "support/random_expr.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <numeric>
#include <random>
#include <rapidcheck.h>
#include <utility>

#include "base/rounding.h"
#include "encoding/affine_codes_encoding.h"
#include "encoding/block_scale_encoding.h"
#include "encoding/row_int8_encoding.h"
#include "encoding/table_codes_encoding.h"
#include "support/dense_tensor.h"
#include "support/test_encodings.h"

namespace ckfs {
namespace {

using Shape = std::vector<std::int64_t>;

constexpr std::int64_t kMaxNumel = 20000;

std::size_t index_of(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

template <typename T>
T pick(const Choose& choose, const std::vector<T>& options) {
  return options[index_of(choose(static_cast<std::int64_t>(options.size())))];
}

std::int64_t between(const Choose& choose, std::int64_t low, std::int64_t high) {
  return low + choose(high - low + 1);
}

bool one_in(const Choose& choose, std::int64_t n) {
  return choose(n) == n - 1;
}

Shape random_shape(const Choose& choose, std::int64_t max_numel) {
  Shape shape;
  std::int64_t numel = 1;
  const std::int64_t rank = choose(5);
  for (std::int64_t d = 0; d < rank; ++d) {
    std::int64_t extent = one_in(choose, 40) ? 0 : between(choose, 1, 13);
    extent = std::min(extent, max_numel / std::max<std::int64_t>(numel, 1));
    shape.push_back(extent);
    numel *= extent;
  }
  return shape;
}

// Makes the files of a checkpoint and remembers where storages lie in them.
class Writer {
 public:
  Writer(const Choose& choose, MemorySource& source, CatalogBuilder& builder)
      : choose_(choose),
        source_(source),
        builder_(builder),
        files_(index_of(between(choose, 1, 3))) {}

  // In up to four extents in any of the files, with other bytes between them.
  StorageId storage(DType dtype, std::int64_t numel) {
    const std::int64_t size = bits(dtype) / 8;
    std::vector<Extent> extents;
    std::int64_t left = numel;
    while (left > 0) {
      const bool last = extents.size() == 3 || one_in(choose_, 2);
      const std::int64_t part = last ? left : between(choose_, 1, left);
      const std::int64_t file = choose_(static_cast<std::int64_t>(files_.size()));
      std::vector<std::byte>& bytes = files_[index_of(file)];
      append_random(bytes, choose_(8));
      extents.push_back(
          {static_cast<FileId>(file), bytes.size(), static_cast<std::uint64_t>(part * size)});
      append_random(bytes, part * size);
      left -= part;
    }
    return builder_.add_storage(dtype, numel, extents);
  }

  void finish() {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const std::string name = fmt::format("file-{}", i);
      const FileId id = source_.add(name, std::move(files_[i]));
      EXPECT_EQ(id, i);
    }
  }

 private:
  // Not through choose(): nobody wants 3,200 decisions to shrink.
  void append_random(std::vector<std::byte>& bytes, std::int64_t count) {
    std::mt19937_64 random(static_cast<std::uint64_t>(choose_(1 << 20)));
    for (std::int64_t i = 0; i < count; ++i) {
      // Codes of NaN, infinity, zero and the smallest numbers come often.
      static constexpr unsigned kSpecial[] = {0x00, 0x7f, 0x80, 0xff, 0x7c, 0xfc, 0x01, 0x81};
      const std::uint64_t bits = random();
      bytes.push_back(static_cast<std::byte>(bits % 4 == 0 ? kSpecial[bits / 4 % 8] : bits / 4));
    }
  }

  const Choose& choose_;
  MemorySource& source_;
  CatalogBuilder& builder_;
  std::vector<std::vector<std::byte>> files_;
};

// A part of a tensor's index space on a storage of its own: any order of the dimensions, gaps
// between them, backwards, or one element for a whole dimension.
StorageBox random_box(const Choose& choose, Writer& writer, DType dtype, Shape begin, Shape count) {
  StorageBox box{0, 0, std::move(begin), std::move(count), {}};
  const std::size_t rank = box.count.size();
  box.stride.resize(rank);
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (one_in(choose, 2)) std::reverse(order.begin(), order.end());
  if (rank > 1 && one_in(choose, 2)) std::swap(order[0], order[rank / 2]);
  std::int64_t stride = between(choose, 1, 2);
  box.offset = choose(3);
  std::int64_t size = box.offset + 1;
  for (std::size_t i = rank; i > 0; --i) {
    const std::size_t d = order[i - 1];
    const std::int64_t turns = std::max<std::int64_t>(box.count[d] - 1, 0);
    const std::int64_t kind = choose(8);
    if (kind == 7) continue;  // stride 0
    box.stride[d] = kind == 6 ? -stride : stride;
    if (kind == 6) box.offset += turns * stride;
    size += turns * stride;
    stride = stride * std::max<std::int64_t>(box.count[d], 1) + choose(2);
  }
  box.storage = writer.storage(dtype, size + choose(3));
  return box;
}

std::vector<StorageBox> random_boxes(const Choose& choose, Writer& writer, DType dtype,
                                     const Shape& shape) {
  std::vector<std::pair<Shape, Shape>> parts{{Shape(shape.size(), 0), shape}};
  for (std::int64_t cuts = shape.empty() ? 0 : choose(4); cuts > 0; --cuts) {
    auto& [begin, count] = parts[index_of(choose(static_cast<std::int64_t>(parts.size())))];
    const std::size_t d = index_of(choose(static_cast<std::int64_t>(shape.size())));
    if (count[d] < 2) continue;
    const std::int64_t head = between(choose, 1, count[d] - 1);
    auto rest = std::pair(begin, count);
    rest.first[d] += head;
    rest.second[d] -= head;
    count[d] = head;
    parts.push_back(rest);
  }
  std::vector<StorageBox> boxes;
  for (auto& [begin, count] : parts) {
    boxes.push_back(random_box(choose, writer, dtype, begin, count));
  }
  return boxes;
}

// A weight of blocks, seen whole or through a strided box.
void add_block_scaled(const Choose& choose, Writer& writer, CatalogBuilder& builder,
                      const std::string& name) {
  const std::int64_t batch = one_in(choose, 3) ? between(choose, 2, 3) : 1;
  const std::int64_t rows = between(choose, 1, 12);
  const std::int64_t columns = between(choose, 1, 12);
  BlockScale encoding{.rows = rows,
                      .columns = columns,
                      .block_rows = between(choose, 1, 5),
                      .block_columns = between(choose, 1, 5)};
  const Shape scale_shape{batch, (rows + encoding.block_rows - 1) / encoding.block_rows,
                          (columns + encoding.block_columns - 1) / encoding.block_columns};
  encoding.scale = pick<DType>(choose, {DType::F32, DType::BF16, DType::F8E8M0, DType::U8});
  encoding.codes =
      pick<DType>(choose, {DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ});
  const StorageId scale = writer.storage(encoding.scale, numel_of(scale_shape));
  const StorageId weight = writer.storage(encoding.codes, batch * rows * columns);
  builder.set_encoding(weight, block_scale_encoding(encoding), std::span(&scale, 1),
                       batch * rows * columns);
  builder.add_tensor(name + "_scale_inv", scale_shape, scale);
  if (!one_in(choose, 3)) {
    builder.add_tensor(name, batch == 1 ? Shape{rows, columns} : Shape{batch, rows, columns},
                       weight);
    return;
  }
  // As torch would see it: a part of the rows, transposed.
  const std::int64_t first = choose(rows);
  const Shape shape{columns, rows - first};
  builder.add_tensor(name, shape, weight,
                     {StorageBox{weight, first * columns, {0, 0}, shape, {1, columns}}});
}

// Codes of rows x columns, both multiples of 32, by columns and groups of rows.
TestEncoding random_affine(const Choose& choose, std::int64_t rows, std::int64_t columns) {
  using Zeros = AffineCodes::Zeros;
  AffineCodes codes{.scale = pick<DType>(choose, {DType::F16, DType::BF16, DType::F32}),
                    .rows = rows,
                    .columns = columns,
                    .group_rows = between(choose, 1, rows + 8)};
  if (one_in(choose, 3)) {
    codes.order = CodeOrder::Awq;
  } else {
    codes.bits = pick<int>(choose, {2, 3, 4, 8});
    codes.zeros = pick<Zeros>(
        choose, {Zeros::PlusOne, Zeros::Stored, Zeros::PlusOneWrapped, Zeros::PlusOneInWords});
    if (codes.bits == 3 && codes.zeros == Zeros::PlusOneInWords) codes.zeros = Zeros::PlusOne;
  }
  codes.groups = ceil_div(rows, codes.group_rows);
  const auto cells = static_cast<std::uint64_t>(codes.groups * columns);
  return {affine_codes_encoding(codes),
          {cells * bytes_of(codes.scale, 1), cells * static_cast<std::uint64_t>(codes.bits) / 8}};
}

// Codes of 4 bits, with or without nested scales.
TestEncoding random_table_codes(const Choose& choose, std::int64_t numel) {
  TableCodes codes{.values = pick<DType>(choose, {DType::BF16, DType::F16, DType::F32}),
                   .block = 2 * between(choose, 1, 40),
                   .negative_zero = one_in(choose, 2)};
  const auto blocks = static_cast<std::uint64_t>(ceil_div(numel, codes.block));
  if (one_in(choose, 2)) return {table_codes_encoding(codes), {blocks * 4, 16 * 4}};
  codes.nested_block = between(choose, 1, 9);
  codes.nested_offset = 0.125F;
  const auto outer = ceil_div(blocks, static_cast<std::uint64_t>(codes.nested_block));
  return {table_codes_encoding(codes), {blocks, 16 * 4, outer * 4, 256 * 4}};
}

// An encoding whose parts are bytes of any content; a matrix whose rows are filled up to whole
// granules, and shown without what fills them, or all of the storage.
void add_encoded(const Choose& choose, Writer& writer, CatalogBuilder& builder,
                 const std::string& name) {
  std::int64_t rows = between(choose, 1, 40);
  std::int64_t columns = between(choose, 1, 40);
  const std::int64_t kind = choose(6);
  const bool whole_rows = kind >= 3;
  if (kind == 5) {
    rows = 32 * between(choose, 1, 2);
    columns = 32 * between(choose, 1, 2);
  }
  std::int64_t stored = columns;  // elements of a row
  if (!whole_rows && one_in(choose, 2)) stored = round_up(columns, std::int64_t{32});
  const std::int64_t numel = rows * stored;
  TestEncoding test;
  switch (kind) {
    case 0:
      test = scale_inside();
      break;
    case 1:
      test =
          packed_odd(numel, between(choose, 1, 70), pick<DType>(choose, {DType::F16, DType::BF16}));
      break;
    case 2:
      test = random_table_codes(choose, numel);
      break;
    case 3:
      test = act_order(rows, columns, between(choose, 1, 5));
      break;
    case 4:
      test = {row_int8_encoding(columns), {static_cast<std::uint64_t>(rows) * 4}};
      break;
    default:
      test = random_affine(choose, rows, columns);
  }
  std::vector<StorageId> companions;
  for (const std::uint64_t bytes : test.companions) {
    companions.push_back(writer.storage(DType::U8, static_cast<std::int64_t>(bytes)));
  }
  const StorageId storage =
      writer.storage(DType::U8, static_cast<std::int64_t>(test.encoding->nbytes(numel).value()));
  builder.set_encoding(storage, test.encoding, companions, numel);
  const Shape shape{rows, columns};
  if (stored == columns) {
    builder.add_tensor(name, shape, storage);
  } else {
    builder.add_tensor(name, shape, storage, {StorageBox{storage, 0, {0, 0}, shape, {stored, 1}}});
  }
}

Step random_step(const Choose& choose, DType dtype) {
  switch (choose(7)) {
    case 0:
      return {Step::Kind::Multiply, dtype, pick<double>(choose, {0.5, -3.0, 1.0 / 3, 1e5})};
    case 1:
      return {Step::Kind::FlushSubnormals, dtype, 0};
    case 2:
      return {Step::Kind::CanonicalNan, dtype, 0};
    case 3:
      return {Step::Kind::Add, dtype, pick<double>(choose, {1.0, -0.1, 1e-6})};
    default:
      return {choose(4) == 0 ? Step::Kind::CastKeepingNan : Step::Kind::Cast,
              pick<DType>(choose, {DType::BF16, DType::F32, DType::F16, DType::F64}), 0};
  }
}

std::string text_of(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

RandomExpr unwrap(Result<TensorExpr> expr, DenseTensor value, std::string text) {
  if (!expr) throw std::logic_error(text + ": " + expr.error().message());
  return {std::move(*expr), std::move(value), std::move(text)};
}

RandomExpr random_leaf(const Choose& choose, const RandomCheckpoint& checkpoint) {
  const TensorId id = pick(choose, checkpoint.tensors);
  return {TensorExpr::stored(*checkpoint.catalog, id), dense_stored(*checkpoint.catalog, id),
          std::string(checkpoint.catalog->tensor(id).name)};
}

RandomExpr reshaped(const RandomExpr& from, const Shape& shape) {
  return unwrap(from.expr.reshape(shape), {from.value.dtype, shape, from.value.elements},
                from.text + ".reshape" + text_of(shape));
}

RandomExpr sliced(const RandomExpr& from, std::int64_t dim, std::int64_t begin, std::int64_t count,
                  std::int64_t step) {
  return unwrap(from.expr.slice(dim, begin, count, step),
                dense_slice(from.value, dim, begin, count, step),
                fmt::format("{}.slice({}, {}, {}, {})", from.text, dim, begin, count, step));
}

RandomExpr with_step(const RandomExpr& from, const Step& step) {
  return unwrap(from.expr.then(step), dense_then(from.value, step),
                fmt::format("{}.then({} {} {})", from.text, static_cast<int>(step.kind),
                            name(step.dtype), step.operand));
}

RandomExpr random_filled(const Choose& choose, DType dtype, const Shape& shape) {
  struct Bits {
    double value;
    std::uint64_t f64, f32, f16, bf16;
  };
  const auto chosen = pick<Bits>(choose, {{-1.5, 0xbff8000000000000, 0xbfc00000, 0xbe00, 0xbfc0},
                                          {100, 0x4059000000000000, 0x42c80000, 0x5640, 0x42c8}});
  const std::map<DType, std::uint64_t> bits{{DType::F64, chosen.f64}, {DType::F32, chosen.f32},
                                            {DType::F16, chosen.f16}, {DType::BF16, chosen.bf16},
                                            {DType::U8, 100},         {DType::I32, 100},
                                            {DType::I64, 100}};
  const double value = is_castable_float(dtype) ? chosen.value : 100;
  return unwrap(TensorExpr::filled(dtype, shape, value), dense_filled(dtype, shape, bits.at(dtype)),
                fmt::format("filled({}, {})", name(dtype), value));
}

// Another tensor of the dtype and shape of `like`, from another leaf where one fits.
RandomExpr random_like(const Choose& choose, const RandomCheckpoint& checkpoint,
                       const RandomExpr& like) {
  const DType dtype = like.value.dtype;
  const bool fillable =
      is_castable_float(dtype) || dtype == DType::U8 || dtype == DType::I32 || dtype == DType::I64;
  if (fillable && one_in(choose, 6)) return random_filled(choose, dtype, like.value.shape);
  const std::int64_t numel = numel_of(like.value.shape);
  RandomExpr leaf = random_leaf(choose, checkpoint);
  const std::int64_t has = numel_of(leaf.value.shape);
  const bool castable = is_castable_float(leaf.value.dtype) && is_castable_float(like.value.dtype);
  if (has < numel || !(castable || leaf.value.dtype == like.value.dtype)) return like;
  RandomExpr flat = reshaped(leaf, {has});
  flat = sliced(flat, 0, choose(has - numel + 1), numel, 1);
  flat = reshaped(flat, like.value.shape);
  if (flat.value.dtype == like.value.dtype) return flat;
  return with_step(flat, {Step::Kind::Cast, like.value.dtype, 0});
}

// Shapes with the same number of elements: dimensions are merged and factored.
Shape random_reshape(const Choose& choose, const Shape& shape) {
  Shape result;
  std::int64_t left = numel_of(shape);
  if (left == 0) return shape;
  while (left > 1 && result.size() < 4) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t k = 1; k <= left; ++k) {
      if (left % k == 0) divisors.push_back(k);
    }
    result.push_back(pick(choose, divisors));
    left /= result.back();
  }
  if (left > 1) result.push_back(left);
  return result;
}

RandomExpr random_several(const Choose& choose, const RandomCheckpoint& checkpoint,
                          const RandomExpr& from) {
  const auto rank = static_cast<std::int64_t>(from.value.shape.size());
  std::vector<RandomExpr> parts{from};
  const std::int64_t count = between(choose, 2, 3);
  const std::int64_t kind = choose(3);
  const bool concat = kind == 1 && rank > 0;
  const bool interleave = kind == 2 && rank > 0;
  const std::int64_t dim = concat || interleave ? choose(rank) : choose(rank + 1);
  while (static_cast<std::int64_t>(parts.size()) < count) {
    RandomExpr part = random_like(choose, checkpoint, from);
    if (concat && part.value.shape[index_of(dim)] > 0) {
      const std::int64_t begin = choose(part.value.shape[index_of(dim)]);
      part = sliced(part, dim, begin, part.value.shape[index_of(dim)] - begin, 1);
    }
    parts.insert(parts.begin() + choose(static_cast<std::int64_t>(parts.size()) + 1),
                 std::move(part));
  }
  std::vector<TensorExpr> exprs;
  std::vector<DenseTensor> values;
  std::string text = concat ? "concat(" : interleave ? "interleave(" : "stack(";
  for (const RandomExpr& part : parts) {
    exprs.push_back(part.expr);
    values.push_back(part.value);
    text += part.text + ", ";
  }
  text += std::to_string(dim) + ")";
  if (concat) return unwrap(TensorExpr::concat(exprs, dim), dense_concat(values, dim), text);
  if (interleave) {
    return unwrap(TensorExpr::interleave(exprs, dim), dense_interleave(values, dim), text);
  }
  return unwrap(TensorExpr::stack(exprs, dim), dense_stack(values, dim), text);
}

RandomExpr random_operation(const Choose& choose, const RandomCheckpoint& checkpoint,
                            const RandomExpr& from) {
  const Shape& shape = from.value.shape;
  const auto rank = static_cast<std::int64_t>(shape.size());
  switch (choose(6)) {
    case 0: {
      Shape order(shape.size());
      std::iota(order.begin(), order.end(), std::int64_t{0});
      for (std::int64_t i = rank; i > 1; --i)
        std::swap(order[index_of(i - 1)], order[index_of(choose(i))]);
      return unwrap(from.expr.transpose(order), dense_transpose(from.value, order),
                    from.text + ".transpose" + text_of(order));
    }
    case 1:
      return reshaped(from, random_reshape(choose, shape));
    case 2: {
      if (rank == 0) return from;
      const std::int64_t dim = choose(rank);
      const std::int64_t extent = shape[index_of(dim)];
      if (extent == 0) return from;
      const std::int64_t begin = choose(extent);
      const std::int64_t step = between(choose, 1, 5);
      const std::int64_t most = (extent - 1 - begin) / step + 1;
      return sliced(from, dim, begin, one_in(choose, 30) ? 0 : between(choose, 1, most), step);
    }
    case 3: {
      if (rank == 0) return from;
      const std::int64_t dim = choose(rank);
      const std::int64_t before = choose(4);
      const std::int64_t after = choose(4);
      return unwrap(from.expr.pad(dim, before, after), dense_pad(from.value, dim, before, after),
                    fmt::format("{}.pad({}, {}, {})", from.text, dim, before, after));
    }
    case 4: {
      if (!is_castable_float(from.value.dtype)) return from;
      if (one_in(choose, 4)) {  // widened and rounded back, which is nearly nothing
        const DType wide = pick<DType>(choose, {DType::F32, DType::F64});
        return with_step(with_step(from, {Step::Kind::Cast, wide, 0}),
                         {Step::Kind::Cast, from.value.dtype, 0});
      }
      return with_step(from, random_step(choose, from.value.dtype));
    }
    default:
      return random_several(choose, checkpoint, from);
  }
}

}  // namespace

Choose seeded_choices(std::uint64_t seed) {
  return [random = std::make_shared<std::mt19937_64>(seed)](std::int64_t n) {
    return static_cast<std::int64_t>((*random)() % static_cast<std::uint64_t>(n));
  };
}

Choose rapidcheck_choices() {
  // resize: otherwise the first cases would only ever draw small numbers.
  return [](std::int64_t n) {
    return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::int64_t>(0, n));
  };
}

RandomCheckpoint random_checkpoint(const Choose& choose, const RandomOptions& options) {
  RandomCheckpoint checkpoint;
  checkpoint.source = std::make_unique<MemorySource>();
  CatalogBuilder builder("random");
  Writer writer(choose, *checkpoint.source, builder);
  const std::vector<DType> dtypes{DType::F32, DType::BF16, DType::F16, DType::F64,    DType::U8,
                                  DType::I32, DType::I64,  DType::C64, DType::F8E4M3, DType::Bool};
  std::vector<std::string> names;
  const std::int64_t count = between(choose, 1, options.max_tensors);
  for (std::int64_t i = 0; i < count; ++i) {
    names.push_back(fmt::format("t{}", i));
    const std::int64_t kind = choose(4);
    if (kind >= 2) {
      (kind == 2 ? add_block_scaled : add_encoded)(choose, writer, builder, names.back());
      continue;
    }
    const DType dtype = pick(choose, dtypes);
    const Shape shape = random_shape(choose, options.max_numel);
    if (kind == 0 || numel_of(shape) == 0) {
      builder.add_tensor(names.back(), shape, writer.storage(dtype, numel_of(shape)));
    } else {
      std::vector<StorageBox> boxes = random_boxes(choose, writer, dtype, shape);
      const StorageId first = boxes.front().storage;
      builder.add_tensor(names.back(), shape, first, std::move(boxes));
    }
  }
  writer.finish();
  checkpoint.catalog = std::move(builder).build();
  for (const std::string& name : names) {
    checkpoint.tensors.push_back(checkpoint.catalog->find(name).value());
  }
  return checkpoint;
}

RandomExpr random_expr(const Choose& choose, const RandomCheckpoint& checkpoint,
                       std::int64_t operations) {
  RandomExpr random = random_leaf(choose, checkpoint);
  for (std::int64_t n = choose(operations + 1); n > 0; --n) {
    RandomExpr next = random_operation(choose, checkpoint, random);
    if (numel_of(next.value.shape) > kMaxNumel) break;
    random = std::move(next);
  }
  return random;
}

}  // namespace ckfs
