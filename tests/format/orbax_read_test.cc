#include "format/orbax_read.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <set>

#include "format/orbax_metadata.h"
#include "support/cost_limit.h"

namespace ckfs::orbax {
namespace {

Result<std::vector<TreeLeaf>> leaves_of(std::string_view text, ItemFlags* flags = nullptr) {
  std::vector<TreeLeaf> all;
  const auto read = parse_item_metadata(text, "_METADATA", [&](TreeLeaf leaf) -> Result<void> {
    all.push_back(std::move(leaf));
    return {};
  });
  if (!read) return Failure(read.error());
  if (flags != nullptr) *flags = *read;
  return all;
}

TEST(ItemMetadata, IsReadAsOrbaxWritesIt) {
  ItemFlags flags;
  const auto leaves = leaves_of(
      R"j({"tree_metadata": {"('a',)": {"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": {"value_type": "jax.Array", "skip_deserialize": false, "write_shape": [8]}}, "('b', '0')": {"key_metadata": [{"key": "b", "key_type": 2}, {"key": "0", "key_type": 1}], "value_metadata": {"value_type": "Dict", "skip_deserialize": true}}}, "use_ocdbt": true, "use_zarr3": true, "store_array_data_equal_to_fill_value": true, "custom_metadata": {"n": [1, NaN, "}"], "x": null}, "value_metadata_tree": "{}"})j",
      &flags);
  ASSERT_TRUE(leaves) << leaves.error().message();
  ASSERT_EQ(leaves->size(), 2U);
  EXPECT_EQ(joined((*leaves)[0].path), "a");
  EXPECT_EQ((*leaves)[0].value_type, "jax.Array");
  EXPECT_FALSE((*leaves)[0].skip_deserialize);
  EXPECT_EQ((*leaves)[1].path, (std::vector<PathKey>{{"b", false}, {"0", true}}));
  EXPECT_TRUE((*leaves)[1].skip_deserialize);
  EXPECT_EQ(flags.use_ocdbt, true);
  EXPECT_TRUE(flags.use_zarr3);
  EXPECT_TRUE(flags.missing_chunk_is_error);
  EXPECT_EQ(flags.custom_metadata, R"({"n": [1, NaN, "}"], "x": null})");
}

TEST(ItemMetadata, IsReadAsItIsWritten) {
  const std::vector<Leaf> leaves{
      {"a.b", Leaf::Kind::Array},
      {"x", Leaf::Kind::Scalar},
      {"", Leaf::Kind::Other, std::string_view("ka.\"b\0i3\0", 9), "None"}};
  for (const std::string_view custom : {"", "[1, 2]", "7", "\"text\"", "true"}) {
    ItemFlags flags;
    const auto read = leaves_of(render_metadata(leaves, {}, custom), &flags);
    ASSERT_TRUE(read) << read.error().message();
    ASSERT_EQ(read->size(), 3U);
    EXPECT_EQ((*read)[0].path, (std::vector<PathKey>{{"a", false}, {"b", false}}));
    EXPECT_EQ((*read)[1].value_type, "scalar");
    EXPECT_EQ((*read)[2].path, (std::vector<PathKey>{{"a.\"b", false}, {"3", true}}));
    EXPECT_TRUE((*read)[2].skip_deserialize);
    EXPECT_EQ(flags.custom_metadata, custom);
    EXPECT_EQ(measure_metadata(leaves, {}, custom), render_metadata(leaves, {}, custom).size());
  }
}

TEST(ItemMetadata, ABareLeafHasNoKeys) {
  const auto leaves = leaves_of(
      R"j({"tree_metadata":{"()":{"key_metadata":[],"value_metadata":{"value_type":"scalar"}}}})j");
  ASSERT_TRUE(leaves) << leaves.error().message();
  EXPECT_TRUE((*leaves)[0].path.empty());
}

std::string tree(std::string_view leaf) {
  return fmt::format(R"j({{"tree_metadata":{{"leaf":{}}}}})j", leaf);
}

