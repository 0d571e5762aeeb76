// `credential_process` of AWS: a program that prints keys. The fetcher's process that speaks to
// servers can start none, so its supervisor does: it is asked for a profile by its name, and reads
// itself which command that profile has.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "fetcher/surroundings.h"

namespace ckfs {

/// The words of a command, without a shell: white space parts them, quotes of both kinds and
/// backslashes keep it. Errors: InvalidArgument (no words, a quote without its end).
Result<std::vector<std::string>> command_words(std::string_view command);

/// What a program prints on its standard output, 64 KiB at most; its standard error is this
/// process's. It is killed after `patience`, or when `client` (a socket; -1: none) is closed by its
/// other end. Errors: Io (it cannot be started, fails, or takes too long).
Result<std::string> output_of(const std::vector<std::string>& words,
                              std::chrono::milliseconds patience, int client = -1);

/// Both ends of the questions.
struct CredentialChannel {
  UniqueFd asking, answering;
  static Result<CredentialChannel> make();
};

/// The asking end: what the command of that profile prints. Waits for it. Errors: those of
/// output_of(), InvalidArgument (no such profile, or no command).
Result<std::string> ask_for_credentials(int channel, const std::string& profile);

/// The answering end: takes one question that has come, and answers it.
void answer_for_credentials(int channel, const Surroundings& here, int client);

}  // namespace ckfs
