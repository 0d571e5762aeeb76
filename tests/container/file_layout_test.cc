#include "container/file_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <set>

#include "container/view_files.h"
#include "support/model_catalog.h"

namespace ckfs {
namespace {

using testing::ElementsAre;

struct LaidOut {
  std::unique_ptr<ModelCatalog> model;
  std::unique_ptr<const ViewFiles> listed;
  std::vector<FileLayout> files;

  const FileLayout& operator[](std::string_view path) const {
    for (const FileLayout& file : files) {
      if (file.path == path) return file;
    }
    ADD_FAILURE() << path << " is absent";
    return files.front();
  }
};

LaidOut laid_out(ModelCatalog model, std::string_view spelling) {
  LaidOut result{std::make_unique<ModelCatalog>(std::move(model)), nullptr, {}};
  auto listed = ViewFiles::create(define(result.model->build(), spelling), result.model->source());
  EXPECT_TRUE(listed) << listed.error().message();
  result.listed = std::move(*listed);
  for (std::size_t i = 0; i < result.listed->size(); ++i) {
    result.files.push_back(result.listed->lay_out(i));
  }
  return result;
}

std::string rendered(const FileLayout& file, std::size_t segment) {
  EXPECT_EQ(file.segments[segment].kind, Segment::Kind::Literal);
  return file.render(file.segments[segment].id);
}

ModelCatalog mixed_model() {
  ModelCatalog model;
  model.shard("model-1.safetensors", {{"b", DType::BF16, {3}},
                                      {"a", DType::BF16, {2, 2}},
                                      {"none", DType::F32, {4, 0}},
                                      {"i", DType::I64, {1}},
                                      {"s", DType::U8, {}}});
  model.shard("model-2.safetensors", {{"c", DType::F32, {2}}});
  model.config("{}");
  model.side_file("z/code.py", "print()");
  model.side_file("empty.txt", "");
  return model;
}

TEST(FileLayout, LaysTensorsAsSafetensorsWriterDoes) {
  const LaidOut files = laid_out(mixed_model(), "bf16-safetensors");
  const FileLayout& shard = files["model-1.safetensors"];
  // What safetensors 0.8 writes for these tensors: dtype descending, then names.
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
      R"("none":{"dtype":"BF16","shape":[4,0],"data_offsets":[22,22]},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[22,23]}})";
  const std::string header = rendered(shard, 0);
  EXPECT_EQ(header.substr(8, json.size()), json);
  EXPECT_EQ(header.size(), shard.literals[0]);
  EXPECT_EQ(header.size() % 8, 0u);
  EXPECT_EQ(shard.size, header.size() + 23);

  ASSERT_EQ(shard.segments.size(), 5u);  // the empty tensor has none
  std::vector<std::string> names;
  for (std::size_t i = 1; i < shard.segments.size(); ++i) {
    EXPECT_EQ(shard.segments[i].kind, Segment::Kind::Tensor);
    names.emplace_back(shard.definition->tensors[shard.segments[i].id].name);
  }
  EXPECT_THAT(names, ElementsAre("i", "a", "b", "s"));
  EXPECT_EQ(shard.segments[3].begin, header.size() + 16);
  const FileFacts facts = files.listed->facts(*files.listed->find(shard.path));
  EXPECT_EQ(facts.tensors, 5u);
  EXPECT_EQ(facts.exactness, Exactness::Lossy);  // F32 to BF16, if only of no element
}

TEST(FileLayout, WritesTheIndexOfAllShards) {
  const LaidOut files = laid_out(mixed_model(), "bf16-safetensors");
  const FileLayout& index = files["model.safetensors.index.json"];
  const std::string text = R"({
  "metadata": {
    "total_size": 27
  },
  "weight_map": {
    "a": "model-1.safetensors",
    "b": "model-1.safetensors",
    "c": "model-2.safetensors",
    "i": "model-1.safetensors",
    "none": "model-1.safetensors",
    "s": "model-1.safetensors"
  }
}
)";
  EXPECT_EQ(rendered(index, 0), text);
  EXPECT_EQ(index.size, text.size());
}

TEST(FileLayout, FindsTheSegmentOfAnOffset) {
  const LaidOut files = laid_out(mixed_model(), "bf16-safetensors");
  const FileLayout& shard = files["model-1.safetensors"];
  const std::uint64_t header = shard.literals[0];
  EXPECT_EQ(shard.find(0), 0u);
  EXPECT_EQ(shard.find(header - 1), 0u);
  EXPECT_EQ(shard.find(header), 1u);
  EXPECT_EQ(shard.find(header + 15), 2u);
  EXPECT_EQ(shard.find(header + 16), 3u);
  EXPECT_EQ(shard.find(shard.size - 1), 4u);
  EXPECT_EQ(shard.range(3), (ByteRange{header + 16, header + 22}));
  EXPECT_EQ(shard.range(4), (ByteRange{header + 22, shard.size}));
}

