// Fuzz target: random expressions over random checkpoints, read by ranges: plans, gathers and
// chunks ahead of the reader against the model (tests/support/naive_view.h).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/units.h"
#include "engine/engine.h"
#include "fuzz/fuzz_input.h"
#include "support/naive_view.h"
#include "support/random_expr.h"

namespace {

using namespace ckfs;

/// The tensors one after another.
std::shared_ptr<const FileLayout> layout_of(std::shared_ptr<const Definition> definition) {
  auto file = std::make_shared<FileLayout>();
  file->path = "f";
  for (std::uint32_t k = 0; k < definition->tensors.size(); ++k) {
    const std::uint64_t nbytes = definition->tensors[k].expr.nbytes();
    if (nbytes == 0) continue;
    file->segments.push_back({file->size, 0, k, Segment::Kind::Tensor});
    file->size += nbytes;
  }
  file->definition = std::move(definition);
  file->finish();
  return file;
}

void check_range(Engine& engine, ReadStream& stream, std::span<const std::byte> expected,
                 ByteRange range) {
  const auto bytes = engine.read(stream, range);
  CKFS_CHECK(bytes.has_value());
  CKFS_CHECK(std::ranges::equal(bytes->span(), expected.subspan(range.begin, range.size())));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzChoices choices(std::as_bytes(std::span(data, size)));
  const Choose choose = [&](std::int64_t n) { return choices.below(n); };
  const RandomCheckpoint checkpoint = random_checkpoint(choose);
  auto definition = std::make_shared<Definition>();
  definition->catalog = checkpoint.catalog;
  for (std::int64_t k = choose(2); k >= 0; --k) {
    definition->tensors.push_back({"t", random_expr(choose, checkpoint).expr, Exactness::BitExact});
  }
  const auto file = layout_of(std::move(definition));
  if (file->size == 0) return 0;
  const std::vector<std::byte> expected = naive_file(*file, *checkpoint.source).value();

  static constexpr std::uint64_t kTiles[] = {0, 4096, 64};
  Engine engine(checkpoint.catalog, *checkpoint.source, BufferPool::create(64_MiB),
                {.threads = 1,
                 .tile_bytes = kTiles[choose(3)],
                 .kernels = choose(4) == 0 ? KernelSet::Reference : KernelSet::Fast});
  const auto stream = engine.open_stream(file);
  for (int k = 0; k < 8; ++k) {
    const auto begin = static_cast<std::uint64_t>(choose(static_cast<std::int64_t>(file->size)));
    const auto most = static_cast<std::int64_t>(std::min<std::uint64_t>(file->size - begin, 3000));
    check_range(engine, *stream, expected,
                {begin, begin + static_cast<std::uint64_t>(choose(most)) + 1});
  }
  const std::uint64_t step = static_cast<std::uint64_t>(choose(20'000)) + 500;
  for (std::uint64_t at = 0; at < file->size; at += step) {
    check_range(engine, *stream, expected, {at, std::min(file->size, at + step)});
  }
  return 0;
}
