// A thread for each client and not an event loop: what takes time here is computing bytes, which
// blocks, and a loop would need the same threads behind it. 256 threads that wait cost their
// stacks' first pages.
//
// Bytes go from the memory that the engine lends to the socket, without a copy between. What a
// client does not take at once is given back before the wait: a slow client costs time of its own,
// and no memory of others.

#include "serve/server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <ctime>
#include <list>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utility>

#include "base/log_limit.h"
#include "base/mutex.h"
#include "base/reads_under_way.h"
#include "base/start_thread.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/units.h"
#include "serve/access.h"
#include "wire/times.h"

namespace ckfs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Bytes of a file that are read at once: the engine's pieces are this long, and lent without a
/// copy where a read is one of them.
constexpr std::uint64_t kPiece = 1_MiB;
/// The same for a client that takes less than that at once.
constexpr std::uint64_t kSlowPiece = 64_KiB;
/// How long bytes are held for a client whose socket is full.
constexpr milliseconds kHold{200};
constexpr int kBacklog = 512;

std::string own_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host.data(), host.size(),
                    port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return address.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host.data(), port.data())
                                       : fmt::format("{}:{}", host.data(), port.data());
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(four.sin_addr.s_addr) >> 24U == 127;
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  return address.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six.sin6_addr);
}

/// Whether the client has closed its end, or the connection is broken.
bool has_left(int socket) {
  pollfd poll{.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&poll, 1, 0) > 0 && (poll.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

/// The socket's next event, or false at `last`.
bool wait_for(int socket, short event, Clock::time_point last) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(last - Clock::now());
    if (left.count() <= 0) return false;
    pollfd poll{.fd = socket, .events = event, .revents = 0};
    const int ready =
        ::poll(&poll, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (ready < 0 && errno != EINTR) return false;
    if (ready > 0) return true;
  }
}

/// Bytes to a client, at a least rate.
class Sender {
 public:
  Sender(int socket, const ServerOptions& options) : socket_(socket), options_(options) {}

  enum class Waiting : std::uint8_t { Held, Long };

  /// Sends what the client takes: `head` first. Held: gives up when the socket was full for a while
  /// (some bytes may be left); Long: waits as long as the client keeps to the least rate. False:
  /// the client is gone, or too slow.
  bool send(std::span<const std::byte>& head, std::span<const std::byte>& body, bool more,
            Waiting waiting) {
    while (!head.empty() || !body.empty()) {
      std::array<iovec, 2> parts = {iovec{const_cast<std::byte*>(head.data()), head.size()},
                                    iovec{const_cast<std::byte*>(body.data()), body.size()}};
      msghdr message{};
      message.msg_iov = head.empty() ? &parts[1] : parts.data();
      message.msg_iovlen = head.empty() || body.empty() ? 1 : 2;
      const ssize_t sent =
          ::sendmsg(socket_, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
      if (sent > 0) {
        const auto count = static_cast<std::size_t>(sent);
        note(count);
        const std::size_t of_head = std::min(count, head.size());
        head = head.subspan(of_head);
        body = body.subspan(count - of_head);
        continue;
      }
      const auto now = Clock::now();
      if (now >= window_end_ && taken_ < options_.least_bytes) return false;
      if (now >= window_end_) start_window(now);
      if (waiting == Waiting::Long) {
        if (!wait_for(socket_, POLLOUT, window_end_)) return false;
      } else if (!wait_for(socket_, POLLOUT, std::min(window_end_, now + kHold))) {
        return true;  // as much as it takes now
      }
    }
    return true;
  }

  /// Waits until the client takes more.
  bool wait_for_room() {
    const auto now = Clock::now();
    if (now >= window_end_) {
      if (taken_ < options_.least_bytes) return false;
      start_window(now);
    }
    return wait_for(socket_, POLLOUT, window_end_);
  }

 private:
  void note(std::size_t count) {
    taken_ += count;
    const auto now = Clock::now();
    if (now >= window_end_ && taken_ >= options_.least_bytes) start_window(now);
  }
  void start_window(Clock::time_point now) {
    window_end_ = now + options_.send_time;
    taken_ = 0;
  }

  const int socket_;
  const ServerOptions& options_;
  Clock::time_point window_end_ = Clock::now() + options_.send_time;
  std::uint64_t taken_ = 0;  // in this window
};

std::string head_of(const Reply& reply, std::optional<std::uint64_t> length, bool keeps_alive,
                    std::int64_t now) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nServer: ckfs/{}\r\n", reply.status,
                                 reason_of(reply.status), http_time(now), version());
  for (const auto& [name, value] : reply.headers) {
    fmt::format_to(std::back_inserter(head), "{}: {}\r\n", name, value);
  }
  if (length) {
    fmt::format_to(std::back_inserter(head), "Content-Length: {}\r\n", *length);
  }
  head += keeps_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return head;
}

