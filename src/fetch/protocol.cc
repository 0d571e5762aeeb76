// Tables by hand: a library for it would parse what a hostile process may write, and the daemon is
// to parse as little of that as can be.

#include "fetch/protocol.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>

#include "base/load_le.h"
#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::size_t kLongestText = 65536;

class Packer {
 public:
  void number(std::uint64_t value) {
    std::array<std::byte, 8> bytes{};
    store_le(std::span<std::byte>(bytes), value);
    out_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void text(std::string_view text) {
    number(text.size());
    out_ += text;
  }
  std::string take() { return std::move(out_); }

 private:
  std::string out_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t number() {
    if (bytes_.size() < 8) {
      is_bad_ = true;
      return 0;
    }
    const auto value = load_le<std::uint64_t>(std::as_bytes(std::span(bytes_.data(), 8)));
    bytes_.remove_prefix(8);
    return value;
  }
  std::string text() {
    const std::uint64_t size = number();
    if (is_bad_ || size > kLongestText || size > bytes_.size()) {
      is_bad_ = true;
      return {};
    }
    std::string text(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return text;
  }
  bool flag() { return number() != 0; }
  bool is_at_end() const { return bytes_.empty(); }
  bool is_bad() const { return is_bad_; }
  /// Everything was there, and nothing else.
  Result<void> finish() const {
    if (is_bad_ || !bytes_.empty()) {
      return fail(ErrorCode::Corrupt, "fetcher: a message without a meaning");
    }
    return {};
  }

 private:
  std::string_view bytes_;
  bool is_bad_ = false;
};

void pack_into(Packer& out, const RemoteObject& object) {
  out.text(object.name);
  out.number(object.size);
  out.text(object.version);
  out.text(object.hash);
  out.number(static_cast<std::uint64_t>(object.time));
}

/// The caller looks at is_bad().
RemoteObject unpack_from(Unpacker& in) {
  RemoteObject object;
  object.name = in.text();
  object.size = in.number();
  object.version = in.text();
  object.hash = in.text();
  object.time = static_cast<std::int64_t>(in.number());
  return object;
}

Result<void> check_object(const RemoteObject& object) {
  if (const auto fault = object_name_fault(object.name)) {
    return fail(ErrorCode::Corrupt, "fetcher: {}: {}", quote(object.name), *fault);
  }
  // With the name's 1024 bytes it fits into kLeastPlace.
  if (object.size > std::uint64_t{1} << 60 || object.version.empty() ||
      object.version.size() + object.hash.size() > 2048) {
    return fail(ErrorCode::Corrupt, "fetcher: {}: no size or version", quote(object.name));
  }
  return {};
}

}  // namespace

bool send_message(int socket, const FetchMessage& message) {
  for (;;) {
    const ssize_t sent = ::send(socket, &message, sizeof message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    return sent == static_cast<ssize_t>(sizeof message);
  }
}

bool try_send_message(int socket, const FetchMessage& message) {
  for (;;) {
    const ssize_t sent = ::send(socket, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return true;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    // Where the other end is gone, receive_message() says so.
    if (errno != EINTR) return true;
  }
}

std::optional<FetchMessage> receive_message(int socket) {
  FetchMessage message;
  for (;;) {
    const ssize_t got = ::recv(socket, &message, sizeof message, MSG_TRUNC);
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(sizeof message) || message.magic != FetchMessage::kMagic) {
      return std::nullopt;
    }
    return message;
  }
}

std::string pack(const AttachRequest& request) {
  Packer out;
  out.text(request.location.text());
  out.text(request.options.endpoint_url);
  out.text(request.options.header_file);
  out.number(request.options.anonymous ? 1 : 0);
  out.number(request.options.requester_pays ? 1 : 0);
  out.number(request.is_file ? 1 : 0);
  out.text(request.known);
  return out.take();
}

Result<AttachRequest> unpack_attach(std::string_view bytes) {
  Unpacker in(bytes);
  const std::string location = in.text();
  AttachRequest request;
  request.options.endpoint_url = in.text();
  request.options.header_file = in.text();
  request.options.anonymous = in.flag();
  request.options.requester_pays = in.flag();
  request.is_file = in.flag();
  request.known = in.text();
  CKFS_TRY_VOID(in.finish());
  CKFS_TRY(request.location, parse_location(location));
  return request;
}

std::string pack_head(const RemoteSource& source) {
  Packer out;
  out.text(source.pinned.text());
  out.number(source.is_file ? 1 : 0);
  out.number(source.is_pinned ? 1 : 0);
  out.number(static_cast<std::uint64_t>(source.time));
  out.number(source.refused.size());
  for (const std::string& each : source.refused) out.text(each);
  return out.take();
}

Result<RemoteSource> unpack_head(std::string_view bytes) {
  constexpr std::size_t kMostRefused = 1000;
  Unpacker in(bytes);
  const std::string location = in.text();
  RemoteSource source;
  source.is_file = in.flag();
  source.is_pinned = in.flag();
  source.time = static_cast<std::int64_t>(in.number());
  const std::uint64_t refused = in.number();
  for (std::uint64_t i = 0; i < refused && i < kMostRefused && !in.is_bad(); ++i) {
    source.refused.push_back(in.text());
  }
  CKFS_TRY_VOID(in.finish());
  CKFS_TRY(source.pinned, parse_location(location));
  return source;
}

std::string pack(const RemoteObject& object) {
  Packer out;
  pack_into(out, object);
  return out.take();
}

Result<RemoteObject> unpack_object(std::string_view bytes) {
  Unpacker in(bytes);
  RemoteObject object = unpack_from(in);
  CKFS_TRY_VOID(in.finish());
  CKFS_TRY_VOID(check_object(object));
  return object;
}

PackedObjects pack_objects(std::span<const RemoteObject> objects, std::size_t capacity) {
  PackedObjects packed;
  for (const RemoteObject& object : objects) {
    const std::string bytes = pack(object);
    if (packed.bytes.size() + bytes.size() > capacity) break;
    packed.bytes += bytes;
    ++packed.count;
  }
  return packed;
}

Result<std::vector<RemoteObject>> unpack_objects(std::string_view bytes) {
  Unpacker in(bytes);
  std::vector<RemoteObject> objects;
  while (!in.is_at_end() && !in.is_bad()) {
    objects.push_back(unpack_from(in));
    if (!in.is_bad()) CKFS_TRY_VOID(check_object(objects.back()));
  }
  CKFS_TRY_VOID(in.finish());
  return objects;
}

std::string pack(const FetchStats& stats) {
  Packer out;
  for (const std::uint64_t each :
       {stats.requests, stats.bytes, stats.wanted, stats.retries, stats.faults, stats.window}) {
    out.number(each);
  }
  return out.take();
}

Result<FetchStats> unpack_stats(std::string_view bytes) {
  Unpacker in(bytes);
  FetchStats stats;
  for (std::uint64_t* const each : {&stats.requests, &stats.bytes, &stats.wanted, &stats.retries,
                                    &stats.faults, &stats.window}) {
    *each = in.number();
  }
  CKFS_TRY_VOID(in.finish());
  return stats;
}

}  // namespace ckfs
