// What the weight files of a directory are: a model's shards, adapters, slices of ranks, others.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/dcp_sharding.h"
#include "source/file_role.h"
#include "source/numbered_files.h"
#include "source/opened.h"
#include "source/safetensors_files.h"
#include "source/torch_writer.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

std::vector<std::string> names_in(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : catalog.tensors()) names.emplace_back(tensor.name);
  return names;
}

/// The files that parts are shown as.
std::vector<std::string> parts_of(const Catalog& catalog) {
  std::vector<std::string> paths;
  for (const CatalogPart& part : catalog.parts()) {
    for (const Shard& shard : part.catalog->shards()) {
      paths.push_back(part.directory + shard.path);
    }
  }
  return paths;
}

std::vector<std::string> side_files_of(const Catalog& catalog) {
  std::vector<std::string> paths;
  for (const SourceFile& file : catalog.model().side_files) paths.push_back(file.path);
  return paths;
}

std::string fact_of(const Catalog& catalog, std::string_view subject) {
  for (const Note& fact : catalog.facts()) {
    if (fact.subject == subject) return fact.text;
  }
  return "";
}

std::string torch_file_text(const std::string& name) {
  TorchWriter writer;
  return writer.file(py_dict({{name, writer.tensor("Float", {1}, "abcd")}}));
}

std::string index_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string map;
  for (const auto& [name, file] : entries) {
    map += fmt::format("{}\"{}\":\"{}\"", map.empty() ? "" : ",", name, file);
  }
  return fmt::format("{{\"weight_map\":{{{}}}}}", map);
}

/// A safetensors file of one F32 tensor, and what its header says of it.
std::string slice_of(const std::string& name, const std::vector<std::int64_t>& begin,
                     const std::vector<std::int64_t>& shape, const std::string& data) {
  const std::vector<safetensors::TensorHead> heads{{name, DType::F32, shape}};
  const std::vector<safetensors::MetadataEntry> metadata{
      {"DCP_SHARDING_INFO",
       fmt::format(R"({{"{}":{{"saved_offsets":[{}]}}}})", name, fmt::join(begin, ","))},
      {"DCP_VERSION", "1.0"}};
  return safetensors::render_header(heads, metadata) + data;
}

// ---- adapters

TEST(FileRole, KnowsAdaptersByTheirNames) {
  for (const char* name : {"adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors",
                           "pytorch_lora_weights.safetensors", "x/pytorch_lora_weights.bin",
                           "my-LoRA.safetensors", "style_lora_rank_16.safetensors"}) {
    EXPECT_EQ(role_of(name), FileRole::Adapter) << name;
  }
  for (const char* name : {"model.safetensors", "exploration.safetensors", "adapted.bin",
                           "llama-lora-00001-of-00002.safetensors", "lora.gguf"}) {
    EXPECT_EQ(role_of(name), FileRole::Weights) << name;
  }
  EXPECT_EQ(role_of("adapter_config.json"), FileRole::AdapterConfig);
}

TEST(Adapter, BesideAModelIsAPartOfItsOwnNameAndNoShard) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"w"}}));
  directory.write("config.json", "{}");
  directory.write("adapter_model.safetensors", file_of({{"w.lora_A"}, {"w.lora_B"}}));
  directory.write("adapter_model.bin", torch_file_text("old"));
  directory.write("adapter_config.json", "{}");
  directory.write("pytorch_lora_weights.bin", torch_file_text("other"));
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_in(*opened.catalog), ElementsAre("w"));
  EXPECT_THAT(parts_of(*opened.catalog),
              ElementsAre("adapter_model.safetensors", "pytorch_lora_weights.safetensors"));
  EXPECT_THAT(side_files_of(*opened.catalog), ElementsAre("adapter_config.json"));
  EXPECT_EQ(fact_of(*opened.catalog, "adapter_model.safetensors"),
            "an adapter, 2 tensors of its own");
  EXPECT_EQ(notes_by_subject(*opened.catalog).at("adapter_model.bin"),
            "other weights; converted views leave it out");
}

