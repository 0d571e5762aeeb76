#include "container/container.h"

#include "container/dcp.h"
#include "container/orbax.h"
#include "container/safetensors.h"
#include "container/side_files.h"
#include "container/torch_zip.h"

namespace ckfs {

Result<std::vector<std::shared_ptr<const Container>>> make_containers(
    const std::shared_ptr<const Definition>& definition, const ByteSource& source) {
  std::vector<std::shared_ptr<const Container>> containers;
  switch (definition->packaging.container) {
    case ContainerKind::None:
      break;
    case ContainerKind::Safetensors: {
      CKFS_TRY(containers.emplace_back(), make_safetensors(definition));
      break;
    }
    case ContainerKind::TorchZip: {
      CKFS_TRY(containers.emplace_back(), make_torch_zip(definition));
      break;
    }
    case ContainerKind::Orbax: {
      CKFS_TRY(containers.emplace_back(), make_orbax(definition));
      break;
    }
    case ContainerKind::Dcp: {
      CKFS_TRY(containers.emplace_back(), make_dcp(definition));
      break;
    }
  }
  containers.push_back(make_side_files(definition, source));
  return containers;
}

}  // namespace ckfs
