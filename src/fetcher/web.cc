// There is no listing: names are asked for one by one, by GET and not by HEAD, since a signed URL
// is signed for one of them.
//
// Redirects are a stranger's word. They are followed five deep, never from https to http, never to
// this machine (unless the server is there) and never to the addresses of metadata services
// (http.h); credentials go to the origin that the user has named, and nowhere else.

#include "fetcher/web.h"

#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "fetcher/listing.h"
#include "format/json_tree.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::size_t kMostIndex = std::size_t{64} << 20;
constexpr int kMostWebRedirects = 5;
constexpr std::size_t kMostShards = 4096;

constexpr auto kIndexes = std::to_array<std::string_view>(
    {"model.safetensors.index.json", "pytorch_model.bin.index.json"});
/// What else a model directory may have.
constexpr auto kFiles = std::to_array<std::string_view>(
    {"model.safetensors", "pytorch_model.bin", "config.json", "generation_config.json",
     "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
     "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja",
     "preprocessor_config.json", "processor_config.json", "README.md", "LICENSE"});

class Web final : public Service {
 public:
  /// `url` is the location's, with a password that was found for it.
  Web(const ServiceContext& context, SourceLocation location, Url url, HttpHeaders headers,
      bool is_file)
      : context_(context),
        location_(std::move(location)),
        base_(std::move(url)),
        headers_(std::move(headers)),
        is_file_(is_file) {}

  Result<RemoteSource> open(std::string_view /*known*/) override {
    RemoteSource source{.pinned = location_};
    const std::string thing = location_.masked();
    if (!base_.path.ends_with('/')) {
      source.is_file = is_file_ = true;
      const std::string_view path = base_.path;
      CKFS_TRY(const std::string name, percent_decode(path.substr(path.rfind('/') + 1)));
      CKFS_TRY(const bool found, probe(name, thing, source));
      if (!found)
        return fail(ErrorCode::NotFound,
                    "{}: the server has no such file (404; a directory ends with /)", thing);
    } else {
      CKFS_TRY_VOID(probe_directory(thing, source));
    }
    CKFS_TRY_VOID(finish_objects(thing, source));
    return source;
  }

  Result<std::optional<HttpRequest>> ask(const RemoteObject& object, ByteRange range) override {
    HttpRequest request = request_of(object.name);
    request.wanted = RangeWanted{range, object.size, {}};
    if (object.version.starts_with("etag:")) {
      const std::string etag = object.version.substr(5);
      request.wanted->versions = {{"etag", etag}};
      request.headers.emplace_back("if-match", etag);
    } else if (object.version.starts_with("modified:")) {
      request.wanted->versions = {{"last-modified", object.version.substr(9)}};
    }
    return std::optional(std::move(request));
  }

  AnswerVerdict heed(const RemoteObject& object, const HttpRequest& request,
                     const HttpAnswer& answer) override {
    const std::string thing = fmt::format("{}: {}", location_.masked(), quote(object.name));
    if (answer.fault == HttpFault::None && answer.status >= 301 && answer.status <= 308) {
      const auto followed = follow(object.name, request.url, answer, thing);
      if (!followed) return {.error = followed.error()};
      return {.what = AnswerVerdict::Do::Again};
    }
    const bool is_refused =
        answer.fault == HttpFault::None && (answer.status == 401 || answer.status == 403 ||
                                            answer.status == 404 || answer.status == 410);
    Place& place = places_[object.name];
    if (is_refused && place.url) {
      // The target of its redirection is gone: asked anew, once a minute.
      if (place.url != request.url) return {.what = AnswerVerdict::Do::Again};
      if (context_.here.now() - place.refused > 60) {
        place = Place{};
        place.refused = context_.here.now();
        return {.what = AnswerVerdict::Do::Again};
      }
    }
    if (is_refused && (answer.status == 404 || answer.status == 410)) {
      return {.error = Error(ErrorCode::Stale,
                             fmt::format("{}: it was there and is not any more (open the source "
                                         "again)",
                                         thing))};
    }
    return judge(thing, answer, context_.here.now());
  }

 private:
  /// Where a file is by redirects; none: where the user has said.
  struct Place {
    std::optional<Url> url;
    int redirects = 0;
    std::int64_t refused = 0;  // when redirects were last followed anew
  };

  Url url_of(std::string_view name) const {
    Url url = base_;
    if (!is_file_) url.path += percent_encode(name, "/");
    return url;
  }

