// Views of the committed checkpoints, read through the public API alone.
#include <array>
#include <cstdlib>
#include <gtest/gtest.h>
#include <random>
#include <set>

#include <ckfs/checkpoint.h>

#include "api/open_prepared.h"
#include "api/small_reader.h"
#include "base/byte_range.h"
#include "base/units.h"
#include "support/golden_cases.h"
#include "support/labels_table.h"
#include "support/sanitized.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

const fs::path kCases = fs::path(CKFS_TEST_DATA) / "hf";

constexpr std::uint64_t kTileBytes = 4096;

constexpr int kRandomReads = kSanitized ? 2'000 : 10'000;

Checkpoint open_case(const std::string& name, const TestOptions& tests = {}) {
  auto checkpoint = open_for_tests(kCases / name / "source", {}, tests);
  if (!checkpoint) {
    ADD_FAILURE() << checkpoint.error().message();
    std::abort();
  }
  return *checkpoint;
}

View view_of(const Checkpoint& checkpoint, std::string_view spelling) {
  auto view = checkpoint.view(spelling);
  if (!view) {
    ADD_FAILURE() << view.error().message();
    std::abort();
  }
  return *view;
}

std::string whole_file(const View& view, std::string_view path) {
  auto file = view.open(path);
  EXPECT_TRUE(file) << file.error().message();
  std::string bytes(file->info().size, '\0');
  const auto size = file->read(0, std::as_writable_bytes(std::span(bytes)));
  EXPECT_TRUE(size) << size.error().message();
  EXPECT_EQ(size.value_or(0), bytes.size());
  return bytes;
}

std::map<std::string, PlainTensor> tensors_of(const View& view) {
  std::map<std::string, PlainTensor> tensors;
  for (const FileInfo& file : view.files()) {
    if (file.tensors > 0) add_tensors(whole_file(view, file.path), tensors);
  }
  return tensors;
}

void write_view(const View& view, const TemporaryDirectory& out, std::string_view directory) {
  for (const FileInfo& file : view.files()) {
    out.write(fmt::format("{}/{}", directory, file.path), whole_file(view, file.path));
  }
}

/// The views of a case whose tensors the reference gave.
std::vector<std::string> expected_views(const std::string& name) {
  std::vector<std::string> views;
  const nlohmann::json expected = read_json(kCases / name / "expected.json");
  for (const auto& [view, tensors] : expected.items()) views.push_back(view);
  return views;
}

