// Checkpoints that training leaves, through the public API: files of torch.save, shared bytes, what
// `ckfs inspect` tells of them. Their bytes are compared with zero_to_fp32's in tests/golden.
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "api/open_prepared.h"
#include "api/report.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const fs::path kDeepSpeed = CKFS_TEST_DATA "/deepspeed";

Checkpoint open(const std::string& name, const OpenOptions& options = {},
                const TestOptions& tests = {}) {
  auto checkpoint = open_for_tests(kDeepSpeed / name / "source", options, tests);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message();
  return *checkpoint;
}

/// The file, in reads of `piece` bytes.
std::string contents(const View& view, std::string_view path, std::size_t piece) {
  auto file = view.open(path);
  EXPECT_TRUE(file) << file.error().message();
  std::string text(file->info().size, '\0');
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(text));
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    const auto size = file->read(at, bytes.subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_TRUE(size) << size.error().message();
  }
  return text;
}

TEST(Training, TorchFilesAreOneHoweverTheyAreRead) {
  for (const std::uint64_t tile_bytes : {0, 4096}) {
    const Checkpoint checkpoint = open("zero2-bf16-w4-tied-frozen", {}, {.tile_bytes = tile_bytes});
    const auto view = checkpoint.view("fp32-consolidated@format=bin");
    ASSERT_TRUE(view) << view.error().message();
    const std::string whole = contents(*view, "pytorch_model.bin", 1 << 20);
    EXPECT_EQ(whole, contents(*view, "pytorch_model.bin", 1000));
    EXPECT_EQ(whole, contents(*view, "pytorch_model.bin", 77));
    EXPECT_EQ(whole.substr(0, 4), "PK\3\4");
  }
}

TEST(Training, TiedTensorsAreOnceInTorchFilesAndTwiceInSafetensors) {
  const Checkpoint checkpoint = open("zero2-bf16-w4-tied-frozen");
  const auto tensors = checkpoint.view("fp32-consolidated");
  const auto bin = checkpoint.view("fp32-consolidated@format=bin");
  ASSERT_TRUE(tensors && bin);
  EXPECT_EQ(tensors->files()[0].tensors, bin->files()[0].tensors);
  EXPECT_EQ(tensors->tensors().size(), bin->tensors().size());
  // Two names of 37 x 13 numbers; the tool's own file has them once, too.
  const auto data = [](const View& view) {
    std::uint64_t bytes = 0;
    for (const TensorInfo& tensor : view.tensors()) bytes += tensor.name == "head.weight" ? 1 : 0;
    return bytes;
  };
  EXPECT_EQ(data(*tensors), 1U);
  EXPECT_EQ(data(*bin), 1U);
}

TEST(Training, AnotherTagIsAnotherCheckpoint) {
  const Checkpoint latest = open("zero2-bf16-w2");
  const Checkpoint named = open("zero2-bf16-w2", {.choose = {.tag = "global_step2"}});
  EXPECT_NE(latest.fingerprint(), named.fingerprint());
}

TEST(Training, InspectTellsWhatIsInTheCheckpoint) {
  const Checkpoint checkpoint = open("zero3-bf16-w4-tied-frozen");
  const std::string text = inspect_report(checkpoint, "SRC", ReportFormat::Text);
  EXPECT_THAT(text, HasSubstr("SRC: deepspeed_zero"));
  EXPECT_THAT(text, HasSubstr("ZeRO stage: 3\n"));
  EXPECT_THAT(text, HasSubstr("world size: 4\n"));
  const auto json = nlohmann::json::parse(inspect_report(checkpoint, "SRC", ReportFormat::Json));
  bool told = false;
  for (const auto& fact : json["facts"]) {
    told = told || (fact["subject"] == "world size" && fact["text"] == "4");
  }
  EXPECT_TRUE(told);
  EXPECT_THAT(json["notes"].dump(), Not(HasSubstr("exp_avg")));
}

TEST(Training, InspectNamesWhatTheToolDrops) {
  const std::string text = inspect_report(open("zero1-fp16-w2"), "SRC", ReportFormat::Text);
  EXPECT_THAT(text, HasSubstr("left out, as zero_to_fp32 does"));
  EXPECT_THAT(text, HasSubstr("frozen=module"));
}

}  // namespace
}  // namespace ckfs
