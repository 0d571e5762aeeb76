// How a DCP checkpoint cuts tensors into chunks.
#include "container/dcp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/model_catalog.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using Shapes = std::vector<std::vector<std::int64_t>>;

/// The shapes of the chunks of an F32 tensor, which is cut into `parts` and at `max_chunk` bytes.
Shapes chunks_of(const std::vector<std::int64_t>& shape, std::uint64_t max_chunk,
                 std::vector<std::int64_t> parts = {}) {
  ModelCatalog model;
  model.state({{"w", DType::F32, shape}});
  auto definition = std::make_shared<Definition>(*define(model.build(), "fp32-consolidated"));
  definition->packaging.container = ContainerKind::Dcp;
  definition->packaging.dcp.max_chunk = max_chunk;
  if (!parts.empty()) {
    definition->splits = {std::move(parts)};
    definition->tensors.front().split = 0;
  }
  const auto container = make_dcp(definition);
  if (!container) {
    ADD_FAILURE() << container.error().message();
    return {};
  }
  Shapes shapes;
  for (std::size_t file = 0; file < (*container)->size(); ++file) {
    for (const auto& chunk : (*container)->lay_out(file).chunks) {
      shapes.emplace_back(chunk.expr.shape().begin(), chunk.expr.shape().end());
    }
  }
  return shapes;
}

TEST(DcpChunks, OfASmallTensorAreOne) {
  EXPECT_THAT(chunks_of({3, 4}, 48), ElementsAre(std::vector<std::int64_t>{3, 4}));
}

TEST(DcpChunks, OfALargeTensorAreRunsOfRowsTheLastOneShorter) {
  EXPECT_EQ(chunks_of({7, 4}, 48), Shapes({{3, 4}, {3, 4}, {1, 4}}));
  EXPECT_EQ(chunks_of({6, 4}, 48), Shapes({{3, 4}, {3, 4}}));
}

TEST(DcpChunks, AreWholeBlocksOfRowsWhereTheseAreMany) {
  EXPECT_EQ(chunks_of({300, 2}, 200 * 8), Shapes({{128, 2}, {128, 2}, {44, 2}}));
}

TEST(DcpChunks, OfRowsThatAreLargeAreCutInside) {
  EXPECT_EQ(chunks_of({2, 5}, 8), Shapes({{1, 2}, {1, 2}, {1, 1}, {1, 2}, {1, 2}, {1, 1}}));
  EXPECT_EQ(chunks_of({2}, 1), Shapes({{1}, {1}}));
}

TEST(DcpChunks, OfExpertsAreCutInside) {
  EXPECT_EQ(chunks_of({2, 3, 4}, 32, {2, 1, 1}),
            Shapes({{1, 2, 4}, {1, 1, 4}, {1, 2, 4}, {1, 1, 4}}));
}

}  // namespace
}  // namespace ckfs