  HttpRequest request_of(const std::string& name) {
    const Place& place = places_[name];
    HttpRequest request{.url = place.url ? *place.url : url_of(name), .headers = {}};
    if (request.url.origin() == base_.origin()) {
      request.url.user = base_.user;
      request.headers = headers_;
    }
    return request;
  }

  Result<void> follow(const std::string& name, const Url& from, const HttpAnswer& answer,
                      std::string_view thing) {
    Place& place = places_[name];
    const auto to = resolve_reference(from, find_header(answer.headers, "location"));
    if (!to) return fail(ErrorCode::Io, "{}: the server redirects to no place", thing);
    if (from.secure && !to->secure) {
      return fail(ErrorCode::Io, "{}: the server redirects from https to http", thing);
    }
    if ((is_loopback_host(to->host) && !is_loopback_host(base_.host)) ||
        is_link_local_host(to->host)) {
      return fail(ErrorCode::Io, "{}: the server redirects to {}, an address of this machine",
                  thing, to->origin());
    }
    if (++place.redirects > kMostWebRedirects) {
      return fail(ErrorCode::Io, "{}: more than {} redirects", thing, kMostWebRedirects);
    }
    place.url = *to;
    return {};
  }

  /// Sends the request for that name, redirects followed.
  Result<HttpAnswer> get(const std::string& name, std::string_view thing, bool headers_only) {
    for (;;) {
      HttpRequest request = request_of(name);
      request.most_body = kMostIndex;
      request.headers_only = headers_only;
      if (headers_only) request.headers.emplace_back("range", "bytes=0-0");
      CKFS_TRY(HttpAnswer answer, call(context_, request, thing));
      if (answer.status < 301 || answer.status > 308) return answer;
      CKFS_TRY_VOID(follow(name, request.url, answer, thing));
    }
  }

  /// Adds the file of that name. False: there is none.
  Result<bool> probe(const std::string& name, std::string_view thing, RemoteSource& source) {
    CKFS_TRY(const HttpAnswer answer, get(name, thing, true));
    return add(name, answer, thing, source);
  }

  /// Adds those files of these names that are there.
  Result<void> probe_all(const std::set<std::string>& names, std::string_view thing,
                         RemoteSource& source) {
    constexpr std::size_t kAtOnce = 16;
    struct Probes {
      std::map<std::string, HttpAnswer> answers;
      std::size_t under_way = 0;
    };
    // Those under way outlive this call if memory ends in it.
    const auto probes = std::make_shared<Probes>();
    for (auto next = names.begin(); next != names.end() || probes->under_way > 0;) {
      while (next != names.end() && probes->under_way < kAtOnce) {
        HttpRequest request = request_of(*next);
        request.headers_only = true;
        request.headers.emplace_back("range", "bytes=0-0");
        context_.http.start(std::move(request), [probes, name = *next](HttpAnswer answer) {
          --probes->under_way;
          probes->answers[name] = std::move(answer);
        });
        ++probes->under_way;
        ++next;
      }
      context_.http.step(std::chrono::milliseconds(100));
    }
    for (const auto& [name, answer] : probes->answers) {
      const bool is_final = answer.fault == HttpFault::None &&
                            (answer.is_success() || answer.status == 404 || answer.status == 416);
      // What failed is tried again, and redirects are followed, one by one.
      CKFS_TRY([[maybe_unused]] const bool found,
               is_final ? add(name, answer, thing, source) : probe(name, thing, source));
    }
    return {};
  }

  /// Adds the file that an answer is about. False: there is none.
  static Result<bool> add(const std::string& name, const HttpAnswer& answer, std::string_view thing,
                          RemoteSource& source) {
    if (answer.status == 404 || answer.status == 410) return false;
    std::optional<std::uint64_t> size;
    const std::string_view header = find_header(answer.headers, "content-range");
    if (answer.status == 206 || answer.status == 200) {
      if (const auto range = parse_content_range(header)) size = range->total;
    }
    const std::string_view length = find_header(answer.headers, "content-length");
    if ((answer.status == 416 && header == "bytes */0") ||
        (answer.status == 200 && header.empty() && length == "0")) {
      size = 0;
    }
    if (!size && answer.is_success()) {
      return fail(ErrorCode::Unsupported,
                  "{}: the server sends no ranges, so nothing can be read of it but all (download "
                  "it)",
                  thing);
    }
    if (!size) return Failure(answer_error(thing, answer));
    const std::string_view etag = find_header(answer.headers, "etag");
    const std::string_view modified = find_header(answer.headers, "last-modified");
    RemoteObject object{.name = name,
                        .size = *size,
                        .version = fmt::format("size:{}", *size),
                        .time = parse_http_time(modified).value_or(0)};
    if (etag.size() > 2 && etag.starts_with('"')) {
      object.version = fmt::format("etag:{}", etag);
    } else {
      source.is_pinned = false;
      if (!modified.empty()) object.version = fmt::format("modified:{}", modified);
    }
    source.time = std::max(source.time, object.time);
    source.objects.push_back(std::move(object));
    return true;
  }

