// A request of HTTP/1.x (RFC 9112) as `ckfs serve` takes it: without a body, within limits. The
// grammar is Boost.Beast's; the files beside this one decide its meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "wire/sigv4.h"

namespace ckfs {

/// The most bytes of a request's line and headers together: a client sends about 1,000.
inline constexpr std::size_t kLongestRequest = std::size_t{16} << 10;
inline constexpr std::size_t kMostRequestHeaders = 100;

struct ServeRequest {
  std::string method;
  std::string host;       // in lower case, without the port; of an absolute-form target: its own
  std::string authority;  // as the client wrote it, for signatures
  std::string path;       // decoded; begins with '/'
  std::string raw_query;  // as it came, without '?'
  std::vector<std::pair<std::string, std::string>> query;  // decoded, in order
  HttpHeaders headers;
  bool keeps_alive = false;
  bool has_body = false;
  bool is_old = false;  // HTTP/1.0: knows no chunks

  /// The value of a parameter of the query, the first of that name; nullopt: there is none.
  std::optional<std::string_view> parameter(std::string_view name) const;
  /// The value of a header, empty where there is none.
  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

/// Why bytes are not a request, with the status to answer.
struct BadRequest {
  int status = 400;
  std::string text;
};

/// What take_request() makes of the bytes that have come.
struct TakenRequest {
  std::size_t used = 0;  // bytes of the request; 0: more must come
  ServeRequest request;
  std::optional<BadRequest> bad;  // then nothing else counts: the connection must end
};

/// Takes the request that `bytes` begin with. Pure; throws std::bad_alloc only.
TakenRequest take_request(std::string_view bytes);

}  // namespace ckfs
