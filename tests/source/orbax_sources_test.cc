// Orbax checkpoints: which item is taken, and what is refused, each with its own message.
// (tests/golden/test_orbax_sources.py holds the arrays of real ones against what Orbax restores.)
#include <filesystem>
#include <fstream>
#include <iterator>

#include "format/crc32c.h"
#include "format/orbax_metadata.h"
#include "source/adapters.h"
#include "source/broken.h"
#include "source/orbax_writer.h"
#include "source/source_tree.h"
#include "support/cost_limit.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names_of(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : catalog.tensors()) names.emplace_back(tensor.name);
  return names;
}

/// The tensors of the source at `path`; none, and a failure, if it cannot be opened.
std::vector<std::string> names_at(const std::filesystem::path& path,
                                  const OpenCheckpointOptions& options = {}) {
  const Opened opened = open_source(path, options);
  return opened.catalog == nullptr ? std::vector<std::string>() : names_of(*opened.catalog);
}

std::string fact(const Catalog& catalog, std::string_view subject) {
  for (const Note& note : catalog.facts()) {
    if (note.subject == subject) return note.text;
  }
  return "";
}

OrbaxWriter item_of(const std::string& array) {
  OrbaxWriter item;
  item.leaves = {{array, "np.ndarray"}};
  item.inside = {{array + "/zarr.json", zarr3("[2]", "[2]")}, {array + "/c/0", "12345678"}};
  return item;
}

TEST(OrbaxSource, ItsNewestStepIsTaken) {
  const TemporaryDirectory root;
  item_of("two").write(root, "2/items/");
  item_of("ten").write(root, "10/items/");
  item_of("never").write(root, "11.orbax-checkpoint-tmp-5/items/");
  OrbaxWriter unmerged = item_of("half");
  unmerged.with_manifest = false;
  unmerged.files["ocdbt.process_0/manifest.ocdbt"] = "x";
  unmerged.write(root, "12/items/");
  const Opened opened = open_source(root.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_of(*opened.catalog), ElementsAre("ten"));
  EXPECT_EQ(fact(*opened.catalog, "step"), "10");
  EXPECT_EQ(fact(*opened.catalog, "item"), "items");
  // Other steps are no part of the source.
  for (const SourceFile& file : opened.catalog->files()) {
    EXPECT_TRUE(file.path.starts_with("items/")) << file.path;
  }
  EXPECT_THAT(names_at(root.path(), {.step = 2}), ElementsAre("two"));
}

TEST(OrbaxSource, AStepThatWasNeverCommittedIsRefusedByItsOwnName) {
  const TemporaryDirectory root;
  item_of("w").write(root, "11.orbax-checkpoint-tmp-5/items/");
  fs::create_symlink("11.orbax-checkpoint-tmp-5", root / "link");
  for (const char* const path :
       {"11.orbax-checkpoint-tmp-5", "11.orbax-checkpoint-tmp-5/items", "link"}) {
    EXPECT_THAT(error_of(root / path),
                HasSubstr("not finished: Orbax renames 11.orbax-checkpoint-tmp-5"));
  }
}

TEST(OrbaxSource, StepsOfEqualFilesAreTwoSources) {
  const TemporaryDirectory root;
  for (const char* const step : {"1/items/", "2/items/"}) item_of("w").write(root, step);
  for (const auto& entry : fs::recursive_directory_iterator(root.path())) {
    fs::last_write_time(entry.path(), fs::file_time_type());
  }
  const auto fingerprint = [&](std::optional<std::uint64_t> step) {
    return open_source(root.path(), {.step = step}).catalog->fingerprint();
  };
  EXPECT_NE(fingerprint(1), fingerprint(2));
  EXPECT_EQ(fingerprint(std::nullopt), fingerprint(2));
}

TEST(OrbaxSource, StepsMayHaveAPrefixAndPadding) {
  const TemporaryDirectory root;
  item_of("a").write(root, "step_00000100/default/");
  item_of("b").write(root, "step_00000020/default/");
  EXPECT_THAT(names_at(root.path()), ElementsAre("a"));
}

TEST(OrbaxSource, TheItemThatUsuallyHasTheModelIsTaken) {
  const TemporaryDirectory step;
  item_of("model").write(step, "state/");
  item_of("other").write(step, "data/");
  EXPECT_THAT(names_at(step.path()), ElementsAre("model"));
  EXPECT_THAT(names_at(step.path(), {.item = "data"}), ElementsAre("other"));
  // The step may be an item itself.
  item_of("itself").write(step, "");
  EXPECT_THAT(names_at(step.path()), ElementsAre("itself"));
  const auto notes = notes_by_subject(*open_source(step.path(), {.item = "data"}).catalog);
  EXPECT_EQ(notes.at("."), "the item that is shown without --item");
  EXPECT_EQ(notes.at("state"), "another item (--item shows it)");
}

// As tunix and MaxText's post-training save them.
TEST(OrbaxSource, ModelParamsBesideTheOptimizersStateAreTheModel) {
  const TemporaryDirectory root;
  item_of("model").write(root, "3/model_params/");
  item_of("moments").write(root, "3/optimizer_state/");
  for (const fs::path& path : {root.path(), root / "3"}) {
    EXPECT_THAT(names_at(path), ElementsAre("model"));
    EXPECT_THAT(names_at(path, {.item = "optimizer_state"}), ElementsAre("moments"));
  }
}

