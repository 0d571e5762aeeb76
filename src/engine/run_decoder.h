// A run: consecutive elements of one storage, decoded and taken through the steps of a program.
// The unit of all computing: a decoded part of a plan is one run, a gathered tile is many.
//
// The work is split so that the caller can read for many runs in one batch:
//   const RunNeeds needs = run_needs(catalog, run);
//   add_reads(catalog, run, staging, batch);      // staging: needs.staging bytes
//   source.read(batch);
//   decode_run(catalog, run, staging, out, kernels);
// Pure functions of their arguments; safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "catalog/catalog.h"
#include "engine/read_plan.h"
#include "tensor/kernel.h"

namespace ckfs {

/// The elements [first, first + count) of a storage and what happens to them.
struct ElementRun {
  StorageId storage = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  const Program* program = nullptr;  // nullptr: no step
};

/// What a run needs in bytes.
struct RunNeeds {
  std::size_t staging = 0;  // stored elements, companions, and room to convert them
  std::size_t out = 0;      // count elements of the result's dtype
};

RunNeeds run_needs(const Catalog& catalog, const ElementRun& run);

/// The most that any run of `count` elements of that storage can need, wherever it begins.
RunNeeds most_needs(const Catalog& catalog, StorageId storage, std::int64_t count,
                    const Program* program);

/// Whether decoding changes nothing: plain elements and no step.
bool is_move(const Storage& storage, const Program* program);

/// Adds the reads that fill `staging`: the stored elements, and the part of each companion that
/// belongs to them. Requires: staging.size() >= run_needs().staging.
void add_reads(const Catalog& catalog, const ElementRun& run, std::span<std::byte> staging,
               std::vector<ReadRequest>& batch);

/// Adds the source bytes that add_reads() would read.
void add_ranges(const Catalog& catalog, const ElementRun& run, std::vector<FileRange>& ranges);

/// Decodes what add_reads() asked for. Requires: out.size() == run_needs().out.
void decode_run(const Catalog& catalog, const ElementRun& run, std::span<std::byte> staging,
                std::span<std::byte> out, KernelSet kernels);

}  // namespace ckfs
