// The header against files that the real library wrote (tests/data/format/make.py), and the round
// trip of random ones. Broken headers: malformed_test.cc.
#include "format/safetensors.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <numeric>
#include <rapidcheck/gtest.h>

#include "base/checked.h"
#include "support/test_data.h"

namespace ckfs::safetensors {
namespace {

/// The header's text of a whole file; EXPECTs that the length is right.
std::string_view header_text(std::string_view file) {
  const auto length = header_length(std::as_bytes(std::span(file.data(), file.size())), file.size(),
                                    "model.safetensors");
  EXPECT_TRUE(length) << length.error().message();
  return length ? file.substr(kLengthBytes, *length) : "";
}

std::vector<TensorHead> heads_of(const Header& header) {
  std::vector<TensorHead> heads;
  for (std::size_t i = 0; i < header.size(); ++i) {
    heads.push_back({header[i].name, header[i].dtype, header[i].shape});
  }
  return heads;
}

class RealFile : public testing::TestWithParam<const char*> {};

TEST_P(RealFile, IsWrittenAgainByteForByteFromItsTensorsInAnyOrder) {
  const std::string file = read_test_data(GetParam());
  const auto header = parse_header(header_text(file), file.size(), "model.safetensors");
  ASSERT_TRUE(header) << header.error().message();

  std::vector<TensorHead> heads = heads_of(*header);
  std::reverse(heads.begin(), heads.end());
  std::sort(heads.begin(), heads.end(), canonical_less);

  EXPECT_EQ(render_header(heads), file.substr(0, header->data_offset()));
  EXPECT_EQ(measure_header(heads), header->data_offset());
}

INSTANTIATE_TEST_SUITE_P(Safetensors, RealFile,
                         testing::Values("format/every_dtype.safetensors",
                                         "hf/llama-bf16/source/model-00001-of-00003.safetensors",
                                         "hf/llama-bf16/source/model-00003-of-00003.safetensors"));

TEST(SafetensorsHeader, TellsNamesDtypesShapesAndPlacesAsTheLibraryWroteThem) {
  const std::string file = read_test_data("format/every_dtype.safetensors");
  const auto header = parse_header(header_text(file), file.size(), "f");
  ASSERT_TRUE(header) << header.error().message();

  std::map<std::string, HeaderTensor, std::less<>> tensors;
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < header->size(); ++i) {
    const HeaderTensor tensor = (*header)[i];
    EXPECT_EQ(tensor.begin, end);
    end = tensor.end;
    tensors.emplace(tensor.name, tensor);
  }
  EXPECT_EQ(header->data_offset() + end, file.size());
  ASSERT_EQ(tensors.size(), 25U);

  const HeaderTensor& scalar = tensors.at("scalar");
  EXPECT_EQ(scalar.dtype, DType::F64);
  EXPECT_TRUE(scalar.shape.empty());
  EXPECT_EQ(scalar.end - scalar.begin, 8U);
  const HeaderTensor& zero = tensors.at("zero");
  EXPECT_EQ(zero.begin, zero.end);
  EXPECT_EQ(std::vector<std::int64_t>(zero.shape.begin(), zero.shape.end()),
            (std::vector<std::int64_t>{3, 0}));
  EXPECT_EQ(tensors.at("layers.11.weight").dtype, DType::BF16);
  // The value of each escaped name is stored in its one byte.
  const auto value = [&](std::string_view name) {
    const auto at = tensors.find(name);
    return at == tensors.end() ? -1 : file[header->data_offset() + at->second.begin];
  };
  EXPECT_EQ(value(""), 1);
  EXPECT_EQ(value("quote \" back \\ tab \t newline \n bell \x07 rubout \x7f"), 2);
  EXPECT_EQ(value("größe.重み.🙂"), 3);
}

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  // Leading and trailing white space, members nobody knows, any order of members and of data, an
  // empty model, sub-byte dtypes, metadata of any kind of string.
  const std::string text =
      " \n{\"b\" : {\"data_offsets\":[3,6],\"new\":{\"deep\":[1,{\"x\":null}]},\"shape\":[2,3],"
      "\"dtype\":\"F4\", \"more\": -1.5},\t\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[4],"
      "\"data_offsets\":[0,3]},\"__metadata__\":{\"\":\"\\u00e9\",\"format\":\"np\"}} \n ";
  const auto header = parse_header(text, kLengthBytes + text.size() + 6, "f");
  ASSERT_TRUE(header) << header.error().message();
  ASSERT_EQ(header->size(), 2U);
  EXPECT_EQ((*header)[0].name, "a");
  EXPECT_EQ((*header)[0].dtype, DType::F6E2M3);
  EXPECT_EQ((*header)[1].name, "b");
  EXPECT_EQ((*header)[1].dtype, DType::F4);

  const auto empty = parse_header("{}", kLengthBytes + 2, "f");
  ASSERT_TRUE(empty) << empty.error().message();
  EXPECT_EQ(empty->size(), 0U);
}

