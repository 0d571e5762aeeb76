// An Orbax item, as orbax.checkpoint restores it (0.6 and later): arrays in equal chunks, so chosen
// that each needs as little of the source as possible, in data files that end at 2 GiB under an
// OCDBT database, or in one file for each chunk. docs/FORMATS.md says which files are not written,
// and why.
#pragma once

#include <memory>

#include "container/container.h"

namespace ckfs {

/// Errors: those of make_containers().
Result<std::shared_ptr<const Container>> make_orbax(std::shared_ptr<const Definition> definition);

}  // namespace ckfs
