// The routes, S3's answers and HTTP's listings. A client of S3 and a browser may ask for one path
// and want different answers, in three places: for a directory, for an error, and for "/", which
// lists buckets. The headers and parameters of a request show which of the two sent it.

#include "serve/site.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>

#include "api/status.h"
#include "base/text.h"
#include "fetch/url.h"
#include "serve/conditions.h"
#include "serve/object_list.h"
#include "wire/crypto.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::string_view kXml = "application/xml";
constexpr std::string_view kHtml = "text/html; charset=utf-8";
constexpr std::string_view kPlain = "text/plain; charset=utf-8";
constexpr std::string_view kXmlHead = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
constexpr std::string_view kS3Names = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
constexpr std::size_t kMostKeys = 1000;  // of a page, as S3 has it
constexpr std::string_view kRegion = "us-east-1";

/// Routes that a bucket's name would hide.
constexpr auto kReservedNames =
    std::to_array<std::string_view>({kHubOrganization, "api", "storage", "download"});

bool is_from_s3(const ServeRequest& request) {
  if (request.header("authorization").starts_with("AWS")) return true;
  for (const auto& [name, value] : request.headers) {
    if (name.starts_with("x-amz-") || name.starts_with("amz-sdk-")) return true;
  }
  constexpr auto kParameters = std::to_array<std::string_view>(
      {"X-Amz-Algorithm", "AWSAccessKeyId", "list-type", "prefix", "delimiter", "marker",
       "max-keys", "encoding-type", "location", "versioning", "x-id"});
  return std::ranges::any_of(kParameters,
                             [&](auto name) { return request.parameter(name).has_value(); });
}

Reply text_reply(int status, std::string_view type, std::string text) {
  Reply reply{.status = status, .headers = {{"Content-Type", std::string(type)}}};
  reply.text = std::move(text);
  return reply;
}

Reply s3_error_of(const ServeRequest& request, const Error& error) {
  const int status = status_of(error);
  const std::string_view code = status == 404   ? "NoSuchKey"
                                : status == 503 ? "SlowDown"
                                                : "InternalError";
  return s3_error(request, status, code, error.message());
}

/// An element whose text is a name: encoded where the client asks for that. nullopt: XML cannot
/// hold it.
std::optional<std::string> name_element(std::string_view element, std::string_view name,
                                        bool encoded) {
  const auto text = encoded ? std::optional(percent_encode(name, "/")) : xml_text(name);
  if (!text) return std::nullopt;
  return fmt::format("<{}>{}</{}>", element, *text, element);
}

Reply answer_list(Site& site, const ServeRequest& request) {
  const auto parameter = [&](std::string_view name) {
    return std::string(request.parameter(name).value_or(""));
  };
  const bool second = parameter("list-type") == "2";
  const bool encoded = parameter("encoding-type") == "url";
  ListQuery query{.prefix = parameter("prefix"), .delimiter = parameter("delimiter")};
  if (const auto most = request.parameter("max-keys")) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(most->data(), most->data() + most->size(), number);
    if (error != std::errc() || end != most->data() + most->size()) {
      return s3_error(request, 400, "InvalidArgument", "max-keys: not a number");
    }
    query.most = std::min(number, kMostKeys);
  }
  query.after = parameter(second ? "start-after" : "marker");
  const std::string token = parameter("continuation-token");
  if (second && !token.empty()) {
    auto after = from_hex(token);
    if (!after) {
      return s3_error(request, 400, "InvalidArgument",
                      "continuation-token: not one of this server");
    }
    query.after = *std::move(after);
  }
  const Result<ObjectPage> page = list_objects(site.views, query);
  if (!page) return s3_error_of(request, page.error());

  std::string body(kXmlHead);
  bool is_whole = true;  // every name can be written
  const auto add_name = [&](std::string_view element, std::string_view name) {
    const auto text = name_element(element, name, encoded);
    if (text) {
      body += *text;
    } else {
      is_whole = false;
    }
  };
  body += fmt::format("<ListBucketResult {}><Name>{}</Name>", kS3Names, site.bucket);
  add_name("Prefix", query.prefix);
  if (!query.delimiter.empty()) add_name("Delimiter", query.delimiter);
  body += fmt::format("<MaxKeys>{}</MaxKeys>", query.most);
  if (encoded) body += "<EncodingType>url</EncodingType>";
  body += fmt::format("<IsTruncated>{}</IsTruncated>", page->is_cut);
  const std::string last = page->is_cut ? page->objects.back().key : "";
  if (second) {
    body += fmt::format("<KeyCount>{}</KeyCount>", page->objects.size());
    if (!token.empty()) {
      body += fmt::format("<ContinuationToken>{}</ContinuationToken>", token);
    } else if (!query.after.empty()) {
      add_name("StartAfter", query.after);
    }
    if (page->is_cut) {
      body += fmt::format("<NextContinuationToken>{}</NextContinuationToken>", to_hex(last));
    }
  } else {
    add_name("Marker", query.after);
    if (page->is_cut) add_name("NextMarker", last);
  }
  const std::string time = iso_time(site.mtime);
  for (const ListedKey& each : page->objects) {
    if (each.is_prefix) {
      body += "<CommonPrefixes>";
      add_name("Prefix", each.key);
      body += "</CommonPrefixes>";
      continue;
    }
    body += "<Contents>";
    add_name("Key", each.key);
    body += fmt::format(
        "<LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag><Size>{}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>",
        time, each.tag, each.size);
  }
  body += "</ListBucketResult>";
  if (!is_whole) {
    return s3_error(request, 400, "InvalidArgument",
                    "a key that XML cannot hold: list with encoding-type=url");
  }
  return text_reply(200, kXml, std::move(body));
}

