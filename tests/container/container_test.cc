// What every container must hold, on models that differ in all that a container sees. A new one is
// a line in kForms.
#include "container/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <set>

#include "container/view_files.h"
#include "support/model_catalog.h"
#include "support/naive_view.h"

namespace ckfs {
namespace {

/// A container, by a view that has it, or by a view of which it takes the tensors.
struct Form {
  const char* name;
  const char* view;
  std::optional<ArrayStorage> orbax = {};
  bool dcp = false;
  std::uint64_t max_chunk = 0;  // of a DCP checkpoint: cut into runs of rows alone
};

constexpr Form kForms[] = {
    {"SafetensorsMirrored", "bf16-safetensors"},
    {"SafetensorsSplit", "fp32-consolidated@max_shard=64"},
    {"SafetensorsSingle", "fp32-consolidated"},
    {"TorchZipSplit", "fp32-consolidated@format=bin,max_shard=64"},
    {"TorchZipSingle", "fp32-consolidated@format=bin"},
    {"SideFilesOnly", "source"},
    {"OrbaxOcdbt", "fp32-consolidated", ArrayStorage::Ocdbt},
    {"OrbaxZarr3", "fp32-consolidated", ArrayStorage::Zarr3},
    {"OrbaxZarr2", "bf16-safetensors", ArrayStorage::Zarr2},
    {"Dcp", "fp32-consolidated", {}, true},
    {"DcpRunsOfElements", "fp32-consolidated", {}, true, 64},
    {"DcpRunsOfRows", "bf16-safetensors", {}, true, 24},
};

class AnyContainer : public testing::TestWithParam<Form> {
 protected:
  /// Other names, tensors without elements, scalars, buffers, and files beside them.
  static ModelCatalog model() {
    ModelCatalog model;
    if (std::string_view(GetParam().view).starts_with("fp32")) {
      model.state({{"steps", DType::I64, {1}, false, Role::Buffer},
                   {"none", DType::F32, {0, 5}},
                   {"embed", DType::F32, {5}},
                   {"bias", DType::BF16, {3}},
                   {"scalar", DType::F16, {}},
                   {"head", DType::F32, {5}, false, Role::Weight, "embed"},
                   {"large", DType::F32, {40}},
                   {"none too", DType::BF16, {0}}});
    } else {
      model.shard("b.safetensors", {{"z", DType::F32, {7}}, {"a", DType::U8, {3}}});
      model.shard("a.safetensors", {{"w", DType::F8E4M3, {4, 4}, true}, {"none", DType::F32, {0}}});
      model.shard("none.safetensors", {});
    }
    model.config("{\"torch_dtype\": \"float32\"}");
    model.side_file("tokenizer/vocab.txt", "a b c");
    model.side_file("empty.txt", "");
    return model;
  }

  void SetUp() override {
    definition_ = define(model_.build(), GetParam().view);
    if (GetParam().orbax) definition_ = as_item(*definition_, GetParam());
    if (GetParam().dcp) definition_ = as_item(*definition_, GetParam());
    auto containers = make_containers(definition_, model_.source());
    ASSERT_TRUE(containers) << containers.error().message();
    containers_ = *std::move(containers);
  }

  /// In an Orbax item with all that one may have, or a DCP checkpoint; cut into chunks.
  static std::shared_ptr<const Definition> as_item(const Definition& from, const Form& form) {
    auto definition = std::make_shared<Definition>();
    definition->spec = from.spec;
    definition->catalog = from.catalog;
    definition->tensors = from.tensors;
    definition->texts = from.texts;
    definition->side_files = from.side_files;
    if (form.dcp) {
      definition->packaging.container = ContainerKind::Dcp;
      definition->packaging.dcp = {.directory = "release/"};
      if (form.max_chunk > 0) definition->packaging.dcp.max_chunk = form.max_chunk;
    } else {
      definition->packaging.container = ContainerKind::Orbax;
      definition->packaging.orbax = {.storage = *form.orbax,
                                     .directory = "0/items/",
                                     .step = true,
                                     .empty_dicts = {"opt_state"}};
    }
    for (ModelTensor& tensor : definition->tensors) {
      if (tensor.expr.shape().empty() || form.max_chunk > 0) continue;
      tensor.split = static_cast<std::uint32_t>(definition->splits.size());
      definition->splits.emplace_back(tensor.expr.shape().size(), 1);
      if (tensor.expr.shape()[0] > 0) definition->splits.back()[0] = tensor.expr.shape()[0];
    }
    return definition;
  }

  template <typename Use>
  void for_each_file(Use use) {
    for (const auto& container : containers_) {
      for (std::size_t i = 0; i < container->size(); ++i) use(*container, i);
    }
  }

  static std::uint64_t end_of(const FileLayout& layout, std::size_t segment, std::uint64_t size) {
    return segment + 1 < layout.segments.size() ? layout.segments[segment + 1].begin : size;
  }