TEST(SafetensorsHeader, KeepsMetadataByKeyAndTheKeysOfWhatIsTooLarge) {
  const std::string large(kMaxKeptMetadata - 3, 'x');
  const std::string text =
      fmt::format(R"({{"__metadata__":{{"z":"\u00e9\n","large":"{}","b":"12","c":""}}}})", large);
  const auto header = parse_header(text, kLengthBytes + text.size(), "f");
  ASSERT_TRUE(header) << header.error().message();
  ASSERT_EQ(header->metadata().size(), 3U);
  EXPECT_EQ(header->metadata()[0], MetadataEntry("c", ""));
  EXPECT_EQ(header->metadata()[1].first, "large");
  EXPECT_EQ(header->metadata()[1].second, large);
  EXPECT_EQ(header->metadata()[2], MetadataEntry("z", "\u00e9\n"));
  ASSERT_EQ(header->metadata_not_kept().size(), 1U);
  EXPECT_EQ(header->metadata_not_kept()[0], "b");
}

TEST(SafetensorsHeader, IsWrittenWithMetadataAsTheLibraryEscapesIt) {
  // Of save_file() by safetensors 0.8, whose order of keys is another each time.
  const std::string_view text =
      "{\"__metadata__\":{\"format\":\"pt\",\"alpha\":\"2\\n\\\"\u00e9\u2028\x7f/\",\"m\":\"x\"},"
      "\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}";
  const std::vector<std::int64_t> shape{3};
  const std::vector<TensorHead> heads{{"w", DType::F32, shape}};
  const std::vector<MetadataEntry> metadata{{"alpha", "2\n\"\u00e9\u2028\x7f/"}, {"m", "x"}};
  const std::string written = render_header(heads, metadata);
  EXPECT_EQ(written.size() % 8, 0U);
  EXPECT_EQ(written.substr(kLengthBytes, text.size()), text);
  EXPECT_EQ(measure_header(heads, metadata), written.size());
}

TEST(SafetensorsHeader, DecodesEscapedNamesAndFindsThemEqualToPlainOnes) {
  const std::string member = ":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  const std::string good = "{\"\\u0061\\\"\"" + member + ",\"b\"" + member + "}";
  const auto header = parse_header(good, kLengthBytes + good.size(), "f");
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ((*header)[0].name, "a\"");

  const std::string twice = "{\"\\u0061\"" + member + ",\"a\"" + member + "}";
  const auto refused = parse_header(twice, kLengthBytes + twice.size(), "f");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "f: tensor \"a\": twice in the header");
}

TEST(SafetensorsHeader, EmptyTensorsStandBeforeTheTensorThatSharesTheirPlace) {
  const std::string text = R"({"full":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                           R"("z":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},)"
                           R"("y":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})";
  const auto header = parse_header(text, kLengthBytes + text.size() + 4, "f");
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ((*header)[0].name, "z");
  EXPECT_EQ((*header)[1].name, "full");
  EXPECT_EQ((*header)[2].name, "y");
}

RC_GTEST_PROP(SafetensorsHeader, ReadsBackWhatItWrites, ()) {
  struct Tensor {
    DType dtype;
    std::vector<std::int64_t> shape;
  };
  std::map<std::string, Tensor> model;
  const int count = *rc::gen::inRange(0, 20);
  for (int i = 0; i < count; ++i) {
    std::string name;
    for (const char c : *rc::gen::arbitrary<std::string>()) {
      if (static_cast<unsigned char>(c) < 0x80) name += c;
    }
    const auto dtype = static_cast<DType>(*rc::gen::inRange(0, kDTypeCount - 1));
    auto shape =
        *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 9));
    shape.resize(std::min<std::size_t>(shape.size(), 6));
    if (bits(dtype) < 8) shape.push_back(8);
    model[name + std::to_string(i)] = {dtype, shape};
  }
  std::vector<TensorHead> heads;
  std::uint64_t data = 0;
  for (const auto& [name, tensor] : model) heads.push_back({name, tensor.dtype, tensor.shape});
  std::sort(heads.begin(), heads.end(), canonical_less);
  for (const TensorHead& head : heads) data += data_size(head);

  const std::string bytes = render_header(heads);
  RC_ASSERT(bytes.size() == measure_header(heads));
  RC_ASSERT(bytes.size() % 8 == 0);
  const std::string_view text = header_text(bytes);
  const auto header = parse_header(text, bytes.size() + data, "f");
  RC_ASSERT(header.has_value());
  RC_ASSERT(header->data_offset() == bytes.size());
  RC_ASSERT(header->size() == model.size());
  for (std::size_t i = 0; i < header->size(); ++i) {
    const HeaderTensor tensor = (*header)[i];
    const Tensor& expected = model.at(std::string(tensor.name));
    RC_ASSERT(tensor.dtype == expected.dtype);
    RC_ASSERT(std::equal(tensor.shape.begin(), tensor.shape.end(), expected.shape.begin(),
                         expected.shape.end()));
  }
}

RC_GTEST_PROP(SafetensorsHeader, AFlippedByteIsAnErrorOrCoversTheSameData, ()) {
  static const std::string file =
      read_test_data("hf/llama-bf16/source/model-00002-of-00003.safetensors");
  std::string text(header_text(file));
  const auto at = *rc::gen::inRange<std::size_t>(0, text.size());
  text[at] = static_cast<char>(text[at] ^ (1 << *rc::gen::inRange(0, 8)));
  const auto header = parse_header(text, file.size(), "f");
  if (header) {
    RC_ASSERT(header->size() > 0U);
    RC_ASSERT(header->data_offset() + (*header)[header->size() - 1].end == file.size());
  } else {
    RC_ASSERT(header.error().code() == ErrorCode::Corrupt);
    RC_ASSERT(header.error().message().find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace ckfs::safetensors
