// A request for bytes and what may be believed of its answer (RFC 9110). Plain values and pure
// functions; http.h sends them.
//
// Servers are not trusted to heed preconditions: some answer If-Match and a range with another
// object, or with status 200. An answer's bytes are taken only where its headers say that they are
// the range of the object that was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/byte_range.h"
#include "base/error.h"
#include "fetch/url.h"
#include "wire/sigv4.h"

namespace ckfs {

/// What the answer to a request for a range must be.
struct RangeWanted {
  ByteRange range;            // not empty
  std::uint64_t total = 0;    // size of the object
  HttpHeaders versions = {};  // headers that the answer must have with just these values
  std::byte* place = nullptr;
};

struct HttpRequest {
  std::string method = "GET";
  Url url;
  HttpHeaders headers;  // with credentials; `host` and `range` are made of the rest
  std::string body = {};
  std::optional<RangeWanted> wanted = {};  // bytes go to its place, and to no body
  std::size_t most_body = std::size_t{1} << 20;
  /// Only the headers of the answer count: where its status is 200, it is ended behind them.
  bool headers_only = false;
  /// For all of it; 0: the client's patience alone.
  std::int64_t most_milliseconds = 0;
  /// Whether an address of 169.254/16 may be the host's (a metadata service).
  bool to_machine = false;
};

enum class HttpFault : std::uint8_t {
  None,       // there is a whole answer, of whatever status
  Connect,    // no connection: no address, refused, no answer in time
  Untrusted,  // TLS: the host is not the one it should be
  Hedged,     // no byte for longer than is usual there: another connection may be faster
  Stalled,    // no byte for too long, or too few
  Cut,        // the connection ended before the answer did
  Unwanted,   // the answer is not what was asked for: `why` says how
  Changed,    // the answer is of another version of the object
  TooLong,    // more than most_body, or headers without end
  Cancelled,
};

struct HttpAnswer {
  HttpFault fault = HttpFault::None;
  int status = 0;  // 0: no answer came so far
  HttpHeaders headers = {};
  std::string body = {};  // but of a range that was wanted and came
  std::size_t placed =
      0;                 // bytes at RangeWanted::place, right as far as they go, whatever the fault
  std::string why = {};  // of a fault

  bool is_success() const { return fault == HttpFault::None && status >= 200 && status < 300; }
};

/// "bytes 0-9/100", whose range and total are known. nullopt: another unit or form.
struct ContentRange {
  ByteRange range;
  std::uint64_t total = 0;
};
std::optional<ContentRange> parse_content_range(std::string_view text);

/// One line of a header as it comes: adds it, or begins anew at a status line. False: it is not a
/// header, or there are more than 256, or more than 64 KiB.
bool take_header_line(std::string_view line, HttpAnswer& answer);

/// Whether the bytes of an answer with that status (200 or 206) and those headers are the wanted
/// ones; None, Unwanted or Changed, with why.
struct Belief {
  HttpFault fault = HttpFault::None;
  std::string why;
};
Belief believe(const RangeWanted& wanted, const HttpAnswer& answer);

/// How long a server asks to wait, in seconds, at most an hour: Retry-After (a number or a time),
/// or `t` of the hub's RateLimit. nullopt: it says nothing. `now` is in seconds of Unix.
std::optional<std::int64_t> asked_wait(const HttpHeaders& headers, std::int64_t now);

/// What a service calls the request, for its operators; empty: nothing.
std::string_view request_id(const HttpHeaders& headers);

}  // namespace ckfs
