// Beast's parser without its containers, streams and sockets: it calls back for the line and for
// each header, keeps nothing, and refuses what two programs may read in two ways (a space before a
// colon, two lengths). Targets are split here, for a parser gives them as they came.

#include "serve/request.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <limits>

#include "base/text.h"
#include "fetch/url.h"

namespace ckfs {
namespace {

namespace http = boost::beast::http;
using BeastText = boost::beast::string_view;
using BeastError = boost::beast::error_code;

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

/// Keeps the line and the headers of one request.
class HeaderTaker : public http::basic_parser<true> {
 public:
  HeaderTaker() {
    header_limit(static_cast<std::uint32_t>(kLongestRequest));
    // No body is read. (Not boost::none: version 1.74 takes that for a limit of nothing.)
    body_limit(std::numeric_limits<std::uint64_t>::max());
  }

  std::string method, target;
  HttpHeaders headers;

 private:
  void on_request_impl(http::verb /*verb*/, BeastText name, BeastText asked, int /*version*/,
                       BeastError& /*error*/) override {
    method.assign(name.data(), name.size());
    target.assign(asked.data(), asked.size());
  }
  void on_response_impl(int /*code*/, BeastText /*reason*/, int /*version*/,
                        BeastError& /*error*/) override {}
  void on_field_impl(http::field /*field*/, BeastText name, BeastText value,
                     BeastError& error) override {
    if (headers.size() == kMostRequestHeaders) {
      error = http::error::header_limit;
      return;
    }
    headers.emplace_back(in_lower_case({name.data(), name.size()}),
                         std::string(value.data(), value.size()));
  }
  void on_header_impl(BeastError& /*error*/) override {}
  void on_body_init_impl(const boost::optional<std::uint64_t>& /*length*/,
                         BeastError& /*error*/) override {}
  std::size_t on_body_impl(BeastText body, BeastError& /*error*/) override { return body.size(); }
  void on_chunk_header_impl(std::uint64_t /*size*/, BeastText /*extensions*/,
                            BeastError& /*error*/) override {}
  std::size_t on_chunk_body_impl(std::uint64_t /*remain*/, BeastText body,
                                 BeastError& /*error*/) override {
    return body.size();
  }
  void on_finish_impl(BeastError& /*error*/) override {}
};

TakenRequest refuse_request(int status, std::string text) {
  TakenRequest taken;
  taken.bad = BadRequest{status, std::move(text)};
  return taken;
}

/// The host of "host[:port]"; nullopt: not such a text.
std::optional<std::string> host_of(std::string_view authority) {
  if (authority.find_first_of("/@ \t") != std::string_view::npos) return std::nullopt;
  std::size_t end = authority.size();
  if (authority.starts_with('[')) {
    const std::size_t close = authority.find(']');
    if (close == std::string_view::npos) return std::nullopt;
    end = close + 1;
  } else {
    end = std::min(authority.find(':'), end);
  }
  const std::string_view port = authority.substr(end);
  if (!port.empty() &&
      (port.front() != ':' || port.size() > 6 || !std::ranges::all_of(port.substr(1), is_digit))) {
    return std::nullopt;
  }
  return in_lower_case(authority.substr(0, end));
}

/// The parameters of a query, decoded; nullopt: a '%' without two digits. A '+' stays one: that it
/// means a space is a rule of forms, and no client of these services sends it so.
std::optional<std::vector<std::pair<std::string, std::string>>> split_query(
    std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (part.empty()) continue;
    const std::size_t equals = std::min(part.find('='), part.size());
    auto name = percent_decode(part.substr(0, equals));
    auto value = percent_decode(part.substr(std::min(equals + 1, part.size())));
    if (!name || !value) return std::nullopt;
    parameters.emplace_back(*std::move(name), *std::move(value));
  }
  return parameters;
}

}  // namespace

std::optional<std::string_view> ServeRequest::parameter(std::string_view name) const {
  for (const auto& [each, value] : query) {
    if (each == name) return value;
  }
  return std::nullopt;
}

TakenRequest take_request(std::string_view bytes) {
  HeaderTaker taker;
  BeastError error;
  const std::size_t used = taker.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  if (error == http::error::need_more) {
    if (bytes.size() >= kLongestRequest) return refuse_request(431, "headers: too long");
    return {};
  }
  if (error == http::error::header_limit) {
    return refuse_request(431, fmt::format("headers: more than {} bytes or {} lines",
                                           kLongestRequest, kMostRequestHeaders));
  }
  if (error == http::error::bad_version) return refuse_request(505, "only HTTP/1.0 and 1.1");
  if (error) return refuse_request(400, "not a request: " + error.message());
  if (!taker.is_header_done()) return {};

  TakenRequest taken;
  taken.used = used;
  ServeRequest& request = taken.request;
  request.method = std::move(taker.method);
  request.headers = std::move(taker.headers);
  request.keeps_alive = taker.keep_alive();
  request.has_body = taker.chunked() || taker.content_length().value_or(0) > 0;
  request.is_old =
      std::string_view(bytes.substr(0, used)).find(" HTTP/1.0\r\n") != std::string_view::npos;

  const auto hosts = std::ranges::count_if(
      request.headers, [](const auto& header) { return header.first == "host"; });
  if (hosts > 1 || (hosts == 0 && !request.is_old)) {
    return refuse_request(400, "one header \"Host\" is needed");
  }
  request.authority = request.header("host");
  std::string_view target = taker.target;
  // "GET http://host/path": what clients send through a proxy, and some to every endpoint.
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!in_lower_case(target.substr(0, scheme.size())).starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::size_t end = std::min(target.find_first_of("/?"), target.size());
    request.authority = target.substr(0, end);
    target.remove_prefix(end);
    break;
  }
  const auto host = host_of(request.authority);
  if (!host) return refuse_request(400, "Host: not a host");
  request.host = *host;

  const std::size_t question = std::min(target.find('?'), target.size());
  request.raw_query = target.substr(std::min(question + 1, target.size()));
  target = target.substr(0, question);
  auto path = percent_decode(target.empty() ? "/" : target);
  auto query = split_query(request.raw_query);
  if (!path || !query || !path->starts_with('/') || path->find('\0') != std::string::npos) {
    return refuse_request(400, "the target is not a path");
  }
  request.path = *std::move(path);
  request.query = *std::move(query);
  return taken;
}

}  // namespace ckfs
