// An Orbax item, as orbax.checkpoint restores it (0.6 and later): arrays in equal chunks, none of
// which needs more of the source than it must, in data files that end at 2 GiB under an OCDBT
// database, or in one file for each chunk. What is not written, and why: docs/FORMATS.md.
#pragma once

#include <memory>

#include "container/container.h"

namespace ckfs {

/// Errors: those of make_containers().
Result<std::shared_ptr<const Container>> make_orbax(std::shared_ptr<const Definition> definition);

}  // namespace ckfs
