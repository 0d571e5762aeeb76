#include "cli/result_json.h"

#include <fmt/format.h>

namespace ckfs::cli {

nlohmann::ordered_json begin_result(const Checkpoint& checkpoint, const View& view,
                                    std::string_view source) {
  return {{"version", 1},
          {"source", source},
          {"fingerprint", fmt::format("{:016x}", checkpoint.fingerprint())},
          {"view", view.name()},
          {"layout_version", kLayoutVersion},
          {"ckfs", version()}};
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ckfs::cli
