// A request that is under way, as libcurl's callbacks see it. Internal to http.cc.
#pragma once

#include <cstdint>
#include <cstring>
#include <curl/curl.h>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "fetcher/http.h"

namespace ckfs {

struct FreesHeaders {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

struct HttpTransfer {
  std::uint64_t id = 0;
  HttpRequest request;
  HttpClient::Done done;
  HttpAnswer answer;
  CURL* easy = nullptr;
  std::unique_ptr<curl_slist, FreesHeaders> headers;
  FetchTime started;
  std::uint64_t received = 0;  // headers too: they are signs of life
  std::optional<StallWatch> watch;
  bool judged = false;  // `believed` says how
  bool believed = false;
  bool is_enough = false;          // it was ended because the rest is not wanted
  std::uint64_t* bytes = nullptr;  // of the client's counts

  /// Ends the transfer with that fault.
  std::size_t refuse(HttpFault fault, std::string why) {
    if (answer.fault == HttpFault::None) {
      answer.fault = fault;
      answer.why = std::move(why);
    }
    return 0;  // to libcurl: not what it gave
  }

  /// Once the headers are known: whether the body is the range that is wanted.
  bool judge() {
    judged = true;
    if (!request.wanted || (answer.status != 200 && answer.status != 206)) return true;
    Belief belief = believe(*request.wanted, answer);
    believed = belief.fault == HttpFault::None;
    if (!believed) refuse(belief.fault, std::move(belief.why));
    return believed;
  }

  std::size_t take_body(std::span<const char> part) {
    received += part.size();
    *bytes += part.size();
    if (!judged && !judge()) return 0;
    if (request.headers_only && answer.status == 200) {
      is_enough = true;
      return 0;
    }
    if (believed) {
      const RangeWanted& wanted = *request.wanted;
      if (part.size() > wanted.range.size() - answer.placed) {
        return refuse(HttpFault::Unwanted, "the server sends more bytes than it said");
      }
      std::memcpy(wanted.place + answer.placed, part.data(), part.size());
      answer.placed += part.size();
      return part.size();
    }
    // What a server says of an error may be cut; a listing may not.
    constexpr std::size_t kOfErrors = 65536;
    const bool is_error = answer.status >= 300;
    const std::size_t most = is_error ? kOfErrors : request.most_body;
    if (answer.body.size() + part.size() > most) {
      if (is_error) return part.size();
      return refuse(HttpFault::TooLong, fmt::format("an answer of more than {} bytes", most));
    }
    answer.body.append(part.data(), part.size());
    return part.size();
  }
};

}  // namespace ckfs