TEST(Adapter, BesideAModelOfTorchLeavesTheModelWhatItIs) {
  const TemporaryDirectory directory;
  directory.write("pytorch_model.bin", torch_file_text("w"));
  directory.write("config.json", "{}");
  directory.write("adapter_model.safetensors", file_of({{"w.lora_A"}}));
  directory.write("adapter_config.json", "{}");
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_EQ(opened.catalog->kind(), "torch_file");
  EXPECT_THAT(names_in(*opened.catalog), ElementsAre("w"));
  EXPECT_THAT(parts_of(*opened.catalog), ElementsAre("adapter_model.safetensors"));
  EXPECT_THAT(side_files_of(*opened.catalog), ElementsAre("adapter_config.json"));
}

TEST(Adapter, AloneSaysOfWhichModelItIs) {
  const TemporaryDirectory directory;
  directory.write("adapter_model.safetensors", file_of({{"w.lora_A"}}));
  const auto said = [&](const char* config) {
    directory.write("adapter_config.json", config);
    const Opened opened = open_source(directory.path());
    return opened.catalog == nullptr ? "" : fact_of(*opened.catalog, "adapter_config.json");
  };
  EXPECT_EQ(said(R"({"peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B"})"),
            "a LoRA adapter of meta-llama/Llama-3.1-8B, without that model; converted as it is");
  EXPECT_EQ(
      said(R"({"peft_type": "IA3"})"),
      "an adapter (IA3) of a model that it does not name, without that model; converted as it "
      "is");
  EXPECT_EQ(said("no JSON"),
            "an adapter of a model that it does not name, without that model; converted as it is");
  directory.write("model.safetensors", file_of({{"w"}}));
  directory.write("config.json", "{}");
  EXPECT_EQ(said("{}"), "") << "beside its model it says itself";
}

TEST(Adapter, AloneKeepsItsNameAndConfiguration) {
  for (const bool is_torch : {false, true}) {
    const TemporaryDirectory directory;
    directory.write(is_torch ? "adapter_model.bin" : "adapter_model.safetensors",
                    is_torch ? torch_file_text("w.lora_A") : file_of({{"w.lora_A"}}));
    directory.write("adapter_config.json", "{}");
    directory.write("optimizer.pt", torch_file_text("state"));
    const Opened opened = open_source(directory.path());
    ASSERT_NE(opened.catalog, nullptr);
    EXPECT_THAT(names_in(*opened.catalog), IsEmpty());
    EXPECT_THAT(parts_of(*opened.catalog), ElementsAre("adapter_model.safetensors"));
    EXPECT_THAT(side_files_of(*opened.catalog), ElementsAre("adapter_config.json"));
  }
}

TEST(Adapter, InAFolderHasItsConfigurationThere) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"w"}}));
  directory.write("lora/adapter_model.safetensors", file_of({{"w.lora_A"}}));
  directory.write("lora/adapter_config.json", "{}");
  directory.write("none/adapter_config.json", "{}");
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(parts_of(*opened.catalog), ElementsAre("lora/adapter_model.safetensors"));
  EXPECT_THAT(side_files_of(*opened.catalog), ElementsAre("lora/adapter_config.json"));
  EXPECT_EQ(notes_by_subject(*opened.catalog).at("none/adapter_config.json"),
            "of an adapter that is not here; converted views leave it out");
}

TEST(Adapter, ThatIsBrokenBesideAModelIsAnError) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"w"}}));
  directory.write("adapter_model.safetensors", file_of({{"w.lora_A"}}).substr(0, 20));
  EXPECT_THAT(error_of(directory.path()), HasSubstr("adapter_model.safetensors: cut short"));
}

TEST(Adapter, OfTheIndexIsAShard) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors.index.json",
                  index_of({{"a", "./lora.safetensors"}, {"b", "model.safetensors"}}));
  directory.write("lora.safetensors", file_of({{"a"}}));
  directory.write("model.safetensors", file_of({{"b"}}));
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_in(*opened.catalog), ElementsAre("a", "b"));
  EXPECT_THAT(parts_of(*opened.catalog), IsEmpty());
}

// ---- slices of ranks