/// Whether a tensor shows values that are stored as such, under its own name.
bool is_plain(const std::map<std::string, PlainTensor>& source, const TensorInfo& info) {
  const auto stored = source.find(std::string(info.name));
  if (stored == source.end() || !std::ranges::equal(stored->second.shape, info.shape)) return false;
  const std::string& dtype = stored->second.dtype;
  return dtype == info.dtype || dtype == "F64" || dtype == "F32" || dtype == "F16" ||
         dtype == "BF16";
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, TensorsAreThoseOfTheReference) {
  const TemporaryDirectory out;
  std::string command = fmt::format("python3 '{}/tools/digest.py' --check '{}'",
                                    fs::path(CKFS_TEST_DATA).parent_path().string(),
                                    (kCases / GetParam() / "expected.json").string());
  for (const std::uint64_t tile_bytes : {0, 4096}) {
    const Checkpoint checkpoint = open_case(GetParam(), {.tile_bytes = tile_bytes});
    for (const std::string& expected : expected_views(GetParam())) {
      const char* const separator = expected.find('@') != std::string::npos ? "," : "@";
      std::vector<std::string> spellings{expected,
                                         fmt::format("{}{}max_shard=10KB", expected, separator)};
      if (expected == "fp32-safetensors") spellings.emplace_back("fp32-consolidated");
      for (const std::string& spelling : spellings) {
        const std::string directory = fmt::format("{}-{}", spelling, tile_bytes);
        write_view(view_of(checkpoint, spelling), out, directory);
        command += fmt::format(" '{}' '{}'", expected, (out / directory).string());
      }
    }
  }
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_P(Golden, ConfigIsTheReferencesAndSideFilesAreTheSources) {
  const Checkpoint checkpoint = open_case(GetParam());
  for (const std::string& name : expected_views(GetParam())) {
    const View view = view_of(checkpoint, name);
    // Where the tool rewrites all of it, the case has none.
    const fs::path config = kCases / GetParam() / "expected" / name / "config.json";
    if (fs::exists(config)) {
      EXPECT_EQ(whole_file(view, "config.json"), read_text(config)) << name;
    }
    for (const FileInfo& file : view.files()) {
      if (file.tensors > 0 || file.path == "config.json" || file.path.ends_with("index.json"))
        continue;
      EXPECT_EQ(whole_file(view, file.path), read_text(kCases / GetParam() / "source" / file.path))
          << file.path;
    }
  }
}

TEST_P(Golden, SourceViewIsTheSource) {
  const View view = view_of(open_case(GetParam()), "source");
  std::set<std::string> paths;
  for (const FileInfo& file : view.files()) {
    paths.emplace(file.path);
    EXPECT_EQ(whole_file(view, file.path), read_text(kCases / GetParam() / "source" / file.path));
  }
  for (const auto& entry : fs::directory_iterator(kCases / GetParam() / "source")) {
    EXPECT_EQ(paths.count(entry.path().filename()), 1u) << entry.path();
  }
}

TEST_P(Golden, LabelsHoldForTheValues) {
  const Checkpoint checkpoint = open_case(GetParam());
  const auto source = read_tensors(kCases / GetParam() / "source");
  for (const char* name : {"bf16-safetensors", "fp16-safetensors", "fp32-safetensors"}) {
    const View view = view_of(checkpoint, name);
    const auto target = tensors_of(view);
    EXPECT_EQ(view.tensors().size(), target.size());
    for (const TensorInfo& info : view.tensors()) {
      const std::string tensor(info.name);
      const PlainTensor& got = target.at(tensor);
      EXPECT_EQ(got.dtype, info.dtype) << tensor;
      EXPECT_TRUE(std::ranges::equal(got.shape, info.shape)) << tensor;
      if (!is_plain(source, info)) continue;  // the digests tell
      const PlainTensor& stored = source.at(tensor);
      if (info.exactness == Exactness::BitExact) {
        EXPECT_EQ(got, stored) << tensor;
      } else if (info.exactness == Exactness::Exact) {
        const std::size_t count = got.bytes.size() / element_bytes(got.dtype);
        for (std::size_t i = 0; i < count; ++i) {
          const double a = element(got, i);
          const double b = element(stored, i);
          ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << tensor << " " << i;
        }
      }
    }
  }
}

/// Where tensors and tiles of 4 KiB of them begin in a file, and its end.
std::vector<std::uint64_t> borders_of(const std::string& file) {
  std::vector<std::uint64_t> borders{file.size()};
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const auto end = tensor["data_offsets"][1].get<std::uint64_t>();
    for (auto at = tensor["data_offsets"][0].get<std::uint64_t>(); at < end; at += kTileBytes) {
      borders.push_back(8 + length + at);
    }
  }
  return borders;
}

/// A read of 1 byte to 4 MiB: short ones are as frequent as long ones, half of all cross a border.
ByteRange random_read(std::mt19937_64& random, const std::vector<std::uint64_t>& borders,
                      std::uint64_t size) {
  const auto below = [&](std::uint64_t limit) { return limit == 0 ? 0 : random() % limit; };
  const std::uint64_t length = std::min(4_MiB, (std::uint64_t{1} << below(23)) + below(1000));
  if (random() % 2 == 0) {
    const std::uint64_t begin = below(size);
    return {begin, begin + length};
  }
  const std::uint64_t border = borders[random() % borders.size()];
  const std::uint64_t before = std::min(border, 1 + below(length));
  return {border - before, border - before + length};
}

