// One multi handle and one thread: it costs copies and TLS records, which a second thread
// would only share. libcurl writes into the place of the caller (shared memory of the daemon), so
// that each byte is copied once here.
//
// Whether an answer is believed is decided at the first byte of its body, before that byte is put
// anywhere: a server that ignores ranges would otherwise send 5 GB to be thrown away.

#include "fetcher/http.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <curl/curl.h>
#include <deque>
#include <list>
#include <map>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <unordered_map>

#include "fetcher/http_transfer.h"

namespace ckfs {
namespace {

/// An exception may not cross libcurl; the one that comes is std::bad_alloc.
template <typename Work>
std::size_t caught(HttpTransfer& transfer, const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return transfer.refuse(HttpFault::TooLong, "out of memory");
  }
}

std::size_t on_header(char* text, std::size_t one, std::size_t size, void* data) {
  auto& transfer = *static_cast<HttpTransfer*>(data);
  return caught(transfer, [&]() -> std::size_t {
    transfer.received += size;
    if (take_header_line({text, one * size}, transfer.answer)) return size;
    return transfer.refuse(HttpFault::TooLong, "it has no headers, or headers without end");
  });
}

std::size_t on_body(char* text, std::size_t one, std::size_t size, void* data) {
  auto& transfer = *static_cast<HttpTransfer*>(data);
  return caught(transfer, [&] { return transfer.take_body({text, one * size}); });
}

/// Metadata services give credentials to any program that reaches them: no name that a stranger's
/// server or redirect has made up may stand for their address.
curl_socket_t on_socket(void* data, curlsocktype /*purpose*/, curl_sockaddr* address) {
  auto& transfer = *static_cast<HttpTransfer*>(data);
  bool is_link_local = false;
  if (address->family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address->addr, sizeof in);
    is_link_local = ntohl(in.sin_addr.s_addr) >> 16U == 0xA9FE;
  } else if (address->family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &address->addr, sizeof in);
    const auto* const bytes = in.sin6_addr.s6_addr;
    is_link_local = (bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80) ||
                    (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr) && bytes[12] == 169 && bytes[13] == 254);
  }
  if (is_link_local && !transfer.request.to_machine) {
    caught(transfer, [&] {
      return transfer.refuse(HttpFault::Connect, "its address is of this machine alone");
    });
    return CURL_SOCKET_BAD;
  }
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

HttpFault fault_of(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
      return HttpFault::Connect;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
      return HttpFault::Untrusted;
    case CURLE_OPERATION_TIMEDOUT:  // of the connection: other times are looked after here
      return HttpFault::Connect;
    default:
      return HttpFault::Cut;
  }
}

template <typename Value>
void set_option(CURL* easy, CURLoption option, Value value) {
  curl_easy_setopt(easy, option, value);
}

}  // namespace

class HttpClient::Impl {
 public:
  explicit Impl(HttpOptions options) : options_(std::move(options)), multi_(curl_multi_init()) {
    if (multi_ == nullptr) return;
    curl_multi_setopt(multi_, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                      static_cast<long>(options_.connections));
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, static_cast<long>(options_.connections));
    curl_multi_setopt(multi_, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
  }

