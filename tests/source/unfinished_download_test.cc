// Checkpoints beside the marks of a download that was not finished: refused where something of
// theirs may be missing, and never where nothing is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>

#include "source/opened.h"
#include "source/safetensors_files.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(OpenCheckpoint, TakesNothingElseForAStepOrAnItemThatAnUnfinishedDownloadMayHave) {
  const TemporaryDirectory directory;
  directory.write("7/default/_METADATA", "{}");
  directory.write(".cache/huggingface/download/7/default/x.incomplete", "");
  const auto expect_refused = [&](const OpenCheckpointOptions& options) {
    EXPECT_EQ(error_of(directory.path(), options),
              ".cache/huggingface/download/7/default/x.incomplete: a download that was not "
              "finished (complete the download with: hf download REPOSITORY --local-dir " +
                  directory.path().string() + ")");
  };
  expect_refused({});
  expect_refused({.step = 7});
  // Whole by itself.
  directory.write("model.safetensors", file_of({{"x"}}));
  EXPECT_TRUE(open_source(directory.path()).catalog->find("x"));
  expect_refused({.step = 7});
  expect_refused({.item = "default"});
}

const std::string kStModels = "sentence_transformers.models.";
const std::string kHubMarks = ".cache/huggingface/download/";

/// A sentence-transformers model of which folder 2 has no weights, and beside it a download that
/// was not finished.
struct UnfinishedModules {
  UnfinishedModules(const std::string& type, const std::string& mark) {
    directory.write("model.safetensors", file_of({{"x"}}));
    directory.write("modules.json",
                    fmt::format(R"([{{"path": "", "type": "{0}Transformer"}},)"
                                R"({{"path": "1_Pooling", "type": "{0}Pooling"}},)"
                                R"({{"path": "2_Module", "type": "{1}"}},)"
                                R"({{"path": "3_Normalize", "type": "{0}Normalize"}}])",
                                kStModels, type));
    directory.write("1_Pooling/config.json", "{}");
    directory.write("2_Module/config.json", "{}");
    directory.write(mark, "");
  }
  std::string refusal() const { return error_of(directory.path()); }
  std::map<std::string, std::string> notes() const {
    const Opened opened = open_source(directory.path());
    if (opened.catalog == nullptr) return {};
    EXPECT_TRUE(opened.catalog->find("x"));
    return notes_by_subject(*opened.catalog);
  }
  TemporaryDirectory directory;
};

TEST(OpenCheckpoint, RefusesAModuleWhoseWeightsAnUnfinishedDownloadLacks) {
  const auto expect_refused = [](const std::string& type, const std::string& mark) {
    const UnfinishedModules model(type, mark);
    EXPECT_EQ(model.refusal(),
              "2_Module: no weights, and " + mark +
                  " is a download that was not finished (complete the download with: hf download "
                  "REPOSITORY --local-dir " +
                  model.directory.path().string() + ")");
    // Whole it is opened, whatever was left behind.
    model.directory.write("2_Module/pytorch_model.bin", "x");
    EXPECT_EQ(model.refusal(), "(no error)");
    fs::remove(model.directory / "2_Module/pytorch_model.bin");
    model.directory.write("2_Module/model.safetensors", file_of({{"y"}}));
    EXPECT_EQ(model.notes()[mark], "a download that was not finished; nothing here needs it");
  };
  // By its type, as releases write it: wherever the mark lies.
  for (const std::string& type :
       {kStModels + "Dense", std::string("sentence_transformers.base.modules.dense.Dense"),
        kStModels + "LayerNorm", kStModels + "WeightedLayerPooling"}) {
    expect_refused(type, kHubMarks + "x.incomplete");
  }
  // By the mark, as releases of huggingface_hub and others name it.
  for (const std::string& name :
       {kHubMarks + "2_Module/xGOKKLRSlIhH692hSVvI1-gpoa8=.0a1b.incomplete",
        kHubMarks + "2_Module/model.safetensors.0a1b.incomplete",
        std::string("2_Module/model.safetensors.incomplete")}) {
    expect_refused("own.Module", name);
  }
}

