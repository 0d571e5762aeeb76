#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "container/view_files.h"
#include "support/model_catalog.h"
#include "support/naive_view.h"

namespace ckfs {
namespace {

using testing::ElementsAre;

struct LaidOutModel {
  std::unique_ptr<ModelCatalog> model;
  std::shared_ptr<const Definition> definition;
  std::unique_ptr<const ViewFiles> listed;
  std::vector<FileLayout> files;
};

LaidOutModel laid_out_model(ModelCatalog model, std::string_view spelling) {
  LaidOutModel result{std::make_unique<ModelCatalog>(std::move(model)), nullptr, nullptr, {}};
  result.definition = define(result.model->build(), spelling);
  auto listed = ViewFiles::create(result.definition, result.model->source());
  EXPECT_TRUE(listed) << listed.error().message();
  result.listed = std::move(*listed);
  for (std::size_t i = 0; i < result.listed->size(); ++i) {
    result.files.push_back(result.listed->lay_out(i));
  }
  return result;
}

ModelCatalog state() {
  ModelCatalog model;
  model.state({{"steps", DType::I64, {1}, false, Role::Buffer},
               {"empty", DType::F32, {0, 5}},
               {"embed", DType::F32, {5}},
               {"bias", DType::BF16, {3}},
               {"head", DType::F32, {5}, false, Role::Weight, "embed"}});
  return model;
}

TEST(TorchZip, HasTheTensorsInTheViewsOrder) {
  const LaidOutModel view = laid_out_model(state(), "fp32-consolidated@format=bin");
  ASSERT_EQ(view.files.size(), 1U);
  const FileLayout& file = view.files[0];
  EXPECT_EQ(file.path, "pytorch_model.bin");
  EXPECT_EQ(view.listed->facts(0).tensors, 5U);
  EXPECT_EQ(view.listed->facts(0).exactness, Exactness::Exact);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < file.segments.size(); ++i) {
    if (file.segments[i].kind != Segment::Kind::Tensor) continue;
    names.emplace_back(view.definition->tensors[file.segments[i].id].name);
    EXPECT_EQ(file.segments[i].begin % 64, 0U);
  }
  // Another name is in the pickle only; a tensor without elements is a member without data.
  EXPECT_THAT(names, ElementsAre("steps", "embed", "bias"));
  EXPECT_THAT(view.listed->tensors(0), ElementsAre(0, 1, 2, 3, 4));
}

TEST(TorchZip, IsAZipOfWhatItShows) {
  LaidOutModel view = laid_out_model(state(), "fp32-consolidated@format=bin");
  const auto bytes = naive_file(view.files[0], view.model->source());
  ASSERT_TRUE(bytes) << bytes.error().message();
  EXPECT_EQ(bytes->size(), view.files[0].size);
  const std::string text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  EXPECT_EQ(text.substr(0, 4), "PK\3\4");
  for (const char* member : {"data.pkl", "data/0", "data/3", "version", ".data/serialization_id"}) {
    EXPECT_NE(text.find(std::string("pytorch_model/") + member), std::string::npos) << member;
  }
  EXPECT_EQ(text.find("pytorch_model/data/4"), std::string::npos);
}

TEST(TorchZip, NamesTheIndexOfItsShards) {
  LaidOutModel view = laid_out_model(state(), "fp32-consolidated@format=bin,max_shard=20");
  std::vector<std::string> paths;
  for (const FileLayout& file : view.files) paths.push_back(file.path);
  EXPECT_THAT(paths,
              ElementsAre("pytorch_model-00001-of-00003.bin", "pytorch_model-00002-of-00003.bin",
                          "pytorch_model-00003-of-00003.bin", "pytorch_model.bin.index.json"));
  // Bytes that two names share are counted once.
  EXPECT_THAT(view.files[3].render(0), testing::HasSubstr("\"total_size\": 40\n"));
}

TEST(TorchZip, NamesAreTextsOfPython) {
  const auto create = [](const std::string& name) {
    ModelCatalog model;
    model.state({{name, DType::F32, {4}}, {"w", DType::F32, {4}}});
    const auto definition = define(model.build(), "fp32-consolidated@format=bin,max_shard=1");
    const auto listed = ViewFiles::create(definition, model.source());
    return listed ? std::string() : listed.error().message();
  };
  EXPECT_EQ(create("\xed\xa0\x80"), "");
  EXPECT_THAT(create("\xe0"), testing::HasSubstr("a name that is not UTF-8"));
}

TEST(TorchZip, KeepsAFewHundredTextsInOneLiteral) {
  ModelCatalog model;
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 600; ++i) {
    tensors.push_back({fmt::format("t{}", i), DType::F32, {i % 3}});
  }
  model.state(tensors);
  LaidOutModel view = laid_out_model(std::move(model), "fp32-consolidated@format=bin");
  const FileLayout& file = view.files[0];
  EXPECT_EQ(file.literals.size(), 3U + 3U);
  std::uint64_t next = 0;
  for (std::size_t i = 0; i < file.segments.size(); ++i) {
    const ByteRange range = file.range(i);
    EXPECT_EQ(range.begin, next);
    EXPECT_FALSE(range.empty());
    const Segment& segment = file.segments[i];
    if (segment.kind == Segment::Kind::Literal) {
      EXPECT_LE(segment.source_offset + range.size(), file.literals[segment.id]);
    }
    next = range.end;
  }
  EXPECT_EQ(next, file.size);
  EXPECT_TRUE(naive_file(file, view.model->source()));
}

}  // namespace
}  // namespace ckfs
