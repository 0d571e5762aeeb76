// What a kind of server must be able to do: say which objects there are, say how a range of one is
// asked for, and say what an answer that reports a failure means. One class for each service; the
// machine that sends, waits, tries again and checks bytes (reads.h) is the same for all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/byte_range.h"
#include "base/error.h"
#include "fetch/remote_source.h"
#include "fetcher/http.h"
#include "fetcher/surroundings.h"

namespace ckfs {

/// What to do after an answer that did not bring the bytes.
struct AnswerVerdict {
  enum class Do : std::uint8_t {
    Again,  // ask the service again, at once: it has learned something
    Later,  // the same, after a while
    Fail,
  };
  Do what = Do::Fail;
  Error error = Error(ErrorCode::Io, "");  // of Fail, and of Later when time is up
  std::optional<std::int64_t> wait = {};   // seconds that the server asks for
  bool is_pushback = false;                // the server has too much to do
};

class Service {
 public:
  Service() = default;
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;
  virtual ~Service() = default;

  /// Which version it is, and its objects. Waits for answers. Errors: NotFound (no such source),
  /// Unsupported, Corrupt (an answer is not a listing), Io (no access, no server: what to do is in
  /// the text).
  ///
  /// `known`: the revision whose objects the caller knows ("": of none). Where the source is still
  /// that, a service that can tell by one request leaves the objects out.
  virtual Result<RemoteSource> open(std::string_view known) = 0;

  /// How a range of an object is asked for now; the caller sets `place` of the wanted range.
  /// nullopt: something is to be learned first, and another request that does so is under way: ask
  /// again after the next heed(). May wait for credentials. Requires: the range is not empty and
  /// within the object. Errors: as open().
  virtual Result<std::optional<HttpRequest>> ask(const RemoteObject& object, ByteRange range) = 0;

  /// What follows from an answer that did not bring all bytes of its range: a fault, a status that
  /// reports a failure, or one to a request by which ask() wants to learn something.
  virtual AnswerVerdict heed(const RemoteObject& object, const HttpRequest& request,
                             const HttpAnswer& answer) = 0;

 protected:
  Service(Service&&) = default;
};

/// What a service is made of; outlives it.
struct ServiceContext {
  HttpClient& http;
  const Surroundings& here;
};

/// Errors: InvalidArgument (an option that makes no sense there), Io (credentials that are there
/// and cannot be used), Unsupported. `is_file`: as RemoteSource has it, for a location that was
/// pinned.
Result<std::unique_ptr<Service>> make_service(const ServiceContext& context,
                                              const SourceLocation& location,
                                              const RemoteOptions& options, bool is_file);

// ---- For services

/// What an answer means to any service, where it has nothing of its own to say: faults of the
/// connection, 408, 429 and 5xx are tried again; another version is Stale; 401 and 403 are
/// refusals; the rest is an error with the server's words. `thing` names the object.
AnswerVerdict judge(std::string_view thing, const HttpAnswer& answer, std::int64_t now);

/// "thing: the server answers 403 AccessDenied: text (request ID)", with the code of the error that
/// belongs to the status.
Error answer_error(std::string_view thing, const HttpAnswer& answer);

/// Sends a request, and again what judge() wants to be tried again, until the time of the client's
/// patience is up; where no connection comes about, 15 seconds. Returns the answer, whatever its
/// status. Errors: Io.
Result<HttpAnswer> call(const ServiceContext& context, const HttpRequest& request,
                        std::string_view thing);

/// Adds objects to a source, below `prefix` (of keys; "" or ending in '/'), within the limits.
/// Those that cannot be files are noted as refused. Errors: Unsupported (too many).
struct ListedObject;
Result<void> add_objects(std::vector<ListedObject> listed, std::string_view prefix,
                         std::size_t& text, RemoteSource& source);

/// Sorts them, and notes what cannot be: a file and a directory of one name. Errors: Corrupt (a
/// name twice), NotFound (there are none).
Result<void> finish_objects(std::string_view thing, RemoteSource& source);

/// Adds the objects whose keys begin with `prefix`, named without `below`, to the source.
using ListKeys = std::function<Result<void>(RemoteSource& into, std::string_view prefix,
                                            std::string_view below)>;
/// Opens what a path of keys names: the objects below it, or where there are none, the object
/// itself (RemoteSource::is_file). Errors: those of `list` and of finish_objects().
Result<RemoteSource> open_prefix(const SourceLocation& location, const ListKeys& list);
/// The key of an object that open_prefix() gave.
std::string key_of(const SourceLocation& location, const RemoteObject& object, bool is_file);

/// A URL of an endpoint that a user has named. Errors: InvalidArgument.
Result<Url> parse_endpoint(std::string_view text, std::string_view option);

}  // namespace ckfs
