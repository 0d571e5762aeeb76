// The reads of Google Cloud Storage's JSON API: a list of objects, what is known of one, its bytes.
// A generation is a number of the object's ETag, so it is the same on all hosts, and another one
// for other bytes.

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "fetch/url.h"
#include "serve/object_list.h"
#include "serve/site.h"
#include "wire/crypto.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::string_view kType = "application/json; charset=UTF-8";
constexpr std::size_t kMostResults = 1000;

Reply gcs_error(int status, std::string_view text) {
  const std::string line = header_text(text);
  const std::string quoted = json_name(line).value_or("\"\"");
  Reply reply{.status = status, .headers = {{"Content-Type", std::string(kType)}}};
  reply.text = fmt::format(
      R"({{"error":{{"code":{},"message":{},"errors":[{{"message":{},"domain":"global","reason":"{}"}}]}}}})",
      status, quoted, quoted, status == 404 ? "notFound" : "invalid");
  return reply;
}

std::uint64_t generation_of(std::string_view tag) {
  std::uint64_t number = 0;
  std::from_chars(tag.data(), tag.data() + 13, number, 16);  // as many bits as JSON numbers keep
  return number + 1;
}

Result<std::string> object_json(const Site& site, std::string_view key, std::uint64_t size,
                                std::string_view tag) {
  CKFS_TRY(const std::string quoted, json_name(key));
  const std::uint64_t generation = generation_of(tag);
  const std::string time = iso_time(site.mtime);
  return fmt::format(
      R"({{"kind":"storage#object","id":"{}","name":{},"bucket":"{}","generation":"{}",)"
      R"("metageneration":"1","contentType":"{}","storageClass":"STANDARD","size":"{}",)"
      R"("etag":"{}","timeCreated":"{}","updated":"{}"}})",
      generation, quoted, site.bucket, generation, content_type(key), size, tag, time, time);
}

Reply answer_objects(Site& site, const ServeRequest& request) {
  const auto parameter = [&](std::string_view name) {
    return std::string(request.parameter(name).value_or(""));
  };
  ListQuery query{.prefix = parameter("prefix"),
                  .delimiter = parameter("delimiter"),
                  .from = parameter("startOffset"),
                  .most = kMostResults};
  if (const auto end = request.parameter("endOffset"); end && !end->empty()) {
    query.before = std::string(*end);
  }
  if (const std::string token = parameter("pageToken"); !token.empty()) {
    auto after = from_hex(token);
    if (!after) return gcs_error(400, "pageToken: not one of this server");
    query.after = *std::move(after);
  }
  if (const std::string most = parameter("maxResults"); !most.empty()) {
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(most.data(), most.data() + most.size(), number);
    if (error != std::errc() || end != most.data() + most.size() || number == 0) {
      return gcs_error(400, "maxResults: not a number");
    }
    query.most = std::min(number, kMostResults);
  }
  const Result<ObjectPage> page = list_objects(site.views, query);
  if (!page) return gcs_error(status_of(page.error()), page.error().message());
  std::string items, prefixes;
  for (const ListedKey& each : page->objects) {
    const auto text =
        each.is_prefix ? json_name(each.key) : object_json(site, each.key, each.size, each.tag);
    if (!text) return gcs_error(500, text.error().message());
    std::string& list = each.is_prefix ? prefixes : items;
    if (!list.empty()) list += ',';
    list += *text;
  }
  Reply reply{.headers = {{"Content-Type", std::string(kType)}}};
  reply.text = R"({"kind":"storage#objects")";
  if (page->is_cut) {
    reply.text += fmt::format(R"(,"nextPageToken":"{}")", to_hex(page->objects.back().key));
  }
  if (!prefixes.empty()) reply.text += fmt::format(R"(,"prefixes":[{}])", prefixes);
  if (!items.empty()) reply.text += fmt::format(R"(,"items":[{}])", items);
  reply.text += '}';
  return reply;
}

/// Whether a parameter is there and names another generation, or this one where that is asked.
bool has_generation(const ServeRequest& request, std::string_view name, std::uint64_t generation,
                    bool equal) {
  const auto value = request.parameter(name);
  return value && (*value == fmt::format("{}", generation)) == equal;
}

Reply answer_object(Site& site, const ServeRequest& request, std::string_view key) {
  const Result<NamedFile> file = find_file(site, key);
  if (!file) return gcs_error(status_of(file.error()), file.error().message());
  const FileInfo info = file->view->files()[file->index];
  const std::string tag = file->view->tag(info);
  const std::uint64_t generation = generation_of(tag);
  if (has_generation(request, "generation", generation, false)) {
    return gcs_error(404, fmt::format("{}: its one generation is {}", one_line(key), generation));
  }
  if (has_generation(request, "ifGenerationMatch", generation, false)) {
    return gcs_error(412, fmt::format("{}: its generation is {}", one_line(key), generation));
  }
  if (has_generation(request, "ifGenerationNotMatch", generation, true)) return {.status = 304};
  if (request.parameter("alt").value_or("json") != "media") {
    const auto text = object_json(site, key, info.size, tag);
    if (!text) return gcs_error(500, text.error().message());
    return {.headers = {{"Content-Type", std::string(kType)}}, .text = *text};
  }
  Reply reply = file_reply(site, request, *file);
  reply.headers.emplace_back("x-goog-generation", fmt::format("{}", generation));
  reply.headers.emplace_back("x-goog-metageneration", "1");
  reply.headers.emplace_back("x-goog-stored-content-encoding", "identity");
  reply.headers.emplace_back("x-goog-stored-content-length", fmt::format("{}", info.size));
  reply.headers.emplace_back("x-goog-storage-class", "STANDARD");
  return reply;
}

}  // namespace

Reply answer_gcs(Site& site, const ServeRequest& request, std::string_view rest) {
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view bucket = rest.substr(0, slash);
  rest.remove_prefix(std::min(slash + 1, rest.size()));
  if (bucket != site.bucket) {
    return gcs_error(
        404, fmt::format("{}: no such bucket (there is {})", one_line(bucket), site.bucket));
  }
  if (rest.empty()) {
    const std::string time = iso_time(site.mtime);
    return {
        .headers = {{"Content-Type", std::string(kType)}},
        .text = fmt::format(R"({{"kind":"storage#bucket","id":"{}","name":"{}","location":"US",)"
                            R"("storageClass":"STANDARD","metageneration":"1","timeCreated":"{}",)"
                            R"("updated":"{}"}})",
                            site.bucket, site.bucket, time, time)};
  }
  if (rest == "o" || rest == "o/") return answer_objects(site, request);
  if (!rest.starts_with("o/")) return gcs_error(404, "buckets have objects and nothing else");
  return answer_object(site, request, rest.substr(2));
}

}  // namespace ckfs