TEST_P(Golden, RandomReadsHaveTheBytesOfTheWholeFile) {
  struct Open {
    ViewFile file;
    std::string whole;
    std::vector<std::uint64_t> borders;
  };
  const Checkpoint checkpoint = open_case(GetParam(), {.tile_bytes = kTileBytes});
  // Files whose tensors have the reference's digests, and files that are smaller than many reads.
  std::set<std::string> spellings = {"bf16-safetensors", "fp32-safetensors@max_shard=10KB"};
  for (std::string& name : expected_views(GetParam())) spellings.insert(std::move(name));
  for (const char* layout : {"linear", "fused", "packed"}) {
    const std::string spelling = fmt::format("bf16-safetensors@experts={}", layout);
    if (checkpoint.view(spelling)) spellings.insert(spelling);
  }
  std::vector<Open> files;
  for (const std::string& spelling : spellings) {
    const View view = view_of(checkpoint, spelling);
    for (const FileInfo& info : view.files()) {
      if (info.tensors == 0) continue;
      std::string whole = whole_file(view, info.path);
      std::vector<std::uint64_t> borders = borders_of(whole);
      files.push_back({view.open(info.path).value(), std::move(whole), std::move(borders)});
    }
  }
  std::mt19937_64 random(11);
  std::string got;
  for (int i = 0; i < kRandomReads; ++i) {
    Open& open = files[random() % files.size()];
    const ByteRange range = random_read(random, open.borders, open.whole.size());
    got.assign(range.size(), '?');
    const auto size = open.file.read(range.begin, std::as_writable_bytes(std::span(got)));
    ASSERT_TRUE(size) << size.error().message();
    const std::string_view expected =
        std::string_view(open.whole)
            .substr(std::min<std::size_t>(range.begin, open.whole.size()), range.size());
    ASSERT_EQ(std::string_view(got).substr(0, *size), expected)
        << open.file.info().path << " " << range.begin << " " << range.size();
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& test_case) {
  std::string name = test_case.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, Golden, testing::ValuesIn(case_names(kCases)), test_name);

TEST(GoldenLlama, MovedShardsAreTheSourcesByteForByte) {
  // save_pretrained wrote them with safetensors' own writer, in BF16 as the view's.
  const View view = view_of(open_case("llama-bf16"), "bf16-safetensors");
  int shards = 0;
  for (const FileInfo& file : view.files()) {
    if (file.tensors == 0) continue;
    ++shards;
    EXPECT_EQ(file.exactness, Exactness::BitExact);
    EXPECT_EQ(whole_file(view, file.path), read_text(kCases / "llama-bf16/source" / file.path));
  }
  EXPECT_EQ(shards, 3);
}

TEST(GoldenLabels, EveryLossyCastOfTheTableLosesAValueSomewhere) {
  // A row of the docs that says "lossy" is proved by a value of its golden case that changes.
  std::set<std::string> lossy;
  for (const std::string& name : case_names(kCases)) {
    const Checkpoint checkpoint = open_case(name);
    const auto source = read_tensors(kCases / name / "source");
    for (const char* spelling : {"bf16-safetensors", "fp16-safetensors", "fp32-safetensors"}) {
      const View view = view_of(checkpoint, spelling);
      const auto target = tensors_of(view);
      for (const TensorInfo& info : view.tensors()) {
        if (info.exactness != Exactness::Lossy || !is_plain(source, info)) continue;
        const PlainTensor& got = target.at(std::string(info.name));
        const PlainTensor& stored = source.at(std::string(info.name));
        for (std::size_t i = 0; i < got.bytes.size() / element_bytes(got.dtype); ++i) {
          const double a = element(got, i);
          if (a != element(stored, i) && !std::isnan(a)) lossy.insert(stored.dtype + got.dtype);
        }
      }
    }
  }
  EXPECT_EQ(lossy, (std::set<std::string>{"BF16F16", "F16BF16", "F32BF16", "F32F16", "F64BF16",
                                          "F64F16", "F64F32"}));
}

TEST(GoldenLabels, EveryRowOfTheTableNamesCasesThatExist) {
  const std::string table = labels_table();
  std::set<std::string> named;
  for (std::size_t at = 0; (at = table.find('`', at)) != std::string::npos;) {
    const std::size_t end = table.find('`', at + 1);
    named.insert(table.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  for (const std::string& name : case_names(kCases)) EXPECT_EQ(named.count(name), 1u) << name;
}

}  // namespace
}  // namespace ckfs
