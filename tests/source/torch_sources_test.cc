// Torch files and DCP checkpoints that torch wrote: names, shapes, dtypes and bytes of every
// tensor.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

#include "chunks/inner_file_source.h"
#include "source/opened.h"
#include "source/torch_writer.h"
#include "support/golden_cases.h"
#include "support/naive_view.h"
#include "support/sha256.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kTorch = fs::path(CKFS_TEST_DATA) / "torch";

json expected_tensors(const std::string& name) {
  return read_json(kTorch / name / "expected.json")["tensors"]["safetensors"];
}

OpenCheckpointOptions with_key(std::string key) {
  return {.tag = {}, .key = std::move(key), .config = {}};
}

std::vector<std::string> tensor_names(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const TensorId id : catalog.shards()[0].tensors) {
    names.emplace_back(catalog.tensor(id).name);
  }
  return names;
}

void expect_tensors(const Opened& opened, const json& expected) {
  const Catalog& catalog = *opened.catalog;
  InnerFileSource source(*opened.files, catalog.inner_files());
  EXPECT_FALSE(catalog.mirrors_shards());
  ASSERT_EQ(catalog.shards().size(), 1U);
  EXPECT_EQ(catalog.shards()[0].tensors.size(), expected.size());
  for (const TensorId id : catalog.shards()[0].tensors) {
    const StoredTensor& tensor = catalog.tensor(id);
    const std::string name(tensor.name);
    ASSERT_TRUE(expected.contains(name)) << name;
    const json& want = expected[name];
    EXPECT_EQ(ckfs::name(catalog.storage(tensor).dtype), std::string(want["dtype"])) << name;
    EXPECT_EQ(std::vector(tensor.shape.begin(), tensor.shape.end()),
              want["shape"].get<std::vector<std::int64_t>>())
        << name;
    const auto bytes = naive_tensor(catalog, source, TensorExpr::stored(catalog, id));
    ASSERT_TRUE(bytes) << bytes.error().message();
    EXPECT_EQ(sha256(*bytes), std::string(want["sha256"])) << name;
  }
}

class GoldenTorch : public testing::TestWithParam<std::string> {};

