#include "api/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "api/checkpoint_impl.h"
#include "api/open.h"
#include "source/torch_writer.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kHf = fs::path(CKFS_TEST_DATA) / "hf";

Checkpoint deepseek() {
  return open(kHf / "deepseek-v3-fp8/source");
}

TEST(InspectReport, TellsWhatTheCheckpointIs) {
  const std::string text = inspect_report(deepseek(), "SRC", ReportFormat::Text);
  EXPECT_THAT(text, testing::StartsWith("SRC: safetensors, fp8"));
  EXPECT_THAT(text, HasSubstr("67 tensors"));
  EXPECT_THAT(text, HasSubstr("\n  bf16-safetensors "));
  EXPECT_THAT(text, HasSubstr("F8_E4M3 with scale -> BF16"));
  EXPECT_EQ(text.back(), '\n');
}

TEST(InspectReport, HasTheSameFactsAsJson) {
  const Checkpoint checkpoint = deepseek();
  const Json json = Json::parse(inspect_report(checkpoint, "SRC", ReportFormat::Json));
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["source"], "SRC");
  EXPECT_EQ(json["kind"], "safetensors");
  EXPECT_EQ(json["tensors"], 67);
  EXPECT_EQ(json["mtime"], checkpoint.mtime());
  EXPECT_EQ(json["fingerprint"].get<std::string>().size(), 16u);
  EXPECT_EQ(json["views"].size(), 14u);
  EXPECT_EQ(json["views"][0]["name"], "bf16-safetensors");
  EXPECT_EQ(json["views"][0]["available"], true);
  std::size_t labelled = 0;
  for (const Json& label : json["labels"]) {
    if (label["view"] == "bf16-safetensors") labelled += label["tensors"].get<std::size_t>();
  }
  EXPECT_EQ(labelled, 67u);
}

TEST(InspectReport, ListsTheLayoutsOfExperts) {
  const auto layouts = [](const char* name) {
    const Checkpoint checkpoint = open(kHf / name / "source");
    std::map<std::string, std::string> found;
    const Json json = Json::parse(inspect_report(checkpoint, "SRC", ReportFormat::Json));
    for (const Json& one : json["experts"]) {
      EXPECT_EQ(one["available"], one["reason"] == "");
      found[one["layout"]] = one["reason"];
    }
    return found;
  };
  using Layouts = std::map<std::string, std::string>;
  EXPECT_EQ(layouts("experts-gpt-oss"), (Layouts{{"linear", ""}, {"fused", ""}, {"packed", ""}}));
  const std::string only =
      "bf16-safetensors: experts=packed: mixtral.json has fused and linear only";
  EXPECT_EQ(layouts("experts-mixtral"), (Layouts{{"linear", ""}, {"fused", ""}, {"packed", only}}));
  EXPECT_EQ(layouts("llama-bf16"), Layouts());
  EXPECT_THAT(inspect_report(open(kHf / "experts-mixtral/source"), "SRC", ReportFormat::Text),
              HasSubstr("\nlayouts of experts\n"
                        "  @experts=linear       available\n"
                        "  @experts=fused        available\n"
                        "  @experts=packed       not available:\n"
                        "    bf16-safetensors: experts=packed: mixtral.json has"));
}

TEST(InspectReport, SaysWhatPassesUnchanged) {
  const std::string text =
      inspect_report(open(kHf / "every-dtype/source"), "SRC", ReportFormat::Text);
  for (const char* dtype : {"F8_E4M3", "F8_E5M2FNUZ", "F8_E8M0", "F4", "C64"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("{} passes unchanged", dtype)));
  }
  EXPECT_THAT(text, Not(HasSubstr("I64 passes unchanged")));
}

TEST(InspectReport, SurvivesNamesThatAreNotUtf8) {
  const Json json = Json::parse(inspect_report(deepseek(), "bad\xff name", ReportFormat::Json));
  EXPECT_EQ(json["source"], "bad\xef\xbf\xbd name");
}

