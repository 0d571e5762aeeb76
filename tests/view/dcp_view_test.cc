// The view for dcp.load: what keeps a model from being shown so.
#include "view/dcp_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/model_catalog.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

std::string refusal_as(const std::shared_ptr<const Catalog>& catalog, const char* view) {
  const auto made = define_view(catalog, *parse_view_spec(view));
  return made ? std::string() : made.error().message();
}

TEST(DcpView, IsRefusedWhereAFolderWithWeightsWouldBeLost) {
  ModelCatalog folder;
  folder.shard("model.safetensors", {{"linear.weight", DType::BF16, {2, 2}}});
  ModelCatalog whole;
  whole.shard("model.safetensors", {{"w", DType::BF16, {2, 2}}});
  EXPECT_EQ(refusal_as(whole.build(), "dcp"), "");
  ModelCatalog with;
  with.shard("model.safetensors", {{"w", DType::BF16, {2, 2}}});
  with.part("2_Dense/", folder.build());
  const auto catalog = with.build();
  EXPECT_THAT(refusal_as(catalog, "dcp"), HasSubstr("2_Dense/"));
  EXPECT_THAT(refusal_as(catalog, "megatron-torch-dist"), HasSubstr("2_Dense/"));
  for (const ViewSummary& view : list_views(catalog)) {
    if (view.name == kDcpView) {
      EXPECT_FALSE(view.obstacles.empty());
    }
  }
}

TEST(DcpView, IsRefusedWhereTorchHasNoSuchDtype) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"a", DType::BF16, {2}}, {"b", DType::F4, {2}}});
  EXPECT_THAT(refusal_as(model.build(), "dcp"), HasSubstr("torch has no dtype F4"));
}

TEST(DcpView, UnderATrainersNamesIsRefusedWithoutRules) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"w", DType::BF16, {2, 2}}});
  model.config(R"({"model_type": "bert"})");
  EXPECT_THAT(refusal_as(model.build(), "dcp@names=torchtitan"),
              HasSubstr("no rules lead from this model to torchtitan's names (model_type bert;"));
}

TEST(DcpView, UnderATrainersNamesHasItsLayoutOfExperts) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"w", DType::BF16, {2, 2}}});
  EXPECT_THAT(refusal_as(model.build(), "dcp@experts=fused,names=torchtitan"),
              HasSubstr("leave experts=fused out"));
}

}  // namespace
}  // namespace ckfs