  ModelCatalog model_ = model();
  std::shared_ptr<const Definition> definition_;
  std::vector<std::shared_ptr<const Container>> containers_;
};

TEST_P(AnyContainer, CoversEveryFileFromItsFirstByteToItsSize) {
  for_each_file([](const Container& container, std::size_t file) {
    SCOPED_TRACE(container.path(file));
    const FileLayout layout = container.lay_out(file);
    const std::uint64_t size = container.facts(file).size;
    EXPECT_EQ(layout.segments.empty(), size == 0);
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < layout.segments.size(); ++i) {
      EXPECT_EQ(layout.segments[i].begin, next);
      next = end_of(layout, i, size);
      EXPECT_GT(next, layout.segments[i].begin);
    }
    EXPECT_EQ(next, size);
  });
}

TEST_P(AnyContainer, GivesEachTensorItsBytesWhereTheFileSaysSo) {
  std::vector<std::uint64_t> shown(definition_->tensors.size(), 0);  // bytes of each
  std::set<std::uint32_t> seen;
  for_each_file([&](const Container& container, std::size_t file) {
    SCOPED_TRACE(container.path(file));
    FileLayout layout = container.lay_out(file);
    layout.definition = definition_;
    const std::vector<std::uint32_t> ids = container.tensors(file);
    EXPECT_EQ(container.facts(file).tensors, ids.size());
    Exactness least = Exactness::BitExact;
    for (const std::uint32_t id : ids) {
      least = std::max(least, definition_->tensors.at(id).exactness);
    }
    EXPECT_EQ(container.facts(file).exactness, least);
    seen.insert(ids.begin(), ids.end());
    // Segments have those tensors and no others, in that order.
    auto expected = ids.begin();
    for (std::size_t i = 0; i < layout.segments.size(); ++i) {
      if (layout.segments[i].kind != Segment::Kind::Tensor) continue;
      const std::uint32_t id = layout.tensor(layout.segments[i].id);
      expected = std::find(expected, ids.end(), id);
      ASSERT_NE(expected, ids.end()) << definition_->tensors.at(id).name;
      const std::uint64_t bytes = layout.expr(layout.segments[i].id).nbytes();
      EXPECT_EQ(bytes, end_of(layout, i, container.facts(file).size) - layout.segments[i].begin);
      shown[id] += bytes;
    }
  });
  EXPECT_EQ(seen.size(), definition_->tensors.size());
  for (std::size_t id = 0; id < shown.size(); ++id) {
    const ModelTensor& tensor = definition_->tensors[id];
    if (shown[id] == 0 && tensor.same_as != ModelTensor::kNone) continue;  // those of another
    EXPECT_EQ(shown[id], tensor.expr.nbytes()) << tensor.name;
  }
}

TEST_P(AnyContainer, RendersLiteralsOfTheMeasuredSizeAndAlwaysTheSame) {
  for_each_file([](const Container& container, std::size_t file) {
    SCOPED_TRACE(container.path(file));
    const FileLayout layout = container.lay_out(file);
    const FileLayout again = container.lay_out(file);
    ASSERT_EQ(layout.literals, again.literals);
    std::vector<std::uint64_t> used(layout.literals.size(), 0);
    for (std::size_t i = 0; i < layout.segments.size(); ++i) {
      const Segment& segment = layout.segments[i];
      if (segment.kind != Segment::Kind::Literal) continue;
      ASSERT_LT(segment.id, layout.literals.size());
      EXPECT_EQ(segment.source_offset, used[segment.id]) << "pieces come in order, each once";
      used[segment.id] += end_of(layout, i, container.facts(file).size) - segment.begin;
    }
    EXPECT_EQ(used, layout.literals);
    for (std::uint32_t id = 0; id < layout.literals.size(); ++id) {
      const std::string text = layout.render(id);
      EXPECT_EQ(text.size(), layout.literals[id]);
      EXPECT_EQ(text, again.render(id));
    }
  });
}

TEST_P(AnyContainer, NamesEachFileOnceAndTheSameEachTime) {
  const auto again = make_containers(definition_, model_.source());
  ASSERT_TRUE(again);
  ASSERT_EQ(again->size(), containers_.size());
  std::set<std::string> paths;
  for (std::size_t c = 0; c < containers_.size(); ++c) {
    ASSERT_EQ((*again)[c]->size(), containers_[c]->size());
    for (std::size_t i = 0; i < containers_[c]->size(); ++i) {
      const std::string path = containers_[c]->path(i);
      EXPECT_EQ((*again)[c]->path(i), path);
      EXPECT_EQ((*again)[c]->tensors(i), containers_[c]->tensors(i));
      EXPECT_TRUE(paths.insert(path).second) << path;
      EXPECT_FALSE(path.empty() || path.starts_with('/') || path.ends_with('/')) << path;
      EXPECT_EQ(path.find("//"), std::string::npos) << path;
    }
  }
}

TEST_P(AnyContainer, IsKeptAliveByItsLayouts) {
  const auto files = ViewFiles::create(definition_, model_.source());
  ASSERT_TRUE(files) << files.error().message();
  std::vector<std::shared_ptr<const FileLayout>> layouts;
  for (std::size_t i = 0; i < (*files)->size(); ++i) layouts.push_back((*files)->layout(i));
  containers_.clear();
  definition_.reset();
  for (const auto& layout : layouts) {
    const auto bytes = naive_file(*layout, model_.source());
    ASSERT_TRUE(bytes) << layout->path << ": " << bytes.error().message();
    EXPECT_EQ(bytes->size(), layout->size);
  }
}

INSTANTIATE_TEST_SUITE_P(Container, AnyContainer, testing::ValuesIn(kForms),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace ckfs
