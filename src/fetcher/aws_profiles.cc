#include "fetcher/aws_profiles.h"

namespace ckfs {

AwsProfiles::AwsProfiles(const Surroundings& here) {
  const auto read = [&](const char* variable, std::string_view usual) {
    std::string path = here.variable(variable);
    if (path.empty()) path = here.at_home(usual);
    const auto text = path.empty() ? Result<std::string>("") : here.read_file(path);
    return text ? parse_ini(*text) : IniFile{};
  };
  config_ = read("AWS_CONFIG_FILE", ".aws/config");
  credentials_ = read("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials");
}

AwsProfiles::Profile AwsProfiles::profile(const std::string& name) const {
  Profile merged;
  const auto add = [&](const IniFile& file, const std::string& section) {
    const auto found = file.find(section);
    if (found == file.end()) return;
    for (const auto& [key, value] : found->second) merged[key] = value;
  };
  add(config_, name == "default" ? name : "profile " + name);
  add(credentials_, name);  // counts more
  return merged;
}

AwsProfiles::Profile AwsProfiles::section(const std::string& name) const {
  const auto found = config_.find(name);
  return found == config_.end() ? Profile{} : found->second;
}

}  // namespace ckfs