TEST(OrbaxSource, AKeyIsAPartOfTheTree) {
  OrbaxWriter item;
  item.leaves = {{"params.a", "np.ndarray"}, {"params.b.c", "np.ndarray"}, {"step", "scalar"}};
  item.inside.clear();
  for (const auto& [name, type] : item.leaves) {
    item.inside[name + "/zarr.json"] = zarr3("[2]", "[2]");
    item.inside[name + "/c/0"] = "12345678";
  }
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path(), {.key = "params"});
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_of(*opened.catalog), ElementsAre("a", "b.c"));
  EXPECT_EQ(opened.catalog->tree()->leaves.size(), 2U);
  EXPECT_EQ(orbax::joined_keys(opened.catalog->tree()->leaves[1].path), "b.c");
}

// flax names layers "layers.0" in one key; JAX joins keys by dots in the names of arrays.
TEST(OrbaxSource, AKeyMayEndWithinAKeyOfTheTree) {
  OrbaxWriter item;
  item.leaves = {{"a|b.c", "np.ndarray"}, {"a.c", "np.ndarray"}, {"a|x|y.z", "np.ndarray"}};
  item.inside.clear();
  for (const char* name : {"a.b.c", "a.c", "a.x.y.z"}) {
    item.inside[std::string(name) + "/zarr.json"] = zarr3("[2]", "[2]");
    item.inside[std::string(name) + "/c/0"] = "12345678";
  }
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path(), {.key = "a"});
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_of(*opened.catalog), ElementsAre("b.c", "c", "x.y.z"));
  std::vector<std::string> paths;
  for (const TreeLeaf& leaf : opened.catalog->tree()->leaves) {
    std::string& path = paths.emplace_back(leaf.path);
    std::ranges::replace(path, '\0', '/');
  }
  EXPECT_THAT(paths, testing::UnorderedElementsAre("kb/kc/", "kc/", "kx.y/kz/"));
}

TEST(OrbaxSource, AnItemThatWasNeverCommittedIsNoneOfItsStep) {
  const TemporaryDirectory root;
  item_of("four").write(root, "4/items/");
  item_of("five").write(root, "5/items/");
  OrbaxWriter unmerged = item_of("half");
  unmerged.with_manifest = false;
  unmerged.files["ocdbt.process_0/manifest.ocdbt"] = "x";
  unmerged.write(root, "5/params.orbax-checkpoint-tmp-17/");
  EXPECT_THAT(names_at(root.path()), ElementsAre("five"));
  EXPECT_THAT(names_at(root.path(), {.step = 5}), ElementsAre("five"));
}

TEST(OrbaxSource, AStepWithoutACommittedItemIsNamed) {
  const TemporaryDirectory root;
  item_of("five").write(root, "5/items.orbax-checkpoint-tmp-17/");
  EXPECT_THAT(error_of(root.path()), HasSubstr("no item in it was committed"));
  item_of("four").write(root, "4/items/");
  const Opened opened = open_source(root.path());
  EXPECT_THAT(names_of(*opened.catalog), ElementsAre("four"));
  EXPECT_THAT(notes_by_subject(*opened.catalog)["5"], HasSubstr("no item in it was committed"));
  EXPECT_THAT(error_of(root.path(), {.step = 5}), HasSubstr("no item in it was committed"));
}

TEST(OrbaxSource, AFillValueThatNobodyKnowsIsAnObstacleWhereItIsNeeded) {
  const auto obstacles = [](const std::string& type, const std::string& fill, bool whole) {
    OrbaxWriter item;
    item.inside = {{"w/zarr.json", zarr3("[4]", "[2]", type, "", fill)}, {"w/c/0", "12"}};
    if (whole) item.inside["w/c/1"] = "34";
    const TemporaryDirectory directory;
    item.write(directory);
    const Opened opened = open_source(directory.path());
    std::vector<std::string> reasons;
    for (const Obstacle& one : opened.catalog->obstacles()) reasons.push_back(one.reason);
    return reasons;
  };
  for (const char* fill : {"3", "-0.0", R"("0x10")", R"("0x")", R"("NaN")"}) {
    EXPECT_THAT(obstacles("float8_e3m4", fill, false),
                ElementsAre("1 of its chunks are missing, and the fill value of its float8_e3m4 is "
                            "not 0"))
        << fill;
    EXPECT_THAT(obstacles("float8_e3m4", fill, true), testing::IsEmpty()) << fill;
  }
  for (const char* fill : {"0", "0.0", "false", R"("0x00")"}) {
    EXPECT_THAT(obstacles("int4", fill, false), testing::IsEmpty()) << fill;
  }
}

TEST(OrbaxSource, AGridOfChunksIsOneStorageAndFewBoxes) {
  OrbaxWriter item;
  item.inside = {{"w/zarr.json", zarr3("[5,6]", "[2,3]", "uint8")}};
  item.files["data"] = std::string(1000, 'x');
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 2; ++j) {
      item.outside[fmt::format("w/c/{}/{}", i, j)] = {
          "data", static_cast<std::uint64_t>(i * 100 + j * 10), 6};
    }
  }
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_EQ(opened.catalog->storages().size(), 1U);
  EXPECT_EQ(opened.catalog->storages()[0].extents.size(), 6U);
  EXPECT_EQ(opened.catalog->tensor(0).boxes.size(), 2U);
  EXPECT_TRUE(opened.catalog->chunks().empty());
}

TEST(OrbaxSource, DimensionsWithinAChunkTakeNoBoxes) {
  std::string ones = "1", twos = "2";
  for (int i = 1; i < 30; ++i) ones += ",1", twos += ",2";
  OrbaxWriter item;
  item.inside = {{"w/zarr.json", zarr3("[3," + ones + "]", "[2," + twos + "]", "uint8")}};
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_EQ(opened.catalog->tensor(0).boxes.size(), 2U);
}