Reply answer_buckets(const Site& site) {
  return text_reply(
      200, kXml,
      fmt::format("{}<ListAllMyBucketsResult {}><Owner><ID>ckfs</ID><DisplayName>ckfs</DisplayName>"
                  "</Owner><Buckets><Bucket><Name>{}</Name><CreationDate>{}</CreationDate></Bucket>"
                  "</Buckets></ListAllMyBucketsResult>",
                  kXmlHead, kS3Names, site.bucket, iso_time(site.mtime)));
}

/// A name in a page: what cannot be shown is shown encoded.
std::string shown_name(std::string_view name) {
  return xml_text(name).value_or(percent_encode(name));
}

std::string page_head(std::string_view title) {
  const std::string shown = shown_name(title);
  return fmt::format(
      "<!DOCTYPE html>\n<html><head><title>{}</title></head><body>\n<h1>{}</h1>\n<pre>\n", shown,
      shown);
}

std::string page_line(std::string_view name, bool is_directory, std::uint64_t size) {
  const std::string slash = is_directory ? "/" : "";
  return fmt::format("<a href=\"{}{}\">{}{}</a>{}\n", percent_encode(name), slash, shown_name(name),
                     slash, is_directory ? "" : fmt::format("  {}", size));
}

constexpr std::string_view kPageEnd = "</pre>\n</body></html>\n";

Reply answer_root(const Site& site) {
  return text_reply(200, kHtml,
                    page_head("/") + page_line(site.bucket, true, 0) + std::string(kPageEnd));
}

/// A directory, a page of the list after another; `prefix` is empty or ends with '/'.
Reply answer_directory(Site& site, const ServeRequest& request, const std::string& prefix) {
  ListQuery query{.prefix = prefix, .delimiter = "/"};
  const Result<ObjectPage> first = list_objects(site.views, query);
  if (!first) return s3_error_of(request, first.error());
  if (first->objects.empty()) {
    return s3_error(request, 404, "NoSuchKey", fmt::format("{}: no such directory", prefix));
  }
  Reply reply{.headers = {{"Content-Type", std::string(kHtml)}}};
  // Listed again part by part: what this closure keeps is a name.
  reply.parts = [&site, query, title = request.path, state = 0]() mutable -> Result<std::string> {
    if (state == 2) return std::string();
    CKFS_TRY(const ObjectPage page, list_objects(site.views, query));
    std::string part =
        std::exchange(state, 1) == 0 ? page_head(title) + "<a href=\"../\">../</a>\n" : "";
    for (const ListedKey& each : page.objects) {
      std::string_view name = std::string_view(each.key).substr(query.prefix.size());
      if (each.is_prefix) name.remove_suffix(1);
      part += page_line(name, each.is_prefix, each.size);
    }
    if (page.is_cut) {
      query.after = page.objects.back().key;
    } else {
      part += kPageEnd;
      state = 2;
    }
    return part;
  };
  return reply;
}

Reply answer_control(Site& site, const ServeRequest& request, std::string_view name) {
  if (name == "metrics") {
    return text_reply(200, "text/plain; version=0.0.4; charset=utf-8",
                      metrics_text(site.views.checkpoint(), site.facts));
  }
  if (name == "status.json") {
    return text_reply(200, "application/json",
                      status_json(site.views.checkpoint(), site.facts, {},
                                  static_cast<std::int64_t>(std::time(nullptr))));
  }
  if (name == "health") return text_reply(200, kPlain, "ok\n");
  return s3_error(request, 404, "NoSuchKey", ".ckfs: there are health, metrics and status.json");
}

