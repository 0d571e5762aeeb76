// Memory that ends anywhere between a checkpoint's path and the bytes of a view: an error, or
// std::bad_alloc, and whoever comes next is served.
#include <algorithm>
#include <cctype>
#include <gtest/gtest.h>
#include <ostream>
#include <spdlog/spdlog.h>

#include <ckfs/checkpoint.h>

#include "base/error.h"
#include "support/failing_heap.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

/// Of 1,000 to 12,000 allocations; all of them take minutes.
constexpr long kStep = 29;

struct ViewCase {
  std::string source;
  std::string view;
};

void PrintTo(const ViewCase& one, std::ostream* out) {
  *out << one.view << " of " << one.source;
}

class OutOfMemory : public testing::TestWithParam<ViewCase> {};

/// All bytes of a view, and their number.
Result<std::uint64_t> read_all(const fs::path& source, std::string_view name) {
  CKFS_TRY(const Checkpoint checkpoint, Checkpoint::open(source));
  CKFS_TRY(const auto view, checkpoint.view(name));
  std::uint64_t bytes = 0;
  for (const FileInfo file : view.files()) {
    CKFS_TRY(auto opened, view.open(file.path));
    CKFS_TRY(const auto read, opened.read(0, static_cast<std::size_t>(file.size)));
    bytes += read.size();
  }
  return bytes;
}

TEST_P(OutOfMemory, IsAnErrorOfOneCall) {
  CKFS_NEEDS_FAILING_HEAP();
  const auto level = spdlog::get_level();
  spdlog::set_level(spdlog::level::off);
  const fs::path source = fs::path(CKFS_TEST_DATA) / GetParam().source;
  const auto good = read_all(source, GetParam().view);
  ASSERT_TRUE(good) << good.error().message();
  const long allocations = failing_heap::fail_each(
      [&] {
        const auto read = read_all(source, GetParam().view);
        if (read) {
          EXPECT_EQ(*read, *good);
        }
      },
      [] {}, kStep);
  spdlog::set_level(level);
  const auto again = read_all(source, GetParam().view);
  EXPECT_TRUE(again) << again.error().message();
  EXPECT_GT(allocations, 10 * kStep);
}

INSTANTIATE_TEST_SUITE_P(
    All, OutOfMemory,
    testing::Values(ViewCase{"hf/deepseek-v3-fp8/source", "bf16-safetensors"},
                    ViewCase{"hf/ct-int4-actorder/source", "bf16-safetensors"},
                    ViewCase{"hf/deepseek-v3-fp8/source", "maxtext-scanned"},
                    ViewCase{"hf/deepseek-v3-fp8/source", "maxtext-unscanned@storage=zarr3"},
                    ViewCase{"orbax/standard/source", "orbax"},
                    ViewCase{"orbax/sharded_v3_many_files/source", "orbax@storage=zarr2"},
                    ViewCase{"orbax/v1_pytree/source", "safetensors"},
                    ViewCase{"torch/dcp-fsdp2-w2/source", "bf16-safetensors"},
                    ViewCase{"torch/zip-views/source", "safetensors"},
                    ViewCase{"deepspeed/zero3-bf16-w4-tied-frozen/source", "fp32-consolidated"},
                    ViewCase{"deepspeed/universal-from-zero2-w2/source",
                             "fp32-consolidated@format=bin"},
                    ViewCase{"hf/experts-mixtral/source", "bf16-safetensors@experts=fused"}),
    [](const testing::TestParamInfo<ViewCase>& test) {
      std::string name = test.param.source + "_" + test.param.view;
      std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

}  // namespace
}  // namespace ckfs