TEST_P(GoldenTorch, HasTheTensorsOfTorch) {
  expect_tensors(open_source(kTorch / GetParam() / "source"), expected_tensors(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTorch, testing::ValuesIn(case_names(kTorch)),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace_if(
                               name, [](unsigned char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

TEST(OpenTorchFile, AFileIsACheckpointWhateverItsName) {
  const TemporaryDirectory directory;
  for (const std::string name : {"legacy.pt", "pytorch_model.bin"}) {
    const fs::path copy = directory / ("no-ending-" + name.substr(0, 3));
    fs::copy(kTorch / "written-by-torch-1.13" / "source" / name, copy);
    const Opened opened = open_source(copy);
    EXPECT_EQ(opened.catalog->kind(), "torch_file");
    expect_tensors(opened, expected_tensors("written-by-torch-1.13"));
  }
}

TEST(OpenTorchFile, SharedTensorsAreAliasesAndViewsKeepTheirOwnRuns) {
  const Opened opened = open_source(kTorch / "zip-views" / "source");
  const Catalog& catalog = *opened.catalog;
  const auto named = [&](std::string_view name) -> const StoredTensor& {
    return catalog.tensor(catalog.find(name).value());
  };
  EXPECT_TRUE(named("alias").alias);
  EXPECT_EQ(named("alias").storage, named("base").storage);
  EXPECT_FALSE(named("row").alias);
  EXPECT_THAT(named("row").boxes, IsEmpty());  // row 3 of 11 x 13
  const Extent base = catalog.storage(named("base")).extents[0];
  const Extent row = catalog.storage(named("row")).extents[0];
  EXPECT_EQ(row.offset, base.offset + 3 * 13 * 4);
  EXPECT_EQ(row.nbytes, 13U * 4);
  EXPECT_EQ(named("transposed").boxes.size(), 1U);
  EXPECT_EQ(named("transposed").storage, named("base").storage);
  EXPECT_FALSE(named("transposed").alias);
}

TEST(OpenTorchFile, AWrappedStateDictIsFoundAndTheRestNamed) {
  const fs::path file = kTorch / "zip-wrapped-training-checkpoint" / "source" / "checkpoint.ckpt";
  const Opened opened = open_source(file);
  EXPECT_THAT(tensor_names(*opened.catalog),
              ElementsAre("module.a.weight", "module.a.bias", "module.b"));
  EXPECT_THAT(notes_by_subject(*opened.catalog)["epoch"], HasSubstr("a number"));
  EXPECT_THAT(notes_by_subject(*opened.catalog)["args"], HasSubstr("argparse.Namespace"));
  EXPECT_THAT(notes_by_subject(*opened.catalog)["optimizer"], HasSubstr("a dictionary"));
}

TEST(OpenTorchFile, KeysMayHaveDotsThemselves) {
  const TemporaryDirectory directory;
  TorchWriter torch;
  const auto tensor = [&] { return torch.tensor("Float", {1}, "abcd"); };
  const Opcodes a = tensor(), b = tensor(), c = tensor();
  directory.write(
      "x.pt", torch.file(py_dict({{"net.g", py_dict({{"w", a}, {"extra", py_dict({{"v", b}})}})},
                                  {"net", py_dict({{"g.h", py_dict({{"u", c}})}})}})));
  const auto names = [&](const std::string& key) {
    return tensor_names(*open_source(directory / "x.pt", with_key(key)).catalog);
  };
  EXPECT_THAT(names("net.g"), ElementsAre("w"));
  EXPECT_THAT(names("net.g.extra"), ElementsAre("v"));
  EXPECT_THAT(names("net.g.h"), ElementsAre("u"));
  for (const char* key : {"net.g.extra.", "net..g", ".net", "net.g.i"}) {
    EXPECT_THAT(error_of(directory / "x.pt", with_key(key)), HasSubstr("no key")) << key;
  }
}

TEST(OpenTorchFile, AKeyChoosesADictionary) {
  const fs::path file = kTorch / "zip-wrapped-training-checkpoint" / "source" / "checkpoint.ckpt";
  EXPECT_THAT(tensor_names(*open_source(file, with_key("state_dict")).catalog),
              ElementsAre("module.a.weight", "module.a.bias", "module.b"));
  const Opened moments = open_source(file, with_key("optimizer.state"));
  EXPECT_THAT(tensor_names(*moments.catalog), testing::Contains("0.exp_avg"));
  EXPECT_THAT(tensor_names(*open_source(file, with_key("optimizer.state.0")).catalog),
              testing::Contains("exp_avg"));
  EXPECT_THAT(error_of(file, with_key("optimizer.state.00")), HasSubstr("no key"));
  EXPECT_THAT(error_of(file, with_key("weights")),
              HasSubstr(R"(checkpoint.ckpt: no key "weights" (it has "epoch")"));
  EXPECT_THAT(error_of(file, with_key("epoch")),
              HasSubstr("a number, not a dictionary of tensors"));
}

TEST(OpenTorchFile, ConfigBesideAFileMakesAModelDirectory) {
  const TemporaryDirectory directory;
  fs::copy(kTorch / "zip-crc-zero" / "source" / "pytorch_model.bin", directory / "model.pt");
  EXPECT_FALSE(open_source(directory / "model.pt").catalog->model().config);
  directory.write("config.json", R"({"architectures": ["X"]})");
  directory.write("vocab.txt", "a");
  directory.write("optimizer.pt", "not looked at");
  for (const fs::path& path : {directory / "model.pt", directory.path()}) {
    const Opened opened = open_source(path);
    EXPECT_THAT(opened.catalog->model().config.value_or(""), HasSubstr("architectures"));
    ASSERT_EQ(opened.catalog->model().side_files.size(), 1U);
    EXPECT_EQ(opened.catalog->model().side_files[0].path, "vocab.txt");
  }
}

TEST(OpenTorchFile, OfTheFilesBesideItOnlyThoseOfAModelAreShown) {
  const TemporaryDirectory directory;
  fs::copy(kTorch / "zip-crc-zero" / "source" / "pytorch_model.bin", directory / "model.pt");
  directory.write("config.json", R"({"auto_map": {"AutoModel": "modeling_x.XModel",)"
                                 R"("AutoTokenizer": ["tokenization_x.XTokenizer", null]}})");
  const std::vector<std::string> shown = {"LICENSE",        "README.md",  "generation_config.json",
                                          "modeling_x.py",  "merges.txt", "tokenization_x.py",
                                          "tokenizer.json", "vocab.json", "tokenizer_config.json",
                                          "x.tiktoken"};
  for (const std::string& name : shown) directory.write(name, "a");
  for (const char* name :
       {"id_rsa", "notes.txt", "secrets.json", "train.py", "results.csv", "vocab.txt.bak"}) {
    directory.write(name, "mine");
  }
  for (const char* name : {"tokenizer/secret.json", "LICENSE.d/id_rsa", "x/vocab.json"}) {
    directory.write(name, "mine");
  }
  const auto side_files = [](const Opened& opened) {
    std::vector<std::string> found;
    for (const SourceFile& file : opened.catalog->model().side_files) found.push_back(file.path);
    return found;
  };
  EXPECT_THAT(side_files(open_source(directory.path())), testing::UnorderedElementsAreArray(shown));
  const Opened opened = open_source(directory / "model.pt");
  EXPECT_THAT(side_files(opened), testing::UnorderedElementsAreArray(shown));
  const auto& facts = opened.catalog->facts();
  // No other code of that directory is opened, or counts.
  for (int k = 0; k < 1100; ++k) directory.write(fmt::format("experiment{}.py", k), "");
  EXPECT_EQ(side_files(open_source(directory / "model.pt")), side_files(opened));
  EXPECT_TRUE(std::ranges::any_of(facts, [&](const Note& fact) {
    return fact.subject == "beside the source" &&
           fact.text.find("README.md") != std::string::npos &&
           fact.text.ends_with("taken from " + directory.path().string());
  })) << "inspect names what was taken from elsewhere";
}

TEST(OpenTorchFile, AQuantizedModelIsNotShownAsIfItWereNone) {
  const TemporaryDirectory directory;
  const auto opened_with = [&](const fs::path& file) {
    fs::copy(file, directory / "model.pt", fs::copy_options::overwrite_existing);
    directory.write("config.json", R"({"quantization_config": {"quant_method": "gptq"}})");
    return open_source(directory.path());
  };
  // Matrices of integers may be codes; a state of floats can have nothing of the kind.
  const fs::path dtypes = *fs::directory_iterator(kTorch / "zip-dtypes" / "source");
  const Opened integers = opened_with(dtypes);
  ASSERT_EQ(integers.catalog->obstacles().size(), 1U);
  EXPECT_THAT(integers.catalog->obstacles()[0].reason, HasSubstr("gptq"));
  EXPECT_EQ(integers.catalog->obstacles()[0].tensor, "config.json");
  const fs::path elsewhere = directory / "elsewhere/any.json";
  directory.write("elsewhere/any.json", R"({"quantization_config": {"quant_method": "awq"}})");
  const Opened named =
      open_source(directory / "model.pt", {.tag = {}, .key = {}, .config = elsewhere});
  ASSERT_EQ(named.catalog->obstacles().size(), 1U);
  EXPECT_EQ(named.catalog->obstacles()[0].tensor, elsewhere.string());
  const Opened floats = opened_with(kTorch / "zip-crc-zero" / "source" / "pytorch_model.bin");
  EXPECT_THAT(floats.catalog->obstacles(), IsEmpty());
  ASSERT_EQ(floats.catalog->notes().size(), 1U);
  EXPECT_THAT(floats.catalog->notes()[0].text, HasSubstr("says quantized by gptq"));
  TorchWriter torch;
  directory.write("freqs.pt", torch.file(py_dict({{"freqs", torch.tensor("ComplexDouble", {1, 1},
                                                                         std::string(16, 'x'))}})));
  const Opened complex = opened_with(directory / "freqs.pt");
  EXPECT_THAT(complex.catalog->obstacles(), IsEmpty());
}

TEST(OpenTorchFile, OnlyNamesNameTensors) {
  const TemporaryDirectory directory;
  TorchWriter torch;
  const auto tensor = [&] { return torch.tensor("Float", {1}, "wxyz"); };
  Opcodes dict = "}(";
  dict += py_int(7) + tensor();
  dict += "N" + tensor();     // None
  dict += "\x88" + tensor();  // True
  dict += py_tuple({py_int(1)}) + tensor();
  dict += "U\x01\xe0" + tensor();  // a str of Python 2
  directory.write("m.pt", torch.file(dict + "u"));
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(tensor_names(*opened.catalog), ElementsAre("7"));
  EXPECT_EQ(opened.catalog->notes().size(), 4U);

  TorchWriter nested;
  const auto below = [&] { return py_dict({{"w", nested.tensor("Float", {1}, "wxyz")}}); };
  directory.write("m.pt", nested.file("}(" + py_str("a") + below() + "N" + below() + "u"));
  const Opened second = open_source(directory.path());
  EXPECT_THAT(tensor_names(*second.catalog), ElementsAre("a.w"));
  EXPECT_EQ(second.catalog->notes().size(), 1U);
}

TEST(OpenTorchFile, AKeyThatComesTwiceHasItsLastValueAsInPython) {
  const TemporaryDirectory directory;
  TorchWriter torch;
  const Opcodes first = torch.tensor("Float", {1}, "wxyz");
  const Opcodes last = torch.tensor("Float", {2}, "abcdefgh");
  directory.write("m.pt", torch.file(py_dict({{"a", first}, {"b", first}, {"a", last}})));
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(tensor_names(*opened.catalog), ElementsAre("a", "b"));
  EXPECT_THAT(opened.catalog->tensor(*opened.catalog->find("a")).shape, ElementsAre(2));
}

TEST(OpenTorchFile, SeveralFilesWithoutAnIndexAreOnlyTakenAsASeries) {
  const fs::path source = kTorch / "sharded-bin" / "source";
  const TemporaryDirectory directory;
  fs::copy(source, directory / "series", fs::copy_options::recursive);
  fs::remove(directory / "series" / "pytorch_model.bin.index.json");
  expect_tensors(open_source(directory / "series"), expected_tensors("sharded-bin"));
  fs::remove(directory / "series" / "pytorch_model-00003-of-00007.bin");
  EXPECT_THAT(error_of(directory / "series"), HasSubstr("number 3 of 7 is missing"));

  fs::create_directory(directory / "two");
  fs::copy(source / "pytorch_model-00001-of-00007.bin", directory / "two" / "a.pt");
  fs::copy(source / "pytorch_model-00002-of-00007.bin", directory / "two" / "b.pt");
  EXPECT_THAT(error_of(directory / "two"), HasSubstr("several torch files: a.pt, b.pt"));
  // Zip files, too, but no torch files by their names.
  fs::copy(directory / "two" / "b.pt", directory / "two" / "stats.npz");
  fs::copy(directory / "two" / "b.pt", directory / "two" / "logs.zip");
  fs::rename(directory / "two" / "b.pt", directory / "two" / "optimizer.pt");
  EXPECT_EQ(error_of(directory / "two"), "(no error)");
}

TEST(OpenTorchFile, AnIndexMustBeTrue) {
  const TemporaryDirectory directory;
  const fs::path model = directory / "model";
  fs::copy(kTorch / "sharded-bin" / "source", model, fs::copy_options::recursive);
  const std::string index = "model/pytorch_model.bin.index.json";
  const std::string first = "pytorch_model-00001-of-00007.bin";
  directory.write(index, R"({"weight_map": {"layer.0.w": ")" + first + R"("}})");
  EXPECT_EQ(error_of(model), "(no error)");
  directory.write(index, R"({"weight_map": {"absent": ")" + first + R"("}})");
  EXPECT_THAT(error_of(model), HasSubstr(R"(tensor "absent": in pytorch_model.bin.index.json)"));
  directory.write(index, R"({"weight_map": {"layer.0.w": "gone.bin"}})");
  EXPECT_THAT(error_of(model), HasSubstr(R"(names "gone.bin", which is absent)"));
}

TEST(OpenTorchDcp, ShardsAlongTheFirstDimensionAreOneStorage) {
  const Opened opened = open_source(kTorch / "dcp-fsdp2-w2" / "source");
  const Catalog& catalog = *opened.catalog;
  EXPECT_EQ(catalog.kind(), "torch_dcp");
  const StoredTensor& tensor = catalog.tensor(catalog.find("layers.2.w0").value());
  EXPECT_THAT(tensor.boxes, IsEmpty());
  EXPECT_EQ(catalog.storage(tensor).extents.size(), 2U);
  EXPECT_THAT(notes_by_subject(catalog)["train_state.step"], HasSubstr("not a tensor"));
}

TEST(OpenTorchDcp, OneItemOfEachTensorIsOpened) {
  const Opened opened = open_source(kTorch / "dcp-hsdp-w4" / "source");
  const Catalog& catalog = *opened.catalog;
  std::size_t in_pieces = 0, opened_items = 0;
  for (const StoredTensor& tensor : catalog.tensors()) {
    std::size_t pieces = 0, known = 0;
    const auto count = [&](const Storage& storage) {
      for (const Extent& extent : storage.extents) {
        ++pieces;
        known += is_inner_file(extent.file) ? 0 : 1;
      }
    };
    if (tensor.boxes.empty()) count(catalog.storage(tensor));
    for (const StorageBox& box : tensor.boxes) count(catalog.storage(box.storage));
    in_pieces += pieces > 1 ? 1 : 0;
    opened_items += known;
    EXPECT_EQ(known, pieces == 0 ? 0 : 1) << tensor.name;
  }
  EXPECT_GT(in_pieces, 0U);
  EXPECT_GT(catalog.inner_files().count(), opened_items);
  for (std::uint64_t i = 1; i < catalog.inner_files().count(); ++i) {  // by file and offset
    const auto file = static_cast<FileId>(kFirstInnerFile + i);
    const FileRange before = catalog.inner_files().file(file - 1).stored;
    const FileRange stored = catalog.inner_files().file(file).stored;
    const std::string_view name = catalog.inner_files().file(file).tensor->name;
    EXPECT_TRUE(std::ranges::any_of(catalog.tensors(), [&](const StoredTensor& tensor) {
      return name.ends_with(tensor.name);
    })) << name;
    const FileRange place = catalog.place({file, 8, 4});
    EXPECT_EQ(std::tuple(place.file, place.offset, place.size),
              std::tuple(stored.file, stored.offset + 8, 4));
    EXPECT_LT(std::pair(before.file, before.offset), std::pair(stored.file, stored.offset));
  }
}

TEST(OpenTorchDcp, AGridIsOneBoxForEachChunk) {
  const Opened opened = open_source(kTorch / "dcp-hsdp-w4" / "source");
  std::size_t boxes = 0;
  for (const StoredTensor& tensor : opened.catalog->tensors()) {
    boxes = std::max(boxes, tensor.boxes.size());
  }
  EXPECT_EQ(boxes, 4U);
}

TEST(OpenTorchDcp, TensorsComeInTheOrderOfTheirNumbers) {
  const std::vector<std::string> names =
      tensor_names(*open_source(kTorch / "dcp-fsdp2-w2" / "source").catalog);
  EXPECT_THAT(names, ElementsAre("counter", "layers.0.w0", "layers.1.w0", "layers.2.w0",
                                 "layers.3.w0", "layers.4.w0", "layers.5.w0", "layers.6.w0",
                                 "layers.7.w0", "plain", "train_state.tags.1.deep"));
}

TEST(OpenTorchDcp, TheOptimizersFolderIsNotTheModels) {
  const fs::path source = kTorch / "dcp-accelerate-fsdp-folders-w2" / "source";
  const auto names = tensor_names(*open_source(source).catalog);
  EXPECT_THAT(names, testing::Contains("counter"));
  EXPECT_THAT(names, testing::Each(testing::Not(testing::HasSubstr("optim"))));
  EXPECT_EQ(tensor_names(*open_source(source, with_key("model")).catalog), names);
  EXPECT_THAT(error_of(source, with_key("mode")), HasSubstr("no tensors below the key"));
  EXPECT_THAT(error_of(source / "optimizer_0"),
              HasSubstr("open the model's directory beside it (or --key optimizer shows"));
  EXPECT_NE(open_source(source / "optimizer_0", with_key("optimizer")).catalog, nullptr);
  EXPECT_THAT(notes_by_subject(*open_source(source).catalog).at("optimizer_0/"),
              HasSubstr("--key optimizer"));
}

TEST(OpenTorchDcp, AStrayFileMakesNoCheckpointOfTheTop) {
  const TemporaryDirectory directory;
  const fs::path dcp = kTorch / "dcp-accelerate-fsdp-folders-w2" / "source" / "optimizer_0";
  fs::copy(dcp, directory / "optimizer_0", fs::copy_options::recursive);
  fs::copy(kTorch / ".." / "hf" / "llama-bf16" / "source", directory / "",
           fs::copy_options::recursive);
  directory.write(".metadata", "of something else");
  EXPECT_EQ(open_source(directory.path()).catalog->kind(), "safetensors");
}

TEST(OpenTorchDcp, AMissingPartIsNamed) {
  const TemporaryDirectory directory;
  const fs::path copy = directory / "dcp";
  fs::copy(kTorch / "dcp-fsdp2-w2" / "source", copy, fs::copy_options::recursive);
  fs::resize_file(copy / "__1_0.distcp", 5000);
  EXPECT_THAT(error_of(copy), HasSubstr("__1_0.distcp: tensor "));
  fs::remove(copy / "__1_0.distcp");
  EXPECT_THAT(error_of(copy), HasSubstr("__1_0.distcp: missing"));
  EXPECT_THAT(error_of(copy), HasSubstr("copy those of all nodes into one directory"));
  // What another node has.
  fs::remove(copy / ".metadata");
  for (const fs::path& path : {copy, directory.path()}) {
    EXPECT_THAT(error_of(path), HasSubstr("a part of a DCP checkpoint"));
    EXPECT_THAT(error_of(path), HasSubstr(".metadata is not here: it lies on the first node"));
  }
}

TEST(OpenCheckpointOptions, AreRefusedWhereTheyMeanNothing) {
  const OpenCheckpointOptions tag{.tag = "step", .key = {}, .config = {}};
  EXPECT_THAT(error_of(kTorch / "zip-views" / "source", tag), HasSubstr("have tags"));
  EXPECT_THAT(error_of(kTorch / "dcp-fsdp2-w2" / "source", tag), HasSubstr("have tags"));
  const fs::path zero = kTorch / ".." / "deepspeed";
  EXPECT_THAT(error_of(zero / "zero2-bf16-w2" / "source", with_key("x")), HasSubstr("no key"));
  EXPECT_THAT(error_of(zero / "universal-from-zero2-w2" / "source", with_key("x")),
              HasSubstr("no key"));
  EXPECT_THAT(error_of(kTorch / ".." / "hf" / "llama-bf16" / "source", tag),
              HasSubstr("--tag does not go with"));
  const OpenCheckpointOptions config{.tag = {}, .key = {}, .config = kTorch};
  EXPECT_THAT(error_of(kTorch / "zip-views" / "source", config),
              HasSubstr("it has no config.json"));
}

}  // namespace
}  // namespace ckfs