TEST(OpenCheckpoint, RefusesAModuleOfAHubCacheWhoseWeightsAreStillToCome) {
  const TemporaryDirectory hub;
  const std::string repository = "models--org--name";
  const std::string snapshot = repository + "/snapshots/1/";
  hub.write(repository + "/refs/main", "1");
  hub.write(repository + "/blobs/2.incomplete", "");
  hub.write(snapshot + "model.safetensors", file_of({{"x"}}));
  hub.write(snapshot + "modules.json",
            fmt::format(R"([{{"path": "2_Dense", "type": "{}Dense"}}])", kStModels));
  hub.write(snapshot + "2_Dense/config.json", "{}");
  EXPECT_EQ(error_of(hub / repository),
            "2_Dense: no weights, and blobs/2.incomplete is a download that was not finished "
            "(complete the download with: hf download org/name)");
  fs::remove(hub / (repository + "/blobs/2.incomplete"));
  EXPECT_TRUE(open_source(hub / repository).catalog->find("x")) << "it may be meant so";
}

TEST(OpenCheckpoint, OpensAModelBesideAListOfModulesThatCannotBeRead) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"x"}}));
  directory.write("modules.json", "[");
  directory.write(kHubMarks + "x.incomplete", "");
  const Opened opened = open_source(directory.path());
  ASSERT_NE(opened.catalog, nullptr);
  EXPECT_TRUE(opened.catalog->find("x"));
  std::string notes;
  for (const Note& note : opened.catalog->notes()) notes += note.text + "\n";
  EXPECT_THAT(notes, HasSubstr("which folders have weights is not known: modules.json"));
  EXPECT_THAT(notes, HasSubstr("it may be of weights that folders need"));
}

TEST(OpenCheckpoint, SaysWhereAnUnfinishedDownloadMayLackWeights) {
  const std::string none = "a download that was not finished; nothing here needs it";
  const std::string perhaps =
      "a download that was not finished; it may be of weights that folders need";
  const std::string folder = "no *.safetensors here, and a download was not finished";
  // Of another file of the folder, or of no known one.
  for (const std::string& mark :
       {kHubMarks + "x.incomplete", kHubMarks + "2_Module/x.0a1b.incomplete",
        kHubMarks + "1_Pooling/model.safetensors.0a1b.incomplete"}) {
    auto notes = UnfinishedModules("own.Module", mark).notes();
    EXPECT_EQ(notes[mark], perhaps) << mark;
    EXPECT_EQ(notes["2_Module/"], folder) << mark;
    EXPECT_EQ(notes.size(), 2U) << mark;
    // Modules that never have any.
    notes = UnfinishedModules(kStModels + "Dropout", mark).notes();
    EXPECT_EQ(notes[mark], none) << mark;
    EXPECT_EQ(notes.size(), 1U) << mark;
  }
  // A folder that is elsewhere is not what the download lacks.
  const std::string mark = kHubMarks + "2_Module/model.safetensors.0a1b.incomplete";
  const UnfinishedModules elsewhere(kStModels + "Dense", mark);
  fs::rename(elsewhere.directory / "2_Module", elsewhere.directory / "module");
  fs::create_directory_symlink("module", elsewhere.directory / "2_Module");
  auto notes = elsewhere.notes();
  EXPECT_EQ(notes[mark], perhaps);
  EXPECT_EQ(notes["2_Module/"], folder);
  // What a folder has is not the top's.
  const TemporaryDirectory directory;
  directory.write("model.safetensors", file_of({{"x"}}));
  directory.write("a/model.safetensors", file_of({{"y"}}));
  directory.write("a/modules.json",
                  fmt::format(R"([{{"path": "2_Dense", "type": "{}Dense"}}])", kStModels));
  directory.write("a/2_Dense/config.json", "{}");
  directory.write("a/2_Dense/model.safetensors", file_of({{"z"}}));
  directory.write("a/x.incomplete", "");
  EXPECT_EQ(open_source(directory.path()).catalog->parts().size(), 2U);
}

}  // namespace
}  // namespace ckfs