  ~Impl() {
    for (auto& [id, transfer] : active_) release(*transfer);
    for (CURL* const easy : idle_) curl_easy_cleanup(easy);
    if (multi_ != nullptr) curl_multi_cleanup(multi_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool is_made() const { return multi_ != nullptr; }

  std::uint64_t start(HttpRequest request, Done done) {
    auto transfer = std::make_unique<HttpTransfer>();
    transfer->id = next_++;
    transfer->request = std::move(request);
    transfer->done = std::move(done);
    transfer->bytes = &counts_.bytes;
    ++counts_.requests;
    prepare(*transfer);
    const std::uint64_t id = transfer->id;
    HttpTransfer& it = *active_.emplace(id, std::move(transfer)).first->second;
    if (it.easy == nullptr || curl_multi_add_handle(multi_, it.easy) != CURLM_OK) {
      it.refuse(HttpFault::Connect, "libcurl takes no more requests");
      end(id);
    }
    return id;
  }

  void cancel(std::uint64_t id) {
    const auto found = active_.find(id);
    if (found != active_.end()) {
      release(*found->second);
      active_.erase(found);
    }
    std::erase_if(finished_, [&](const auto& each) { return each->id == id; });
  }

  /// Sends and receives once, waiting for at most that long.
  void pump(std::chrono::milliseconds most, int descriptor) {
    int running = 0;
    curl_multi_perform(multi_, &running);
    collect();
    if (!finished_.empty()) most = std::chrono::milliseconds(0);
    // No one is woken by a stall: look at it now and then.
    if (!active_.empty()) most = std::min(most, kLook);
    curl_waitfd extra{.fd = descriptor, .events = CURL_WAIT_POLLIN, .revents = 0};
    curl_multi_poll(multi_, descriptor < 0 ? nullptr : &extra, descriptor < 0 ? 0 : 1,
                    static_cast<int>(most.count()), nullptr);
    curl_multi_perform(multi_, &running);
    collect();
    end_stalled();
  }

  void deliver() {
    // Those that end now wait for the next step.
    for (std::size_t left = finished_.size(); left > 0 && !finished_.empty(); --left) {
      const std::unique_ptr<HttpTransfer> transfer = std::move(finished_.front());
      finished_.pop_front();
      transfer->done(std::move(transfer->answer));
    }
  }

  HttpAnswer fetch(HttpRequest request) {
    HttpAnswer answer;
    const std::uint64_t id = start(std::move(request), nullptr);
    for (;;) {
      const auto found =
          std::ranges::find_if(finished_, [&](const auto& each) { return each->id == id; });
      if (found != finished_.end()) {
        answer = std::move((*found)->answer);
        finished_.erase(found);
        return answer;
      }
      pump_others(kLook);
    }
  }

  /// pump(), also where something has ended that is told later.
  void pump_others(std::chrono::milliseconds most) {
    const std::size_t before = finished_.size();
    int running = 0;
    curl_multi_perform(multi_, &running);
    collect();
    if (finished_.size() == before) {
      curl_multi_poll(multi_, nullptr, 0, static_cast<int>(most.count()), nullptr);
      curl_multi_perform(multi_, &running);
      collect();
    }
    end_stalled();
  }

  static constexpr std::chrono::milliseconds kLook{100};
  std::size_t in_flight() const { return active_.size(); }
  const HttpCounts& counts() const { return counts_; }
  const HttpOptions& options() const { return options_; }

 private:
  /// An origin, as far as it is known.
  struct Host {
    FirstBytes times;
    Hedges hedges;
  };
  static constexpr std::size_t kMostHosts = 256;

  void prepare(HttpTransfer& transfer) {
    const HttpRequest& request = transfer.request;
    CURL* easy = nullptr;
    if (!idle_.empty()) {
      easy = idle_.back();
      idle_.pop_back();
      curl_easy_reset(easy);
    } else {
      easy = curl_easy_init();
    }
    transfer.easy = easy;
    // Redirects may lead to any number of hosts.
    if (hosts_.size() > kMostHosts) hosts_.clear();
    Host& host = hosts_[request.url.origin()];
    host.hedges.sent();
    transfer.started = std::chrono::steady_clock::now();
    transfer.watch.emplace(transfer.started, host.times.limit(options_.patience),
                           options_.patience);
    if (easy == nullptr) return;
    curl_slist* list = nullptr;
    const auto add = [&](const std::string& line) {
      curl_slist* const longer = curl_slist_append(list, line.c_str());
      if (longer != nullptr) list = longer;
    };
    for (const auto& [name, value] : request.headers) {
      // An empty value is written with ';', or libcurl takes the header away.
      add(value.empty() ? name + ";" : fmt::format("{}: {}", name, value));
    }
    if (request.wanted && find_header(request.headers, "range").empty()) {
      add(fmt::format("range: bytes={}-{}", request.wanted->range.begin,
                      request.wanted->range.end - 1));
    }
    add("accept-encoding: identity");
    add("expect:");
    if (request.method == "POST" && find_header(request.headers, "content-type").empty()) {
      add("content-type:");
    }
    transfer.headers.reset(list);

    Url url = request.url;
    const std::string user = std::exchange(url.user, {});
    set_option(easy, CURLOPT_URL, url.text().c_str());
    set_option(easy, CURLOPT_PATH_AS_IS, 1L);  // a key may have dots, and is signed with them
    set_option(easy, CURLOPT_HTTPHEADER, transfer.headers.get());
    set_option(easy, CURLOPT_PRIVATE, static_cast<void*>(&transfer));
    set_option(easy, CURLOPT_HEADERFUNCTION, &on_header);
    set_option(easy, CURLOPT_HEADERDATA, static_cast<void*>(&transfer));
    set_option(easy, CURLOPT_WRITEFUNCTION, &on_body);
    set_option(easy, CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
    set_option(easy, CURLOPT_OPENSOCKETFUNCTION, &on_socket);
    set_option(easy, CURLOPT_OPENSOCKETDATA, static_cast<void*>(&transfer));
    set_option(easy, CURLOPT_NOSIGNAL, 1L);
    set_option(easy, CURLOPT_FOLLOWLOCATION, 0L);
    set_option(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    set_option(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set_option(easy, CURLOPT_CONNECTTIMEOUT_MS,
               static_cast<long>(options_.patience.connect.count()));
    if (request.most_milliseconds > 0) {
      set_option(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(request.most_milliseconds));
    }
    set_option(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    set_option(easy, CURLOPT_TCP_KEEPIDLE, 30L);
    set_option(easy, CURLOPT_TCP_KEEPINTVL, 30L);
    set_option(easy, CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
    set_option(easy, CURLOPT_BUFFERSIZE, 131072L);
#if LIBCURL_VERSION_NUM >= 0x075500
    set_option(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    set_option(easy, CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    if (request.to_machine || is_loopback_host(url.host)) set_option(easy, CURLOPT_NOPROXY, "*");
    if (!options_.ca_bundle.empty()) {
      set_option(easy, CURLOPT_CAINFO, options_.ca_bundle.c_str());
    }
    if (!user.empty()) {
      set_option(easy, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
      const std::size_t colon = std::min(user.find(':'), user.size());
      const auto name = percent_decode(user.substr(0, colon));
      const auto password = percent_decode(user.substr(std::min(colon + 1, user.size())));
      set_option(easy, CURLOPT_USERNAME, name.value_or("").c_str());
      set_option(easy, CURLOPT_PASSWORD, password.value_or("").c_str());
    }
    if (request.method == "HEAD") {
      set_option(easy, CURLOPT_NOBODY, 1L);
    } else if (request.method != "GET") {
      set_option(easy, CURLOPT_POST, 1L);
      set_option(easy, CURLOPT_POSTFIELDSIZE, static_cast<long>(request.body.size()));
      set_option(easy, CURLOPT_POSTFIELDS, request.body.c_str());
      set_option(easy, CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }
  }

  /// What libcurl says has ended.
  void collect() {
    int left = 0;
    while (const CURLMsg* const message = curl_multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      void* data = nullptr;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &data);
      auto& transfer = *static_cast<HttpTransfer*>(data);
      if (code != CURLE_OK && !transfer.is_enough) {
        transfer.refuse(fault_of(code), curl_easy_strerror(code));
      } else if (!transfer.judged && !transfer.judge()) {
        // An answer without a body; judge() has said why it is not believed.
      } else if (transfer.believed &&
                 transfer.answer.placed < transfer.request.wanted->range.size()) {
        transfer.refuse(HttpFault::Cut, "the answer ended too early");
      }
      end(transfer.id);
    }
  }

  void end_stalled() {
    const FetchTime now = std::chrono::steady_clock::now();
    if (now - looked_ < kLook / 2) return;
    looked_ = now;
    for (auto each = active_.begin(); each != active_.end();) {
      HttpTransfer& transfer = *each->second;
      ++each;  // end() takes it out
      if (transfer.watch->is_dead(now, transfer.received)) {
        transfer.refuse(HttpFault::Stalled,
                        transfer.received == 0
                            ? "the server does not answer"
                            : "the server sends nothing any more, or too little");
      } else {
        Host& host = hosts_[transfer.request.url.origin()];
        // Only ranges: what changes something elsewhere is not sent twice in a hurry.
        if (!transfer.request.wanted ||
            !host.hedges.take(transfer.watch->idle(now), host.times, options_.patience)) {
          continue;
        }
        transfer.refuse(HttpFault::Hedged, "the server is slower than usual");
      }
      end(transfer.id);
    }
  }

  void end(std::uint64_t id) {
    const auto found = active_.find(id);
    HttpTransfer& transfer = *found->second;
    if (transfer.answer.fault == HttpFault::None) {
      curl_off_t took = 0;
      curl_easy_getinfo(transfer.easy, CURLINFO_STARTTRANSFER_TIME_T, &took);
      hosts_[transfer.request.url.origin()].times.add(FetchDuration(took / 1000));
    } else {
      ++counts_.faults;
    }
    release(transfer);
    finished_.push_back(std::move(found->second));
    active_.erase(found);
  }

  void release(HttpTransfer& transfer) {
    CURL* const easy = std::exchange(transfer.easy, nullptr);
    if (easy == nullptr) return;
    // Of a transfer that is under way this closes the connection.
    curl_multi_remove_handle(multi_, easy);
    idle_.push_back(easy);
  }

  HttpOptions options_;
  CURLM* multi_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::unique_ptr<HttpTransfer>> active_;
  std::deque<std::unique_ptr<HttpTransfer>> finished_;
  std::vector<CURL*> idle_;
  std::unordered_map<std::string, Host> hosts_;  // by origin
  HttpCounts counts_;
  FetchTime looked_{};
};

Result<std::unique_ptr<HttpClient>> HttpClient::make(HttpOptions options) {
  // Once in a process, before its threads; libcurl counts.
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
    return fail(ErrorCode::Internal, "libcurl does not start");
  }
  auto impl = std::make_unique<Impl>(std::move(options));
  if (!impl->is_made()) return fail(ErrorCode::Internal, "libcurl does not start");
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpClient::~HttpClient() = default;

std::uint64_t HttpClient::start(HttpRequest request, Done done) {
  return impl_->start(std::move(request), std::move(done));
}
void HttpClient::cancel(std::uint64_t request) {
  impl_->cancel(request);
}
void HttpClient::step(std::chrono::milliseconds most, int descriptor) {
  impl_->pump(most, descriptor);
  impl_->deliver();
}
HttpAnswer HttpClient::fetch(HttpRequest request) {
  return impl_->fetch(std::move(request));
}
void HttpClient::wait(std::chrono::milliseconds time) {
  const FetchTime end = std::chrono::steady_clock::now() + time;
  for (FetchTime now = {}; (now = std::chrono::steady_clock::now()) < end;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now);
    impl_->pump_others(std::min(left, Impl::kLook));
  }
}
std::size_t HttpClient::in_flight() const {
  return impl_->in_flight();
}
const HttpCounts& HttpClient::counts() const {
  return impl_->counts();
}
const Patience& HttpClient::patience() const {
  return impl_->options().patience;
}

}  // namespace ckfs
