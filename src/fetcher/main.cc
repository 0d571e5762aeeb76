// ckfs-fetcher: started by ckfs with a socket and shared memory (fetch/protocol.h), never by hand.
//
// Two processes. The first, the supervisor, opens no connection and parses nothing: it forks the
// second, which does all that, and forks it again when it dies, once a second at most. A daemon is
// confined by then and could start nothing. Both end when the client's end of the socket is closed.

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <curl/curl.h>
#include <optional>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fetch/protocol.h"
#include "fetch/shared_memory.h"
#include "fetcher/confine.h"
#include "fetcher/credential_process.h"
#include "fetcher/fetcher.h"

namespace ckfs {
namespace {

struct Arguments {
  std::size_t connections = 64;
  std::int64_t timeout_ms = 300'000;
};

std::optional<Arguments> parse_arguments(int count, char** texts) {
  Arguments arguments;
  const auto number = [](std::string_view text, std::string_view name, auto& value) {
    if (!text.starts_with(name)) return false;
    text.remove_prefix(name.size());
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value > 0;
  };
  for (int i = 1; i < count; ++i) {
    if (!number(texts[i], "--connections=", arguments.connections) &&
        !number(texts[i], "--timeout-ms=", arguments.timeout_ms)) {
      return std::nullopt;
    }
  }
  return arguments;
}

std::string ca_bundle(const Surroundings& here) {
  for (const char* const name :
       {"CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"}) {
    if (std::string path = here.variable(name); !path.empty()) return path;
  }
  // Where distributions have it: the one that curl was built on may not be this one.
  for (const char* const path :
       {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem", "/etc/ssl/cert.pem"}) {
    if (::access(path, R_OK) == 0) return path;
  }
  return {};
}

/// The second process.
Result<void> fetch(const Arguments& arguments, const SharedMemory& memory, std::uint32_t generation,
                   int credentials) {
  Surroundings here = Surroundings::of_process();
  here.run_credential_process = [credentials](const std::string& profile) {
    return ask_for_credentials(credentials, profile);
  };
  HttpOptions options{.connections = arguments.connections, .ca_bundle = ca_bundle(here)};
  Patience& patience = options.patience;
  patience.timeout = FetchDuration(arguments.timeout_ms);
  // None of its parts may take longer than the whole.
  for (FetchDuration* part : {&patience.connect, &patience.first_byte_least,
                              &patience.first_byte_most, &patience.slow_for}) {
    *part = std::min(*part, patience.timeout);
  }
  CKFS_TRY(const auto http, HttpClient::make(std::move(options)));
  CKFS_TRY(const bool is_confined, confine_fetcher());
  if (!is_confined) spdlog::debug("ckfs-fetcher: this system has no filter of system calls");
  Fetcher fetcher(kFetcherSocket, memory.bytes(), generation, *http, here, arguments.connections);
  fetcher.run();
  return {};
}

/// Waits until the process has ended, or the client is gone: then it is ended, too.
bool wait_for(pid_t process, int credentials, int& status) {
  const Surroundings here = Surroundings::of_process();
  const int its = static_cast<int>(::syscall(SYS_pidfd_open, process, 0));
  for (;;) {
    pollfd waits[3] = {{kFetcherSocket, 0, 0}, {credentials, POLLIN, 0}, {its, POLLIN, 0}};
    // A kernel before 5.3 has none of those descriptors: look now and then.
    ::poll(waits, its < 0 ? 2 : 3, its < 0 ? 100 : -1);
    if ((waits[1].revents & POLLIN) != 0) answer_for_credentials(credentials, here, kFetcherSocket);
    const bool is_over = ::waitpid(process, &status, WNOHANG) == process;
    const bool is_alone = (waits[0].revents & (POLLHUP | POLLERR)) != 0;
    if (!is_over && is_alone) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
    }
    if (is_over || is_alone) {
      if (its >= 0) ::close(its);
      return !is_alone;
    }
  }
}

int supervise(const Arguments& arguments, const SharedMemory& memory) {
  using Clock = std::chrono::steady_clock;
  for (std::uint32_t generation = 1;; ++generation) {
    const auto started = Clock::now();
    const pid_t parent = ::getpid();
    auto channel = CredentialChannel::make();
    if (!channel) {
      spdlog::error("ckfs-fetcher: {}", channel.error().message());
      return 1;
    }
    const pid_t process = ::fork();
    if (process < 0) {
      spdlog::error("ckfs-fetcher: fork: {}",
                    std::error_code(errno, std::system_category()).message());
      return 1;
    }
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      channel->answering.reset();
      const auto result = fetch(arguments, memory, generation, channel->asking.get());
      if (!result) spdlog::error("ckfs-fetcher: {}", result.error().message());
      ::_exit(result ? 0 : 1);
    }
    channel->asking.reset();
    int status = 0;
    const bool go_on = wait_for(process, channel->answering.get(), status);
    if (!go_on || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return 0;
    spdlog::warn("ckfs-fetcher: {} {}; it is started again",
                 WIFSIGNALED(status) ? "killed by signal" : "ended with status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    const auto next = started + std::chrono::seconds(1);
    while (Clock::now() < next) {
      pollfd wait{kFetcherSocket, 0, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
      if (::poll(&wait, 1, static_cast<int>(left.count())) > 0) return 0;
    }
  }
}

int run(int count, char** texts) {
  const auto arguments = parse_arguments(count, texts);
  auto memory = SharedMemory::map(UniqueFd(kFetcherMemory));
  struct stat status{};
  if (!arguments || !memory || ::fstat(kFetcherSocket, &status) != 0 || !S_ISSOCK(status.st_mode)) {
    std::fputs("ckfs-fetcher: is started by ckfs, for sources that are not on this machine\n",
               stderr);
    return 2;
  }
  ::close_range(kFetcherMemory + 1, ~0U, 0);
  // Secrets are in no core file, and no other process of the user looks into this one.
  ::prctl(PR_SET_DUMPABLE, 0);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  // They end with their client, and only then: one that is told to end has reads to finish.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(signal, SIG_IGN);
  return supervise(*arguments, *memory);
}

}  // namespace
}  // namespace ckfs

int main(int count, char** texts) {
  return ckfs::run(count, texts);
}