TEST(RankFiles, AreSlicesWhereTheirSeriesHasSeveral) {
  using Names = std::vector<std::string>;
  EXPECT_THAT(find_slices(Names{"consolidated.00.pth", "params.json"}), IsEmpty());
  EXPECT_THAT(
      find_slices(Names{"consolidated.00.pth", "consolidated.01.pth"}),
      UnorderedElementsAre(Pair("consolidated.00.pth",
                                "slices of 2 ranks of tensor parallelism (consolidated.*.pth)"),
                           Pair("consolidated.01.pth",
                                "slices of 2 ranks of tensor parallelism (consolidated.*.pth)")));
  EXPECT_THAT(find_slices(Names{"consolidated.03.pth"}),
              ElementsAre(Pair("consolidated.03.pth",
                               "a slice of one rank of several (consolidated.*.pth)")));
  EXPECT_EQ(find_slices(Names{"model-rank-0-part-0.safetensors", "model-rank-1-part-0.safetensors"})
                .size(),
            2U);
  EXPECT_EQ(find_slices(Names{"rank0.safetensors", "rank1.safetensors"}).size(), 2U);
  EXPECT_THAT(find_slices(Names{"model_rank_16.safetensors", "model_rank_32.safetensors"}),
              IsEmpty());
  EXPECT_THAT(find_slices(Names{"consolidated-00001-of-00002.safetensors", "consolidated.pth",
                                "frank0.pt", "frank1.pt", "zero_pp_rank_0_x.pt",
                                "mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"}),
              IsEmpty());
}

TEST(RankFiles, AreRefusedInTheDirectoryAndAlone) {
  const TemporaryDirectory directory;
  directory.write("consolidated.00.pth", torch_file_text("w"));
  EXPECT_EQ(error_of(directory.path()), "(no error)");
  EXPECT_EQ(error_of(directory / "consolidated.00.pth"), "(no error)");
  directory.write("consolidated.01.pth", torch_file_text("w"));
  for (const fs::path& path : {directory.path(), directory / "consolidated.00.pth"}) {
    EXPECT_EQ(error_of(path),
              "consolidated.00.pth: slices of 2 ranks of tensor parallelism "
              "(consolidated.*.pth), which ckfs does not join (convert them to one model first)");
  }
}

TEST(RankFiles, BesideAModelAreNamedAndLeftOut) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"w"}}));
  directory.write("rank0.safetensors", file_of({{"v"}}));
  directory.write("rank1.safetensors", file_of({{"v"}}));
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_in(*opened.catalog), ElementsAre("w"));
  EXPECT_EQ(notes_by_subject(*opened.catalog).at("rank1.safetensors"),
            "slices of 2 ranks of tensor parallelism (rank*.safetensors); converted views leave "
            "it out");
}

// ---- slices of DCP's

TEST(DcpSharding, GivesOffsetsByNameAndPassesOverWhatIsNew) {
  const auto offsets = parse_dcp_sharding(
      R"({"a":{"new":[{"x":[1,-2]}],"saved_offsets":[0,5]},"b":{"saved_offsets":[]}})", "f");
  ASSERT_TRUE(offsets) << offsets.error().message();
  EXPECT_THAT(*offsets, ElementsAre(Pair("a", ElementsAre(0, 5)), Pair("b", IsEmpty())));
}

TEST(DcpSharding, IsRefusedWhereItIsSomethingElse) {
  for (const char* text : {"[]", "{", R"({"a":[0]})", R"({"a":{"saved_offsets":0}})",
                           R"({"a":{"saved_offsets":[-1]}})", R"({"a":{"saved_offsets":[[1]]}})",
                           R"({"a":{"saved_offsets":{}}})", R"({"a":{"saved_offsets":["1"]}})",
                           R"({"a":{"saved_offsets":[1]},"a":{"saved_offsets":[1]}})", R"({"a":1})",
                           R"({"a":{"saved_offsets":[18446744073709551615]}})"}) {
    const auto offsets = parse_dcp_sharding(text, "f");
    EXPECT_FALSE(offsets) << text;
    if (offsets) continue;
    EXPECT_THAT(offsets.error().message(), testing::StartsWith("f: ")) << text;
  }
}

