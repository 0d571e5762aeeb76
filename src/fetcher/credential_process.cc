// The command is the user's own, in a file that only the user should write. A question names
// a profile, so a process that servers took over starts nothing that the user has not written
// there.
#include "fetcher/credential_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "fetcher/aws_profiles.h"

namespace ckfs {
namespace {

constexpr std::size_t kMostOutput = std::size_t{64} << 10;
constexpr std::size_t kLongestProfile = 1024;
/// As long as a person needs to touch a key.
constexpr std::chrono::seconds kPatienceWithPrograms{60};
constexpr char kIsAnswer = '+';
constexpr char kIsError = '-';

Result<std::string> credentials_of(const std::string& profile, const Surroundings& here,
                                   int client) {
  const AwsProfiles::Profile its = AwsProfiles(here).profile(profile);
  const auto command = its.find("credential_process");
  if (command == its.end()) {
    return fail(ErrorCode::InvalidArgument, "no credential_process");
  }
  CKFS_TRY(const std::vector<std::string> words, command_words(command->second));
  return output_of(words, kPatienceWithPrograms, client);
}

}  // namespace

Result<std::vector<std::string>> command_words(std::string_view command) {
  std::vector<std::string> words;
  bool is_in_word = false;
  char quote = 0;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (quote == 0 && is_space(c)) {
      is_in_word = false;
      continue;
    }
    if (!is_in_word) words.emplace_back();
    is_in_word = true;
    if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else if (c == '\\' && quote != '\'' && i + 1 < command.size()) {
      words.back() += command[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) return fail(ErrorCode::InvalidArgument, "a quote without its end");
  if (words.empty()) return fail(ErrorCode::InvalidArgument, "an empty command");
  return words;
}

Result<std::string> output_of(const std::vector<std::string>& words,
                              std::chrono::milliseconds patience, int client) {
  const std::string& name = words.front();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_failure(errno, name, "pipe");
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, writing.get(), 1);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t usual;
  ::sigemptyset(&usual);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::sigaddset(&usual, signal);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  std::vector<std::string> copies = words;
  for (std::string& word : copies) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t process = 0;
  const int error =
      ::posix_spawnp(&process, name.c_str(), &actions, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  writing.reset();
  if (error != 0) return system_failure(error, name, "start");
  const auto until = std::chrono::steady_clock::now() + patience;
  std::string output;
  bool is_whole = false;
  while (output.size() <= kMostOutput) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    std::array<pollfd, 2> waits = {pollfd{reading.get(), POLLIN, 0}, pollfd{client, 0, 0}};
    if (left.count() <= 0) break;
    const int ready = ::poll(waits.data(), waits.size(), static_cast<int>(left.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || waits[1].revents != 0) break;
    std::array<char, 4096> piece{};
    const ssize_t got = ::read(reading.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      is_whole = got == 0;
      break;
    }
    output.append(piece.data(), static_cast<std::size_t>(got));
  }
  // A program that has closed its output and runs on has nothing more to say.
  int status = 0;
  if (!is_whole) ::kill(-process, SIGKILL);
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  if (!is_whole) {
    return fail(ErrorCode::Io, "{}: it gave no end of its output within {} s and {} KiB", name,
                std::chrono::duration_cast<std::chrono::seconds>(patience).count(),
                kMostOutput >> 10);
  }
  if (status != 0) {
    return fail(ErrorCode::Io, "{}: it ended with {} {}", name,
                WIFSIGNALED(status) ? "signal" : "status",
                WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  return output;
}

Result<CredentialChannel> CredentialChannel::make() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_failure(errno, "fetcher", "socketpair");
  }
  return CredentialChannel{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Result<std::string> ask_for_credentials(int channel, const std::string& profile) {
  if (profile.empty() || profile.size() > kLongestProfile) {
    return fail(ErrorCode::InvalidArgument, "no such profile");
  }
  std::string answer(kMostOutput + 1, '\0');
  ssize_t got = -1;
  if (::send(channel, profile.data(), profile.size(), MSG_NOSIGNAL) >= 0) {
    do {
      got = ::recv(channel, answer.data(), answer.size(), 0);
    } while (got < 0 && errno == EINTR);
  }
  if (got <= 0) return fail(ErrorCode::Io, "the process that starts it is gone");
  answer.resize(static_cast<std::size_t>(got));
  if (answer.front() == kIsAnswer) return answer.substr(1);
  return fail(ErrorCode::Io, "{}", one_line(answer.substr(1)));
}

void answer_for_credentials(int channel, const Surroundings& here, int client) {
  std::string profile(kLongestProfile, '\0');
  const ssize_t got = ::recv(channel, profile.data(), profile.size(), MSG_DONTWAIT);
  if (got <= 0) return;
  profile.resize(static_cast<std::size_t>(got));
  const auto found = credentials_of(profile, here, client);
  const std::string answer =
      found ? kIsAnswer + found->substr(0, kMostOutput) : kIsError + found.error().message();
  (void)::send(channel, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace ckfs
