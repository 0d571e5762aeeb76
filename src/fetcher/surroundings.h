// What the fetcher looks up on its machine: the environment, small files, the time. Values of a
// process are one kind; tests have others.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

struct Surroundings {
  /// The value of a variable; empty: it is not set, or empty, which is the same for all that is
  /// asked here.
  std::function<std::string(const char* name)> variable;
  /// A file of at most 1 MiB. Errors: NotFound, Io (another failure, larger, no regular file).
  std::function<Result<std::string>(const std::string& path)> read_file;
  /// Seconds of Unix.
  std::function<std::int64_t()> now;
  /// What the program prints that a profile of AWS names as its credential_process. Waits for it.
  /// Errors: Io, InvalidArgument (credential_process.h).
  std::function<Result<std::string>(const std::string& profile)> run_credential_process =
      [](const std::string&) -> Result<std::string> {
    return fail(ErrorCode::Unsupported, "no program can be started here");
  };

  static Surroundings of_process();

  /// `path` in the directory of the user; empty where HOME is not set.
  std::string at_home(std::string_view path) const;
  /// Whether a variable says yes ("1", "true", "yes", "on", in any case).
  bool is_set(const char* name) const;
};

/// The sections of a file of AWS: [name] and `key = value`, '#' and ';' begin comments, lines that
/// begin with white space belong to the line before (nested settings) and are left out. What cannot
/// be read is skipped, as AWS's own tools do.
using IniFile = std::map<std::string, std::map<std::string, std::string>, std::less<>>;
IniFile parse_ini(std::string_view text);

}  // namespace ckfs