TEST(FileLayout, CutsTheFileAtTheBordersOfLargeTensors) {
  constexpr std::int64_t kMi = 1 << 20;
  ModelCatalog model;
  model.shard("model.safetensors", {{"a", DType::U8, {100}},
                                    {"b", DType::U8, {3 * kMi}},
                                    {"c", DType::U8, {256 * 1024}},
                                    {"d", DType::U8, {256 * 1024 - 1}},
                                    {"e", DType::U8, {kMi}},
                                    {"f", DType::U8, {0}}});
  const LaidOut files = laid_out(std::move(model), "bf16-safetensors");
  const FileLayout& shard = files["model.safetensors"];
  const std::uint64_t b = shard.literals[0] + 100;
  const std::uint64_t c = b + 3 * kMi;
  const std::uint64_t d = c + 256 * 1024;
  const std::uint64_t e = d + 256 * 1024 - 1;
  ASSERT_EQ(shard.size, e + kMi);
  EXPECT_THAT(shard.cuts, ElementsAre(b, c, d, e, shard.size));
  EXPECT_EQ(shard.tensor_at(0), (ByteRange{0, b}));  // header and small tensor
  EXPECT_EQ(shard.tensor_at(b - 1), (ByteRange{0, b}));
  EXPECT_EQ(shard.tensor_at(b), (ByteRange{b, c}));
  EXPECT_EQ(shard.tensor_at(d), (ByteRange{d, e}));
  EXPECT_EQ(shard.tensor_at(shard.size - 1), (ByteRange{e, shard.size}));
  EXPECT_EQ(shard.piece_at(0), (ByteRange{0, b}));
  EXPECT_EQ(shard.piece_at(b + 1), (ByteRange{b, kMi}));
  EXPECT_EQ(shard.piece_at(kMi), (ByteRange{kMi, 2 * kMi}));
  EXPECT_EQ(shard.piece_at(3 * kMi), (ByteRange{3 * kMi, c}));
  EXPECT_EQ(shard.piece_at(c), (ByteRange{c, d}));
  for (std::uint64_t next = 0; next < shard.size;) {  // no gap between pieces
    const ByteRange piece = shard.piece_at(next);
    ASSERT_EQ(piece.begin, next);
    ASSERT_GT(piece.end, next);
    EXPECT_EQ(shard.piece_at(piece.end - 1), piece);
    next = piece.end;
  }
}

TEST(FileLayout, HasASerialOfItsOwn) {
  std::set<std::uint64_t> serials;
  std::size_t count = 0;
  for (int i = 0; i < 3; ++i) {  // of one view, too, each time that it is laid out
    for (const FileLayout& file : laid_out(mixed_model(), "bf16-safetensors").files) {
      serials.insert(file.serial);
      ++count;
    }
  }
  EXPECT_EQ(serials.size(), count);
  EXPECT_NE(FileLayout().serial, FileLayout().serial);
}

TEST(FileLayout, GivesAFileWithoutBytesNoSegment) {
  const LaidOut files = laid_out(mixed_model(), "source");
  EXPECT_TRUE(files["empty.txt"].segments.empty());
  EXPECT_EQ(files["empty.txt"].size, 0u);
  const FileLayout& code = files["z/code.py"];
  ASSERT_EQ(code.segments.size(), 1u);
  EXPECT_EQ(code.segments[0].kind, Segment::Kind::File);
  EXPECT_EQ(code.size, 7u);
}

RC_GTEST_PROP(FileLayout, CoversEveryByteOnceAndLiteralsAreAsLongAsMeasured, ()) {
  ModelCatalog model;
  const int shards = *rc::gen::inRange(1, 4);
  int number = 0;
  for (int shard = 0; shard < shards; ++shard) {
    std::vector<TensorSpec> tensors;
    const int count = *rc::gen::inRange(0, 6);
    for (int i = 0; i < count; ++i) {
      const auto dtype = static_cast<DType>(*rc::gen::inRange(0, kDTypeCount - 1));
      auto shape =
          *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 9));
      shape.resize(std::min<std::size_t>(shape.size(), 3));
      shape.push_back(4);  // whole bytes for every dtype
      const auto text = *rc::gen::container<std::string>(rc::gen::inRange<char>(1, 127));
      tensors.push_back({fmt::format("{}{}", text, number++), dtype, shape});
    }
    model.shard(fmt::format("shard-{}.safetensors", shard), tensors);
  }
  const char* spelling = *rc::gen::element("bf16-safetensors", "fp32-consolidated", "source",
                                           "fp16-safetensors@max_shard=100");
  const LaidOut files = laid_out(std::move(model), spelling);
  for (const FileLayout& file : files.files) {
    std::uint64_t next = 0;
    for (std::size_t i = 0; i < file.segments.size(); ++i) {
      const ByteRange range = file.range(i);
      RC_ASSERT(range.begin == next);
      RC_ASSERT(!range.empty());
      RC_ASSERT(file.find(range.begin) == i);
      RC_ASSERT(file.find(range.end - 1) == i);
      const Segment& segment = file.segments[i];
      if (segment.kind == Segment::Kind::Literal) {
        const std::uint64_t size = file.literals[segment.id];
        RC_ASSERT(segment.source_offset + range.size() <= size);
        RC_ASSERT(file.render(segment.id).size() == size);
      } else if (segment.kind == Segment::Kind::Tensor) {
        RC_ASSERT(file.definition->tensors[segment.id].expr.nbytes() == range.size());
      }
      next = range.end;
    }
    RC_ASSERT(next == file.size);
  }
}

}  // namespace
}  // namespace ckfs