TEST(ItemMetadata, SaysWhatIsWrong) {
  const std::string value = R"("value_metadata":{"value_type":"scalar"})";
  const std::string keys = R"("key_metadata":[{"key":"a","key_type":2}])";
  const std::string deep = R"({"tree_metadata":{},"x":)" + std::string(80, '[') + "}";
  std::string many = R"({"key_metadata":[)";
  for (int i = 0; i < 65; ++i) many += R"({"key":"a","key_type":2},)";
  const std::vector<std::pair<std::string, std::string>> broken{
      {"", "not JSON, only white space"},
      {"[]", "not a JSON object"},
      {"{}", "no member tree_metadata"},
      {R"({"tree_metadata":{})", "not JSON: "},
      {R"({"tree_metadata":[]})", "tree_metadata is not an object"},
      {R"({"tree_metadata":7})", "tree_metadata is not an object"},
      {R"({"tree_metadata":{},"tree_metadata":{}})", "tree_metadata comes twice"},
      {R"({"tree_metadata":{"x":{"key_metadata":[],"key_metadata":[]}}})",
       "\"x\": key_metadata comes twice"},
      {R"({"tree_metadata":{"x":{"value_metadata":{},"value_metadata":{}}}})",
       "\"x\": value_metadata comes twice"},
      {R"({"tree_metadata":{},"use_ocdbt":"yes"})", "use_ocdbt is not a boolean"},
      {R"({"tree_metadata":{},"use_zarr3":1})", "use_zarr3 is not a boolean"},
      {deep, "nested more than 64 deep"},
      {tree("3"), R"("leaf" is not an object)"},
      {tree("[]"), R"("leaf" is not an object)"},
      {tree("{" + value + "}"), "no key_metadata"},
      {tree("{" + keys + "}"), "no value_type"},
      {tree("{" + keys + R"(,"value_metadata":[]})"), "value_metadata is not an object"},
      {tree("{" + keys + R"(,"value_metadata":5})"), "value_metadata is not an object"},
      {tree("{" + keys + R"(,"value_metadata":{"value_type":5}})"), "value_type is not a string"},
      {tree(R"({"key_metadata":{},)" + value + "}"), "key_metadata is not a list"},
      {tree(R"({"key_metadata":7,)" + value + "}"), "key_metadata is not a list"},
      {tree(R"({"key_metadata":["a"],)" + value + "}"), "a key that is not an object"},
      {tree(R"({"key_metadata":[["a"]],)" + value + "}"), "a key that is not an object"},
      {tree(R"({"key_metadata":[{"key_type":2}],)" + value + "}"), "a key without a name"},
      {tree(R"({"key_metadata":[{"key":3,"key_type":2}],)" + value + "}"),
       "a key that is not a string"},
      {tree(R"({"key_metadata":[{"key":"a","key_type":3}],)" + value + "}"),
       "a key_type that is neither 1 nor 2"},
      {tree(many + R"({"key":"a","key_type":2}],)" + value + "}"), "more than 64 keys"},
      {"{\"tree_metadata\":{\"\xff\":{}}}", "is not UTF-8"},
  };
  for (const auto& [text, error] : broken) {
    const CostLimit limit(text.size());
    const auto read = leaves_of(text);
    ASSERT_FALSE(read) << error;
    EXPECT_NE(read.error().message().find(error), std::string::npos)
        << read.error().message() << " has no " << error;
    EXPECT_TRUE(read.error().message().starts_with("_METADATA: "));
  }
}

TEST(MsgpackTree, IsReadAsFlaxWritesIt) {
  using Kind = MsgpackLeaf::Kind;
  // {"a": {"b": [placeholder, 2 int16]}, "e": {}, "l": [], "n": None, "t": "text", "i": 7}
  const std::string array = std::string("\x93\x91\x02\xa5int16\xc4\x04", 11) + "wxyz";
  std::string text = std::string("\x86\xa1") + "a\x81\xa1" + "b\x92\xb1PLACEHOLDER://a.b";
  text += std::string("\xc7") + static_cast<char>(array.size()) + "\1" + array;
  text += std::string("\xa1") + "e\x80\xa1l\x90\xa1n\xc0\xa1t\xa4text\xa1i\x07";
  const auto leaves = parse_msgpack_tree(text, "checkpoint");
  ASSERT_TRUE(leaves) << leaves.error().message();
  ASSERT_EQ(leaves->size(), 7U);
  EXPECT_EQ((*leaves)[0].kind, Kind::Placeholder);
  EXPECT_EQ((*leaves)[0].text, "a.b");
  EXPECT_EQ((*leaves)[0].path, (std::vector<PathKey>{{"a", false}, {"b", false}, {"0", true}}));
  EXPECT_EQ((*leaves)[1].kind, Kind::Array);
  EXPECT_EQ((*leaves)[1].dtype, DType::I16);
  EXPECT_EQ((*leaves)[1].shape, (std::vector<std::int64_t>{2}));
  EXPECT_EQ(text.substr((*leaves)[1].bytes.begin, (*leaves)[1].bytes.size()), "wxyz");
  EXPECT_EQ((*leaves)[2].kind, Kind::Dict);
  EXPECT_EQ((*leaves)[3].kind, Kind::List);
  EXPECT_EQ((*leaves)[4].kind, Kind::None);
  EXPECT_EQ((*leaves)[5].text, "text");
  EXPECT_EQ((*leaves)[6].kind, Kind::Other);
}

