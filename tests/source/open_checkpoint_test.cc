// Opening directories, files and hub caches: what belongs to a checkpoint, in which order, and what
// is noted or stands in the way. Broken ones: malformed_test.cc.
#include "source/open_checkpoint.h"

#include <chrono>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <set>

#include "base/checked.h"
#include "encoding/block_scale_encoding.h"
#include "format/safetensors.h"
#include "io/reader.h"
#include "source/opened.h"
#include "source/safetensors_files.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const fs::path kFixtures = fs::path(CKFS_TEST_DATA) / "hf";

std::vector<std::string> tensors_by_name(const Catalog& catalog, const Shard& shard) {
  std::vector<std::string> names;
  for (const TensorId id : shard.tensors) names.emplace_back(catalog.tensor(id).name);
  return names;
}

std::vector<std::string> paths_of(std::span<const SourceFile> files) {
  std::vector<std::string> paths;
  for (const SourceFile& file : files) paths.push_back(file.path);
  return paths;
}

std::map<std::string, std::string> obstacles_of(const Catalog& catalog) {
  std::map<std::string, std::string> obstacles;
  for (const auto list : {catalog.obstacles(), catalog.unscaled()}) {
    for (const Obstacle& obstacle : list) obstacles[obstacle.tensor] = obstacle.reason;
  }
  return obstacles;
}

const std::string kIndex = "model.safetensors.index.json";
const std::string kFp8 = R"({"quantization_config": {"quant_method": "fp8"}})";

TEST(OpenCheckpoint, ReadsAPlainModelWithAnIndex) {
  const Opened opened = open_source(kFixtures / "llama-bf16" / "source");
  const Catalog& catalog = *opened.catalog;
  EXPECT_EQ(catalog.kind(), "safetensors");
  EXPECT_FALSE(catalog.is_quantized());
  EXPECT_EQ(catalog.tensors().size(), 21U);
  ASSERT_EQ(catalog.shards().size(), 3U);
  EXPECT_EQ(catalog.shards()[0].path, "model-00001-of-00003.safetensors");
  EXPECT_THAT(catalog.obstacles(), IsEmpty());
  EXPECT_THAT(catalog.notes(), IsEmpty());
  EXPECT_THAT(paths_of(catalog.model().side_files),
              ElementsAre("generation_config.json", "tokenizer.json", "tokenizer_config.json"));
  EXPECT_THAT(*catalog.model().config, HasSubstr("LlamaForCausalLM"));
  EXPECT_EQ(catalog.files().size(), 8U);

  const auto id = catalog.find("model.norm.weight");
  ASSERT_TRUE(id);
  EXPECT_EQ(catalog.tensor(*id).name, "model.norm.weight");
  EXPECT_EQ(catalog.value_dtype(*id), DType::BF16);
  EXPECT_FALSE(catalog.find("model.norm.weigh"));
  EXPECT_FALSE(catalog.find("zzz"));
}

TEST(OpenCheckpoint, PlacesEveryTensorWhereItsBytesAre) {
  const fs::path directory = kFixtures / "deepseek-v3-fp8" / "source";
  const Opened opened = open_source(directory);
  const Catalog& catalog = *opened.catalog;
  // Every byte behind the headers belongs to exactly one tensor, of the file that holds it.
  std::map<FileId, std::map<std::uint64_t, std::uint64_t>> covered;
  for (const StoredTensor& tensor : catalog.tensors()) {
    const Storage& storage = catalog.storage(tensor);
    EXPECT_EQ(storage.numel, checked_numel(tensor.shape));
    for (const Extent& extent : storage.extents) {
      EXPECT_TRUE(covered[extent.file].emplace(extent.offset, extent.nbytes).second);
    }
  }
  ASSERT_EQ(covered.size(), 3U);
  for (const auto& [file, extents] : covered) {
    std::uint64_t end = extents.begin()->first;
    for (const auto& [offset, size] : extents) {
      EXPECT_EQ(offset, end);
      end += size;
    }
    EXPECT_EQ(end, opened.files->size(file));
  }
}

TEST(OpenCheckpoint, ReadsNoTensorData) {
  const Opened opened = open_source(kFixtures / "deepseek-v3-fp8" / "source");
  const IoStatistics statistics = opened.files->statistics();
  std::map<FileId, std::uint64_t> data;
  for (const StoredTensor& tensor : opened.catalog->tensors()) {
    for (const Extent& extent : opened.catalog->storage(tensor).extents) {
      data[extent.file] += extent.nbytes;
    }
  }
  for (const auto& [file, bytes] : data) {
    EXPECT_EQ(statistics.files[file].bytes, opened.files->size(file) - bytes);
  }
}

