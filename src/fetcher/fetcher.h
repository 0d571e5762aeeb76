// The fetcher's end of the protocol (fetch/protocol.h): takes requests off the socket, lets
// services and reads do them, and answers. One thread, one loop; ends when the client has gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "fetch/protocol.h"
#include "fetcher/http.h"
#include "fetcher/reads.h"
#include "fetcher/service.h"

namespace ckfs {

class Fetcher {
 public:
  /// `connections`: requests at once. All that is given outlives it.
  Fetcher(int socket, std::span<std::byte> memory, std::uint32_t generation, HttpClient& http,
          const Surroundings& here, std::size_t connections);

  /// Says hello, and serves until the other end is gone.
  void run();

 private:
  /// A source that the client has named.
  struct Source {
    Result<std::shared_ptr<Service>> service;  // or why it has none
    std::vector<RemoteObject> listing = {};    // until it was taken
  };

  /// False: the other end is gone.
  bool take_messages();
  void take(const FetchMessage& message);
  void open(const FetchMessage& message, std::string_view input);
  void list(const FetchMessage& message);
  void read(const FetchMessage& message, std::string_view input);
  /// Answers with text at the place, or with an error.
  void answer(const FetchMessage& message, Result<std::string> result, std::uint64_t object = 0);
  std::span<std::byte> place_of(const FetchMessage& message) const;

  const int socket_;
  const std::span<std::byte> memory_;
  const std::uint32_t generation_;
  HttpClient& http_;
  const ServiceContext context_;
  std::map<std::uint32_t, Source> sources_;
  std::map<std::uint64_t, std::unique_ptr<RemoteObject>> reading_;  // by the id of the read
  Reads reads_;
};

}  // namespace ckfs