std::span<const std::byte> as_span(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

Result<Listener> listen_at(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return fail(ErrorCode::InvalidArgument, "listen: {} is not HOST:PORT", quote(address));
  }
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  unsigned number = 0;
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != port.data() + port.size() || number > 65535) {
    return fail(ErrorCode::InvalidArgument, "listen: {} is not a port (0 to 65535)", quote(port));
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty()) {
    return fail(ErrorCode::InvalidArgument,
                "listen: {} names no host (0.0.0.0 stands for all addresses)", quote(address));
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return fail(ErrorCode::InvalidArgument, "listen: {}: {}", quote(host), ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  // The first: "localhost" is 127.0.0.1 or ::1, as the system prefers.
  Listener listener{
      .socket = UniqueFd(::socket(all->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)),
      .address = {},
      .is_loopback = is_loopback(*all->ai_addr)};
  const int one = 1;
  if (!listener.socket) return system_failure(errno, address, "socket");
  (void)::setsockopt(listener.socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (::bind(listener.socket.get(), all->ai_addr, all->ai_addrlen) != 0) {
    return system_failure(errno, address, "bind");
  }
  if (::listen(listener.socket.get(), kBacklog) != 0)
    return system_failure(errno, address, "listen");
  listener.address = own_address(listener.socket.get());
  return listener;
}

class Server::Impl {
 public:
  Impl(Site& site, Listener listener, ServerOptions options)
      : site_(site),
        listener_(std::move(listener)),
        options_(std::move(options)),
        event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        reads_([](pid_t socket, bool /*direct*/) { return has_left(socket); }) {}

  Result<void> run() {
    if (!event_) return system_failure(errno, listener_.address, "eventfd");
    const Result<void> ended = or_failure(listener_.address, [&] { return take_clients(); });
    listener_.socket.reset();
    end_clients();
    return ended;
  }

  void stop() {
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake();
  }

 private:
  /// Until it is to stop, or cannot continue.
  Result<void> take_clients() {
    while (!is_stopping()) {
      const bool has_room = make_room();
      // Without room only the event is waited for: clients are taken when one leaves.
      std::array<pollfd, 2> polled = {
          pollfd{.fd = event_.get(), .events = POLLIN, .revents = 0},
          pollfd{.fd = has_room ? listener_.socket.get() : -1, .events = POLLIN, .revents = 0}};
      if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) {
        return system_failure(errno, listener_.address, "poll");
      }
      if ((polled[0].revents & POLLIN) != 0) {
        std::uint64_t count = 0;
        (void)!::read(event_.get(), &count, sizeof count);
      }
      if ((polled[1].revents & POLLIN) != 0) accept_one();
      if ((polled[1].revents & (POLLERR | POLLNVAL)) != 0) {
        return fail(ErrorCode::Io, "{}: the socket that listens has failed", listener_.address);
      }
    }
    return {};
  }

  struct Client {
    int socket = -1;
    Clock::time_point since;  // idle since then
    bool idle = true;
    bool closed = false;  // by another thread
  };
  using Place = std::list<Client>::iterator;

  bool is_stopping() {
    const MutexLock lock(mutex_);
    return stopping_;
  }

  void wake() const {
    const std::uint64_t one = 1;
    (void)!::write(event_.get(), &one, sizeof one);
  }

  /// Whether one more client may be connected; where there is no room, the one that was idle
  /// longest is told to leave. The kernel holds those that wait.
  bool make_room() {
    const MutexLock lock(mutex_);
    if (clients_.size() < options_.clients) return true;
    pollfd waiting{.fd = listener_.socket.get(), .events = POLLIN, .revents = 0};
    // It would make room for none: look again when a client has left or become idle.
    full_ = true;
    if (::poll(&waiting, 1, 0) <= 0) {
      // No client waits now. Taking the next one finds room by the same way.
      return true;
    }
    Client* oldest = nullptr;
    for (Client& each : clients_) {
      if (each.closed) return false;  // it is about to leave
      if (each.idle && (oldest == nullptr || each.since < oldest->since)) oldest = &each;
    }
    if (oldest != nullptr) {
      oldest->closed = true;
      ::shutdown(oldest->socket, SHUT_RDWR);
    }
    return false;
  }

  void accept_one() {
    {
      const MutexLock lock(mutex_);
      if (clients_.size() >= options_.clients) return;
    }
    UniqueFd socket(::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        log_once("no descriptor for another client");
        // The client stays in the kernel's queue: without a pause this would be a busy loop.
        pollfd nothing{.fd = -1, .events = 0, .revents = 0};
        (void)::poll(&nothing, 1, 100);
      }
      return;
    }
    const int one = 1;
    (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    Place place;
    {
      const MutexLock lock(mutex_);
      place = clients_.insert(clients_.end(), {.socket = socket.get(), .since = Clock::now()});
    }
    const int number = socket.release();
    auto thread = start_thread([this, place] { serve_client(place); });
    if (thread) {
      thread->detach();  // end_clients() waits for all
      return;
    }
    log_once("no thread for another client");
    leave(place, number);
  }

  void leave(Place place, int socket) {
    {
      const MutexLock lock(mutex_);
      clients_.erase(place);
      if (std::exchange(full_, false) || stopping_) wake();
      left_.notify_all();
    }
    // Last: the number may be another client's at once. Where it was the last client, this object
    // may be gone.
    ::close(socket);
  }

  /// Idle clients are closed at once, the others after their answer, or when the grace is over.
  void end_clients() {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (Client& each : clients_) {
      if (each.idle) ::shutdown(each.socket, SHUT_RDWR);
    }
    const auto last = Clock::now() + options_.grace;
    while (!clients_.empty() && left_.wait_until(lock, last)) {
    }
    if (clients_.empty()) return;
    for (Client& each : clients_) ::shutdown(each.socket, SHUT_RDWR);
    lock.unlock();
    reads_.stop_all();
    lock.lock();
    while (!clients_.empty()) left_.wait(lock);
  }

  /// Notes what a client does. False: it is to leave.
  bool set_idle(Place place, bool idle) {
    const MutexLock lock(mutex_);
    if (place->closed) return false;
    place->idle = idle;
    place->since = Clock::now();
    if (idle && std::exchange(full_, false)) wake();
    return !(idle && stopping_);
  }

  void serve_client(Place place) {
    const int socket = place->socket;
    const Result<void> served = or_failure("a client", [&]() -> Result<void> {
      std::string received;
      while (true) {
        const auto request = receive(place, socket, received);
        if (!request) break;
        if (!set_idle(place, false)) break;
        if (!reply_to(socket, *request)) break;
        if (!set_idle(place, true)) break;
      }
      return {};
    });
    if (!served) log_once(served.error().message());
    leave(place, socket);
  }

  /// The next request; nullopt: the connection is to end. `received` has what came behind it.
  std::optional<ServeRequest> receive(Place place, int socket, std::string& received) {
    auto last = Clock::now() + options_.idle_time;
    bool begun = false;
    while (true) {
      if (!received.empty()) {
        // Empty lines before a request are passed over (RFC 9112, 2.2).
        const std::size_t begin = received.find_first_not_of("\r\n");
        received.erase(0, begin);
      }
      if (!received.empty()) {
        if (!std::exchange(begun, true)) last = Clock::now() + options_.header_time;
        TakenRequest taken = take_request(received);
        if (taken.bad) {
          const ServeRequest none;
          Reply reply = s3_error(none, taken.bad->status, "BadRequest", taken.bad->text);
          (void)send_reply(socket, none, reply, false);
          pass_over(socket);
          return std::nullopt;
        }
        if (taken.used > 0) {
          received.erase(0, taken.used);
          return std::move(taken.request);
        }
      }
      if (!wait_for(socket, POLLIN, last)) {
        if (begun) {
          const ServeRequest none;
          Reply reply = s3_error(none, 408, "RequestTimeout", "the request took too long");
          (void)send_reply(socket, none, reply, false);
        }
        return std::nullopt;
      }
      std::array<char, 4096> piece{};
      const ssize_t got = ::recv(socket, piece.data(), piece.size(), MSG_DONTWAIT);
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) return std::nullopt;
      if (!begun && !set_idle(place, false)) return std::nullopt;
      received.append(piece.data(), static_cast<std::size_t>(got));
    }
  }

  std::optional<Reply> refuse(const ServeRequest& request) const {
    if (asks_for_health(request)) return std::nullopt;
    if (options_.key) {
      const auto refusal =
          check_key(request, *options_.key, static_cast<std::int64_t>(std::time(nullptr)));
      if (refusal) return s3_error(request, refusal->status, refusal->code, refusal->text);
    } else if (!is_own_name(request.host)) {
      return s3_error(request, 421, "AccessDenied",
                      "asked by a name that is not this machine's own (localhost, 127.0.0.1)");
    }
    return std::nullopt;
  }

  /// False: the connection is to end.
  bool reply_to(int socket, const ServeRequest& request) {
    auto refused = refuse(request);
    // Making a view takes time, too, and stops when its client leaves.
    const ReadsUnderWay::Read watched(&reads_, socket, false);
    const StopScope scope(watched.token());
    Reply reply = refused ? *std::move(refused) : answer_request(site_, request);
    spdlog::debug("{} {}: {}", request.method, one_line(request.path), reply.status);
    // A body is not read, so what follows it is not known to be a request.
    const bool keeps = request.keeps_alive && !request.has_body && !is_stopping();
    const bool sent = send_reply(socket, request, reply, keeps);
    if (request.has_body) pass_over(socket);
    return sent && keeps;
  }

  /// Reads what a client sends although it was refused: to close before would reset the connection,
  /// and the client might not see its answer.
  static void pass_over(int socket) {
    constexpr std::size_t kMost = 1_MiB;
    (void)::shutdown(socket, SHUT_WR);
    const auto last = Clock::now() + std::chrono::seconds(1);
    std::array<char, 4096> piece{};
    for (std::size_t passed = 0; passed < kMost && wait_for(socket, POLLIN, last);) {
      const ssize_t got = ::recv(socket, piece.data(), piece.size(), MSG_DONTWAIT);
      if (got <= 0) break;
      passed += static_cast<std::size_t>(got);
    }
  }

  /// False: the connection is to end.
  bool send_reply(int socket, const ServeRequest& request, Reply& reply, bool keeps) {
    if (reply.file) return send_file(socket, request, reply, keeps);
    if (reply.parts) return send_parts(socket, request, reply, keeps);
    const bool is_head = request.method == "HEAD";
    std::string head =
        head_of(reply, reply.status == 304 ? std::nullopt : std::optional(reply.text.size()), keeps,
                now()) +
        "\r\n";
    auto head_left = as_span(head);
    const bool has_body = !is_head && reply.status != 304;
    auto body_left = as_span(has_body ? std::string_view(reply.text) : std::string_view());
    return Sender(socket, options_).send(head_left, body_left, false, Sender::Waiting::Long);
  }

  bool send_parts(int socket, const ServeRequest& request, Reply& reply, bool keeps) {
    const bool is_head = request.method == "HEAD";
    // HTTP/1.0 knows no chunks: there the end of the connection is the end of the answer.
    const bool chunked = !request.is_old;
    keeps = keeps && chunked;
    std::string head = head_of(reply, std::nullopt, keeps, now());
    head += chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
    Sender sender(socket, options_);
    bool first = true;
    while (true) {
      Result<std::string> part = is_head ? std::string() : reply.parts();
      if (!part) {
        log_error(part.error());
        if (!first) return reset(socket);
        Reply error =
            s3_error(request, status_of(part.error()), "InternalError", part.error().message());
        return send_reply(socket, request, error, false);
      }
      std::string text = std::exchange(head, {});
      if (!is_head && chunked) {
        text += part->empty() ? "0\r\n\r\n" : fmt::format("{:x}\r\n{}\r\n", part->size(), *part);
      } else {
        text += *part;
      }
      auto left = as_span(text);
      std::span<const std::byte> none;
      if (!sender.send(left, none, false, Sender::Waiting::Long)) return false;
      if (part->empty()) return true;
      first = false;
    }
  }

  bool send_file(int socket, const ServeRequest& request, Reply& reply, bool keeps) {
    const FileBytes& bytes = *reply.file;
    const bool is_head = request.method == "HEAD";
    std::uint64_t at = bytes.range.begin;
    const std::uint64_t end = bytes.range.end;
    Bytes lent;
    std::optional<ViewFile> file;
    if (!is_head && at < end) {
      // The first bytes are read before the answer begins: most errors are found there, and have a
      // status.
      auto opened =
          bytes.view->view().open(bytes.path, {.whole = bytes.range.begin == 0 && end > 16_MiB});
      Result<Bytes> first = opened ? opened->read(at, next_size(at, end, kPiece))
                                   : Result<Bytes>(Failure(opened.error()));
      if (!first) {
        if (first.error().code() == ErrorCode::Stopped) return false;
        log_error(first.error());
        Reply error = s3_error(request, status_of(first.error()),
                               status_of(first.error()) == 503 ? "SlowDown" : "InternalError",
                               first.error().message());
        return send_reply(socket, request, error, false);
      }
      file = *std::move(opened);
      lent = *std::move(first);
    }
    const std::string head = head_of(reply, end - bytes.range.begin, keeps, now()) + "\r\n";
    auto head_left = as_span(head);
    Sender sender(socket, options_);
    if (is_head || at == end) {
      std::span<const std::byte> none;
      return sender.send(head_left, none, false, Sender::Waiting::Long);
    }
    while (true) {
      auto body_left = lent.span();
      const std::size_t size = body_left.size();
      if (!sender.send(head_left, body_left, at + size < end, Sender::Waiting::Held)) return false;
      at += size - body_left.size();
      if (at == end) return true;
      const bool is_slow = !body_left.empty() || !head_left.empty();
      lent = {};
      if (is_slow && !sender.wait_for_room()) return false;
      Result<Bytes> next = file->read(at, next_size(at, end, is_slow ? kSlowPiece : kPiece));
      if (!next) {
        if (next.error().code() != ErrorCode::Stopped) log_error(next.error());
        return reset(socket);
      }
      lent = *std::move(next);
    }
  }

  /// Up to the next border of the engine's pieces.
  static std::size_t next_size(std::uint64_t at, std::uint64_t end, std::uint64_t most) {
    return static_cast<std::size_t>(std::min(most - at % most, end - at));
  }

  /// Ends the connection so that the client sees it as broken.
  static bool reset(int socket) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return false;
  }

  static std::int64_t now() { return static_cast<std::int64_t>(std::time(nullptr)); }

  void log_error(const Error& error) {
    switch (error.code()) {
      case ErrorCode::NotFound:
      case ErrorCode::InvalidArgument:
      case ErrorCode::Unsupported:
        return;  // the client's own
      default:
        log_once(error.message());
    }
  }

  void log_once(std::string_view cause) noexcept {
    try {
      if (const auto suppressed = log_limit_.admit(cause)) {
        spdlog::warn("{}{}", one_line(cause), suppressed_note(*suppressed));
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): a line less
    }
  }

  Site& site_;
  Listener listener_;
  const ServerOptions options_;
  const UniqueFd event_;
  ReadsUnderWay reads_;
  LogLimit log_limit_;
  Mutex mutex_;
  CondVar left_;  // clients_ is shorter
  std::list<Client> clients_ CKFS_GUARDED_BY(mutex_);
  bool stopping_ CKFS_GUARDED_BY(mutex_) = false;
  bool full_ CKFS_GUARDED_BY(mutex_) = false;  // the loop waits for a client to leave
};

Server::Server(Site& site, Listener listener, ServerOptions options)
    : impl_(std::make_unique<Impl>(site, std::move(listener), std::move(options))) {}

Server::~Server() = default;

Result<void> Server::run() {
  return impl_->run();
}

void Server::stop() {
  impl_->stop();
}

}  // namespace ckfs