TEST(OpenCheckpoint, PairsBlockScalesAcrossShardsAndKeepsThemOutOfTheShards) {
  const Opened opened = open_source(kFixtures / "deepseek-v3-fp8" / "source");
  const Catalog& catalog = *opened.catalog;
  EXPECT_EQ(catalog.quantization(), "fp8 (F8_E4M3, F32 scale for each 128 x 128)");
  EXPECT_THAT(catalog.obstacles(), IsEmpty());
  EXPECT_EQ(catalog.tensors().size(), 109U);
  std::size_t shown = 0, encoded = 0, in_other_shard = 0;
  std::set<const Encoding*> objects;
  for (const Shard& shard : catalog.shards()) {
    for (const TensorId id : shard.tensors) {
      ++shown;
      const StoredTensor& tensor = catalog.tensor(id);
      EXPECT_FALSE(tensor.name.ends_with("_scale_inv")) << tensor.name;
      const Storage& storage = catalog.storage(tensor);
      EXPECT_EQ(!storage.encoding->is_plain(), storage.dtype == DType::F8E4M3) << tensor.name;
      if (storage.encoding->is_plain()) continue;
      ++encoded;
      EXPECT_EQ(catalog.value_dtype(id), DType::F32);
      const BlockScale& block = *find_block_scale(*storage.encoding);
      objects.insert(storage.encoding);
      const auto scale = catalog.find(std::string(tensor.name) + "_scale_inv");
      ASSERT_TRUE(scale) << tensor.name;
      EXPECT_EQ(storage.companions()[0], catalog.tensor(*scale).storage);
      EXPECT_EQ(block.rows, tensor.shape[0]);
      EXPECT_EQ(block.columns, tensor.shape[1]);
      EXPECT_EQ(block.block_rows, 128);
      EXPECT_EQ(block.block_columns, 128);
      in_other_shard += catalog.storage(storage.companions()[0]).extents[0].file != shard.file;
    }
  }
  EXPECT_EQ(shown, 67U);
  EXPECT_EQ(encoded, 42U);
  EXPECT_GT(in_other_shard, 0U);
  EXPECT_LT(objects.size(), 10U);  // weights of one shape share one
}

TEST(OpenCheckpoint, KeepsTheOrderOfTheData) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors",
                  file_of({{"z"}, {"a", DType::F32}, {"m", DType::U8, {0}}, {"b"}}));
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(tensors_by_name(*opened.catalog, opened.catalog->shards()[0]),
              ElementsAre("z", "a", "m", "b"));
  EXPECT_EQ(opened.catalog->tensor(0).name, "a");
}

TEST(OpenCheckpoint, TakesAllFilesWithoutAnIndex) {
  const TemporaryDirectory directory;
  directory.write("b.safetensors", file_of({{"y"}}));
  directory.write("a.safetensors", file_of({{"x"}}));
  directory.write("sub/c.safetensors", file_of({{"z"}}));
  const Opened opened = open_source(directory.path());
  ASSERT_EQ(opened.catalog->shards().size(), 2U);
  EXPECT_EQ(opened.catalog->shards()[1].path, "b.safetensors");
  EXPECT_EQ(opened.catalog->tensors().size(), 2U);
  EXPECT_FALSE(opened.catalog->model().config);
  ASSERT_EQ(opened.catalog->parts().size(), 1U);  // a folder with weights of its own
  EXPECT_EQ(opened.catalog->parts()[0].directory, "sub/");
}

TEST(OpenCheckpoint, AFolderOfTheIndexHasNoWeightsOfItsOwn) {
  const TemporaryDirectory directory;
  directory.write("sub/a.safetensors", file_of({{"x"}, {"stale"}}));
  directory.write("sub/b.safetensors", file_of({{"y"}}));
  directory.write(kIndex, R"({"weight_map": {"x": "sub/a.safetensors"}})");
  const Opened opened = open_source(directory.path());
  const Catalog& catalog = *opened.catalog;
  EXPECT_TRUE(catalog.parts().empty());
  ASSERT_EQ(catalog.shards().size(), 1U);
  EXPECT_THAT(tensors_by_name(catalog, catalog.shards()[0]), ElementsAre("x"));
  const std::map<std::string, std::string> notes = {
      {"stale", "left out of sub/a.safetensors: not in the index"},
      {"sub/b.safetensors", "not in the index; converted views leave it out"}};
  EXPECT_EQ(notes_by_subject(catalog), notes);
}

TEST(OpenCheckpoint, TakesModelSafetensorsWhereAnotherFileHasItsTensors) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"logit_scale"}, {"x"}}));
  directory.write("open_clip_pytorch_model.safetensors", file_of({{"logit_scale"}, {"y"}}));
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(tensors_by_name(*opened.catalog, opened.catalog->shards()[0]),
              ElementsAre("logit_scale", "x"));
  EXPECT_EQ(notes_by_subject(*opened.catalog).at("open_clip_pytorch_model.safetensors"),
            "other weights; converted views leave it out");
  // Where they have other tensors, all are taken; without a file of that name nobody decides.
  directory.write("open_clip_pytorch_model.safetensors", file_of({{"y"}}));
  EXPECT_EQ(open_source(directory.path()).catalog->shards().size(), 2U);
  directory.write("model.safetensors", file_of({{"y"}}));
  std::filesystem::rename(directory / "model.safetensors", directory / "other.safetensors");
  EXPECT_THAT(error_of(directory.path()), HasSubstr("and no index decides"));
}

TEST(OpenCheckpoint, AFileOfAnyKindBesideAPipelineIsItsWeightsOnceMore) {
  const TemporaryDirectory directory;
  directory.write("unet/diffusion_pytorch_model.safetensors", file_of({{"u"}}));
  directory.write("model_index.json", R"({"unet": ["diffusers", "UNet2DConditionModel"]})");
  for (const std::string file : {"sd-v1-5-inpainting.ckpt", "pytorch_model.bin", "model.onnx"}) {
    directory.write(file, "whatever");
    const Opened opened = open_source(directory.path());
    EXPECT_EQ(opened.catalog->parts().size(), 1U);
    EXPECT_EQ(notes_by_subject(*opened.catalog).at(file),
              "other weights; converted views leave it out");
  }
}

