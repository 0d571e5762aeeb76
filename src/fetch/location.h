// Where a source is that lies on another machine: `hf://org/name[@revision][/folder]`,
// `https://host/path`, `http://…`, `s3://bucket/prefix`, `gs://bucket/prefix`.
//
// A location is what a user writes, an answer to "which", not to "which version": its pinned form,
// with a commit in the place of a branch, is a location too. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "fetch/url.h"

namespace ckfs {

enum class RemoteService : std::uint8_t { Hub = 1, Web, S3, Gcs };

struct SourceLocation {
  RemoteService service = RemoteService::Hub;
  /// Hub: "org/name". S3 and Gcs: the bucket. Web: empty.
  std::string container;
  /// Hub: the branch, tag or commit, "main" where none was given. Otherwise empty.
  std::string revision;
  /// Hub: the folder; S3 and Gcs: the key, or what keys begin with. No '/' at either end; empty is
  /// the top. Not percent-encoded. Web: empty.
  std::string path;
  /// Web only.
  Url url = {};

  bool operator==(const SourceLocation&) const = default;

  /// Parses to the same location. With the secrets that a URL may have: for the fetcher alone.
  std::string text() const;
  /// For people, logs and reports: text() with its secrets masked (Url::masked()).
  std::string masked() const;
};

/// Whether `text` is meant as a location: it begins with letters and "://". Everything else is a
/// path of this machine, so that no file is called what a location is.
bool is_location(std::string_view text);

/// Errors: InvalidArgument (not a scheme of these, a name that the service cannot have, what
/// check_object_name() refuses), Unsupported (datasets, spaces and buckets of the hub; access
/// points of S3). No error's text has a secret.
Result<SourceLocation> parse_location(std::string_view text);

/// Why an object of that name, below the location, cannot be a file of a source: the rule is the
/// same for all services and for names in indexes. nullopt: it can. At most 1024 bytes of UTF-8
/// without control characters; no segment is empty, "." or "..".
std::optional<std::string_view> object_name_fault(std::string_view name);

/// What reports and logs call a source: as the user wrote it, without the secrets of a URL.
std::string shown_source(const std::string& source);

}  // namespace ckfs