TEST(InspectReport, NamesWhatStandsInTheWayInFolders) {
  const auto bitmasks = [](std::size_t count) {
    std::string header = "{";
    for (std::size_t i = 0; i < count; ++i) {
      header += fmt::format(R"({}"t{}.bitmask":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                            i == 0 ? "" : ",", i);
    }
    return safetensors_file(header + "}", "");
  };
  const TemporaryDirectory directory;
  directory.write("model.safetensors", bitmasks(8));
  directory.write("encoder/model.safetensors", bitmasks(20));
  directory.write("encoder/inner/model.safetensors", bitmasks(25));
  const Json json = Json::parse(inspect_report(open(directory.path()), "", ReportFormat::Json));
  const Json& reasons = json["views"][0]["reasons"];
  std::set<std::string> subjects;
  for (const Json& reason : reasons) {
    EXPECT_FALSE(reason.contains("more")) << reason;
    EXPECT_TRUE(subjects.insert(reason["subject"]).second) << reason;
  }
  EXPECT_EQ(subjects.size(), 53U);
  EXPECT_TRUE(subjects.contains("encoder/inner/t24.bitmask"));
  EXPECT_TRUE(subjects.contains("t7.bitmask"));
  EXPECT_TRUE(subjects.contains("encoder/t19.bitmask"));
}

TEST(ViewReport, SurvivesAnyName) {
  const TemporaryDirectory directory;
  directory.write(
      "model.safetensors",
      safetensors_file(R"({"a\u0000.1":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("a\u0000.2":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                       "12345678"));
  const Checkpoint checkpoint = open(directory.path());
  const auto text = view_report(checkpoint, "bf16-safetensors", ReportFormat::Text);
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_THAT(*text, HasSubstr("a\\x00.1: BF16 [1], lossy\n    a\\x00.1\n"));
}

TEST(ViewReport, NamesATensorOnceHoweverManyNamesItHas) {
  constexpr int kNames = 3000;
  const TemporaryDirectory directory;
  TorchWriter torch;
  const Opcodes tensor = torch.tensor("Float", {1}, "wxyz");
  Opcodes dict = "}(" + py_str("a") + tensor + "q\x01";  // memoized
  for (int i = 0; i < kNames; ++i) dict += py_str(fmt::format("n{}", i)) + "h\x01";
  directory.write("m.pt", torch.file(dict + "u"));
  const Checkpoint checkpoint = open(directory / "m.pt");
  const auto report = view_report(checkpoint, "safetensors", ReportFormat::Json);
  ASSERT_TRUE(report) << report.error().message();
  const Json json = Json::parse(*report);
  ASSERT_EQ(json["arrays"].size(), kNames + 1U);
  for (const Json& array : json["arrays"]) {
    EXPECT_EQ(array["sources"], Json::array({array["name"]}));
    EXPECT_FALSE(array.contains("more_sources"));
  }
  EXPECT_TRUE(json["left_out"].empty());
}

TEST(ViewReport, FilesAsTheyAreLeaveNothingOut) {
  const auto report = view_report(deepseek(), "source", ReportFormat::Json);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_TRUE(Json::parse(*report)["left_out"].empty());
  const auto text = view_report(deepseek(), "source", ReportFormat::Text);
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_EQ(*text, "source: the files of the source as they are; no tensor is made\n");
}

TEST(ListReport, ListsViewsAtTheRoot) {
  const auto text = list_report(deepseek(), "", ListDetail::Names, ReportFormat::Text);
  EXPECT_EQ(text,
            "bf16-safetensors/\nfp16-safetensors/\nfp32-safetensors/\nct-safetensors/\n"
            "nf4-safetensors/\nfp32-consolidated/\nmaxtext-unscanned/\nmaxtext-scanned/\n"
            "megatron-torch-dist/\ndcp/\nsource/\n");
}

TEST(ListReport, ListsAViewWithSizesAndExactness) {
  const Checkpoint checkpoint = deepseek();
  const auto text =
      list_report(checkpoint, "fp16-safetensors/", ListDetail::Long, ReportFormat::Text);
  ASSERT_TRUE(text);
  const auto view = checkpoint.view("fp16-safetensors");
  for (const FileInfo& file : view->files()) {
    EXPECT_THAT(
        *text, HasSubstr(fmt::format("{} {:<9} {}\n", file.size, name(file.exactness), file.path)));
  }
}

TEST(ListReport, ListsDirectoriesWithinAView) {
  const TemporaryDirectory directory;
  fs::copy(kHf / "llama-bf16/source", directory.path(), fs::copy_options::recursive);
  directory.write("code/a.py", "a");
  directory.write("code/deep/b.py", "b");
  directory.write("code-x.py", "c");
  const Checkpoint checkpoint = open(directory.path());
  const auto list = [&](std::string_view where) {
    const auto text = list_report(checkpoint, where, ListDetail::Names, ReportFormat::Text);
    return text ? *text : text.error().message();
  };
  EXPECT_THAT(list("source"), HasSubstr("code-x.py\n"));
  EXPECT_THAT(list("source"), HasSubstr("code/\n"));
  EXPECT_EQ(list("source/code"), "a.py\ndeep/\n");
  EXPECT_EQ(list("source/code/deep/"), "b.py\n");
  EXPECT_EQ(list("source/code/a.py"), "code/a.py\n");
  EXPECT_EQ(list("source/cod"), "source/cod: no such file");
  EXPECT_THAT(list("sauce"), testing::StartsWith("sauce: no such view (did you mean source? "));
  const auto json = list_report(checkpoint, "source/code", ListDetail::Names, ReportFormat::Json);
  const Json entries = Json::parse(*json)["entries"];
  EXPECT_EQ(entries[0]["type"], "file");
  EXPECT_EQ(entries[0]["size"], 1);
  EXPECT_EQ(entries[0]["exactness"], "bit-exact");
  EXPECT_EQ(entries[1]["type"], "directory");
}

TEST(ViewsJson, TellsTheProvenanceOfEveryFile) {
  const Checkpoint checkpoint = deepseek();
  const auto more = checkpoint.view("bf16-safetensors@max_shard=100KB");
  ASSERT_TRUE(more);
  const Json json = Json::parse(views_json(checkpoint, std::array{*more}));
  EXPECT_EQ(json["version"], 1);
  EXPECT_EQ(json["layout"], kLayoutVersion);
  ASSERT_EQ(json["views"].size(), 12u);
  EXPECT_EQ(json["views"][11]["name"], "bf16-safetensors@max_shard=100KB");
  std::size_t scales_elsewhere = 0;
  for (const Json& file : json["views"][0]["files"]) {
    const std::string path = file["path"];
    const Json& sources = file["sources"];
    if (path.ends_with("index.json")) {
      EXPECT_TRUE(sources.empty());
    } else if (path.starts_with("model-")) {
      // Its own shard, and where the scales of some of its weights lie.
      EXPECT_EQ(std::ranges::count(sources, Json(path)), 1) << path;
      scales_elsewhere += sources.size() - 1;
    } else {
      EXPECT_EQ(sources, Json::array({path}));
    }
  }
  EXPECT_GT(scales_elsewhere, 0U);
  const auto view = checkpoint.view("fp32-consolidated");
  for (std::size_t i = 0; i < view->files().size(); ++i) {
    if (view->files()[i].path != "model.safetensors") continue;
    EXPECT_EQ(sources_of(*view, i),
              "model-00001-of-00003.safetensors\nmodel-00002-of-00003.safetensors\n"
              "model-00003-of-00003.safetensors");
  }
}

TEST(ViewsJson, AConfigurationFromElsewhereIsNamedWhereItLies) {
  const TemporaryDirectory directory;
  fs::copy(kHf / "../torch/zip-crc-zero/source", directory / "run");
  directory.write("run/config.json", "{}");
  for (const char* place : {"elsewhere/any.json", "elsewhere"}) {
    directory.write("elsewhere/any.json", R"({"model_type": "a"})");
    directory.write("elsewhere/config.json", R"({"model_type": "b"})");
    OpenOptions options;
    options.choose.config = directory / place;
    Result<Checkpoint> checkpoint = Checkpoint::open(directory / "run", options);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    const auto view = checkpoint->view("bf16-safetensors");
    ASSERT_TRUE(view) << view.error().message();
    std::size_t seen = 0;
    for (std::size_t i = 0; i < view->files().size(); ++i) {
      if (view->files()[i].path != "config.json") continue;
      const fs::path lies = directory / place;
      EXPECT_EQ(sources_of(*view, i), fs::is_directory(lies) ? lies / "config.json" : lies);
      ++seen;
    }
    EXPECT_EQ(seen, 1U);
  }
}

TEST(ViewsJson, NamesTheFilesThatTensorsLieInside) {
  const TemporaryDirectory directory;
  const fs::path copy = directory / "dcp";
  fs::copy(kHf / "../torch/dcp-fsdp2-w2/source", copy, fs::copy_options::recursive);
  // Only its owner may read one part, so nobody else what is made of it.
  fs::permissions(copy / "__1_0.distcp", fs::perms::owner_read);
  Result<Checkpoint> checkpoint = Checkpoint::open(copy);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  Result<View> view = checkpoint->view("safetensors");
  ASSERT_TRUE(view) << view.error().message();
  for (std::size_t i = 0; i < view->files().size(); ++i) {
    const FileInfo file = view->files()[i];
    if (file.path != "model.safetensors") continue;
    EXPECT_EQ(sources_of(*view, i), "__0_0.distcp\n__1_0.distcp");
    EXPECT_EQ(file.readers, 0400U);
  }
}

TEST(SourcesOf, TakesTheLayoutThatItsReadersHave) {
  const Checkpoint checkpoint = deepseek();
  const auto view = checkpoint.view("bf16-safetensors");
  const std::size_t shard = *view->files().find("model-00001-of-00003.safetensors");
  const auto file = view->open("model-00001-of-00003.safetensors");
  ASSERT_TRUE(file);
  const std::uint64_t before = impl_of(*view).files->layouts_made();
  for (int i = 0; i < 3; ++i) EXPECT_NE(sources_of(*view, shard), "");
  EXPECT_EQ(impl_of(*view).files->layouts_made(), before);
}

}  // namespace
}  // namespace ckfs