TEST(OpenCheckpoint, AnIndexOfShardsThatAreGoneIsThatOfAnEarlierModel) {
  const TemporaryDirectory directory;
  directory.write(kIndex, R"({"weight_map": {"x": "model-00001-of-00002.safetensors",
                                             "y": "model-00002-of-00002.safetensors"}})");
  directory.write("model-00002-of-00002.safetensors", file_of({{"y"}}));
  EXPECT_THAT(error_of(directory.path()),
              HasSubstr(R"(names "model-00001-of-00002.safetensors", which is absent)"));
  directory.write("model.safetensors", file_of({{"z"}}));
  const Opened opened = open_source(directory.path());
  ASSERT_EQ(opened.catalog->shards().size(), 1U);
  EXPECT_THAT(tensors_by_name(*opened.catalog, opened.catalog->shards()[0]), ElementsAre("z"));
  const std::map<std::string, std::string> notes = {
      {kIndex,
       R"(names "model-00001-of-00002.safetensors", which is absent; model.safetensors is read )"
       "instead"},
      {"model-00002-of-00002.safetensors", "other weights; converted views leave it out"}};
  EXPECT_EQ(notes_by_subject(*opened.catalog), notes);
  // One that names it is not.
  directory.write(kIndex, R"({"weight_map": {"x": "gone.safetensors", "z": "model.safetensors"}})");
  EXPECT_THAT(error_of(directory.path()), HasSubstr(R"(names "gone.safetensors")"));
}

TEST(OpenCheckpoint, AnIndexInAFolderIsNotStaleWhereADownloadWasNotFinished) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"a"}}));
  directory.write(kIndex, R"({"weight_map": {"a": "model.safetensors"}})");
  directory.write("text_encoder/model.safetensors", file_of({{"z"}}));
  directory.write("text_encoder/" + std::string(kIndex),
                  R"({"weight_map": {"x": "model-00001-of-00001.safetensors"}})");
  EXPECT_EQ(open_source(directory.path()).catalog->parts().size(), 1U);
  directory.write(".cache/huggingface/download/text_encoder/x.incomplete", "x");
  const Opened opened = open_source(directory.path());
  EXPECT_TRUE(opened.catalog->parts().empty());
  EXPECT_THAT(notes_by_subject(*opened.catalog)["text_encoder/model.safetensors"],
              HasSubstr(R"(names "model-00001-of-00001.safetensors", which is absent)"));
  EXPECT_THAT(
      notes_by_subject(*opened.catalog)[".cache/huggingface/download/text_encoder/x.incomplete"],
      HasSubstr("it may be of weights that folders need"));
}

TEST(OpenCheckpoint, APipelinesWeightsAreThoseOfItsFolders) {
  const TemporaryDirectory directory;
  directory.write("sd_xl_base_1.0.safetensors", file_of({{"x"}}));
  directory.write("sd_xl_base_1.0_0.9vae.safetensors", file_of({{"x"}}));
  EXPECT_THAT(error_of(directory.path()), HasSubstr("and no index decides"));
  directory.write("unet/diffusion_pytorch_model.safetensors", file_of({{"u"}}));
  directory.write("model_index.json", R"({"unet": ["diffusers", "UNet2DConditionModel"]})");
  const Opened opened = open_source(directory.path());
  EXPECT_TRUE(opened.catalog->shards().empty());
  ASSERT_EQ(opened.catalog->parts().size(), 1U);
  EXPECT_EQ(notes_by_subject(*opened.catalog).at("sd_xl_base_1.0.safetensors"),
            "other weights; converted views leave it out");
}

TEST(OpenCheckpoint, AModelWhoseWeightsLeadNowhereIsNotItsModules) {
  const TemporaryDirectory directory;
  directory.write("modules.json", R"([{"path": "2_Dense", "type": "Dense"}])");
  directory.write("2_Dense/model.safetensors", file_of({{"u"}}));
  EXPECT_EQ(open_source(directory.path()).catalog->parts().size(), 1U);
  fs::create_symlink("nowhere", directory / "pytorch_model.bin");
  EXPECT_THAT(error_of(directory.path()),
              HasSubstr("(try: ckfs inspect " + (directory / "2_Dense").string() + ")"));
}

TEST(OpenCheckpoint, NamesTheModelsBelowADirectoryThatIsNone) {
  const TemporaryDirectory directory;
  const std::string top = directory.path().string();
  directory.write("B/model.safetensors", file_of({{"x"}}));
  EXPECT_THAT(error_of(directory.path()), HasSubstr(" (try: ckfs inspect " + top + "/B)"));
  directory.write("A/model.safetensors", file_of({{"x"}}));
  EXPECT_THAT(error_of(directory / ""),
              HasSubstr(" (try: ckfs inspect " + top + "/A; there are 2 models: A, B)"));
}

