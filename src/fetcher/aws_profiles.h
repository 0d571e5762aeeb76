// The profiles of ~/.aws, as AWS's own tools read them.
#pragma once

#include <map>
#include <string>

#include "fetcher/surroundings.h"

namespace ckfs {

class AwsProfiles {
 public:
  using Profile = std::map<std::string, std::string>;

  /// Reads the files that the environment names, else the usual ones.
  explicit AwsProfiles(const Surroundings& here);

  /// What both files say of it; of a value in both, that of the file of credentials counts.
  Profile profile(const std::string& name) const;
  /// Another section of the file of settings; empty: there is none.
  Profile section(const std::string& name) const;

 private:
  IniFile config_, credentials_;
};

}  // namespace ckfs
