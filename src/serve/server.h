// The server: one listening socket, a thread for each client, answers of site.h.
//
// Clients are bounded. At most `clients` are connected at once; where one more comes, the one that
// was idle longest is closed, else the new one waits until there is room. A request must come
// within seconds, and an answer must be taken at a least rate. Bytes of the memory budget are not
// held for a client that does not take them: they are read again when it does. The answer to a
// client that is gone is stopped.
//
// Read errors behind the head of an answer end the connection by a reset, so no client takes a part
// for the whole.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"
#include "serve/site.h"
#include "wire/sigv4.h"

namespace ckfs {

/// A socket that listens, and where.
struct Listener {
  UniqueFd socket;
  std::string address;      // "127.0.0.1:9000"
  bool is_loopback = true;  // only this machine reaches it
};

/// Listens at "HOST:PORT" (a name is looked up; port 0: one that is free). Errors: InvalidArgument,
/// Io (the port is taken).
Result<Listener> listen_at(const std::string& address);

struct ServerOptions {
  std::optional<AwsKeys> key;  // absent: every client that reaches it may read
  unsigned clients = 256;
  std::chrono::milliseconds header_time{10'000};  // for a request, from its first byte on
  std::chrono::milliseconds idle_time{75'000};    // between two requests
  /// Of an answer, `least_bytes` must be taken within this time, or all that is left.
  std::chrono::milliseconds send_time{60'000};
  std::uint64_t least_bytes = std::uint64_t{64} << 10;
  /// How long answers may continue after stop().
  std::chrono::milliseconds grace{10'000};
};

class Server {
 public:
  /// `site` outlives the server.
  Server(Site& site, Listener listener, ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Serves until stop(). Errors: Io (no eventfd; the socket fails), OutOfMemory. After an error,
  /// too, no client is served any more when it returns.
  Result<void> run();

  /// Ends run(): no client is taken any more, idle ones are closed, answers under way continue
  /// within the grace. Safe to call from any thread.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
