// A source that is far away, as its listing describes it: plain values, the same for the
// fetcher, which asks servers for them, and for the daemon, which keeps them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "fetch/location.h"

namespace ckfs {

inline constexpr std::size_t kMostObjects = 500'000;  // of a source
inline constexpr std::size_t kMostListedText = std::size_t{64}
                                               << 20;  // of their names and versions

/// A file of the source.
struct RemoteObject {
  std::string name;  // below the location; passes object_name_fault()
  std::uint64_t size = 0;
  /// What tells this content from any other under the name: object id of the hub, ETag of S3,
  /// generation of Google, "etag:…" or "modified:…" of the web. Never empty.
  std::string version;
  std::string hash = {};  // "sha256:HEX" or "crc32c:BASE64" of all of it; empty: not known
  std::int64_t time = 0;  // last change, seconds of Unix; 0: not known

  bool operator==(const RemoteObject&) const = default;
};

struct RemoteSource {
  /// The location with all that may change in time replaced by its value then (the hub: the
  /// commit).
  SourceLocation pinned;
  /// Whether the location is one object: its only one, with the name's last segment.
  bool is_file = false;
  /// Whether the versions tell every change (a server without ETags tells it by time and size).
  bool is_pinned = true;
  std::int64_t time = 0;                   // of the commit, or the newest object's; 0: not known
  std::vector<RemoteObject> objects = {};  // by name, each name once
  std::vector<std::string> refused = {};   // objects that cannot be files, and why; the first 100
};

/// What a user says about how to get at a source (`--endpoint-url`, `--anonymous`, …).
struct RemoteOptions {
  std::string endpoint_url = {};  // empty: the environment's, or the service's own
  bool anonymous = false;         // send no credentials, look for none
  bool requester_pays = false;
  std::string header_file = {};  // headers for a web server, one a line
};

}  // namespace ckfs