TEST(OpenCheckpoint, NamesTheNewestCheckpointOfATrainer) {
  const TemporaryDirectory directory;
  for (const char* name : {"checkpoint-2", "checkpoint-10", "checkpoint-9"}) {
    const std::string folder = std::string(name) + "/";
    directory.write(folder + "config.json", "{}");
    directory.write(folder + "model.safetensors", file_of({{"x"}}));
    directory.write(folder + "global_step2/mp_rank_00_model_states.pt", "x");
  }
  EXPECT_THAT(error_of(directory.path()),
              HasSubstr(" (try: ckfs inspect " + (directory / "checkpoint-10").string() +
                        ", the newest of 3 checkpoints)"));
}

TEST(OpenCheckpoint, NamesTheModelsOfAWholeHubCache) {
  const TemporaryDirectory hub;
  const std::string repository = "models--org--name/";
  hub.write(repository + "snapshots/1/model.safetensors", file_of({{"x"}}));
  EXPECT_THAT(error_of(hub.path()),
              HasSubstr("(try: ckfs inspect " + (hub / "models--org--name").string() + ")"));
  hub.write(repository + "blobs/2.incomplete", "");
  EXPECT_THAT(error_of(hub.path()),
              HasSubstr("(complete the download with: hf download org/name --cache-dir " +
                        hub.path().string() + ")"));
}

TEST(OpenCheckpoint, LetsTheIndexDecide) {
  const TemporaryDirectory directory;
  directory.write("a.safetensors", file_of({{"stale"}, {"x"}, {"y"}}));
  directory.write("b.safetensors", file_of({{"x"}}));
  directory.write("unused.safetensors", "not even one");
  directory.write(kIndex, R"({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}})");
  const Opened opened = open_source(directory.path());
  const Catalog& catalog = *opened.catalog;
  EXPECT_EQ(catalog.tensors().size(), 2U);
  EXPECT_THAT(tensors_by_name(catalog, catalog.shards()[0]), ElementsAre("y"));
  EXPECT_THAT(tensors_by_name(catalog, catalog.shards()[1]), ElementsAre("x"));
  auto notes = notes_by_subject(catalog);
  EXPECT_EQ(notes["stale"], "left out of a.safetensors: not in the index");
  EXPECT_EQ(notes["x"], "left out of a.safetensors: the index maps it to b.safetensors");
  EXPECT_EQ(notes["unused.safetensors"], "not in the index; converted views leave it out");
  EXPECT_THAT(paths_of(catalog.files()),
              ElementsAre("a.safetensors", "b.safetensors", kIndex, "unused.safetensors"));
}

TEST(OpenCheckpoint, SumsUpWhenAnIndexLeavesManyTensorsOut) {
  const TemporaryDirectory directory;
  std::vector<FileTensor> tensors = {{"kept"}};
  for (int i = 0; i < 250; ++i) tensors.push_back({fmt::format("stale.{}", i)});
  directory.write("a.safetensors", file_of(tensors));
  directory.write(kIndex, R"({"weight_map": {"kept": "a.safetensors"}})");
  const Opened opened = open_source(directory.path());
  EXPECT_EQ(opened.catalog->notes().size(), 101U);
  EXPECT_EQ(notes_by_subject(*opened.catalog)["a.safetensors"],
            "150 more tensors are not in the index");
}

TEST(OpenCheckpoint, TakesAnIndexOfAnotherNameWhereItIsTheOnlyOne) {
  const TemporaryDirectory directory;
  directory.write("diffusion.safetensors", file_of({{"x"}, {"y"}}));
  directory.write("diffusion.safetensors.index.json",
                  R"({"weight_map": {"x": "diffusion.safetensors"}})");
  EXPECT_EQ(open_source(directory.path()).catalog->tensors().size(), 1U);
}

TEST(OpenCheckpoint, TakesThePlainWeightsWhereThereAreVariants) {
  const std::string plain = file_of({{"x"}}), variant = file_of({{"x"}, {"more"}});
  for (const bool series : {false, true}) {
    for (const bool indexed : {false, true}) {
      const TemporaryDirectory directory;
      directory.write(series ? "model-00001-of-00001.safetensors" : "model.safetensors", plain);
      directory.write("model.fp32-00001-of-00001.safetensors", variant);
      if (indexed) {
        directory.write(
            "model.fp32.safetensors.index.json",
            R"({"weight_map": {"x": "model.fp32-00001-of-00001.safetensors", "more": "model.fp32-00001-of-00001.safetensors"}})");
      }
      EXPECT_EQ(open_source(directory.path()).catalog->tensors().size(), 1U) << series << indexed;
      // Of another name they are no variant of these.
      fs::rename(directory / (series ? "model-00001-of-00001.safetensors" : "model.safetensors"),
                 directory / "other.safetensors");
      if (indexed) {
        EXPECT_EQ(open_source(directory.path()).catalog->tensors().size(), 2U);
      }
    }
  }
}

TEST(OpenCheckpoint, TakesAnIndexOfAnyNameWhereAllFilesArePlain) {
  const TemporaryDirectory directory;
  directory.write("model-00001-of-00002.safetensors", file_of({{"a"}}));
  directory.write("model-00002-of-00002.safetensors", file_of({{"b"}, {"extra"}}));
  directory.write(
      "model.v2.safetensors.index.json",
      R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})");
  EXPECT_EQ(open_source(directory.path()).catalog->tensors().size(), 2U);
}

