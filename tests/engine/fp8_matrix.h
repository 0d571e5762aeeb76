// What tests of the engine read.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "encoding/block_scale_encoding.h"
#include "engine/engine.h"
#include "engine/read_plan.h"
#include "support/memory_source.h"

namespace ckfs {

/// A file of literal text, the tensors one after another, padding, and the first file of `source`.
inline FileLayout layout_of(std::shared_ptr<Definition> definition,
                            const MemorySource* source = nullptr) {
  FileLayout file;
  file.path = "test.bin";
  const auto append = [&](Segment::Kind kind, std::uint32_t id, std::uint64_t nbytes) {
    if (nbytes == 0) return;
    file.segments.push_back({file.size, 0, id, kind});
    file.size += nbytes;
  };
  file.literals.push_back(11);
  file.render = [](std::uint32_t) { return std::string("header text"); };
  append(Segment::Kind::Literal, 0, 11);
  for (std::uint32_t k = 0; k < definition->tensors.size(); ++k) {
    append(Segment::Kind::Tensor, k, definition->tensors[k].expr.nbytes());
  }
  append(Segment::Kind::Zero, 0, 13);
  if (source != nullptr) append(Segment::Kind::File, 0, source->size(0));
  file.definition = std::move(definition);
  file.finish();
  return file;
}

/// A file of the matrix "w" in BF16.
inline std::shared_ptr<const FileLayout> bf16_file(const std::shared_ptr<const Catalog>& catalog,
                                                   bool transposed) {
  auto definition = std::make_shared<Definition>();
  definition->catalog = catalog;
  TensorExpr expr = TensorExpr::stored(*catalog, *catalog->find("w"));
  const std::int64_t order[] = {1, 0};
  if (transposed) expr = expr.transpose(order).value();
  definition->tensors.push_back({"w", expr.cast(DType::BF16).value(), Exactness::BitExact});
  return std::make_shared<FileLayout>(layout_of(definition));
}

/// Of FP8 bytes: what a reader is let read twice where the source looks far away (on a busy
/// machine, any does).
inline constexpr std::uint64_t kAQuarterOfAPiece = kPieceBytes / 2 / 4;

/// A checkpoint of one FP8 matrix with F32 scales, viewed in bf16 by one file.
class Fp8Matrix {
 public:
  Fp8Matrix(std::int64_t rows, std::int64_t columns, bool transposed) {
    std::mt19937_64 random(3);
    std::vector<std::byte> weights(static_cast<std::size_t>(rows * columns));
    for (std::byte& weight : weights) weight = std::byte(random());
    const std::int64_t grid[] = {(rows + 127) / 128, (columns + 127) / 128};
    std::vector<std::byte> scales(static_cast<std::size_t>(grid[0] * grid[1]) * 4);
    for (std::size_t k = 0; k < scales.size(); k += 4) {
      const float scale = static_cast<float>(random() % 1000) / 1000;
      std::memcpy(scales.data() + k, &scale, 4);
    }
    source.add("weights", weights);
    source.add("scales", scales);
    CatalogBuilder builder("test");
    const Extent weight_extent{0, 0, weights.size()};
    const Extent scale_extent{1, 0, scales.size()};
    const StorageId weight =
        builder.add_storage(DType::F8E4M3, rows * columns, std::span(&weight_extent, 1));
    const StorageId scale =
        builder.add_storage(DType::F32, grid[0] * grid[1], std::span(&scale_extent, 1));
    builder.set_encoding(
        weight,
        block_scale_encoding(
            {.rows = rows, .columns = columns, .block_rows = 128, .block_columns = 128}),
        std::span(&scale, 1), rows * columns);
    const std::int64_t shape[] = {rows, columns};
    builder.add_tensor("w", shape, weight);
    builder.add_tensor("w_scale_inv", grid, scale);
    catalog = std::move(builder).build();
    file = bf16_file(catalog, transposed);
  }

  MemorySource source;
  std::shared_ptr<const Catalog> catalog;
  std::shared_ptr<const FileLayout> file;
};

}  // namespace ckfs
