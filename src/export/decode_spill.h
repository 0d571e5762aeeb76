// Disk in OUT for decoded chunks that memory has no room for, so that an export in the order of its
// source decodes each chunk once.
#pragma once

#include <cstdint>
#include <memory>

#include <ckfs/checkpoint.h>

#include "export/out_directory.h"

namespace ckfs {

class ChunkSource;
class Spill;

/// While it lives, decoded chunks are kept in a nameless file in OUT, of at most `spare` bytes,
/// unless the checkpoint has a spill already. Never fails: chunks that are not kept are decoded
/// again. Requires: OUT has the record's directory, and the view outlives it.
class DecodeSpill {
 public:
  DecodeSpill(const View& view, const OutDirectory& out, std::uint64_t spare);
  ~DecodeSpill();
  DecodeSpill(const DecodeSpill&) = delete;
  DecodeSpill& operator=(const DecodeSpill&) = delete;

 private:
  ChunkSource* const chunks_;
  std::shared_ptr<Spill> spill_;  // nullptr: there is none of its own
};

}  // namespace ckfs