class Slices : public testing::Test {
 protected:
  void write(int rank, const std::string& name, const std::vector<std::int64_t>& begin,
             const std::vector<std::int64_t>& shape) const {
    std::int64_t elements = 1;
    for (const std::int64_t extent : shape) elements *= extent;
    directory_.write(fmt::format("shard-{:05}-model-00001-of-00001.safetensors", rank),
                     slice_of(name, begin, shape, std::string(4 * elements, 'x')));
  }

  const TemporaryDirectory directory_;
};

TEST_F(Slices, AlongTheFirstDimensionAreOneStorage) {
  write(1, "w", {0, 0}, {2, 3});
  write(2, "w", {2, 0}, {1, 3});
  const Opened opened = open_source(directory_.path());
  ASSERT_NE(opened.catalog, nullptr);
  const StoredTensor& tensor = opened.catalog->tensor(0);
  EXPECT_THAT(tensor.shape, ElementsAre(3, 3));
  EXPECT_THAT(tensor.boxes, IsEmpty());
  const auto extents = opened.catalog->storage(tensor).extents;
  ASSERT_EQ(extents.size(), 2U);
  EXPECT_EQ(extents[0].nbytes, 24U);
  EXPECT_EQ(extents[1].nbytes, 12U);
  EXPECT_FALSE(opened.catalog->mirrors_shards());
  EXPECT_EQ(fact_of(*opened.catalog, "slices"), "2 in 2 files, joined to 1 tensors");
}

TEST_F(Slices, AlongOthersAreBoxes) {
  write(1, "w", {0, 0}, {2, 2});
  write(2, "w", {0, 2}, {2, 1});
  const Opened opened = open_source(directory_.path());
  ASSERT_NE(opened.catalog, nullptr);
  const StoredTensor& tensor = opened.catalog->tensor(0);
  EXPECT_THAT(tensor.shape, ElementsAre(2, 3));
  ASSERT_EQ(tensor.boxes.size(), 2U);
  EXPECT_THAT(tensor.boxes[1].begin, ElementsAre(0, 2));
  EXPECT_THAT(tensor.boxes[1].count, ElementsAre(2, 1));
  EXPECT_THAT(tensor.boxes[1].stride, ElementsAre(1, 1));
}

TEST_F(Slices, ThatAreMissingAreNamed) {
  write(1, "w", {0, 0}, {2, 3});
  write(3, "w", {4, 0}, {2, 3});
  EXPECT_EQ(error_of(directory_.path()),
            "tensor \"w\": 6 of its 18 elements are in none of the 2 files, from row 2 to 3 "
            "(shard-00002-* is not here)");
  write(2, "w", {0, 3}, {1, 1});
  EXPECT_THAT(error_of(directory_.path()), HasSubstr("11 of its 24 elements are in none"));
}

TEST_F(Slices, ThatOverlapOrContradictAreRefused) {
  write(1, "w", {0, 0}, {2, 3});
  write(2, "w", {1, 0}, {2, 3});
  EXPECT_THAT(error_of(directory_.path()),
              HasSubstr("its slice at [1, 0] overlaps that at [0, 0]"));
  write(2, "w", {0, 0}, {2, 3});
  EXPECT_THAT(error_of(directory_.path()),
              HasSubstr("its slice at [0, 0] overlaps that at [0, 0]"));
  write(2, "w", {2}, {3});
  EXPECT_THAT(error_of(directory_.path()), HasSubstr("a slice of F32 in 1 dimensions, but in"));
  write(2, "w", {9223372036854775807, 0}, {1, 3});
  EXPECT_THAT(error_of(directory_.path()), HasSubstr("a slice of 1 that begins at 9223372036854"));
  write(2, "w", {4611686018427387904, 0}, {1, 3});
  EXPECT_THAT(error_of(directory_.path()), HasSubstr("its slices make no possible shape"));
}

TEST_F(Slices, OfOneRankAloneAreNeverTheWhole) {
  write(1, "w", {0, 0}, {2, 3});
  EXPECT_THAT(error_of(directory_ / "shard-00001-model-00001-of-00001.safetensors"),
              HasSubstr("open the directory that has those of all ranks"));
}

// ---- what headers and indexes say