/// What of a bucket or an object S3 knows and a view does not have.
bool asks_for_more(const ServeRequest& request) {
  constexpr auto kOthers = std::to_array<std::string_view>({"acl",
                                                            "policy",
                                                            "cors",
                                                            "tagging",
                                                            "uploads",
                                                            "uploadId",
                                                            "versions",
                                                            "lifecycle",
                                                            "object-lock",
                                                            "encryption",
                                                            "notification",
                                                            "replication",
                                                            "website",
                                                            "logging",
                                                            "torrent",
                                                            "attributes",
                                                            "retention",
                                                            "legal-hold",
                                                            "select",
                                                            "policyStatus",
                                                            "ownershipControls",
                                                            "publicAccessBlock",
                                                            "requestPayment",
                                                            "analytics",
                                                            "inventory",
                                                            "accelerate"});
  return std::ranges::any_of(kOthers,
                             [&](auto name) { return request.parameter(name).has_value(); });
}

}  // namespace

std::string bucket_name(std::string_view source) {
  while (source.ends_with('/')) source.remove_suffix(1);
  source = source.substr(source.rfind('/') + 1);  // npos + 1 is 0
  if (const std::size_t at = source.find('@'); at != std::string_view::npos) {
    source = source.substr(0, at);
  }
  std::string name;
  for (char c : source.substr(0, 63)) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    const bool is_known = is_digit(c) || (c >= 'a' && c <= 'z') || c == '.' || c == '-';
    name += is_known ? c : '-';
  }
  const std::size_t begin = name.find_first_not_of(".-");
  if (begin == std::string::npos) return {};
  return name.substr(begin, name.find_last_not_of(".-") + 1 - begin);
}

Result<void> check_bucket_name(std::string_view bucket) {
  const auto is_plain = [](char c) { return is_digit(c) || (c >= 'a' && c <= 'z'); };
  const bool is_name =
      bucket.size() >= 3 && bucket.size() <= 63 && is_plain(bucket.front()) &&
      is_plain(bucket.back()) &&
      std::ranges::all_of(bucket, [&](char c) { return is_plain(c) || c == '.' || c == '-'; });
  if (!is_name) {
    return fail(
        ErrorCode::InvalidArgument,
        "bucket: {} is not a name (3 to 63 of a-z, 0-9, '.' and '-'; --bucket NAME sets it)",
        quote(bucket));
  }
  if (std::ranges::find(kReservedNames, bucket) != kReservedNames.end()) {
    return fail(ErrorCode::InvalidArgument,
                "bucket: \"{}\" is the beginning of another route (--bucket NAME sets it)", bucket);
  }
  return {};
}

