// The client is trusted with its own memory and with nothing else: a place outside of it, or an
// object that does not exist, is an error, since a daemon may have been taken over, too.

#include "fetcher/fetcher.h"

#include <algorithm>
#include <cstring>
#include <poll.h>
#include <random>

#include "base/text.h"

namespace ckfs {

Fetcher::Fetcher(int socket, std::span<std::byte> memory, std::uint32_t generation,
                 HttpClient& http, const Surroundings& here, std::size_t connections)
    : socket_(socket),
      memory_(memory),
      generation_(generation),
      http_(http),
      context_{http, here},
      reads_(http, connections, std::random_device{}()) {}

void Fetcher::run() {
  FetchMessage hello;
  hello.kind = FetchMessageKind::Hello;
  hello.generation = generation_;
  if (!send_message(socket_, hello)) return;
  while (take_messages()) http_.step(reads_.step(), socket_);
}

bool Fetcher::take_messages() {
  constexpr int kAtOnce = 64;  // then what is under way has its turn
  for (int i = 0; i < kAtOnce; ++i) {
    pollfd readable{socket_, POLLIN, 0};
    if (::poll(&readable, 1, 0) <= 0) return true;
    const auto message = receive_message(socket_);
    if (!message) return false;
    // Of an older generation: the client asks again.
    if (message->generation == generation_) take(*message);
  }
  return true;
}

std::span<std::byte> Fetcher::place_of(const FetchMessage& message) const {
  return memory_.subspan(message.place, message.capacity);
}

void Fetcher::take(const FetchMessage& message) {
  if (message.kind == FetchMessageKind::Cancel) return reads_.cancel(message.id);
  if (message.capacity < kLeastPlace || message.place > memory_.size() ||
      message.capacity > memory_.size() - message.place) {
    return;  // there is no place for an answer, either
  }
  // Copied: nothing that is checked may change behind the check.
  const auto input_size = std::min(message.input, message.capacity);
  const std::string input(reinterpret_cast<const char*>(place_of(message).data()), input_size);
  const auto no_memory = or_out_of_memory([&]() -> Result<void> {
    switch (message.kind) {
      case FetchMessageKind::Open:
      case FetchMessageKind::Attach:
        open(message, input);
        break;
      case FetchMessageKind::List:
        list(message);
        break;
      case FetchMessageKind::Read:
        read(message, input);
        break;
      case FetchMessageKind::Stats:
        answer(message, pack(FetchStats{.requests = http_.counts().requests,
                                        .bytes = http_.counts().bytes,
                                        .wanted = reads_.counts().bytes,
                                        .retries = reads_.counts().retries,
                                        .faults = http_.counts().faults,
                                        .window = reads_.window()}));
        break;
      default:
        answer(message, fail(ErrorCode::Internal, "fetcher: a message without a meaning"));
    }
    return {};
  });
  if (!no_memory) answer(message, Failure(no_memory.error()));
}

void Fetcher::open(const FetchMessage& message, std::string_view input) {
  auto request = unpack_attach(input);
  auto service = request
                     ? make_service(context_, request->location, request->options, request->is_file)
                     : Result<std::unique_ptr<Service>>(Failure(request.error()));
  Source& source =
      sources_.insert_or_assign(message.source, Source{std::move(service)}).first->second;
  if (!source.service) return answer(message, Failure(source.service.error()));
  if (message.kind == FetchMessageKind::Attach) return answer(message, std::string());
  auto opened = (*source.service)->open(request->known);
  if (!opened) {
    Error error = opened.error();
    sources_.erase(message.source);
    return answer(message, Failure(std::move(error)));
  }
  source.listing = std::move(opened->objects);
  answer(message, pack_head(*opened), source.listing.size());
}

void Fetcher::list(const FetchMessage& message) {
  const auto found = sources_.find(message.source);
  if (found == sources_.end() || message.object >= found->second.listing.size()) {
    return answer(message, fail(ErrorCode::InvalidArgument, "fetcher: no such listing"));
  }
  std::vector<RemoteObject>& listing = found->second.listing;
  PackedObjects packed = pack_objects(std::span(listing).subspan(message.object), message.capacity);
  const std::uint64_t next = message.object + packed.count;
  if (next == listing.size()) std::vector<RemoteObject>().swap(listing);
  answer(message, std::move(packed.bytes), next);
}

void Fetcher::read(const FetchMessage& message, std::string_view input) {
  const auto found = sources_.find(message.source);
  if (found == sources_.end()) {
    return answer(message, fail(ErrorCode::InvalidArgument, "fetcher: no such source"));
  }
  if (!found->second.service) return answer(message, Failure(found->second.service.error()));
  auto object = unpack_object(input);
  if (!object) return answer(message, Failure(object.error()));
  if (message.size == 0 || message.size > message.capacity || message.offset > object->size ||
      message.size > object->size - message.offset || reading_.contains(message.id)) {
    return answer(message, fail(ErrorCode::InvalidArgument, "fetcher: no such range"));
  }
  const auto [kept, is_new] =
      reading_.emplace(message.id, std::make_unique<RemoteObject>(*std::move(object)));
  reads_.start(message.id, *found->second.service, *kept->second,
               {message.offset, message.offset + message.size}, place_of(message).data(),
               [this, message](Result<void> result) {
                 reading_.erase(message.id);
                 if (!result) return answer(message, Failure(std::move(result).error()));
                 FetchMessage done = message;
                 done.kind = FetchMessageKind::Answer;
                 done.code = 0;
                 send_message(socket_, done);
               });
}

void Fetcher::answer(const FetchMessage& message, Result<std::string> result,
                     std::uint64_t object) {
  FetchMessage answer = message;
  answer.kind = FetchMessageKind::Answer;
  answer.object = object;
  answer.code =
      result ? 0 : static_cast<std::uint16_t>(static_cast<unsigned>(result.error().code()) + 1);
  const std::string_view text = result ? std::string_view(*result) : result.error().message();
  const std::span<std::byte> place = place_of(message);
  const std::size_t size = std::min(text.size(), place.size());
  std::memcpy(place.data(), text.data(), size);
  answer.size = size;
  send_message(socket_, answer);
}

}  // namespace ckfs
