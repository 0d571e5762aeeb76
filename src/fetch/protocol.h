// What a client (the daemon, or a verb of the program) and the fetcher say to each other.
//
// Messages of one fixed size go over a local socket that keeps their borders (SOCK_SEQPACKET);
// everything longer lies in memory that both map, made and sized for good by the client. The client
// alone decides what is where: each request names a place, which is the fetcher's to write to until
// it has answered, and the client's from then on. So a fetcher that was taken over can send wrong
// bytes and nothing else: every number and text of its is checked before it is used.
//
// The fetcher is a process that a supervisor starts again when it dies, once a second at most. It
// says so (Hello) with a new generation; requests of older ones are dropped there, and sent again
// by the client. What a fetcher knows of sources is gone then, and the client says that again, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "fetch/remote_source.h"

namespace ckfs {

/// Descriptors that the fetcher is started with.
inline constexpr int kFetcherSocket = 3;
inline constexpr int kFetcherMemory = 4;

/// Least size of a request's place: it takes any packed object, and the text of an error
/// goes there.
inline constexpr std::size_t kLeastPlace = 4096;

enum class FetchMessageKind : std::uint16_t {
  // Of the fetcher.
  Hello = 1,  // `generation` is the one from now on
  Answer,     // to `id`: `code` 0 and `size` bytes at its place, or an error's code and its text
  // Of the client. All have an id and a place.
  Open,    // a location and options at the place: resolves and lists it as `source`, which is new.
           // Answer: the head of the listing at the place, `object`: how many objects it has
  Attach,  // the same for a location that was pinned: asks no server
  List,    // objects of `source` from `object` on, as many as the place takes. Answer: `object` is
           // the
           // first that is missing; the last page forgets the listing
  Read,    // an object at the place: `size` bytes of it from `offset` on, in `source`, to the place
  Stats,   // FetchStats at the place
  Cancel,  // `id` is of a request under way, which is answered (Stopped, if it is not done); no
           // answer
};

/// A message, as it goes over the socket. Both ends are of one machine and one build.
struct FetchMessage {
  std::uint32_t magic = kMagic;
  FetchMessageKind kind = FetchMessageKind::Answer;
  std::uint16_t code = 0;  // 0, or ErrorCode + 1
  std::uint32_t generation = 0;
  std::uint32_t source = 0;
  std::uint64_t id = 0;
  std::uint64_t place = 0;     // in the memory
  std::uint32_t capacity = 0;  // of the place
  std::uint32_t input = 0;     // bytes of a request at its place
  std::uint64_t size = 0;      // bytes of an answer at its place; of a Read, those that are wanted
  std::uint64_t object = 0;
  std::uint64_t offset = 0;

  static constexpr std::uint32_t kMagic = 0x31464B43;  // "CKF1"
  bool operator==(const FetchMessage&) const = default;
};
static_assert(sizeof(FetchMessage) == 64);

/// Numbers of what a fetcher has done since it was started; little-endian at the place.
struct FetchStats {
  std::uint64_t requests = 0;  // to servers
  std::uint64_t bytes = 0;     // of bodies
  std::uint64_t wanted = 0;    // of these, what readers had asked for
  std::uint64_t retries = 0;
  std::uint64_t faults = 0;  // connections that failed, stalled or were cut
  std::uint64_t window = 0;  // requests that may be in flight now

  bool operator==(const FetchStats&) const = default;
};

// ---- Texts and tables at a place. A number has 64 bits, a text its length before it.

/// Sends or takes one message. send: false where the other end is gone or does not take it;
/// receive: nullopt where the other end is gone or has sent anything else. Both wait,
/// interrupted or not.
bool send_message(int socket, const FetchMessage& message);
/// send_message(), but false at once where the other end has too much to take already. One end must
/// send so, or both could wait for each other.
bool try_send_message(int socket, const FetchMessage& message);
std::optional<FetchMessage> receive_message(int socket);

struct AttachRequest {
  SourceLocation location;
  RemoteOptions options;
  bool is_file = false;
  /// Open: the revision that the client has the listing of; a fetcher that finds the source there
  /// still may answer without objects. Empty: none.
  std::string known = {};
};
std::string pack(const AttachRequest& request);
Result<AttachRequest> unpack_attach(std::string_view bytes);

/// The head of a listing: all of a source but its objects.
std::string pack_head(const RemoteSource& source);
Result<RemoteSource> unpack_head(std::string_view bytes);

std::string pack(const RemoteObject& object);
/// Checks the name, too. Errors: Corrupt.
Result<RemoteObject> unpack_object(std::string_view bytes);

/// As many of `objects` as `capacity` bytes take, at least one: kLeastPlace takes any.
struct PackedObjects {
  std::string bytes;
  std::size_t count = 0;
};
PackedObjects pack_objects(std::span<const RemoteObject> objects, std::size_t capacity);
Result<std::vector<RemoteObject>> unpack_objects(std::string_view bytes);

std::string pack(const FetchStats& stats);
Result<FetchStats> unpack_stats(std::string_view bytes);

}  // namespace ckfs
