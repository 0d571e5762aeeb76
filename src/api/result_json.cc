#include "api/result_json.h"

#include <fmt/format.h>

namespace ckfs {

nlohmann::ordered_json begin_result(const View& view, std::string_view source) {
  return {{"version", 1},
          {"source", source},
          {"fingerprint", fmt::format("{:016x}", view.checkpoint().fingerprint())},
          {"view", view.name()},
          {"layout_version", kLayoutVersion},
          {"ckfs", version()}};
}

}  // namespace ckfs