TEST(HeaderMetadata, IsKeptButForItsFormatAndOnceForShardsThatSayTheSame) {
  const TemporaryDirectory directory;
  const std::vector<std::int64_t> shape{1};
  const auto write = [&](const std::string& path, const std::string& name,
                         const std::vector<safetensors::MetadataEntry>& metadata) {
    const std::vector<safetensors::TensorHead> heads{{name, DType::F32, shape}};
    directory.write(path, safetensors::render_header(heads, metadata) + "abcd");
  };
  write("a.safetensors", "a", {{"modelspec.title", "x"}, {"quantization_level", "8"}});
  write("b.safetensors", "b", {{"modelspec.title", "x"}, {"quantization_level", "8"}});
  write("c.safetensors", "c", {});
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  const auto shards = opened.catalog->shards();
  ASSERT_EQ(shards.size(), 3U);
  ASSERT_NE(shards[0].metadata, nullptr);
  EXPECT_THAT(*shards[0].metadata,
              ElementsAre(Pair("modelspec.title", "x"), Pair("quantization_level", "8")));
  EXPECT_EQ(shards[1].metadata, shards[0].metadata);
  EXPECT_EQ(shards[2].metadata, nullptr);
  EXPECT_THAT(notes_by_subject(*opened.catalog),
              ElementsAre(Pair("a.safetensors",
                               "its header's metadata (modelspec.title, quantization_level) is in "
                               "views whose files mirror the source's, and dropped in others")));
}

TEST(HfIndexOfAModel, WithATensorThatIsInNoFileShowsTheOthersAndNamesIt) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors.index.json", index_of({{"a", "a.safetensors"},
                                                            {"b", "b.safetensors"},
                                                            {"mtp.fc.weight", "b.safetensors"}}));
  directory.write("a.safetensors", file_of({{"a"}}));
  directory.write("b.safetensors", file_of({{"b"}}));
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_in(*opened.catalog), ElementsAre("a", "b"));
  EXPECT_THAT(opened.catalog->obstacles(), IsEmpty());
  EXPECT_EQ(fact_of(*opened.catalog, "missing tensors"),
            "1 that model.safetensors.index.json names are in no file, the first of them "
            "\"mtp.fc.weight\"");
  EXPECT_EQ(notes_by_subject(*opened.catalog).at("mtp.fc.weight"),
            "missing: model.safetensors.index.json says that it is in b.safetensors; no view has "
            "it");
}

TEST(HfIndexOfAModel, WithAMissingPartOfAQuantizedWeightIsAnObstacle) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors.index.json",
                  index_of({{"m.weight", "a.safetensors"},
                            {"m.weight_scale_inv", "a.safetensors"},
                            {"m.weight_zero_point", "a.safetensors"}}));
  directory.write("a.safetensors", file_of({{"m.weight", DType::F8E4M3, {128, 128}},
                                            {"m.weight_scale_inv", DType::F32, {1, 1}}}));
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  ASSERT_EQ(opened.catalog->obstacles().size(), 1U);
  EXPECT_EQ(opened.catalog->obstacles()[0].tensor, "m.weight_zero_point");
  EXPECT_EQ(opened.catalog->obstacles()[0].reason, "missing, and its module is quantized");
}

TEST(TorchIndex, WithManyNamesOfOneFileOpensItOnce) {
  const TemporaryDirectory directory;
  TorchWriter writer;
  std::vector<std::pair<std::string, Opcodes>> tensors;
  std::vector<std::pair<std::string, std::string>> entries;
  constexpr int kNames = 300;
  for (int i = 0; i < kNames; ++i) {
    tensors.emplace_back(fmt::format("t{}", i), writer.tensor("Float", {1}, "abcd"));
    entries.emplace_back(fmt::format("t{}", i), fmt::format("link{}.bin", i));
  }
  directory.write("real.bin", writer.file(py_dict(tensors)));
  for (int i = 0; i < kNames; ++i) {
    fs::create_symlink("real.bin", directory / fmt::format("link{}.bin", i));
  }
  directory.write("pytorch_model.bin.index.json", index_of(entries));
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_EQ(opened.catalog->tensors().size(), std::size_t{kNames});
  for (const Note& note : opened.catalog->notes()) {
    EXPECT_THAT(note.text, testing::Not(HasSubstr("the index does not put it there")))
        << note.subject;
  }
}

}  // namespace
}  // namespace ckfs