TEST(OrbaxSource, ChunksAlongTheFirstDimensionAreOneRun) {
  OrbaxWriter item;
  item.inside = {{"w/zarr.json", zarr3("[4,6]", "[2,6]", "uint8")}};
  item.files["data"] = std::string(100, 'x');
  item.outside["w/c/0/0"] = {"data", 0, 12};
  item.outside["w/c/1/0"] = {"data", 12, 12};
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_TRUE(opened.catalog->tensor(0).boxes.empty());
  EXPECT_EQ(opened.catalog->storages()[0].extents.size(), 1U);
}

TEST(OrbaxSource, WhatNobodyCanDecodeIsAnObstacle) {
  const std::string blosc = R"(,{"name":"blosc","configuration":{"cname":"lz4","clevel":5,)"
                            R"("shuffle":"noshuffle","typesize":1,"blocksize":0}})";
  const std::string sum = R"(,{"name":"crc32c"})";
  for (const auto& [shape, codecs, reason] :
       {std::tuple<std::string, std::string, std::string>{"[2]", R"(,{"name":"lzma"})",
                                                          "codec \"lzma\""},
        {"[]", R"(,{"name":"lzma"})", "codec \"lzma\""},
        {"[2]", blosc + blosc, "codec blosc twice"},
        {"[2]", sum + blosc + sum, "codec blosc between two checksums"}}) {
    OrbaxWriter item;
    item.inside["w/zarr.json"] = zarr3(shape, shape, "float32", codecs);
    const TemporaryDirectory directory;
    item.write(directory);
    const Opened opened = open_source(directory.path());
    ASSERT_NE(opened.catalog, nullptr);
    ASSERT_EQ(opened.catalog->obstacles().size(), 1U);
    EXPECT_EQ(opened.catalog->obstacles()[0].tensor, "w");
    EXPECT_EQ(opened.catalog->obstacles()[0].reason, reason);
    EXPECT_EQ(opened.catalog->tensor(0).shape.size(), shape == "[]" ? 0U : 1U);
  }
}

TEST(OrbaxSource, AMissingChunkThatMayBeIsNoted) {
  OrbaxWriter item = item_of("w");
  item.inside["w/zarr.json"] = zarr3("[7]", "[2]");
  const TemporaryDirectory directory;
  item.write(directory);
  EXPECT_EQ(notes_by_subject(*open_source(directory.path()).catalog).at("w"),
            "3 of 4 chunks are not stored: shown as their fill value");
}

TEST(OrbaxSource, ATreeThatIsInNoFileIsNoted) {
  OrbaxWriter item = item_of("a.b");
  item.with_tree = false;
  const TemporaryDirectory directory;
  item.write(directory);
  EXPECT_EQ(notes_by_subject(*open_source(directory.path()).catalog).at("_METADATA"),
            "absent; the tree is that of the names of the arrays, split at dots");
}

TEST(OrbaxSource, AFileOfRandomKeysThatIsTooLargeIsRefused) {
  const TemporaryDirectory directory;
  item_of("w").write(directory);
  directory.write("array_metadatas/process_0", "");
  fs::resize_file(directory / "array_metadatas" / "process_0", (64 << 20) + 1);
  EXPECT_THAT(error_of(directory.path()),
              HasSubstr("array_metadatas/process_0: 67108865 bytes (limit 67108864)"));
}

TEST(OrbaxSource, AMissingChunkIsAnObstacleWhereNoneMayBe) {
  OrbaxWriter item;
  item.inside.erase("w/c/0");
  item.flags += R"(,"store_array_data_equal_to_fill_value":true)";
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  ASSERT_EQ(opened.catalog->obstacles().size(), 1U);
  EXPECT_THAT(opened.catalog->obstacles()[0].reason, HasSubstr("1 of its chunks are missing"));
}

/// An item without a database, of the array `w` with two chunks of a file each.
OrbaxWriter plain_item() {
  OrbaxWriter item;
  item.flags = R"("use_ocdbt":false,"use_zarr3":true)";
  item.with_manifest = false;
  item.files = {{"w/zarr.json", zarr3("[4]", "[2]")}, {"w/c/0", "12345678"}, {"w/c/1", "12345678"}};
  return item;
}

TEST(OrbaxSource, AMissingChunkIsAnObstacleWhereADownloadWasNotFinished) {
  OrbaxWriter item = plain_item();
  const TemporaryDirectory directory;
  item.files[".cache/huggingface/download/x.incomplete"] = "x";
  item.write(directory);
  const Opened whole = open_source(directory.path());
  ASSERT_NE(whole.catalog, nullptr);
  EXPECT_TRUE(whole.catalog->obstacles().empty());
  std::filesystem::remove(directory / "w/c/1");
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  ASSERT_EQ(opened.catalog->obstacles().size(), 1U);
  EXPECT_EQ(opened.catalog->obstacles()[0].tensor, "w");
  EXPECT_THAT(opened.catalog->obstacles()[0].reason,
              HasSubstr("1 of its chunks are missing, and .cache/huggingface/download/x.incomplete "
                        "is a download that was not finished (complete it with: hf download"));
}

/// Why the array of step 0 cannot be shown, one of whose chunks is missing; empty: it can. By the
/// adapter itself: beside an unfinished download open_checkpoint() refuses a directory of steps.
std::string obstacle_of_step(const std::filesystem::path& path) {
  const auto files = SourceFiles::create({.engine = IoEngine::Pread}).value();
  const auto tree = list_source(path, *files);
  EXPECT_TRUE(tree) << tree.error().message();
  if (!tree) return "";
  const auto catalog = kOrbax.open(*tree, *files, {.step = 0});
  EXPECT_TRUE(catalog) << catalog.error().message();
  if (!catalog || (*catalog)->obstacles().empty()) return "";
  EXPECT_EQ((*catalog)->obstacles()[0].tensor, "w");
  return (*catalog)->obstacles()[0].reason;
}

