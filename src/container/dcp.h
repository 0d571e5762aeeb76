// A checkpoint of torch.distributed.checkpoint: .metadata, and data files of torch files, one for
// each chunk. A chunk is a part of a tensor as Definition::splits cuts it, or a run of rows of one
// that is larger than DcpFolder::max_chunk.
//
// A data file ends at 5 GB; a larger chunk has one to itself. A torch file is what torch.save
// writes of a tensor, its CRC-32 fields zero.
#pragma once

#include <memory>

#include "container/container.h"

namespace ckfs {

/// Errors: those of make_containers(), more than 2^24 chunks or 100,000 files among them.
Result<std::shared_ptr<const Container>> make_dcp(std::shared_ptr<const Definition> definition);

}  // namespace ckfs
