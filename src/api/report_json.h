// What every JSON text of a report has in common.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "api/report.h"

namespace ckfs {

using Json = nlohmann::ordered_json;

inline std::string render(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

inline Json versioned() {
  Json json = Json::object();
  json["version"] = kReportVersion;
  return json;
}

}  // namespace ckfs