/// The same where that is all that lies beside steps 0 and 7.
std::string obstacle_beside(const std::string& mark, const std::string& item_directory) {
  OrbaxWriter item = plain_item();
  item.files.erase("w/c/1");
  const TemporaryDirectory root;
  item.write(root, item_directory);
  item.write(root, "7/");
  if (!mark.empty()) root.write(mark, "x");
  std::string reason = obstacle_of_step(root.path());
  if (!mark.empty()) {
    EXPECT_THAT(error_of(root.path(), {.step = 0}),
                HasSubstr(mark + ": a download that was not finished"));
  }
  // The whole was downloaded, not the step.
  if (!reason.empty()) {
    EXPECT_THAT(reason, HasSubstr("(complete it with: hf download REPOSITORY --local-dir " +
                                  root.path().string() + ")"));
  }
  return reason;
}

TEST(OrbaxSource, AStepKnowsMarksOfUnfinishedDownloadsThatLieElsewhere) {
  for (const char* const directory : {"0/", "0/items/"}) {
    EXPECT_EQ(obstacle_beside("", directory), "") << "a chunk that is missing is the fill value";
    for (const std::string mark : {".cache/huggingface/download/x.incomplete",
                                   ".cache/huggingface/download/7/w/c/x.incomplete", "x.incomplete",
                                   "assets/x.incomplete"}) {
      EXPECT_THAT(obstacle_beside(mark, directory),
                  HasSubstr("1 of its chunks are missing, and " + mark +
                            " is a download that was not finished"));
    }
    EXPECT_THAT(obstacle_beside("0/b/x.incomplete", directory),
                HasSubstr("1 of its chunks are missing, and b/x.incomplete is a download"));
    for (const char* const other :
         {"7/x.incomplete", "7/w/c/x.incomplete", "8.orbax-checkpoint-tmp-3/x.incomplete"}) {
      EXPECT_EQ(obstacle_beside(other, directory), "") << "of another step";
    }
  }
}

TEST(OrbaxSource, AStepInAHubCacheKnowsThatItsDownloadWasNotFinished) {
  OrbaxWriter item = plain_item();
  item.files.erase("w/c/1");
  const TemporaryDirectory hub;
  const std::string repository = "models--org--name";
  item.write(hub, repository + "/snapshots/1/0/");
  hub.write(repository + "/refs/main", "1");
  hub.write(repository + "/blobs/2.incomplete", "x");
  EXPECT_THAT(obstacle_of_step(hub / repository),
              HasSubstr("1 of its chunks are missing, and blobs/2.incomplete is a download that "
                        "was not finished (complete it with: hf download org/name)"));
}

TEST(OrbaxSource, WhatIsNoPartOfItMayLeadNowhere) {
  const TemporaryDirectory directory;
  plain_item().write(directory);
  std::filesystem::create_symlink("gone", directory / "README.md");
  std::filesystem::create_directory_symlink("w", directory / "circle");
  EXPECT_THAT(names_at(directory.path()), ElementsAre("w"));
}

TEST(OrbaxSource, KeysOfManySlashesCostLittle) {
  OrbaxWriter item;
  std::string deep;
  for (int i = 0; i < 30'000; ++i) deep += "a/";
  for (int i = 0; i < 100; ++i) item.inside[fmt::format("v/{}{:03}", deep, i)] = "x";
  const TemporaryDirectory directory;
  item.write(directory);
  const CostLimit limit(16_MiB);
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_of(*opened.catalog), ElementsAre("w"));
}

TEST(OrbaxSource, OfARootOfStepsKnowsLinksThatLeadOut) {
  const TemporaryDirectory elsewhere;
  elsewhere.write("secret", "{}");
  const TemporaryDirectory directory;
  OrbaxWriter().write(directory, "3/");
  std::filesystem::create_symlink(elsewhere.path() / "secret", directory.path() / "3/extra.json");
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_TRUE(std::ranges::any_of(opened.catalog->facts(),
                                  [](const Note& fact) { return fact.subject == kOutsideLinks; }));
}

TEST(OrbaxSource, ArraysWithoutALeafAreLeftOut) {
  OrbaxWriter item;
  item.inside["x/zarr.json"] = zarr3("[2]", "[2]");
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_THAT(names_of(*opened.catalog), ElementsAre("w"));
  EXPECT_TRUE(std::ranges::any_of(opened.catalog->notes(),
                                  [](const Note& note) { return note.subject == "x"; }));
}

Broken broken(std::string message, std::function<void(OrbaxWriter&)> change,
              OpenCheckpointOptions options = {}) {
  std::string name = message;
  return {std::move(name), std::move(message),
          [change = std::move(change)](const TemporaryDirectory& out) {
            OrbaxWriter item;
            change(item);
            item.write(out);
          },
          std::move(options)};
}

/// A root of two steps, 3 whole and 5 as `change` leaves it.
Broken broken_root(std::string message, std::function<void(const TemporaryDirectory&)> build,
                   OpenCheckpointOptions options = {}) {
  std::string name = message;
  return {std::move(name), std::move(message), std::move(build), std::move(options)};
}

/// A value of one float in a shard with an index of `pairs`.
std::string shard(std::string_view data, const std::vector<std::uint64_t>& pairs) {
  std::string index;
  for (const std::uint64_t word : pairs) {
    for (int i = 0; i < 8; ++i) index += static_cast<char>(word >> (8 * i) & 0xff);
  }
  const std::uint32_t crc = crc32c(index);
  for (int i = 0; i < 4; ++i) index += static_cast<char>(crc >> (8 * i) & 0xff);
  return std::string(data) + index;
}