TEST(OpenCheckpoint, RefusesAStepOrAnItemOfWhatHasNone) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"x"}}));
  EXPECT_EQ(error_of(directory.path(), {.step = 7}),
            directory.path().string() +
                ": only Orbax and Megatron checkpoints and files of FSDP ranks have steps");
  EXPECT_EQ(error_of(directory.path(), {.item = "x"}),
            directory.path().string() + ": only Orbax checkpoints have items");
  fs::remove(directory / "model.safetensors");
  directory.write(".cache/huggingface/download/x.incomplete", "");
  EXPECT_THAT(error_of(directory.path(), {.step = 7}),
              HasSubstr("x.incomplete: a download that was not finished"));
}

TEST(OpenCheckpoint, LeavesOutEveryOtherCopyOfTheWeights) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"x"}}));
  const std::set<std::string> others = {
      "consolidated.safetensors", "consolidated.00.pth", "pytorch_model.bin", "model.gguf",
      "original/params.json",     "onnx/model.onnx",     "tf_model.h5",       "flax_model.msgpack"};
  for (const std::string& path : others) directory.write(path, "x");
  directory.write("pytorch_model.bin.index.json", "{}");
  directory.write("hf_quant_config.json", "{}");
  fs::remove(directory / "hf_quant_config.json");
  directory.write("recipe.yaml", "x");
  directory.write("model.py", "x");
  directory.write("assets/logo.png", "x");
  directory.write(".gitattributes", "x");
  directory.write(".cache/huggingface/x.lock", "");
  directory.write(".git/HEAD", "");
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(paths_of(opened.catalog->model().side_files),
              ElementsAre(".gitattributes", "assets/logo.png", "model.py"));
  auto notes = notes_by_subject(*opened.catalog);
  for (const std::string& path : others) {
    EXPECT_EQ(notes[path], "other weights; converted views leave it out") << path;
  }
  EXPECT_THAT(notes["recipe.yaml"], HasSubstr("describes the quantization"));
  EXPECT_EQ(opened.catalog->files().size(), 16U);
}

TEST(OpenCheckpoint, TakesAConsolidatedFileWhereItIsTheOnlyOne) {
  const TemporaryDirectory directory;
  directory.write("consolidated.safetensors", file_of({{"x"}}));
  EXPECT_EQ(open_source(directory.path()).catalog->tensors().size(), 1U);
}

TEST(OpenCheckpoint, OpensASingleFileWhateverItsName) {
  const TemporaryDirectory directory;
  directory.write("weights.safetensors", file_of({{"x"}}));
  directory.write("blob", file_of({{"y"}}));
  directory.write("config.json", "not read");
  const Opened one = open_source(directory / "weights.safetensors");
  EXPECT_EQ(one.catalog->shards()[0].path, "weights.safetensors");
  EXPECT_EQ(one.catalog->files().size(), 1U);
  EXPECT_FALSE(one.catalog->model().config);
  const Opened blob = open_source(directory / "blob");
  EXPECT_EQ(blob.catalog->shards()[0].path, "model.safetensors");
  EXPECT_EQ(blob.catalog->files()[0].path, "blob");
}

TEST(OpenCheckpoint, AcceptsCompleteSeriesFromZeroAndFromOne) {
  const TemporaryDirectory one, zero;
  one.write("model-1-of-2.safetensors", file_of({{"x"}}));
  one.write("model-2-of-2.safetensors", file_of({{"y"}}));
  one.write("model-3-of-3.safetensors.incomplete", "");
  EXPECT_EQ(open_source(one.path()).catalog->shards().size(), 2U);
  // gpt-oss counts from 0 and names the last number.
  zero.write("model-00000-of-00001.safetensors", file_of({{"x"}}));
  zero.write("model-00001-of-00001.safetensors", file_of({{"y"}}));
  EXPECT_EQ(open_source(zero.path()).catalog->shards().size(), 2U);
  fs::remove(zero / "model-00001-of-00001.safetensors");
  EXPECT_EQ(error_of(zero.path()), "model-*-of-*.safetensors: number 1 of 1 is missing");
}

TEST(OpenCheckpoint, OpensAHubCacheByItsRepositoryOrItsSnapshot) {
  const TemporaryDirectory directory;
  const std::string hub = "models--org--name/";
  directory.write(hub + "blobs/1", file_of({{"old"}}));
  directory.write(hub + "blobs/2", file_of({{"new"}}));
  directory.write(hub + "blobs/3.incomplete", "of another file");
  directory.write(hub + "refs/main", "222\n");
  for (const std::string revision : {"1", "2"}) {
    const fs::path snapshot = directory / (hub + "snapshots/" + revision + revision + revision);
    fs::create_directories(snapshot);
    fs::create_symlink("../../blobs/" + revision, snapshot / "model.safetensors");
  }
  const fs::path repository = directory / "models--org--name";
  for (const fs::path& path : {repository, repository / "", repository / "snapshots" / "222"}) {
    const Opened opened = open_source(path);
    EXPECT_TRUE(opened.catalog->find("new")) << path;
    EXPECT_EQ(opened.catalog->shards()[0].path, "model.safetensors");
    EXPECT_THAT(paths_of(opened.catalog->files()), ElementsAre("model.safetensors"));
  }
  EXPECT_TRUE(open_source(repository / "snapshots" / "111").catalog->find("old"));

  fs::remove_all(repository / "snapshots" / "111");
  directory.write(hub + "refs/main", "\n");
  EXPECT_THAT(error_of(repository), HasSubstr("refs/main cannot be read, or names nothing"));
  fs::remove_all(repository / "refs");
  EXPECT_TRUE(open_source(repository).catalog->find("new"))
      << "the only snapshot needs no refs/main";
}

