#include "container/orbax.h"

namespace ckfs {

Result<std::shared_ptr<const Container>> make_orbax(std::shared_ptr<const Definition> definition) {
  return fail(ErrorCode::Unsupported, "{}: no writer of Orbax items", definition->spec.canonical());
}

}  // namespace ckfs
