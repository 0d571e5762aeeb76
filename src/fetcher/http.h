// Sends requests and gives their answers, many at a time, by libcurl: HTTP/1.1 over connections
// that are kept, proxies and certificates by the environment (http_proxy, https_proxy, no_proxy;
// CURL_CA_BUNDLE, AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE, SSL_CERT_FILE, the first that is set).
//
// No redirect is followed, nothing is tried again, no cookie is kept, nothing is decoded: each of
// these is a decision about credentials or about bytes, and so the caller's. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/error.h"
#include "fetcher/http_message.h"
#include "fetcher/patience.h"

namespace ckfs {

struct HttpOptions {
  std::size_t connections = 64;  // to all hosts together
  std::string ca_bundle;         // a file; empty: the system's
  Patience patience = {};
};

/// Requests and answers since the client was made.
struct HttpCounts {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;  // of bodies
  std::uint64_t faults = 0;
};

class HttpClient {
 public:
  using Done = std::function<void(HttpAnswer)>;

  /// Errors: Internal (libcurl does not start).
  static Result<std::unique_ptr<HttpClient>> make(HttpOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Begins to send; `done` is called in a later step(), once. The bytes of a wanted range are at
  /// its place by then, and nothing touches that place afterwards. Returns a number for cancel().
  std::uint64_t start(HttpRequest request, Done done);
  /// Ends it at once; `done` is not called. Of one that has ended already, nothing happens.
  void cancel(std::uint64_t request);

  /// Sends and receives until something has ended, `descriptor` (-1: none) can be read, or the time
  /// is up, and calls what is done. Not to be called by a `done`.
  void step(std::chrono::milliseconds most, int descriptor = -1);

  /// Sends one and waits for its answer. The others continue; the next step()
  /// tells which have ended. May be called by a `done`.
  HttpAnswer fetch(HttpRequest request);
  /// Lets the others continue for that long.
  void wait(std::chrono::milliseconds time);

  std::size_t in_flight() const;
  const HttpCounts& counts() const;
  const Patience& patience() const;

 private:
  class Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