TEST(OpenCheckpoint, FollowsLinksToFilesAndNamesWhatItDoesNotFollow) {
  const TemporaryDirectory directory, elsewhere;
  const fs::path target = elsewhere.write("target", file_of({{"x"}}));
  fs::create_symlink(target, directory / "model.safetensors");
  fs::create_symlink("gone", directory / "tokenizer.json");
  fs::create_directory_symlink(directory.path(), directory / "circle");
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(paths_of(opened.catalog->files()), ElementsAre("model.safetensors"));
  auto notes = notes_by_subject(*opened.catalog);
  EXPECT_EQ(notes["circle"], "a link to a directory; not followed");
  EXPECT_EQ(notes["tokenizer.json"], "a link to a file that is absent or out of reach; not shown");
}

/// Changes a file at the third read: a model's header is two.
class ChangingReader final : public Reader {
 public:
  explicit ChangingReader(fs::path path) : path_(std::move(path)) {}
  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    if (++reads_ == 3) fs::resize_file(path_, 1);
    return here_->read(accesses);
  }

 private:
  fs::path path_;
  int reads_ = 0;
  std::unique_ptr<Reader> here_ = make_pread_reader();
};

TEST(OpenCheckpoint, AFolderThatChangesMeanwhileIsNotLeftOut) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"x"}}));
  const fs::path changed = directory.write("folder/model.safetensors", file_of({{"y"}}));
  const auto files = LocalFiles::with_reader({.engine = IoEngine::Pread},
                                             std::make_unique<ChangingReader>(changed));
  const auto catalog = open_checkpoint(directory.path(), *files);
  ASSERT_FALSE(catalog);
  EXPECT_EQ(catalog.error().code(), ErrorCode::Stale) << catalog.error().message();
}

TEST(OpenCheckpoint, FingerprintAndTimeFollowNamesSizesAndTimes) {
  const TemporaryDirectory directory;
  const auto set_time = [](const fs::path& path, int seconds) {
    fs::last_write_time(path, std::chrono::file_clock::from_sys(
                                  std::chrono::sys_seconds(std::chrono::seconds(seconds))));
  };
  const fs::path model = directory.write("model.safetensors", file_of({{"x"}}));
  const fs::path side = directory.write("LICENSE", "free");
  set_time(model, 1000);
  set_time(side, 2000);
  const Opened first = open_source(directory.path());
  EXPECT_EQ(first.catalog->mtime(), 2000);
  EXPECT_EQ(open_source(directory.path()).catalog->fingerprint(), first.catalog->fingerprint());
  set_time(side, 2001);
  EXPECT_NE(open_source(directory.path()).catalog->fingerprint(), first.catalog->fingerprint());
  EXPECT_EQ(open_source(directory.path()).catalog->mtime(), 2001);
  set_time(model, 0);
  set_time(side, 0);
  EXPECT_EQ(open_source(directory.path()).catalog->mtime(), 1) << "never 0";
}

// Quantization.

const FileTensor kWeight = {"l.weight", DType::F8E4M3, {130, 300}};
const FileTensor kScale = {"l.weight_scale_inv", DType::F32, {2, 3}};

std::map<std::string, std::string> fp8_obstacles(const std::vector<FileTensor>& tensors,
                                                 const std::string& config = kFp8) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of(tensors));
  if (!config.empty()) directory.write("config.json", config);
  return obstacles_of(*open_source(directory.path()).catalog);
}

TEST(Fp8Blocks, AcceptsTheDtypesOfScalesAndBatchesOfWeights) {
  for (const DType dtype : {DType::F32, DType::BF16, DType::F8E8M0, DType::U8}) {
    EXPECT_THAT(fp8_obstacles({kWeight, {"l.weight_scale_inv", dtype, {2, 3}}}), IsEmpty());
  }
  for (const DType dtype : {DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ}) {
    EXPECT_THAT(fp8_obstacles({{"l.weight", dtype, {130, 300}}, kScale}), IsEmpty());
  }
  EXPECT_THAT(fp8_obstacles({{"experts.up_proj", DType::F8E4M3, {4, 256, 100}},
                             {"experts.up_proj_scale_inv", DType::F32, {4, 2, 1}}}),
              IsEmpty());
}

