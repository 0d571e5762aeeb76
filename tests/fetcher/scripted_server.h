// A server on the loopback that answers as a test says: for what a fetcher asks, in one process.
#pragma once

#include <arpa/inet.h>
#include <functional>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace ckfs::test {

struct ScriptedRequest {
  std::string head;  // the request's line and headers, each with its end
  std::string body;

  std::string method() const { return head.substr(0, head.find(' ')); }
  /// Path and query.
  std::string target() const {
    const std::size_t begin = head.find(' ') + 1;
    return head.substr(begin, head.find(' ', begin) - begin);
  }
  /// The value of a header by its name in lower case; empty: none.
  std::string header(std::string_view name) const {
    std::string lower;
    for (const char c : head) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    const std::string mark = "\r\n" + std::string(name) + ":";
    const std::size_t at = lower.find(mark);
    if (at == std::string::npos) return {};
    const std::size_t begin = head.find_first_not_of(' ', at + mark.size());
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

/// What is sent: bytes, and whether the connection is closed then, or kept without a word more.
struct ScriptedAnswer {
  enum class Then : std::uint8_t { Go, Close, Hang };
  std::string bytes;
  Then then = Then::Go;
};

inline ScriptedAnswer reply(int status, const std::vector<std::string>& headers = {},
                            std::string_view body = {}) {
  std::string bytes = "HTTP/1.1 " + std::to_string(status) + " X\r\n";
  for (const std::string& each : headers) bytes += each + "\r\n";
  bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";
  bytes += body;
  return {std::move(bytes)};
}

class ScriptedServer {
 public:
  using Script = std::function<ScriptedAnswer(const ScriptedRequest&)>;

  explicit ScriptedServer(Script script) : script_(std::move(script)) {
    listener_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    ::listen(listener_.get(), 64);
    socklen_t size = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~ScriptedServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    {
      const MutexLock lock(mutex_);
      for (const int connection : connections_) ::shutdown(connection, SHUT_RDWR);
    }
    for (std::thread& each : threads_) each.join();
    for (const int connection : connections_) ::close(connection);
  }
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  std::string url(std::string_view path = {}) const {
    return "http://127.0.0.1:" + std::to_string(port_) + std::string(path);
  }

  /// All requests so far.
  std::vector<ScriptedRequest> requests() const {
    const MutexLock lock(mutex_);
    return requests_;
  }

 private:
  void accept_all() {
    for (;;) {
      const int connection = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;
      const MutexLock lock(mutex_);
      connections_.push_back(connection);
      threads_.emplace_back([this, connection] { serve(connection); });
    }
  }

  void serve(int connection) {
    std::string buffer;
    const auto more = [&] {
      char part[4096];
      const ssize_t got = ::recv(connection, part, sizeof part, 0);
      if (got > 0) buffer.append(part, static_cast<std::size_t>(got));
      return got > 0;
    };
    for (;;) {
      std::size_t end = 0;
      while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
        if (!more()) return;
      }
      ScriptedRequest request{buffer.substr(0, end + 2), {}};
      const std::string length = request.header("content-length");
      const std::size_t size = length.empty() ? 0 : std::stoul(length);
      while (buffer.size() < end + 4 + size) {
        if (!more()) return;
      }
      request.body = buffer.substr(end + 4, size);
      buffer.erase(0, end + 4 + size);
      {
        const MutexLock lock(mutex_);
        requests_.push_back(request);
      }
      const ScriptedAnswer answer = script_(request);
      ::send(connection, answer.bytes.data(), answer.bytes.size(), MSG_NOSIGNAL);
      if (answer.then == ScriptedAnswer::Then::Hang) {
        while (more()) {
        }
        return;
      }
      if (answer.then == ScriptedAnswer::Then::Close) {
        ::shutdown(connection, SHUT_RDWR);
        return;
      }
    }
  }

  const Script script_;
  UniqueFd listener_;
  std::uint16_t port_ = 0;
  std::thread acceptor_;
  mutable Mutex mutex_;
  std::vector<std::thread> threads_ CKFS_GUARDED_BY(mutex_);
  std::vector<int> connections_ CKFS_GUARDED_BY(mutex_);
  std::vector<ScriptedRequest> requests_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs::test