// [2] of each, as numpy names it.
TEST(MsgpackTree, KnowsEachDtypeOfNumpy) {
  const std::vector<std::pair<std::string, DType>> all{
      {"bool", DType::Bool},     {"uint8", DType::U8},       {"int8", DType::I8},
      {"uint16", DType::U16},    {"int16", DType::I16},      {"uint32", DType::U32},
      {"int32", DType::I32},     {"uint64", DType::U64},     {"int64", DType::I64},
      {"float16", DType::F16},   {"float32", DType::F32},    {"float64", DType::F64},
      {"complex64", DType::C64}, {"complex128", DType::C128}};
  for (const auto& [name, dtype] : all) {
    const std::string bytes(nbytes(dtype, 2).value(), 'x');
    std::string array = "\x93\x91\x02";
    array += static_cast<char>(0xa0 + name.size());
    array += name + "\xc4" + static_cast<char>(bytes.size()) + bytes;
    const std::string text =
        std::string("\x81\xa1") + "a\xc7" + static_cast<char>(array.size()) + "\1" + array;
    const auto leaves = parse_msgpack_tree(text, "checkpoint");
    ASSERT_TRUE(leaves) << name << ": " << leaves.error().message();
    ASSERT_EQ(leaves->size(), 1U) << name;
    EXPECT_EQ((*leaves)[0].dtype, dtype) << name;
    EXPECT_EQ(text.substr((*leaves)[0].bytes.begin, (*leaves)[0].bytes.size()), bytes) << name;
  }
}

TEST(MsgpackTree, SaysWhatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> broken{
      {"", "byte "},
      {"\x81\xa1", "byte "},
      {std::string("\xc1"), "byte "},
      {std::string(100000, '\x91'), "nested more than 64 deep"},
      {std::string("\xdd\0\x10\0\0", 5) + std::string(600000, '\xc0'),
       "leaves of more than 500000 keys"},
      {std::string("\xc7\1\1\x90", 4), "an array that is not [shape, dtype, bytes]"},
      {std::string("\xc7\x0c\1\x93\x91\x02\xa5int16\xc4\1w", 15), "1 bytes for [2] of int16"},
      // Of the second element of a list.
      {std::string("\x81\xa1x\x92\xc0\xc7\1\1\x90", 9), "\"x.1\": an array that is not"},
      {std::string("\x81\xa1x\x91\xc7\1\1\x90", 8), "\"x.0\": an array that is not"},
      {std::string("\x81\xa1\xff\xc0", 4), "a key that is not UTF-8"},
      {std::string("\xa1\xff", 2), "a text that is not UTF-8"},
      {std::string("\x81\xdb\0\x10\0\0", 6) + std::string(1 << 20, 'k') +
           std::string("\xdd\0\1\0\0", 5) + std::string(65536, '\xc0'),
       "leaves with keys of more than 34603"},
      {std::string("\x80\x80"), "byte "},
  };
  for (const auto& [text, error] : broken) {
    const CostLimit limit(text.size());
    const auto read = parse_msgpack_tree(text, "checkpoint");
    ASSERT_FALSE(read) << error;
    EXPECT_NE(read.error().message().find(error), std::string::npos)
        << read.error().message() << " has no " << error;
  }
}

}  // namespace
}  // namespace ckfs::orbax
