// Memory that ends anywhere in an export: an error, or std::bad_alloc; no file under its final name
// is wrong, and the next run finishes what is left.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <ostream>
#include <spdlog/spdlog.h>

#include <ckfs/checkpoint.h>

#include "base/error.h"
#include "export/export_record.h"
#include "export/exporter.h"
#include "support/failing_heap.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string source;
  std::string view;
  long step = 1;  // of 250 to 5,400 allocations; all of them take minutes
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.view << " of " << one.source;
}

using Files = std::map<std::string, std::string>;

Result<Files> files_of(const View& view) {
  Files files;
  for (const FileInfo info : view.files()) {
    CKFS_TRY(auto file, view.open(info.path));
    std::string& bytes = files[std::string(info.path)];
    bytes.resize(info.size);
    CKFS_TRY_VOID(file.read(0, std::as_writable_bytes(std::span(bytes))));
  }
  return files;
}

Files files_in(const fs::path& out) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(out)) {
    const std::string path = entry.path().lexically_relative(out);
    if (!entry.is_regular_file() || is_own_path(path)) continue;
    std::string& bytes = files[path];
    bytes.resize(entry.file_size());
    std::ifstream(entry.path(), std::ios::binary).read(bytes.data(), std::ssize(bytes));
  }
  return files;
}

class ExportOutOfMemory : public testing::TestWithParam<Case> {};

TEST_P(ExportOutOfMemory, LeavesNothingWrongAndGoesOn) {
  CKFS_NEEDS_FAILING_HEAP();
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);
  const fs::path source = fs::path(CKFS_TEST_DATA) / GetParam().source;
  const auto checkpoint = Checkpoint::open(source);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const auto view = checkpoint->view(GetParam().view);
  ASSERT_TRUE(view) << view.error().message();
  const auto expected = files_of(*view);
  ASSERT_TRUE(expected) << expected.error().message();

  const TemporaryDirectory directory;
  const fs::path out = directory / "out";
  const auto run = [&] { return export_view(*view, out, {.jobs = 1}); };
  const long allocations = failing_heap::fail_each(
      [&] {
        const auto done = run();
        EXPECT_TRUE(!done || done->files == expected->size());
      },
      [&] {
        if (fs::exists(out)) {
          for (const auto& [path, bytes] : files_in(out)) {
            const auto found = expected->find(path);
            EXPECT_TRUE(found != expected->end() && found->second == bytes) << path;
          }
        }
        const auto done = run();
        EXPECT_TRUE(done) << done.error().message();
        EXPECT_TRUE(files_in(out) == *expected);
        fs::remove_all(out);
      },
      GetParam().step);
  spdlog::set_level(level);
  EXPECT_GT(allocations, 10 * GetParam().step);
}

INSTANTIATE_TEST_SUITE_P(All, ExportOutOfMemory,
                         testing::Values(Case{"hf/deepseek-v3-fp8/source", "bf16-safetensors", 17},
                                         Case{"hf/deepseek-v3-fp8/source",
                                              "maxtext-unscanned@storage=zarr3", 419},
                                         Case{"orbax/standard/source", "orbax", 11},
                                         Case{"orbax/v1_pytree/source", "safetensors", 7},
                                         Case{"deepspeed/universal-from-zero2-w2/source",
                                              "fp32-consolidated@format=bin", 5}),
                         [](const testing::TestParamInfo<Case>& test) {
                           std::string name = test.param.source + "_" + test.param.view;
                           std::ranges::replace_if(
                               name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace ckfs
