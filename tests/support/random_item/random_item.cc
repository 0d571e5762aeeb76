// A program that writes random Orbax items: random expressions over a random checkpoint, as arrays
// cut for random devices, in the files of the container; and what each array must be, by the
// reference model.
//
//   ckfs_random_item FIRST COUNT OUT
//
// makes OUT/<seed>/item, OUT/<seed>/<array> (row-major bytes) and OUT/<seed>/arrays.json.
#include <charconv>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <gtest/gtest.h>
#include <string_view>

#include "container/view_files.h"
#include "support/naive_view.h"
#include "support/random_expr.h"

namespace ckfs {
namespace {

constexpr ArrayStorage kStorages[] = {ArrayStorage::Ocdbt, ArrayStorage::Zarr3,
                                      ArrayStorage::Zarr2};

void write(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::int64_t> random_split(const Choose& choose, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> split;
  for (const std::int64_t extent : shape) {
    std::int64_t parts = extent == 0 ? 1 : 1 + choose(std::min<std::int64_t>(extent, 12));
    while (extent % parts != 0) --parts;
    split.push_back(parts);
  }
  return split;
}

/// Exit status.
int make(std::uint64_t seed, const std::filesystem::path& out) {
  const Choose choose = seeded_choices(seed);
  RandomCheckpoint checkpoint = random_checkpoint(choose);
  auto definition = std::make_shared<Definition>();
  definition->spec.view = "item";
  definition->catalog = checkpoint.catalog;
  definition->packaging.container = ContainerKind::Orbax;
  definition->packaging.orbax.storage = kStorages[choose(3)];
  definition->packaging.orbax.step = choose(2) == 0;
  std::string text;
  const std::int64_t count = 1 + choose(6);
  for (std::int64_t i = 0; i < count; ++i) {
    RandomExpr random = random_expr(choose, checkpoint);
    const TensorExpr& expr = random.expr;
    // Random bytes are no bools to TensorStore, which takes 0 and 1 only.
    if (expr.dtype() == DType::Bool) continue;
    definition->splits.push_back(random_split(choose, expr.shape()));
    // Names of which some are prefixes of others, and that sort otherwise with '/' behind them.
    definition->names.push_back(fmt::format("tree{}.leaf {}", choose(2) == 0 ? "" : "-0", i));
    const auto bytes = naive_tensor(*checkpoint.catalog, *checkpoint.source, expr);
    if (!bytes) return 1;
    write(out / std::to_string(definition->tensors.size()), *bytes);
    text += fmt::format("{}{{\"name\": \"{}\", \"dtype\": \"{}\", \"shape\": [{}]}}",
                        text.empty() ? "" : ",\n", definition->names.back(), name(expr.dtype()),
                        fmt::join(expr.shape(), ", "));
    definition->tensors.push_back(
        {.name = definition->names.back(),
         .expr = std::move(random.expr),
         .split = static_cast<std::uint32_t>(definition->splits.size() - 1)});
  }
  definition->packaging.orbax.step |= definition->tensors.empty();
  const std::string list = "[" + text + "]\n";
  write(out / "arrays.json", std::as_bytes(std::span(list)));
  const auto files = ViewFiles::create(definition, *checkpoint.source);
  if (!files) {
    fmt::print(stderr, "{}\n", files.error().message());
    return 1;
  }
  for (std::size_t i = 0; i < (*files)->size(); ++i) {
    const auto bytes = naive_file(*(*files)->layout(i), *checkpoint.source);
    if (!bytes) return 1;
    write(out / "item" / (*files)->path(i), *bytes);
  }
  return testing::Test::HasFailure() ? 1 : 0;
}

std::uint64_t number(std::string_view text) {
  std::uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace
}  // namespace ckfs

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 4) return 2;
  const std::uint64_t first = ckfs::number(argv[1]);
  for (std::uint64_t seed = first; seed < first + ckfs::number(argv[2]); ++seed) {
    const auto out = std::filesystem::path(argv[3]) / std::to_string(seed);
    if (ckfs::make(seed, out) == 0) continue;
    fmt::print(stderr, "seed {}: no item\n", seed);
    return 1;
  }
  return 0;
}
