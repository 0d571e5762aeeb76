// Folders of a source with weights of their own, in the views: modules of sentence-transformers,
// components of diffusers.
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ckfs/checkpoint.h>

#include "api/checkpoint_impl.h"
#include "api/open.h"
#include "api/report.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

/// A sentence-transformers model: a module with weights in a folder, copies and old formats beside.
struct Modules {
  Modules() {
    const std::string linear =
        safetensors_file(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                         std::string("\0\0\x80\x3f\0\0\0\x40", 8));
    const std::string model =
        safetensors_file(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                         std::string("\0\0\x80\x3f", 4));
    directory.write("model.safetensors", model);
    directory.write("config.json", R"({"torch_dtype": "float32"})");
    directory.write("modules.json", "[]");
    directory.write("2_Dense/model.safetensors", linear);
    directory.write("2_Dense/config.json", R"({"in_features": 2})");
    directory.write("2_Dense/notes/a.txt", "a");
    directory.write("3_Other/config.json", R"({"torch_dtype": "float32"})");
    directory.write("copy/model.safetensors", model);
    directory.write("original/consolidated.safetensors", linear);
    directory.write("broken/model.safetensors", "no header");
  }
  TemporaryDirectory directory;
};

std::string text_in(const View& view, const std::string& path) {
  auto file = view.open(path);
  if (!file) return file.error().message();
  return text_of(file->read(0, 1 << 20).value());
}

TEST(Folders, ShowsWeightsOfFoldersConvertedAndNoCopies) {
  const Modules modules;
  const Checkpoint checkpoint = open(modules.directory.path());
  const auto view = checkpoint.view("bf16-safetensors@max_shard=1GB");
  ASSERT_TRUE(view);
  std::vector<std::string> paths;
  for (const FileInfo file : view->files()) paths.emplace_back(file.path);
  EXPECT_THAT(paths, ElementsAre("2_Dense/config.json", "2_Dense/model.safetensors",
                                 "2_Dense/notes/a.txt", "3_Other/config.json", "config.json",
                                 "model.safetensors", "modules.json"));
  // A module's configuration is what its constructor takes.
  EXPECT_EQ(text_in(*view, "2_Dense/config.json"), R"({"in_features": 2})");
  EXPECT_EQ(text_in(*view, "config.json"), R"({"torch_dtype": "bfloat16"})");
  const std::string dense = text_in(*view, "2_Dense/model.safetensors");
  EXPECT_EQ(dense.substr(dense.size() - 4), std::string("\x80\x3f\0\x40", 4));
  const std::string top = text_in(*view, "model.safetensors");
  EXPECT_EQ(top.substr(top.size() - 2), "\x80\x3f");
  std::vector<std::string> tensors;
  for (const TensorInfo& tensor : view->tensors()) {
    tensors.push_back(fmt::format("{}: {} {}", paths[tensor.file], tensor.name, tensor.dtype));
  }
  EXPECT_THAT(tensors, testing::UnorderedElementsAre("2_Dense/model.safetensors: w BF16",
                                                     "model.safetensors: w BF16"));
  std::vector<std::string> notes;
  for (const Note& note : impl_of(checkpoint).catalog->notes()) {
    notes.push_back(note.subject + ": " + note.text);
  }
  EXPECT_THAT(
      notes,
      testing::UnorderedElementsAre(
          HasSubstr("broken/model.safetensors: left out: "),
          "copy/model.safetensors: left out: names and shapes are those of tensors at the top",
          HasSubstr("original/consolidated.safetensors: other weights")));
  EXPECT_EQ(sources_of(*view, 1), "2_Dense/model.safetensors");
  EXPECT_EQ(sources_of(*view, 0), "2_Dense/config.json");
  // Tensors of folders count.
  EXPECT_GE(memory_of(*view), 256 * view->files().size() + 2 * 2 * sizeof(ModelTensor));
}

TEST(Folders, ThatAPipelineNamesMayNotBeBroken) {
  const TemporaryDirectory directory;
  const std::string good = safetensors_file(
      R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", std::string("\0\0\x80\x3f", 4));
  directory.write("unet/model.safetensors", good);
  directory.write("other/model.safetensors", "no header");
  directory.write("left_out/model.safetensors", "no header");
  const auto refusal = [&] {
    const auto opened = Checkpoint::open(directory.path());
    return opened ? "" : opened.error().message();
  };
  directory.write("model_index.json",
                  R"({"_class_name": "P", "unet": ["x", "U"], "left_out": [null, null]})");
  EXPECT_EQ(refusal(), "");
  directory.write("model_index.json", R"({"unet": ["diffusers", "U"], "other": ["x", "O"]})");
  EXPECT_THAT(refusal(), testing::StartsWith("other/model.safetensors: "));
  // What is named without the folder gets it; a link that leads nowhere is a weight, too.
  fs::remove(directory / "other/model.safetensors");
  fs::create_symlink("gone", directory / "other/model.safetensors");
  EXPECT_EQ(refusal(), "other: model.safetensors: a link to gone, which is absent or out of reach");
  fs::remove(directory / "model_index.json");
  directory.write("modules.json", R"([{"idx": 0, "path": "unet"}])");
  EXPECT_EQ(refusal(), "");
  directory.write("modules.json", R"([{"idx": 0, "path": "unet"}, {"idx": 1, "path": "other"}])");
  EXPECT_THAT(refusal(), testing::StartsWith("other: model.safetensors: a link"));
}

TEST(Folders, OfAPipelineIsItsFolders) {
  const TemporaryDirectory directory;
  const auto file = [](const std::string& name) {
    return safetensors_file(
        fmt::format(R"({{"{}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}})", name),
        std::string("\0\0\x80\x3f", 4));
  };
  directory.write("model_index.json", "{}");
  directory.write("unet/config.json", R"({"sample_size": 8})");
  directory.write(
      "unet/diffusion_pytorch_model.safetensors.index.json",
      R"({"metadata": {}, "weight_map": {"a": "diffusion_pytorch_model-00001-of-00002.safetensors",
                      "b": "diffusion_pytorch_model-00002-of-00002.safetensors"}})");
  directory.write("unet/diffusion_pytorch_model-00001-of-00002.safetensors", file("a"));
  directory.write("unet/diffusion_pytorch_model-00002-of-00002.safetensors", file("b"));
  directory.write("vae/diffusion_pytorch_model.safetensors", file("a"));
  directory.write("vae/diffusion_pytorch_model.fp16.safetensors", file("a"));
  const Checkpoint checkpoint = open(directory.path());
  for (const std::string name : {"bf16-safetensors", "fp32-consolidated@format=bin"}) {
    const auto view = checkpoint.view(name);
    ASSERT_TRUE(view);
    std::vector<std::string> paths;
    for (const FileInfo shown : view->files()) paths.emplace_back(shown.path);
    EXPECT_THAT(paths, ElementsAre("model_index.json", "unet/config.json",
                                   "unet/diffusion_pytorch_model-00001-of-00002.safetensors",
                                   "unet/diffusion_pytorch_model-00002-of-00002.safetensors",
                                   "unet/diffusion_pytorch_model.safetensors.index.json",
                                   "vae/diffusion_pytorch_model.safetensors"));
  }
  // Nothing but folders that cannot be opened is no model.
  directory.write("vae/diffusion_pytorch_model.safetensors", "x");
  directory.write("unet/diffusion_pytorch_model-00002-of-00002.safetensors", "x");
  EXPECT_FALSE(Checkpoint::open(directory.path()));
}

}  // namespace
}  // namespace ckfs