/// `codec`: of the inner chunks, behind "bytes".
std::string sharded(std::string_view shape, std::string_view shard_shape, std::string_view inner,
                    std::string_view codec = "") {
  return fmt::format(
      R"({{"zarr_format":3,"node_type":"array","shape":{},"data_type":"float32","chunk_grid":)"
      R"({{"name":"regular","configuration":{{"chunk_shape":{}}}}},"chunk_key_encoding":)"
      R"({{"name":"default"}},"fill_value":0,"codecs":[{{"name":"sharding_indexed",)"
      R"("configuration":{{"chunk_shape":{},"codecs":[{{"name":"bytes","configuration":)"
      R"({{"endian":"little"}}}}{}{}],"index_codecs":[{{"name":"bytes","configuration":)"
      R"({{"endian":"little"}}}},{{"name":"crc32c"}}]}}}}]}})",
      shape, shard_shape, inner, codec.empty() ? "" : ",", codec);
}

std::vector<Broken> all_broken() {
  std::vector<Broken> all;
  const auto add = [&](std::string message, std::function<void(OrbaxWriter&)> change,
                       OpenCheckpointOptions options = {}) {
    all.push_back(broken(std::move(message), std::move(change), std::move(options)));
  };
  add("only DeepSpeed checkpoints have tags", [](OrbaxWriter&) {}, {.tag = "t"});
  add("nothing below the key \"q\"", [](OrbaxWriter&) {}, {.key = "q"});
  add("nothing below the key \"w\"", [](OrbaxWriter&) {}, {.key = "w"});
  add("a tree without leaves", [](OrbaxWriter& item) { item.leaves.clear(); });
  add("step 3: a step or an item, not a directory of steps", [](OrbaxWriter&) {}, {.step = 3});
  add("no item \"q\" (it has .)", [](OrbaxWriter&) {}, {.item = "q"});
  add("_METADATA: not JSON, only white space", [](OrbaxWriter& item) {
    item.with_tree = false;
    item.files["_METADATA"] = "";
  });
  add("manifest.ocdbt: missing, and _METADATA says that the arrays are in it",
      [](OrbaxWriter& item) {
        item.with_manifest = false;
        item.files["w/zarr.json"] = zarr3("[2]", "[2]");
      });
  add("not finished: ocdbt.process_3 was never merged (no manifest.ocdbt)", [](OrbaxWriter& item) {
    item.with_manifest = false;
    item.files["ocdbt.process_3/manifest.ocdbt"] = "x";
  });
  add("no array in it", [](OrbaxWriter& item) { item.inside = {{"w/c/0", "12345678"}}; });
  add("leaf (\"x\"): no array \"x\" is stored",
      [](OrbaxWriter& item) { item.leaves.push_back({"x", "jax.Array"}); });
  add("are both called \"a.b\"", [](OrbaxWriter& item) {
    item.with_tree = false;
    item.inside = {{"a.b/zarr.json", zarr3("[2]", "[2]")}, {"a.b/c/0", "12345678"}};
    const std::string value = R"("value_metadata":{"value_type":"scalar"})";
    item.files["_METADATA"] =
        R"({"tree_metadata":{"1":{"key_metadata":[{"key":"a.b","key_type":2}],)" + value +
        R"(},"2":{"key_metadata":[{"key":"a","key_type":2},{"key":"b","key_type":2}],)" + value +
        R"(}},"use_ocdbt":true,"use_zarr3":true})";
  });
  // Both would be what the old tree has under that name.
  add("are both called \"a.b\"", [](OrbaxWriter& item) {
    item.with_tree = false;
    item.files["checkpoint"] =
        "\x81\xa3"
        "a.b\xc7\x15\x01\x93\x91\x02\xa7"
        "float32\xc4\x08"
        "12345678";
    const std::string value =
        R"("value_metadata":{"value_type":"placeholder","skip_deserialize":true})";
    item.files["_METADATA"] =
        R"({"tree_metadata":{"1":{"key_metadata":[{"key":"a.b","key_type":2}],)" + value +
        R"(},"2":{"key_metadata":[{"key":"a","key_type":2},{"key":"b","key_type":2}],)" + value +
        R"(}},"use_ocdbt":true,"use_zarr3":true})";
  });
  add("an array whose name is not UTF-8",
      [](OrbaxWriter& item) { item.inside["\xff/zarr.json"] = zarr3("[2]", "[2]"); });
  add("w/zarr.json: chunk_shape has 2 dimensions, and shape has 1",
      [](OrbaxWriter& item) { item.inside["w/zarr.json"] = zarr3("[2]", "[2,2]"); });
  add("w/zarr.json: not JSON", [](OrbaxWriter& item) { item.inside["w/zarr.json"] = ""; });
  add("w/zarr.json: 1048577 bytes (limit 1048576)", [](OrbaxWriter& item) {
    item.inside.erase("w/zarr.json");
    item.files["big"] = std::string(1048577, ' ');
    item.outside["w/zarr.json"] = {"big", 0, 1048577};
  });
  add("\"w\": chunk 0: 7 bytes are stored, expected 8",
      [](OrbaxWriter& item) { item.inside["w/c/0"] = "1234567"; });
  add("\"w\": chunk 0: 9 bytes are stored, expected 8",
      [](OrbaxWriter& item) { item.inside["w/c/0"] = "123456789"; });
  add("\"w\": a grid of [1000000000, 300000000] chunks of 4 bytes (limit 2^59 in all)",
      [](OrbaxWriter& item) {
        item.inside["w/zarr.json"] = zarr3("[1000000000,300000000]", "[1,1]");
      });
  add("\"w\": 1000000000 chunks with those of the arrays before it, and 2 keys are stored",
      [](OrbaxWriter& item) { item.inside["w/zarr.json"] = zarr3("[1000000000]", "[1]"); });
  // Keys of 30,000 bytes that differ in their ends.
  add("manifest.ocdbt: names of arrays of ", [](OrbaxWriter& item) {
    const std::string same(30000, 'n');
    for (int i = 0; i < 400; ++i) {
      item.outside[fmt::format("{}{:04}/zarr.json", same, i)] = {
          "big", 1000U * static_cast<unsigned>(i), 1000};
    }
    item.files["big"] = std::string(400 * 1000, ' ');
  });
  // Each may be a chunk of 33 arrays.
  add(" bytes of names, with those before, may be of its array, and 602 keys are stored",
      [](OrbaxWriter& item) {
        std::string deep(60000, 'n');
        for (int i = 0; i < 40; ++i) deep += "/x";
        item.inside[deep + "/zarr.json"] = zarr3("[2]", "[2]");
        for (int i = 0; i < 599; ++i) item.inside[fmt::format("{}/{}", deep, i)] = "";
      });
  add(" parts between dots with those of the arrays before it (limit 262528)",
      [](OrbaxWriter& item) {
        item.with_tree = false;
        for (int i = 0; i < 5; ++i)
          item.inside[fmt::format("{}{}/zarr.json", std::string(60000, '.'), i)] =
              zarr3("[2]", "[2]");
      });
  add("\"w\": 300000 chunks with those of the arrays before it, and 2 keys are stored (limit 262",
      [](OrbaxWriter& item) { item.inside["w/zarr.json"] = zarr3("[300000]", "[1]"); });
  const auto partial = [](int rank) {
    std::string threes = "3", twos = "2";
    for (int i = 1; i < rank; ++i) threes += ",3", twos += ",2";
    return zarr3("[" + threes + "]", "[" + twos + "]", "uint8");
  };
  add("end beyond it along 9 dimensions (limit 8)",
      [=](OrbaxWriter& item) { item.inside["w/zarr.json"] = partial(9); });
  add("shared: the metadata of \"x\" at 10 are within those of \"w\"", [](OrbaxWriter& item) {
    item.files["shared"] = std::string(1000, ' ');
    item.outside["w/zarr.json"] = {"shared", 0, 11};
    item.outside["x/zarr.json"] = {"shared", 10, 900};
    item.inside.erase("w/zarr.json");
  });
  add("leaf (\"a\\u0000b\"): a key with a NUL", [](OrbaxWriter& item) {
    item.with_tree = false;
    item.files["_METADATA"] =
        R"({"tree_metadata":{"1":{"key_metadata":[{"key":"a\u0000b","key_type":2}],)"
        R"("value_metadata":{"value_type":"np.ndarray"}}},"use_ocdbt":true,"use_zarr3":true})";
  });
  add("end beyond them: 34048 boxes (limit 33968)", [=](OrbaxWriter& item) {
    item.leaves.clear();
    for (int i = 0; i < 150; ++i) {
      item.leaves.push_back({fmt::format("w{:03}", i), "np.ndarray"});
      item.inside[fmt::format("w{:03}/zarr.json", i)] = partial(8);
    }
    item.inside.erase("w/zarr.json");
  });
  add("d/gone: missing, but the database refers to it", [](OrbaxWriter& item) {
    item.inside.erase("w/c/0");
    item.outside["w/c/0"] = {"d/gone", 0, 8};
  });
  add("short: 8 bytes at 3 end beyond the file at 10 (key \"w/c/0\")", [](OrbaxWriter& item) {
    item.inside.erase("w/c/0");
    item.files["short"] = "0123456789";
    item.outside["w/c/0"] = {"short", 3, 8};
  });
  add("\"w\": chunk 0: 19 bytes are stored, and its index has 20", [](OrbaxWriter& item) {
    item.inside["w/zarr.json"] = sharded("[2]", "[2]", "[2]");
    item.inside["w/c/0"] = std::string(19, 'x');
  });
  add("\"w\": shards of more than 16777216 chunks",
      [](OrbaxWriter& item) { item.inside["w/zarr.json"] = sharded("[2]", "[33554432]", "[1]"); });
  add("\"w\": chunk 0: inner chunk 1: 3 bytes are stored, expected 4", [](OrbaxWriter& item) {
    item.compress = true;
    item.inside["w/zarr.json"] = sharded("[2]", "[2]", "[1]");
    item.inside["w/c/0"] = shard("12345678", {0, 4, 4, 3});
  });
  add("\"w\": chunk 0: inner chunk 1: 45 bytes at 0 of a shard of 44", [](OrbaxWriter& item) {
    item.compress = true;
    item.inside["w/zarr.json"] = sharded("[2]", "[2]", "[1]");
    item.inside["w/c/0"] = shard("12345678", {0, 4, 0, 45});
  });
  add("\"w\": chunk 0: the CRC-32C of its index is", [](OrbaxWriter& item) {
    item.compress = true;
    item.inside["w/zarr.json"] = sharded("[2]", "[2]", "[1]");
    item.inside["w/c/0"] = std::string(44, 'x');
  });
  // All inner chunks are the whole shard.
  add("\"w\": chunk 0: inner chunk 1: 2097112 bytes with those before it, of a shard of 1048556",
      [](OrbaxWriter& item) {
        item.compress = true;
        item.inside["w/zarr.json"] = sharded("[65500]", "[65500]", "[1]", R"({"name":"zstd"})");
        constexpr std::uint64_t kSize = 1048556;
        std::vector<std::uint64_t> pairs;
        for (int i = 0; i < 65500; ++i) pairs.insert(pairs.end(), {0, kSize});
        item.inside["w/c/0"] = shard(std::string(kSize - 16 * 65500 - 4, 'x'), pairs);
      });
  // One file is all shards, most of whose chunks lie outside of their array.
  const auto full = [](std::string_view last) {
    return [last](const TemporaryDirectory& out) {
      constexpr std::uint64_t kMost = 1U << 24;
      OrbaxWriter item;
      item.leaves = {{"a", "np.ndarray"}, {"b", "np.ndarray"}, {"w", "np.ndarray"}};
      item.inside = {{"a/zarr.json", sharded("[127,1]", "[1,16777216]", "[1,1]")},
                     {"b/zarr.json", sharded("[1]", "[16777087]", "[1]")},
                     {"w/zarr.json", zarr3("[2]", "[2]", "float32", R"(,{"name":"zstd"})")}};
      if (!last.empty()) item.inside["w/c/0"] = last;
      for (int i = 0; i < 127; ++i) {
        item.outside[fmt::format("a/c/{}/0", i)] = {"shard", 0, 16 * kMost + 4};
      }
      item.outside["b/c/0"] = {"shard", 0, 16 * kMost + 4};
      item.files["shard"] = "";
      item.write(out);
      std::filesystem::resize_file(out / "shard", 16 * kMost + 4);
    };
  };
  for (const std::string_view last : {"12345678", ""}) {
    all.push_back({"w: 2147483648 chunks with those before them: too many (limit 2^31)",
                   "w: 2147483648 chunks with those before them: too many (limit 2^31)",
                   full(last)});
  }
  add("manifest.ocdbt: 4 bytes, fewer than any has (16)", [](OrbaxWriter& item) {
    item.with_manifest = false;
    item.files["manifest.ocdbt"] = "oops";
  });
  const auto manifest = [](OrbaxWriter& item, std::string_view file, std::uint64_t offset,
                           std::uint64_t size, std::uint8_t height = 0) {
    item.with_manifest = false;
    item.files["d/nodes"] = item.node();
    item.files["manifest.ocdbt"] = ocdbt::render_manifest(file, {{1, 2}, height, offset, size, {}});
  };
  add("d/none: missing, but the database refers to it",
      [&](OrbaxWriter& item) { manifest(item, "d/none", 0, 10); });
  add("d/nodes: a node of 100000 bytes at 5 ends beyond the file",
      [&](OrbaxWriter& item) { manifest(item, "d/nodes", 5, 100000); });
  add("d/nodes: node at 0: records a length of",
      [&](OrbaxWriter& item) { manifest(item, "d/nodes", 0, 30); });
  add("d/nodes: node at 0: of height 0, expected at height 2",
      [&](OrbaxWriter& item) { manifest(item, "d/nodes", 0, item.node().size(), 2); });
  // Small leaves and children, whose paths and keys share most of their bytes.
  const auto shared = [](OrbaxWriter& item, bool children) {
    item.with_manifest = false;
    const std::string same(20000, 'v');
    std::vector<ocdbt::Child> list;
    std::string& nodes = item.files["d/nodes"];
    if (children) {
      for (int i = 0; i < 4000; ++i) list.push_back({fmt::format("{}{:04}", same, i), 0, 1, {}});
    }
    for (int node = 0; node < 250 && !children; ++node) {
      const ocdbt::FileName name = [&](std::uint32_t file) {
        return fmt::format("d/{}{}", same, file);
      };
      ocdbt::Leaf<ocdbt::KeptColumn> leaf(name);
      for (std::uint32_t i = 0; i < 12; ++i) {
        leaf.add(fmt::format("{:04}/{:04}", node, i), ocdbt::DataLocation{i, 0, 1});
      }
      const std::string text = compressed(leaf.render());
      list.push_back({fmt::format("{:04}/0000", node), nodes.size(), text.size(), {}});
      nodes += text;
    }
    const std::string root = compressed(ocdbt::render_interior(1, "d/nodes", list));
    item.files["manifest.ocdbt"] =
        ocdbt::render_manifest("d/nodes", {{1, 2}, 1, nodes.size(), root.size(), {}});
    nodes += root;
  };
  add("become more than ", [=](OrbaxWriter& item) { shared(item, false); });
  add("become more than ", [=](OrbaxWriter& item) { shared(item, true); });
  // Interior nodes over the one leaf.
  const auto above = [](OrbaxWriter& item,
                        std::vector<std::pair<std::string, std::size_t>> children,
                        std::size_t padding = 0) {
    item.with_manifest = false;
    const std::string leaf = item.node();
    std::vector<ocdbt::Child> list;
    for (const auto& [key, offset] : children) list.push_back({key, offset, leaf.size(), {}});
    const std::string root = ocdbt::render_interior(1, "d/nodes", list);
    item.files["d/nodes"] = leaf + leaf + std::string(padding, 'x') + root;
    item.files["manifest.ocdbt"] =
        ocdbt::render_manifest("d/nodes", {{1, 2}, 1, 2 * leaf.size() + padding, root.size(), {}});
  };
  add("its first key is \"w/c/0\", expected none below \"x\"",
      [&](OrbaxWriter& item) { above(item, {{"x", 0}}); });
  add("key \"w/c/0\" after \"w/zarr.json\" of the node before it",
      [&](OrbaxWriter& item) { above(item, {{"a", 0}, {"b", item.node().size()}}, 1000); });
  add("bytes at 0 overlaps another",
      [&](OrbaxWriter& item) { above(item, {{"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}}); });
  add("says that the state is in numbered manifests, and there is none", [](OrbaxWriter& item) {
    item.with_manifest = false;
    std::string body("\0\0", 2);
    body += std::string(16, 'u') + "\1\1\1\4" + std::string(1, '\0');
    std::string text("\x0c\xdb\x3a\x2a", 4);
    for (int i = 0; i < 8; ++i) text += static_cast<char>((body.size() + 16) >> (8 * i) & 0xff);
    text += body;
    const std::uint32_t crc = crc32c(text);
    for (int i = 0; i < 4; ++i) text += static_cast<char>(crc >> (8 * i) & 0xff);
    item.files["manifest.ocdbt"] = text;
  });
  add("manifest.0000000000000002: says that the state is in numbered manifests, and is one",
      [&all](OrbaxWriter& item) {
        OrbaxWriter other;
        const TemporaryDirectory scratch;
        for (const Broken& each : all) {
          if (each.name.starts_with("says that the state")) each.build(scratch);
        }
        std::ifstream file(scratch / "manifest.ocdbt");
        item.files["manifest.ocdbt"] = {std::istreambuf_iterator<char>(file), {}};
        item.files["manifest.0000000000000002"] = item.files["manifest.ocdbt"];
        item.with_manifest = false;
      });
  // Steps and items.
  const auto whole = [](const TemporaryDirectory& root, const std::string& directory) {
    OrbaxWriter().write(root, directory);
  };
  const auto unmerged = [](const TemporaryDirectory& root, const std::string& directory) {
    OrbaxWriter item;
    item.with_manifest = false;
    item.files["ocdbt.process_0/manifest.ocdbt"] = "x";
    item.write(root, directory);
  };
  all.push_back(broken_root("no step 4 (it has 3, 5)",
                            [=](const TemporaryDirectory& root) {
                              whole(root, "3/default/");
                              whole(root, "5/default/");
                            },
                            {.step = 4}));
  all.push_back(broken_root("/5: not finished: ocdbt.process_0 was never merged",
                            [=](const TemporaryDirectory& root) {
                              whole(root, "3/default/");
                              unmerged(root, "5/default/");
                            },
                            {.step = 5}));
  all.push_back(broken_root("7.orbax-checkpoint-tmp-1: step 7 was never committed",
                            [=](const TemporaryDirectory& root) {
                              whole(root, "3/default/");
                              whole(root, "7.orbax-checkpoint-tmp-1/default/");
                            },
                            {.step = 7}));
  all.push_back(broken_root("no step in it was finished (not finished: ocdbt.process_0",
                            [=](const TemporaryDirectory& root) {
                              unmerged(root, "3/default/");
                              unmerged(root, "5/default/");
                            }));
  all.push_back(broken_root(
      "no step in it was finished (9.orbax-checkpoint-tmp-1)",
      [=](const TemporaryDirectory& root) { whole(root, "9.orbax-checkpoint-tmp-1/default/"); }));
  all.push_back(broken_root("3 and step_0003 are the same step; open one of them",
                            [=](const TemporaryDirectory& root) {
                              whole(root, "3/default/");
                              whole(root, "step_0003/default/");
                            }));
  all.push_back(broken_root("several items: a, b; choose one with --item",
                            [=](const TemporaryDirectory& step) {
                              whole(step, "a/");
                              whole(step, "b/");
                            }));
  all.push_back(broken_root(
      "no item in it was committed (b/c.orbax-checkpoint-tmp-1)",
      [=](const TemporaryDirectory& root) { whole(root, "b/c.orbax-checkpoint-tmp-1/"); }));
  all.push_back(broken_root("no item \"b.orbax-checkpoint-tmp-1\" (it has a)",
                            [=](const TemporaryDirectory& step) {
                              whole(step, "a/");
                              whole(step, "b.orbax-checkpoint-tmp-1/");
                            },
                            {.item = "b.orbax-checkpoint-tmp-1"}));
  all.push_back(broken_root("no item \"c\" (it has a, b)",
                            [=](const TemporaryDirectory& step) {
                              whole(step, "a/");
                              whole(step, "b/");
                            },
                            {.item = "c"}));
  // What a chunk may be behind, and is not seen.
  const auto hidden = [&](const OrbaxWriter& item, const std::string& path,
                          const std::string& target, const std::string& fact) {
    all.push_back(
        broken_root(path + ": a part of the item, but " + fact, [=](const TemporaryDirectory& out) {
          item.write(out);
          std::filesystem::remove_all(out / path);
          std::filesystem::create_symlink(target, out / path);
        }));
  };
  hidden(OrbaxWriter(), "_METADATA", "gone", "a link to a file that is absent or out of reach");
  hidden(plain_item(), "w/c/1", "gone", "a link to a file that is absent or out of reach");
  hidden(plain_item(), "w/c", "..", "a link to a directory; not followed");
  all.push_back(
      broken_root("\"w\": has both .zarray and zarr.json", [](const TemporaryDirectory& item) {
        item.write("checkpoint", "\x80");
        item.write("w/zarr.json", zarr3("[2]", "[2]"));
        item.write("w/.zarray", R"({"zarr_format":2,"shape":[2],"chunks":[2],"dtype":"<f4",)"
                                R"("order":"C","compressor":null,"filters":null,)"
                                R"("fill_value":null})");
      }));
  all.push_back(broken_root("leaf (\"a\"): its array has another name, \"b\"",
                            [](const TemporaryDirectory& item) {
                              item.write("checkpoint",
                                         "\x81\xa1"
                                         "a\xafPLACEHOLDER://b");
                              item.write("b/zarr.json", zarr3("[2]", "[2]"));
                            }));
  return all;
}

TEST(OrbaxSource, SaysWhatIsWrong) {
  std::set<std::string> seen;
  for (const Broken& each : all_broken()) {
    SCOPED_TRACE(each.name);
    expect_refused(each);
    seen.insert(each.message);
  }
  EXPECT_GE(seen.size(), 40U);
}

TEST(OrbaxSource, AnOpenedShardWithoutAnIndexIsNotRead) {
  OrbaxWriter item;
  item.inside["w/zarr.json"] = sharded("[2]", "[2]", "[2]");
  item.inside["w/c/0"] = shard("12345678", {0, 8});
  const TemporaryDirectory directory;
  item.write(directory);
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_FALSE(opened.catalog->chunks().empty());
}

}  // namespace
}  // namespace ckfs