// transformers' fp8 with weight_block_size null: Ministral-3.
TEST(Fp8Blocks, AScalarIsTheScaleOfItsWholeTensor) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"l.weight", DType::F8E4M3, {130, 300}},
                                                {"l.weight_scale_inv", DType::BF16, {}},
                                                {"l.activation_scale", DType::BF16, {}}}));
  for (const std::string block : {"", R"(, "weight_block_size": null)"}) {
    directory.write("config.json",
                    R"({"quantization_config": {"quant_method": "fp8")" + block + "}}");
    const Opened opened = open_source(directory.path());
    EXPECT_THAT(obstacles_of(*opened.catalog), IsEmpty());
    EXPECT_EQ(opened.catalog->quantization(), "fp8 (F8_E4M3, BF16 scale for each tensor)");
  }
  // So transformers saves it again, and that of each expert.
  EXPECT_THAT(fp8_obstacles({{"l.weight", DType::F8E4M3, {130, 300}},
                             {"l.weight_scale_inv", DType::F32, {1, 1}},
                             {"m.up_proj", DType::F8E4M3, {3, 130, 300}},
                             {"m.up_proj_scale_inv", DType::F32, {3, 1, 1}}}),
              IsEmpty());
  EXPECT_THAT(fp8_obstacles(
                  {{"l.weight", DType::F8E4M3, {130, 300}}, {"l.weight_scale_inv", DType::F32, {}}},
                  R"({"quantization_config": {"quant_method": "fp8",
                                                "weight_block_size": [128, 128]}})"),
              ElementsAre(testing::Pair("l.weight", HasSubstr("need [2, 3]"))));
}

TEST(Fp8Blocks, TakesTheBlockSizeFromTheConfigAtAnyLevel) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors",
                  file_of({kWeight, {"l.weight_scale_inv", DType::F32, {3, 5}}}));
  directory.write("config.json", R"({"text_config": {"quantization_config": {"quant_method": "fp8",
                                     "weight_block_size": [64, 60]}}})");
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(obstacles_of(*opened.catalog), IsEmpty());
  EXPECT_EQ(opened.catalog->quantization(), "fp8 (F8_E4M3, F32 scale for each 64 x 60)");
}

TEST(Fp8Blocks, AreRecognisedByNamesWhereTheConfigIsSilent) {
  for (const std::string config : {"", "{}", R"({"quantization_config": {}})"}) {
    EXPECT_THAT(fp8_obstacles({kWeight, kScale}, config), IsEmpty());
  }
  EXPECT_EQ(
      fp8_obstacles({kWeight, {"l.weight_scale_inv", DType::F32, {3, 3}}}, "")["l.weight"],
      "its scale has shape [3, 3], but blocks of 128 x 128 over shape [130, 300] need [2, 3]");
}

TEST(Fp8Blocks, NamesEveryTensorThatCannotBeDecoded) {
  EXPECT_THAT(
      fp8_obstacles({kWeight,
                     kScale,
                     {"alone.weight", DType::F8E4M3, {2, 2}},
                     {"orphan.weight_scale_inv", DType::F32, {1, 1}},
                     {"half.weight", DType::F8E4M3, {2, 2}},
                     {"half.weight_scale_inv", DType::F16, {1, 1}},
                     {"bias", DType::F8E4M3, {4}},
                     {"bias_scale_inv", DType::F32, {1}},
                     {"wide.weight", DType::BF16, {2, 2}},
                     {"wide.weight_scale_inv", DType::F32, {1, 1}},
                     {"scalar.weight", DType::F8E4M3, {2, 256}},
                     {"scalar.weight_scale_inv", DType::F32, {2, 1}},
                     {"packed.weight_packed", DType::I32, {2, 2}}}),
      ElementsAre(
          testing::Pair("alone.weight", HasSubstr("F8_E4M3 without a scale (VIEW@unscaled=one")),
          testing::Pair("bias", "shape [4] is not of 2 or 3 dimensions"),
          testing::Pair("half.weight", "its scale is F16 (known: F32, BF16, F8_E8M0, U8)"),
          testing::Pair("packed.weight_packed",
                        R"(looks like pack-quantized, but config.json says quant_method "fp8")"),
          testing::Pair("scalar.weight",
                        "its scale has shape [2, 1], but blocks of 128 x 128 over shape [2, 256] "
                        "need [1, 2]")));
}

TEST(Fp8Blocks, AreNotShownWhereNoWeightHasAScale) {
  EXPECT_THAT(fp8_obstacles({{"a.weight", DType::F8E4M3, {2, 2}},
                             {"b.weight", DType::F8E5M2, {2, 2}},
                             {"c.weight", DType::BF16, {2, 2}}}),
              ElementsAre(testing::Pair("a.weight", HasSubstr("F8_E4M3 without a scale")),
                          testing::Pair("b.weight", HasSubstr("F8_E5M2 without a scale"))));
}

TEST(Fp8Blocks, LeavesOutScalesOfActivationsAndSaysSo) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({kWeight,
                                                kScale,
                                                {"l.activation_scale", DType::F32, {}},
                                                {"l.k_scale", DType::F32, {}},
                                                {"l.norm"}}));
  directory.write("config.json", kFp8);
  const Opened opened = open_source(directory.path());
  EXPECT_THAT(tensors_by_name(*opened.catalog, opened.catalog->shards()[0]),
              ElementsAre("l.weight", "l.norm"));
  std::map<std::string, std::string> left_out;
  for (const LeftOut& one : opened.catalog->quantization_details().left_out) {
    left_out[one.suffix] = one.reason;
  }
  EXPECT_THAT(left_out,
              ElementsAre(testing::Pair("activation_scale", "a scale of activations or caches"),
                          testing::Pair("k_scale", "a scale of activations or caches"),
                          testing::Pair("weight_scale_inv", "used to decode its weight")));
}

