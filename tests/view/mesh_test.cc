#include "view/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

using testing::ElementsAre;

std::vector<std::int64_t> parts(const std::vector<std::string>& axes, const Mesh& mesh) {
  const std::vector<std::int64_t> shape(axes.size(), 1 << 12);
  return parts_of(axes, shape, mesh).value();
}

TEST(Mesh, CutsEachKindOfParameterAsMaxTextDoes) {
  const Mesh mesh{.fsdp = 4, .expert = 2, .tensor = 8};
  EXPECT_THAT(parts({"vocab", "embed_vocab"}, mesh), ElementsAre(8, 8));
  EXPECT_THAT(parts({"embed", "q_heads", "kv"}, mesh), ElementsAre(8, 8, 1));
  EXPECT_THAT(parts({"heads", "kv", "embed"}, mesh), ElementsAre(8, 1, 8));
  EXPECT_THAT(parts({"embed_attn", "q_heads", "kv"}, mesh), ElementsAre(8, 8, 1));
  EXPECT_THAT(parts({"embed", "kv_lora_up_proj"}, mesh), ElementsAre(8, 1));
  EXPECT_THAT(parts({"kv_lora", "kv_heads", "kv_head_dim"}, mesh), ElementsAre(8, 8, 1));
  EXPECT_THAT(parts({"q_lora", "q_heads", "kv"}, mesh), ElementsAre(8, 8, 1));
  EXPECT_THAT(parts({"embed", "mlp"}, mesh), ElementsAre(8, 8));
  EXPECT_THAT(parts({"mlp", "embed"}, mesh), ElementsAre(8, 8));
  EXPECT_THAT(parts({"exp", "embed_moe", "mlp_moe"}, mesh), ElementsAre(2, 4, 8));
  EXPECT_THAT(parts({"exp", "", "mlp_moe", "embed_moe"}, mesh), ElementsAre(2, 1, 8, 4));
  EXPECT_THAT(parts({"embed_moe", ""}, mesh), ElementsAre(4, 1));
  EXPECT_THAT(parts({"exp", "activation_mlp"}, mesh), ElementsAre(2, 8));
  EXPECT_THAT(parts({"exp", "activation_embed"}, mesh), ElementsAre(2, 8));
  EXPECT_THAT(parts({"norm", ""}, mesh), ElementsAre(8, 1));
  EXPECT_THAT(parts({}, mesh), ElementsAre());
}

TEST(Mesh, GivesAnAxisToOneDimensionOnly) {
  const Mesh mesh{.fsdp = 4, .expert = 2, .tensor = 8};
  // The first rule in MaxText's order has it, wherever its dimension stands.
  EXPECT_THAT(parts({"embed", "embed_vocab"}, mesh), ElementsAre(1, 8));
  EXPECT_THAT(parts({"exp", "embed"}, mesh), ElementsAre(2, 1));
  EXPECT_THAT(parts({"mlp", "vocab"}, mesh), ElementsAre(1, 8));
  // Both want an axis that has no size here.
  EXPECT_THAT(parts({"embed_attn", "gdn_head"}, mesh), ElementsAre(8, 1));
  EXPECT_THAT(parts({"mlp", "embed_attn"}, mesh), ElementsAre(1, 8));
  EXPECT_THAT(parts({"gdn_head", "embed"}, mesh), ElementsAre(8, 8));
}

TEST(Mesh, OfOneDeviceCutsNothing) {
  EXPECT_TRUE(Mesh().is_one_device());
  EXPECT_THAT(parts({"exp", "embed_moe", "mlp_moe"}, {}), ElementsAre(1, 1, 1));
}

TEST(Mesh, RefusesWhatItDoesNotDivide) {
  const std::vector<std::string> axes{"vocab", "embed_vocab"};
  const std::vector<std::int64_t> shape{10, 12};
  const auto wrong = parts_of(axes, shape, {.fsdp = 8});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::Unsupported);
  EXPECT_THAT(wrong.error().message(),
              "dimension 1 of shape [10, 12] (embed_vocab) is not a multiple of 8");
  const std::int64_t large = std::int64_t{1} << 40;
  EXPECT_FALSE(parts_of(axes, shape, {.fsdp = large, .expert = large}));
}

}  // namespace
}  // namespace ckfs
