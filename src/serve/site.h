// The names that are served: one tree, four ways to ask for it.
//
//   /BUCKET/VIEW/PATH                       S3 (path style, or BUCKET as the first part of the
//                                           host's name), and HTTP with listings
//   /ckfs/VIEW/resolve/REVISION/PATH,       the hub's routes, where a model is a view. The revision
//   /api/models/ckfs/VIEW/...               "main" has no parameters; "max_shard=5GB" has; a commit
//                                           names either
//   /storage/v1/b/BUCKET/o...,              Google Cloud Storage's JSON API
//   /download/storage/v1/b/BUCKET/o...
//   /.ckfs/metrics, /.ckfs/status.json      as a mount has them
//   /.ckfs/health                           "ok", to clients without a key, too
//
// Answers are pure functions of the request and the site, except that they make views.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "api/status.h"
#include "serve/reply.h"
#include "serve/request.h"
#include "serve/served_views.h"

namespace ckfs {

struct Site {
  Site(Checkpoint checkpoint, std::string name, std::uint64_t most_bytes)
      : views(std::move(checkpoint), most_bytes),
        bucket(std::move(name)),
        mtime(views.checkpoint().mtime()) {}

  ServedViews views;
  const std::string bucket;
  const std::int64_t mtime;
  MountFacts facts;  // of .ckfs; its mountpoint is the server's address
};

/// The organization whose models are the views, in the hub's routes.
inline constexpr std::string_view kHubOrganization = "ckfs";

/// A bucket's name of the source's last name: in lower case, with '-' for what a bucket's name does
/// not take. Empty: nothing is left.
std::string bucket_name(std::string_view source);
/// Errors: InvalidArgument (3 to 63 of a-z 0-9 . -, beginning and ending with a letter or digit; or
/// a name that another route has).
Result<void> check_bucket_name(std::string_view bucket);

/// Whether a request is for the health route, which tells nothing and so needs no key.
bool asks_for_health(const ServeRequest& request);

/// The answer, whatever the method. A file's bytes are not read yet.
Reply answer_request(Site& site, const ServeRequest& request);

// ---- For the answers of each service

/// A file of a view, as headers have it; conditions and ranges are heeded. Its errors are in
/// `refuse`'s form.
struct NamedFile {
  std::shared_ptr<const ServedView> view;
  std::size_t index = 0;
};
/// Errors: NotFound, and those of ServedViews::find.
Result<NamedFile> find_file(Site& site, std::string_view key);
Reply file_reply(const Site& site, const ServeRequest& request, const NamedFile& file);

/// Errors in the form of S3; in plain text for other clients.
Reply s3_error(const ServeRequest& request, int status, std::string_view code,
               std::string_view text);

Reply answer_hub_api(Site& site, const ServeRequest& request, std::string_view rest);
Reply answer_hub_file(Site& site, const ServeRequest& request, std::string_view rest);
/// `rest`: behind "/storage/v1/b/" in the target as it came: an object's name has its '/' encoded.
Reply answer_gcs(Site& site, const ServeRequest& request, std::string_view rest);
Reply answer_bucket(Site& site, const ServeRequest& request, std::string_view key);

}  // namespace ckfs
