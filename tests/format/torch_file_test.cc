// Torch files that torch itself wrote (tests/data/torch, tests/data/deepspeed). Hostile ones:
// torch_hostile_test.cc.
#include "format/torch_file.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/load_le.h"
#include "format/torch_values.h"
#include "support/sha256.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// A golden case and its torch files; the state dict is the root, or its member `below`.
struct GoldenCase {
  std::string name;
  std::vector<std::string> files;
  std::string below = {};
};

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases = {
      {"legacy-stream", {"old.pt"}},
      {"written-by-torch-1.13", {"pytorch_model.bin", "legacy.pt"}},
      {"zip-crc-zero", {"pytorch_model.bin"}},
      {"zip-dtypes", {"pytorch_model.bin"}},
      {"zip-file-object-protocol4", {"weird.name.tar"}},
      {"zip-module-metadata", {"model.pth"}},
      {"zip-parameters", {"params.pt"}},
      {"zip-views", {"views.pt"}},
      {"zip-wrapped-training-checkpoint", {"checkpoint.ckpt"}, "state_dict"},
      {"sharded-bin", {}}};
  for (int i = 1; i <= 7; ++i) {
    cases.back().files.push_back(fmt::format("pytorch_model-0000{}-of-00007.bin", i));
  }
  return cases;
}

void PrintTo(const GoldenCase& golden, std::ostream* out) {
  *out << golden.name;
}

std::string name_of_case(const testing::TestParamInfo<GoldenCase>& info) {
  std::string name = info.param.name;
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

TorchFile open_whole(MemorySource& source, FileId file) {
  auto torch = TorchFile::open(source, file, whole(source, file));
  if (!torch) {
    ADD_FAILURE() << torch.error().message();
    std::abort();
  }
  return std::move(*torch);
}

json describe(MemorySource& source, FileId file, const TorchFile& torch,
              const TorchTensor& tensor) {
  const auto values = values_of(source, file, torch, tensor);
  EXPECT_TRUE(values) << values.error().message();
  return {{"dtype", name(tensor.dtype)},
          {"shape", tensor.shape},
          {"computed", false},
          {"sha256", sha256(values.value_or(std::vector<std::byte>{}))}};
}

class GoldenTorchFile : public testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenTorchFile, HasTheTensorsThatTorchLoads) {
  const GoldenCase& golden = GetParam();
  const fs::path folder = fs::path("torch") / golden.name;
  const auto text = read_data(folder / "expected.json");
  const json expected = json::parse(reinterpret_cast<const char*>(text.data()),
                                    reinterpret_cast<const char*>(text.data() + text.size()));

  MemorySource source;
  json found = json::object();
  for (const std::string& path : golden.files) {
    const FileId file = source.add(path, read_data(folder / "source" / path));
    const TorchFile torch = open_whole(source, file);
    const Pickle& pickle = torch.pickle();
    NodeId dict = torch.root();
    if (!golden.below.empty()) {
      const auto below = pickle.find(dict, golden.below);
      ASSERT_TRUE(below);
      dict = *below;
    }
    for (const auto& [key, value] : pickle.mapping(dict)) {
      ASSERT_TRUE(torch.is_tensor(value)) << pickle.string(key).value_or("?");
      const auto tensor = torch.tensor(value);
      ASSERT_TRUE(tensor) << tensor.error().message();
      found[std::string(*pickle.string(key))] = describe(source, file, torch, *tensor);
    }
  }
  EXPECT_EQ(found, expected["tensors"]["safetensors"]);
}