  Result<void> probe_directory(std::string_view thing, RemoteSource& source) {
    std::set<std::string> names(kFiles.begin(), kFiles.end());
    for (const std::string_view index : kIndexes) {
      CKFS_TRY(const bool found, probe(std::string(index), thing, source));
      if (!found) continue;
      CKFS_TRY(const HttpAnswer answer, get(std::string(index), thing, false));
      if (!answer.is_success()) return Failure(answer_error(thing, answer));
      CKFS_TRY_VOID(add_shards(index, answer.body, names));
    }
    return probe_all(names, thing, source);
  }

  /// The files that an index names.
  static Result<void> add_shards(std::string_view index, std::string_view text,
                                 std::set<std::string>& names) {
    CKFS_TRY(const JsonNode tree, parse_json_tree(text, index, JsonKeys::LastWins));
    const JsonNode* const map = tree.find("weight_map");
    if (map == nullptr || map->kind != JsonNode::Kind::Object) {
      return fail(ErrorCode::Corrupt, "{}: no weight_map", index);
    }
    for (const JsonNode& shard : map->items) {
      if (const auto fault = object_name_fault(shard.text)) {
        return fail(ErrorCode::Corrupt, "{}: {}: {}", index, quote(shard.text), *fault);
      }
      names.insert(shard.text);
      if (names.size() > kMostShards) {
        return fail(ErrorCode::Unsupported, "{}: more than {} files", index, kMostShards);
      }
    }
    return {};
  }

  ServiceContext context_;
  SourceLocation location_;
  Url base_;
  HttpHeaders headers_;  // of the user, for base_'s origin
  bool is_file_;
  std::unordered_map<std::string, Place> places_;
};

/// `Name: value`, one a line.
Result<HttpHeaders> parse_headers(std::string_view text, std::string_view file) {
  HttpAnswer lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool is_text = line.find_first_of("\r\0") == std::string_view::npos;
    if (!is_text || line.starts_with("HTTP/") || !take_header_line(line, lines)) {
      return fail(ErrorCode::InvalidArgument, "{}: a line is not a header (Name: value)", file);
    }
  }
  return std::move(lines.headers);
}

}  // namespace

std::string find_netrc(std::string_view text, std::string_view host) {
  std::string login, password;
  bool is_its = false;
  const auto word = [&]() -> std::string_view {
    const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
    const std::size_t end = std::min(text.find_first_of(" \t\r\n", begin), text.size());
    const std::string_view found = text.substr(begin, end - begin);
    text.remove_prefix(end);
    return found;
  };
  for (std::string_view key = word(); !key.empty(); key = word()) {
    if (key == "machine" || key == "default") {
      if (is_its && !login.empty()) break;
      is_its = key == "default" || word() == host;
    } else if (key == "login" || key == "password") {
      const std::string_view value = word();
      if (is_its) (key == "login" ? login : password) = percent_encode(value);
    } else if (key == "macdef") {
      const std::size_t end = text.find("\n\n");
      text.remove_prefix(std::min(end, text.size()));
    }
  }
  return login.empty() ? "" : fmt::format("{}:{}", login, password);
}

Result<std::unique_ptr<Service>> make_web(const ServiceContext& context,
                                          const SourceLocation& location,
                                          const RemoteOptions& options, bool is_file) {
  Url url = location.url;
  HttpHeaders headers;
  if (!options.header_file.empty() && !options.anonymous) {
    CKFS_TRY(const std::string text, context.here.read_file(options.header_file));
    CKFS_TRY(headers, parse_headers(text, options.header_file));
  }
  if (url.user.empty() && !options.anonymous) {
    std::string path = context.here.variable("NETRC");
    if (path.empty()) path = context.here.at_home(".netrc");
    const auto text = path.empty() ? Result<std::string>("") : context.here.read_file(path);
    if (text) url.user = find_netrc(*text, url.host);
  }
  return std::make_unique<Web>(context, location, std::move(url), std::move(headers), is_file);
}

}  // namespace ckfs
