// Speed and peak memory of the engine while it gathers a tensor, perhaps one far larger than its
// budget.
//
//   gather_bench FILE ROWS COLUMNS BUDGET WORKERS
//
// FILE holds a bf16 matrix of that shape (a sparse file will do: it is written by the caller). It
// is shown transposed and read from its first to its last byte in requests of 1 MiB. WORKERS: 0 for
// as many as the engine takes. Prints one line: seconds, bytes, the engine's own peak, and the
// process's own at its peak, in bytes. (Pages of the matrix that it has mapped are the page
// cache's; the kernel's own peak counts them, and they may have gone by the end.)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <sys/resource.h>

#include "base/units.h"
#include "engine/engine.h"
#include "io/source_files.h"

namespace {

/// A field of /proc/self/status, in bytes.
std::uint64_t status_field(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":"))
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) << 10;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace ckfs;
  if (argc != 6) return 2;
  const std::int64_t rows = std::atoll(argv[2]);
  const std::int64_t columns = std::atoll(argv[3]);
  auto files = LocalFiles::create({}).value();
  const FileId id = files->add("matrix", argv[1]).value();

  CatalogBuilder builder("bench");
  const Extent extent{id, 0, files->size(id)};
  const std::int64_t shape[] = {rows, columns};
  builder.add_tensor("matrix", shape,
                     builder.add_storage(DType::BF16, rows * columns, {&extent, 1}));
  auto definition = std::make_shared<Definition>();
  definition->catalog = std::move(builder).build();
  const std::int64_t order[] = {1, 0};
  definition->tensors.push_back(
      {"matrix", TensorExpr::stored(*definition->catalog, 0).transpose(order).value(),
       Exactness::BitExact});
  auto file = std::make_shared<FileLayout>();
  file->size = extent.nbytes;
  file->segments.push_back({0, 0, 0, Segment::Kind::Tensor});
  file->definition = definition;
  file->finish();

  Engine engine(definition->catalog, *files,
                BufferPool::create(std::strtoull(argv[4], nullptr, 10)),
                {.threads = static_cast<unsigned>(std::strtoul(argv[5], nullptr, 10))});
  const auto stream = engine.open_stream(file);
  std::uint64_t peak = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t at = 0; at < file->size; at += 1_MiB) {
    if (at % 16_MiB == 0) peak = std::max(peak, status_field("RssAnon"));
    const auto bytes = engine.read(*stream, {at, std::min(file->size, at + 1_MiB)});
    if (!bytes) {
      std::fprintf(stderr, "gather_bench: %s\n", bytes.error().message().c_str());
      return 1;
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%.3f %llu %llu %llu\n", seconds.count(), static_cast<unsigned long long>(file->size),
              static_cast<unsigned long long>(engine.statistics().memory_peak),
              static_cast<unsigned long long>(peak));
  return 0;
}