TEST_P(GoldenTorchFile, IsOpenedWithoutReadingAByteOfItsStorages) {
  for (const std::string& path : GetParam().files) {
    MemorySource source;
    const FileId file =
        source.add(path, read_data(fs::path("torch") / GetParam().name / "source" / path));
    const TorchFile torch = open_whole(source, file);
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < torch.storage_count(); ++i) {
      const auto range = torch.storage_bytes(i);
      ASSERT_TRUE(range) << range.error().message();
      EXPECT_EQ(range->size(), torch.storage_size(i));
      if (!range->empty()) source.poison(file, *range);
      bytes += range->size();
    }
    EXPECT_GT(bytes, 0U);
    const TorchFile again = open_whole(source, file);
    std::vector<std::uint32_t> all(again.storage_count());
    for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    EXPECT_TRUE(again.storage_bytes(all));
    EXPECT_EQ(source.poisoned_reads(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(Torch, GoldenTorchFile, testing::ValuesIn(golden_cases()), name_of_case);

TEST(TorchFile, KeepsSharedStoragesAndViewsOfThem) {
  MemorySource source;
  const FileId file = source.add("views.pt", read_data("torch/zip-views/source/views.pt"));
  const TorchFile torch = open_whole(source, file);
  const auto tensor = [&](std::string_view name) {
    return torch.tensor(*torch.pickle().find(torch.root(), name)).value();
  };
  const TorchTensor base = tensor("base");
  EXPECT_EQ(base.stride, (std::vector<std::int64_t>{13, 1}));
  const TorchTensor transposed = tensor("transposed");
  EXPECT_EQ(transposed.storage, base.storage);
  EXPECT_EQ(transposed.shape, (std::vector<std::int64_t>{13, 11}));
  EXPECT_EQ(transposed.stride, (std::vector<std::int64_t>{1, 13}));
  EXPECT_EQ(tensor("alias").storage, base.storage);
  EXPECT_EQ(tensor("expanded").stride[0], 0);
}

TEST(TorchFile, KnowsWhatItReadOfItsFile) {
  MemorySource source;
  const FileId zip = source.add("params.pt", read_data("torch/zip-parameters/source/params.pt"));
  const std::uint64_t directory =
      ZipArchive::open(source, zip, whole(source, zip)).value().directory_size();
  const std::string_view text(reinterpret_cast<const char*>(source.bytes(zip).data()),
                              source.bytes(zip).size());
  const std::string_view end = text.substr(text.rfind("PK\5\6"));
  EXPECT_EQ(directory, load_le<std::uint32_t>(std::as_bytes(std::span(end).subspan(12))));
  const TorchFile torch = open_whole(source, zip);
  EXPECT_EQ(torch.header_bytes(), directory + torch.pickle().consumed());

  const FileId stream = source.add("old.pt", read_data("torch/legacy-stream/source/old.pt"));
  source.reset_counts();
  const TorchFile old = open_whole(source, stream);
  const std::uint64_t counts = 8 * old.storage_count();  // one before the bytes of each
  EXPECT_EQ(old.header_bytes() + counts, source.bytes_read(stream));
}

TEST(TorchFile, LeavesValuesOfUnknownClassesAlone) {
  MemorySource source;
  const FileId file = source.add(
      "checkpoint.ckpt", read_data("torch/zip-wrapped-training-checkpoint/source/checkpoint.ckpt"));
  const TorchFile torch = open_whole(source, file);
  std::set<std::string> modules;
  for (NodeId node = 0; node < torch.pickle().node_count(); ++node) {
    modules.insert(std::string(torch.pickle().global(node).module));
  }
  EXPECT_TRUE(modules.contains("argparse"));
  EXPECT_FALSE(torch.is_tensor(torch.root()));
}

TEST(TorchFile, OpensEachItemOfADistcpFileInItsPlace) {
  // .metadata tells where the items lie: _StorageInfo(relative_path, offset, length).
  const fs::path folder = "torch/dcp-fsdp2-w2/source";
  const auto text = read_data(folder / ".metadata");
  const auto pickle = parse_pickle(text, ".metadata");
  ASSERT_TRUE(pickle) << pickle.error().message();
  EXPECT_EQ(pickle->consumed(), text.size());

  MemorySource source;
  int tensors = 0;
  for (NodeId node = 0; node < pickle->node_count(); ++node) {
    if (pickle->global(pickle->callable(node)).name != "_StorageInfo") continue;
    const NodeId state = pickle->state(node);
    const std::string path(*pickle->string(*pickle->find(state, "relative_path")));
    const auto offset =
        static_cast<std::uint64_t>(*pickle->integer(*pickle->find(state, "offset")));
    const auto length =
        static_cast<std::uint64_t>(*pickle->integer(*pickle->find(state, "length")));
    auto file = source.find(path);
    if (!file) file = source.add(path, read_data(folder / path));
    const auto torch = TorchFile::open(source, *file, {offset, offset + length});
    ASSERT_TRUE(torch) << torch.error().message();
    if (!torch->is_tensor(torch->root())) continue;
    const auto tensor = torch->tensor(torch->root());
    ASSERT_TRUE(tensor) << tensor.error().message();
    EXPECT_TRUE(values_of(source, *file, *torch, *tensor));
    ++tensors;
  }
  EXPECT_GT(tensors, 4);
}

/// Every torch file of the DeepSpeed cases, whose moments and masters may not be touched at mount.
TEST(TorchFile, FindsTheTensorsOfDeepSpeedFilesWithoutReadingThem) {
  int files = 0;
  std::uint64_t tensors = 0;
  const fs::path data = CKFS_TEST_DATA;
  for (const auto& entry : fs::recursive_directory_iterator(data / "deepspeed")) {
    if (entry.path().extension() != ".pt") continue;
    ++files;
    SCOPED_TRACE(entry.path());
    MemorySource source;
    const FileId file = source.add("rank.pt", read_data(entry.path()));
    {
      const TorchFile torch = open_whole(source, file);
      for (std::uint32_t i = 0; i < torch.storage_count(); ++i) {
        const auto range = torch.storage_bytes(i);
        ASSERT_TRUE(range) << range.error().message();
        if (!range->empty()) source.poison(file, *range);
      }
    }
    const TorchFile torch = open_whole(source, file);
    for (NodeId node = 0; node < torch.pickle().node_count(); ++node) {
      if (!torch.is_tensor(node)) continue;
      ++tensors;
      const auto tensor = torch.tensor(node);
      EXPECT_TRUE(tensor) << tensor.error().message();
    }
    EXPECT_EQ(source.poisoned_reads(), 0U);
  }
  EXPECT_GT(files, 50);
  EXPECT_GT(tensors, 500U);
}

TEST(TorchFile, IsRecognizedByItsFirstBytes) {
  const auto prefix = [](const fs::path& path) {
    auto bytes = read_data(path);
    bytes.resize(std::min<std::size_t>(bytes.size(), 64));
    return bytes;
  };
  EXPECT_TRUE(TorchFile::recognize(prefix("torch/zip-views/source/views.pt")));
  EXPECT_TRUE(TorchFile::recognize(prefix("torch/legacy-stream/source/old.pt")));
  EXPECT_FALSE(TorchFile::recognize(prefix("format/every_dtype.safetensors")));
  EXPECT_FALSE(TorchFile::recognize({}));
}

TEST(TorchFile, SearchesALineThatDoesNotEndAFewTimesOnly) {
  using namespace std::string_literals;
  MemorySource source;
  const FileId file = source.add_text(
      "f", "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s +  // the magic number
               "\x80\x02M\xe9\x03." + "\x80\x02}X\x0d\0\0\0little_endian\x88s."s + "\x80\x02" +
               'c' + std::string(1 << 20, 'a'));
  const auto torch = TorchFile::open(source, file, whole(source, file));
  ASSERT_FALSE(torch);
  EXPECT_EQ(torch.error().code(), ErrorCode::Corrupt);
  EXPECT_LT(source.requests(), 100U);  // each begins the search anew
}

TEST(TorchFile, ThatIsReadByAnotherHasItsOwnStorages) {
  for (const char* path :
       {"torch/zip-views/source/views.pt", "torch/legacy-stream/source/old.pt"}) {
    MemorySource source;
    const FileId file = source.add("f.pt", read_data(path));
    const auto first = TorchFile::open_alike(source, file, whole(source, file), {});
    ASSERT_TRUE(first) << first.error().message();
    EXPECT_EQ(first->model(), std::nullopt);
    const std::array models{&*first};
    const auto second = TorchFile::open_alike(source, file, whole(source, file), models);
    ASSERT_TRUE(second) << second.error().message();
    EXPECT_EQ(second->model(), 0U);
    EXPECT_TRUE(second->is_alike(*first));
    ASSERT_GT(first->storage_count(), 0U);
    ASSERT_EQ(second->storage_count(), first->storage_count());
    const TorchFile plain = open_whole(source, file);
    for (std::uint32_t i = 0; i < first->storage_count(); ++i) {
      EXPECT_EQ(first->storage_bytes(i).value(), plain.storage_bytes(i).value()) << path;
      EXPECT_EQ(second->storage_bytes(i).value(), plain.storage_bytes(i).value()) << path;
    }
  }
}

TEST(TorchFile, PassesOnTheErrorsOfItsSource) {
  for (const char* path :
       {"torch/zip-views/source/views.pt", "torch/legacy-stream/source/old.pt"}) {
    const auto bytes = read_data(path);
    for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{100}}) {
      MemorySource source;
      const FileId file = source.add("f.pt", bytes);
      source.fail(file, {at, at + 1}, EIO);
      const auto torch = TorchFile::open(source, file, whole(source, file));
      ASSERT_FALSE(torch) << path;
      EXPECT_EQ(torch.error().code(), ErrorCode::Io);
    }
  }
}

}  // namespace
}  // namespace ckfs
