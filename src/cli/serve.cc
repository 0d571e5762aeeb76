// `ckfs serve`: views over HTTP, S3, the hub's and Google Cloud Storage's routes.
//
// Everything that needs a right comes first: the key is read, the socket listens, the fetcher and
// the rings are there. Then the walls go up, and only then is the source opened and a client heard.
#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "api/inside.h"
#include "api/open_prepared.h"
#include "api/report.h"
#include "base/paths.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/notify.h"
#include "cli/running.h"
#include "cli/walls.h"
#include "fetch/program.h"
#include "sandbox/sandbox.h"
#include "serve/access.h"
#include "serve/server.h"

namespace ckfs::cli {

namespace {

/// As many as clients that read at once, mostly; each takes two pages and a descriptor.
constexpr unsigned kServeRings = 64;
constexpr std::size_t kLongestKeyFile = 4096;

struct ServeCommand {
  CommonOptions common;
  std::string source;
  std::string bucket;
  std::string listen = "127.0.0.1:9000";
  std::string key_file;
  unsigned clients = ServerOptions().clients;
  bool confined = true;
};

Result<AwsKeys> read_key(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return system_failure(errno, path, "open");
  std::string text(kLongestKeyFile, '\0');
  ssize_t got = 0;
  do {
    got = ::read(file.get(), text.data(), text.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0) return system_failure(errno, path, "read");
  return parse_key(std::string_view(text).substr(0, static_cast<std::size_t>(got)), path);
}

/// The source's last name.
Result<std::string> default_bucket(const std::string& source) {
  if (source.find("://") != std::string::npos) return bucket_name(source);
  CKFS_TRY(const std::filesystem::path path, absolute_path(source));
  return bucket_name(path.lexically_normal().native());
}

Result<void> serve(const ServeCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  std::string bucket = command.bucket;
  if (bucket.empty()) {
    CKFS_TRY(bucket, default_bucket(command.source));
  }
  CKFS_TRY_VOID(check_bucket_name(bucket));
  ServerOptions server_options{.key = {}, .clients = command.clients};
  if (!command.key_file.empty()) {
    CKFS_TRY(server_options.key, read_key(command.key_file));
  }
  CKFS_TRY(Listener listener, listen_at(command.listen));
  if (!listener.is_loopback && !server_options.key) {
    return fail(ErrorCode::InvalidArgument,
                "listen: {} is reached by other machines, so clients need a key (--key-file FILE)",
                command.listen);
  }
  const std::string address = fmt::format("http://{}", listener.address);
  const std::string shown = shown_source(command.source);
  const OpenOptions options = open_options(command.common);
  const ServiceManager manager;
  CKFS_TRY(std::unique_ptr<SourceFiles> reading,
           prepare_source(command.source, options, kServeRings, STDERR_FILENO));
  forget_credentials();
  CKFS_TRY(const Walls walls, raise_walls(address, options, command.confined, Sockets::Accepted));
  CKFS_TRY(Checkpoint checkpoint,
           open_prepared(command.source, options, std::move(reading), command.common.tests));
  for (const std::string& note : opening_notes(checkpoint)) spdlog::warn("{}: {}", shown, note);
  const std::string version = source_version(checkpoint);
  if (!version.empty()) spdlog::info("{}: version {}", shown, version);
  if (walls.confined) {
    ::tzset();  // the log's times: its file is read now
    CKFS_TRY_VOID(confine_reading(paths_covering(source_paths(checkpoint))));
  }
  Site site(std::move(checkpoint), bucket, options.use.memory / 2);
  site.facts = {.mountpoint = fmt::format("{}/{}", address, bucket),
                .source = version.starts_with("hf://") ? version : shown,
                .log = command.common.log_file.empty() ? "stderr" : command.common.log_file,
                .pid = ::getpid(),
                .started = static_cast<std::int64_t>(std::time(nullptr))};
#ifdef __GLIBC__
  malloc_trim(0);  // headers were parsed and thrown away
#endif
  // From here on there are threads, which the walls hold.
  const SignalWatch watch;
  Server server(site, std::move(listener), std::move(server_options));
  const std::stop_callback stop(watch.token(), [&server] { server.stop(); });
  report_walls(address, walls);
  spdlog::info("{}: serves {}", site.facts.mountpoint, shown);
  CKFS_TRY_VOID(print(fmt::format("{}/\n", site.facts.mountpoint)));
  manager.send("READY=1");
  const Result<void> served = server.run();
  manager.send("STOPPING=1");
  return served;
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  auto command = std::make_shared<ServeCommand>();
  CLI::App* verb =
      app.add_subcommand("serve", "serve views over HTTP and S3, to clients that need no mount");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option("--listen", command->listen,
                   "address to listen at (default 127.0.0.1:9000; port 0: one that is free)")
      ->type_name("HOST:PORT");
  verb->add_option("--bucket", command->bucket,
                   "name of the bucket (default: the source's last name, in lower case)")
      ->type_name("NAME");
  verb->add_option("--key-file", command->key_file,
                   "file with the key pair that clients need, as ID:SECRET (default: none, on "
                   "this machine's own addresses only)")
      ->type_name("FILE");
  add_number(*verb, "--clients", 1, 4096, command->clients, "most clients at once (default 256)");
  verb->add_flag_callback(
      "--no-sandbox", [command] { command->confined = false; },
      "do not confine the server (Landlock, seccomp)");
  command->common.log_level = "info";
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] { action = [command] { return serve(*command); }; });
}

}  // namespace ckfs::cli