Reply s3_error(const ServeRequest& request, int status, std::string_view code,
               std::string_view text) {
  Reply reply;
  if (is_from_s3(request)) {
    reply = text_reply(
        status, kXml,
        fmt::format("{}<Error><Code>{}</Code><Message>{}</Message><Resource>{}</Resource></Error>",
                    kXmlHead, code, shown_name(one_line(text)), shown_name(request.path)));
  } else {
    reply = text_reply(status, kPlain, one_line(text) + "\n");
  }
  if (status == 401) reply.headers.emplace_back("WWW-Authenticate", "Basic realm=\"ckfs\"");
  if (status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

Result<NamedFile> find_file(Site& site, std::string_view key) {
  const std::size_t slash = key.find('/');
  if (slash == std::string_view::npos) {
    return fail(ErrorCode::NotFound, "{}: not a key (VIEW/PATH)", one_line(key));
  }
  CKFS_TRY(auto view, site.views.find(key.substr(0, slash)));
  const auto index = view->files().find(key.substr(slash + 1));
  if (!index) return fail(ErrorCode::NotFound, "{}: no such file", one_line(key));
  return NamedFile{std::move(view), *index};
}

Reply file_reply(const Site& site, const ServeRequest& request, const NamedFile& file) {
  const FileInfo info = file.view->files()[file.index];
  const std::string tag = file.view->tag(info);
  const AskedBytes wanted = asked_bytes(request, tag, site.mtime, info.size);
  switch (wanted.wanted) {
    case Wanted::Failed:
      return s3_error(request, 412, "PreconditionFailed",
                      fmt::format("{}: its ETag is \"{}\" now", info.path, tag));
    case Wanted::Unsatisfiable: {
      Reply reply = s3_error(request, 416, "InvalidRange",
                             fmt::format("{}: it has {} bytes", info.path, info.size));
      reply.headers.emplace_back("Content-Range", fmt::format("bytes */{}", info.size));
      return reply;
    }
    default:
      break;
  }
  Reply reply;
  reply.headers = {{"ETag", fmt::format("\"{}\"", tag)},
                   {"Last-Modified", http_time(site.mtime)},
                   {"Accept-Ranges", "bytes"}};
  if (wanted.wanted == Wanted::NotModified) {
    reply.status = 304;
    return reply;
  }
  reply.headers.emplace_back("Content-Type", content_type(info.path));
  reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
  reply.headers.emplace_back("x-amz-meta-ckfs-exactness", name(info.exactness));
  if (wanted.wanted == Wanted::Part) {
    reply.status = 206;
    reply.headers.emplace_back("Content-Range", fmt::format("bytes {}-{}/{}", wanted.range.begin,
                                                            wanted.range.end - 1, info.size));
  }
  reply.file = FileBytes{file.view, std::string(info.path), wanted.range};
  return reply;
}

Reply answer_bucket(Site& site, const ServeRequest& request, std::string_view key) {
  const bool from_s3 = is_from_s3(request);
  if (asks_for_more(request)) {
    return s3_error(request, 501, "NotImplemented", "views have files and nothing else");
  }
  if (key.empty()) {
    if (request.method == "HEAD") {
      return {.headers = {{"x-amz-bucket-region", std::string(kRegion)}}};
    }
    if (!from_s3) return answer_directory(site, request, "");
    if (request.parameter("location")) {
      return text_reply(200, kXml, fmt::format("{}<LocationConstraint {}/>", kXmlHead, kS3Names));
    }
    if (request.parameter("versioning")) {
      return text_reply(200, kXml,
                        fmt::format("{}<VersioningConfiguration {}/>", kXmlHead, kS3Names));
    }
    return answer_list(site, request);
  }
  if (key.ends_with('/') && !from_s3) return answer_directory(site, request, std::string(key));
  const Result<NamedFile> file = find_file(site, key);
  if (file) {
    const std::string_view version = request.parameter("versionId").value_or("null");
    if (version != "null") {
      return s3_error(request, 404, "NoSuchVersion", "there is one version, \"null\"");
    }
    if (request.parameter("partNumber").value_or("1") != "1") {
      return s3_error(request, 416, "InvalidPartNumber", "there is one part, 1");
    }
    return file_reply(site, request, *file);
  }
  // A HEAD is how clients of S3 ask whether a name is an object, and without a key nothing shows
  // that they are such clients (rclone): what leads to a page would look like one.
  if (!from_s3 && request.method == "GET" && status_of(file.error()) == 404) {
    const auto inside =
        list_objects(site.views, {.prefix = std::string(key) + '/', .delimiter = "/", .most = 1});
    if (inside && !inside->objects.empty()) {
      Reply reply = text_reply(301, kPlain, "a directory\n");
      reply.headers.emplace_back("Location", percent_encode(request.path, "/") + '/');
      return reply;
    }
  }
  return s3_error_of(request, file.error());
}

bool asks_for_health(const ServeRequest& request) {
  return request.path == "/.ckfs/health";
}

Reply answer_request(Site& site, const ServeRequest& request) {
  if (request.method != "GET" && request.method != "HEAD") {
    Reply reply = s3_error(request, 405, "MethodNotAllowed", "views are read-only");
    reply.headers.emplace_back("Allow", "GET, HEAD");
    return reply;
  }
  const std::string_view path = request.path;
  if (request.host.starts_with(site.bucket + '.')) {
    return answer_bucket(site, request, path.substr(1));
  }
  if (path == "/") return is_from_s3(request) ? answer_buckets(site) : answer_root(site);
  const std::size_t slash = std::min(path.find('/', 1), path.size());
  const std::string_view first = path.substr(1, slash - 1);
  const std::string_view rest = path.substr(std::min(slash + 1, path.size()));
  if (first == site.bucket) {
    if (slash == path.size() && request.method == "GET" && !is_from_s3(request)) {
      Reply reply = text_reply(301, kPlain, "a directory\n");
      reply.headers.emplace_back("Location", fmt::format("/{}/", site.bucket));
      return reply;
    }
    return answer_bucket(site, request, rest);
  }
  constexpr std::string_view kGcs = "/storage/v1/b/", kGcsDownload = "/download/storage/v1/b/";
  if (path.starts_with(kGcs)) return answer_gcs(site, request, path.substr(kGcs.size()));
  if (path.starts_with(kGcsDownload)) {
    return answer_gcs(site, request, path.substr(kGcsDownload.size()));
  }
  if (first == "api") return answer_hub_api(site, request, rest);
  if (first == kHubOrganization) return answer_hub_file(site, request, rest);
  if (first == ".ckfs") return answer_control(site, request, rest);
  return s3_error(request, 404, "NoSuchBucket",
                  fmt::format("{}: no such bucket (there is {})", one_line(first), site.bucket));
}

}  // namespace ckfs
