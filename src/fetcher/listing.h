// What services answer to "which objects are there" and to "no": the grammars, without requests.
// Formats: ListObjectsV2 and errors of S3 (XML), objects.list of Google Cloud Storage (JSON), the
// tree and the revision of the hub's API (JSON, pages by RFC 8288 links).
//
// The text is a stranger's. Everything is bounded: a page by its caller (HttpRequest::most_body),
// names and texts here. Names are not judged here (object_name_fault()). Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ckfs {

struct ListedObject {
  std::string name;  // of S3 and GCS: the key
  std::uint64_t size = 0;
  std::string version;    // ETag with its quotes, generation, or the hub's object id
  std::string hash = {};  // "sha256:HEX" or "crc32c:BASE64" of all of it; empty: not known
  std::int64_t time = 0;  // last change, seconds of Unix; 0: not known
  bool is_cold = false;   // in an archive: it must be restored before it can be read

  bool operator==(const ListedObject&) const = default;
};

struct ListingPage {
  std::vector<ListedObject> objects;
  std::string next;  // the token of the next page; empty: this is the last
};

/// Errors of all three: Corrupt (another format, a size or generation that is not a number, a page
/// that says there are more and not where). `thing` names the answer.
Result<ListingPage> parse_s3_listing(std::string_view text, std::string_view thing);
Result<ListingPage> parse_gcs_listing(std::string_view text, std::string_view thing);
/// Directories are left out.
Result<ListingPage> parse_hub_tree(std::string_view text, std::string_view thing);

/// The URL with rel="next" of a header Link; nullopt: none.
std::optional<std::string> next_link(std::string_view link);

struct HubRevision {
  std::string commit;     // 40 hexadecimal digits
  std::int64_t time = 0;  // of the commit; 0: not known
};
Result<HubRevision> parse_hub_revision(std::string_view text, std::string_view thing);

/// What a service says of a request that it refuses.
struct ServiceError {
  std::string code;     // "NoSuchKey"; of the others what is in the place of it
  std::string message;  // one line, at most 300 bytes
  std::string region;   // S3: where the bucket is
};
/// Of XML (S3), or JSON (the hub, Google, AWS's other services); the first line of any other text.
ServiceError parse_service_error(std::string_view text);

}  // namespace ckfs