TEST(Quantization, InTheConfigAloneIsNotOne) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"x"}, {"l.k_scale"}}));
  directory.write("config.json", kFp8);
  const Opened opened = open_source(directory.path());
  EXPECT_FALSE(opened.catalog->is_quantized());
  EXPECT_EQ(opened.catalog->shards()[0].tensors.size(), 2U);
  EXPECT_THAT(notes_by_subject(*opened.catalog)["config.json"],
              HasSubstr("no tensor is quantized"));
}

TEST(Quantization, OfAnUnknownMethodNamesTheTensorsOrElseTheConfig) {
  const std::string config = R"({"quantization_config": {"quant_method": "aqlm"}})";
  const std::string reason = R"(quant_method "aqlm", which ckfs cannot decode)";
  EXPECT_THAT(fp8_obstacles({{"x"}}, config), ElementsAre(testing::Pair("config.json", reason)));
  EXPECT_THAT(fp8_obstacles({{"x"}, {"l.qweight", DType::I32}, kWeight}, config),
              ElementsAre(testing::Pair("l.qweight", reason), testing::Pair("l.weight", reason)));
  EXPECT_THAT(fp8_obstacles({{"x"}}, R"({"quantization_config": {}})"),
              ElementsAre(testing::Pair("config.json", "quantization_config has no quant_method")));
}

TEST(Quantization, IsSeenInNamesAndDtypesWithoutAConfig) {
  const std::map<std::string, std::vector<FileTensor>> kinds = {
      {"a sparse format of compressed-tensors", {{"t.bitmask", DType::U8}}},
      {"bitsandbytes 4-bit without quant_state", {{"t.weight", DType::U8}, {"t.weight.absmax"}}},
      {"MLX", {{"t.weight", DType::U32}, {"t.scales"}, {"t.biases"}}},
      {"EXL2", {{"t.q_weight", DType::I32}, {"t.q_scale", DType::I32}}},
      {"EXL3", {{"t.trellis", DType::I16}, {"t.svh"}}},
  };
  for (const auto& [kind, tensors] : kinds) {
    EXPECT_THAT(fp8_obstacles(tensors, ""),
                ElementsAre(testing::Pair(tensors[0].name,
                                          "looks like " + kind + ", which ckfs cannot decode")));
  }
}

TEST(Quantization, IsNotSeenInPlainTensorsOfOddDtypes) {
  EXPECT_THAT(fp8_obstacles({{"a.weight", DType::F8E4M3},
                             {"b.weight", DType::U8},
                             {"c", DType::C64},
                             {"d.weight", DType::F4},
                             {"k_scale", DType::F32},
                             {"x_blocks", DType::U8}},
                            "{}"),
              IsEmpty());
}

TEST(Quantization, OfModelOptIsReadFromItsOwnFile) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"t.weight", DType::F8E4M3, {4, 6}},
                                                {"t.weight_scale", DType::F32, {}}}));
  directory.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  EXPECT_EQ(open_source(directory.path()).catalog->quantization(),
            "fp8 (F8_E4M3, F32 scale for each tensor)");
  directory.write("hf_quant_config.json", "{");
  EXPECT_THAT(error_of(directory.path()), HasSubstr("hf_quant_config.json: at byte 1: not JSON"));
}

TEST(OpenCheckpoint, RefusesLinksToNothingWhereTheFileDecides) {
  for (const std::string name : {"config.json", "model.safetensors.index.json", "b.safetensors"}) {
    const TemporaryDirectory directory;
    directory.write("a.safetensors", file_of({{"x"}}));
    fs::create_symlink("gone", directory / name);
    EXPECT_EQ(error_of(directory.path()),
              name + ": a link to gone, which is absent or out of reach");
  }
}

TEST(OpenCheckpoint, NamesThePathThatIsNotThere) {
  const TemporaryDirectory directory;
  EXPECT_EQ(error_of(directory / "x"), (directory / "x").string() + ": no such file or directory");
}

TEST(OpenCheckpoint, LinksOutOfTheCheckpointAreNoted) {
  const TemporaryDirectory directory;
  const std::string hub = "models--o--n/";
  directory.write("elsewhere/secret.txt", "mine");
  directory.write(hub + "blobs/1", file_of({{"a"}}));
  directory.write(hub + "snapshots/x/README.md", "a");
  fs::create_symlink("../../blobs/1", directory / (hub + "snapshots/x/model.safetensors"));
  const auto noted = [&] {
    const auto opened = open_source(directory / "models--o--n");
    std::vector<std::string> texts;
    for (const Note& note : opened.catalog->notes())
      texts.push_back(note.subject + ": " + note.text);
    return texts;
  };
  EXPECT_THAT(noted(), IsEmpty());
  for (const char* name : {"a.txt", "b.txt"}) {
    fs::create_symlink(directory / "elsewhere/secret.txt",
                       directory / (hub + "snapshots/x/" + name));
  }
  const std::string target = fs::canonical(directory / "elsewhere/secret.txt").string();
  EXPECT_THAT(noted(), ElementsAre("a.txt: a link out of the checkpoint, to " + target +
                                   " (and 1 more such)"));
}

}  // namespace
}  // namespace ckfs
