// The index against one that Python's json wrote (tests/data/format/make.py). Broken ones:
// malformed_test.cc.
#include "format/hf_index.h"

#include <gtest/gtest.h>

#include "support/test_data.h"

namespace ckfs {
namespace {

std::uint64_t measured(const std::vector<IndexName>& names, std::uint64_t total_size) {
  HfIndexMeasure measure;
  for (auto name = names.rbegin(); name != names.rend(); ++name) measure.add(*name);
  return measure.nbytes(total_size);
}

TEST(HfIndex, IsWrittenAsPythonWritesIt) {
  const std::string text = read_test_data("format/index.json");
  const auto index = parse_hf_index(text, "index.json");
  ASSERT_TRUE(index) << index.error().message();
  std::vector<IndexName> names;
  for (std::size_t i = 0; i < index->size(); ++i) {
    names.push_back({(*index)[i].name, index->files()[(*index)[i].file]});
  }
  EXPECT_EQ(render_hf_index(names, 12345678901234), text);
  EXPECT_EQ(measured(names, 12345678901234), text.size());
}

TEST(HfIndex, EscapesWhatIsNoTextAsPythonDoes) {
  // json.dumps of b"\xed\xa0\x80" (surrogatepass), of b"a\xe0" and b"\xf0\x90\x80"
  // (surrogateescape).
  const std::vector<IndexName> names = {{"\xed\xa0\x80", "a\xe0"}, {"w", "\xf0\x90\x80"}};
  const std::string text = render_hf_index(names, 0);
  EXPECT_NE(text.find(R"("\ud800": "a\udce0")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("w": "\udcf0\udc90\udc80")"), std::string::npos) << text;
  EXPECT_EQ(measured(names, 0), text.size());
}

TEST(HfIndex, FindsTheFileOfATensorWhateverTheOrderInTheText) {
  const std::string text =
      R"({"weight_map": {"z": "2.safetensors", "\u0061\u00e9": "1.safetensors", "m": "sub/3.st"}, "metadata":
          {"weight_map": {"no": 1}, "total": [1, {}]}})";
  const auto index = parse_hf_index(text, "index.json");
  ASSERT_TRUE(index) << index.error().message();
  for (std::size_t from = 0; from <= 4; ++from) {
    std::size_t near = from;
    EXPECT_EQ(index->files()[*index->find("z", near)], "2.safetensors");
    EXPECT_EQ(near, 2U);
    EXPECT_EQ(index->files()[*index->find("aé", near = from)], "1.safetensors");
    EXPECT_EQ(index->files()[*index->find("m", near = from)], "sub/3.st");
    EXPECT_FALSE(index->find("no", near = from));
    EXPECT_EQ(near, 2U);
    EXPECT_FALSE(index->find("", near = from));
  }
  EXPECT_EQ((*index)[0].name, "aé");
  EXPECT_EQ(index->files().size(), 3U);
}

TEST(HfIndex, OfNoTensorsIsStillAnIndex) {
  EXPECT_EQ(render_hf_index({}, 0),
            "{\n  \"metadata\": {\n    \"total_size\": 0\n  },\n  \"weight_map\": {}\n}\n");
}

TEST(HfIndex, LimitsHowManyNamesItHolds) {
  std::string text = "{\"weight_map\":{";
  for (std::size_t i = 0; i <= kMaxIndexNames; ++i) text += fmt::format("\"{}\":\"f\",", i);
  text += "\"x\":\"f\"}}";
  const auto index = parse_hf_index(text, "index.json");
  ASSERT_FALSE(index);
  EXPECT_EQ(index.error().message(), "index.json: more than 1000000 names");
}

}  // namespace
}  // namespace ckfs
