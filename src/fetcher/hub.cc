// Redirects are followed by hand: what the hub says of a file (commit, size, hash) is in the
// redirect only; the token must not go to the host that it leads to; and the URL is to be kept.
//
// A relative redirect is the hub's own (a renamed repository, a cache of small files) and is
// followed with the token; the first to another origin is where the bytes are.

#include "fetcher/hub.h"

#include "base/text.h"
#include "fetcher/listing.h"

namespace ckfs {
namespace {

constexpr std::size_t kMostPage = std::size_t{16} << 20;
constexpr int kMostRedirects = 5;

/// The token of a user; empty: none.
std::string hub_token(const Surroundings& here) {
  if (here.is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return {};
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string token(trim(here.variable(name))); !token.empty()) return token;
  }
  std::string path = here.variable("HF_TOKEN_PATH");
  if (path.empty()) {
    const std::string home = here.variable("HF_HOME");
    const std::string cache = here.variable("XDG_CACHE_HOME");
    path = !home.empty()    ? home + "/token"
           : !cache.empty() ? cache + "/huggingface/token"
                            : here.at_home(".cache/huggingface/token");
  }
  const auto text = path.empty() ? Result<std::string>("") : here.read_file(path);
  return text ? std::string(trim(*text)) : "";
}

class Hub final : public Service {
 public:
  Hub(const ServiceContext& context, SourceLocation location, Url endpoint, std::string token,
      bool is_file)
      : context_(context),
        location_(std::move(location)),
        endpoint_(std::move(endpoint)),
        token_(std::move(token)),
        is_file_(is_file) {}

  Result<RemoteSource> open(std::string_view known) override {
    const std::string thing = location_.masked();
    CKFS_TRY(const HttpAnswer answer,
             ask_api(api(fmt::format("/api/models/{}/revision/{}", location_.container,
                                     percent_encode(location_.revision))),
                     thing));
    if (!answer.is_success()) return Failure(refusal(thing, answer));
    CKFS_TRY(const HubRevision revision, parse_hub_revision(answer.body, thing));
    location_.revision = revision.commit;
    RemoteSource source{.pinned = location_, .time = revision.time};
    if (!known.empty() && known == revision.commit) return source;
    const std::string folder = location_.path.empty() ? "" : location_.path + "/";
    CKFS_TRY_VOID(list(source, folder));
    if (source.objects.empty() && !location_.path.empty()) {
      // Not a folder: the file of that name, in the folder above.
      const std::size_t slash = location_.path.rfind('/');
      const std::string above =
          slash == std::string::npos ? "" : location_.path.substr(0, slash + 1);
      RemoteSource siblings{.pinned = location_, .time = revision.time};
      CKFS_TRY_VOID(list(siblings, above));
      const std::string name = location_.path.substr(above.size());
      std::erase_if(siblings.objects, [&](const auto& each) { return each.name != name; });
      siblings.refused.clear();
      source = std::move(siblings);
      source.is_file = is_file_ = true;
    }
    source.time = revision.time;
    // Equal on every host: of the commit, not of when it was asked.
    for (RemoteObject& object : source.objects) object.time = revision.time;
    CKFS_TRY_VOID(finish_objects(thing, source));
    return source;
  }

  Result<std::optional<HttpRequest>> ask(const RemoteObject& object, ByteRange range) override {
    Place& place = places_[object.name];
    if (!place.url) {
      if (place.is_asked) return std::optional<HttpRequest>();
      place.is_asked = true;
      if (!place.next) {
        place.redirects = 0;
        place.next = endpoint_;
        place.next->path += fmt::format("/{}/resolve/{}/{}", location_.container,
                                        location_.revision, percent_encode(key_of(object), "/"));
      }
      HttpRequest request{.method = "HEAD", .url = *place.next, .headers = {}};
      add_token(request);
      return std::optional(std::move(request));
    }
    HttpRequest request{.url = *place.url, .headers = {}};
    if (place.is_own) add_token(request);
    request.wanted = RangeWanted{range, object.size, {}, nullptr};
    if (!place.etag.empty()) request.wanted->versions = {{"etag", place.etag}};
    return std::optional(std::move(request));
  }

  AnswerVerdict heed(const RemoteObject& object, const HttpRequest& request,
                     const HttpAnswer& answer) override {
    const std::string thing = fmt::format("{}: {}", location_.masked(), quote(object.name));
    Place& place = places_[object.name];
    if (request.method == "HEAD") return heed_resolver(thing, object, place, answer);
    const bool is_refused = answer.fault == HttpFault::None && answer.status >= 300 &&
                            answer.status < 500 && answer.status != 408 && answer.status != 412 &&
                            answer.status != 416 && answer.status != 429;
    if (!is_refused) return judge(thing, answer, context_.here.now());
    // Another read has learned a new place since.
    if (place.url != request.url) return {.what = AnswerVerdict::Do::Again};
    // The URL's hour is over, or something else is wrong: a new one that is refused, too, is told.
    constexpr std::int64_t kNew = 60;
    if (context_.here.now() - place.resolved > kNew) place.refusals = 0;
    if (place.refusals++ > 0) return {.error = refusal(thing, answer)};
    place.url.reset();
    return {.what = AnswerVerdict::Do::Again};
  }

 private:
  /// Where the bytes of a file are, and the steps that learn it.
  struct Place {
    std::optional<Url> url;
    bool is_own = false;        // the hub itself, which gets the token
    std::string etag;           // of the answers from there; empty: not known
    std::int64_t resolved = 0;  // when
    int refusals = 0;           // of new URLs
    std::optional<Url> next;    // of the call of the resolver that comes next
    bool is_asked = false;      // it is under way
    int redirects = 0;
  };

  std::string key_of(const RemoteObject& object) const {
    if (is_file_) return location_.path;
    return location_.path.empty() ? object.name : location_.path + "/" + object.name;
  }

  void add_token(HttpRequest& request) const {
    if (!token_.empty()) request.headers.emplace_back("authorization", "Bearer " + token_);
  }

  Result<HttpAnswer> ask_api(const Url& url, std::string_view thing) const {
    HttpRequest request{.url = url, .headers = {}, .most_body = kMostPage};
    for (int redirects = 0;; ++redirects) {
      request.headers.clear();
      add_token(request);
      CKFS_TRY(HttpAnswer answer, call(context_, request, thing));
      const bool is_redirect = answer.status >= 301 && answer.status <= 308;
      if (!is_redirect) return answer;
      // A repository that was renamed.
      const auto next = resolve_reference(request.url, find_header(answer.headers, "location"));
      if (!next || next->origin() != endpoint_.origin() || redirects == kMostRedirects) {
        return fail(ErrorCode::Io, "{}: the hub redirects to no place", thing);
      }
      request.url = *next;
    }
  }

  Url api(std::string_view path, std::string_view query = {}) const {
    Url url = endpoint_;
    url.path += path;
    url.query = query;
    return url;
  }

  /// Adds the files below `folder` ("" or ending in '/'), by names that begin behind it.
  Result<void> list(RemoteSource& source, std::string_view folder) {
    const std::string thing = location_.masked();
    const std::string_view path = folder.substr(0, folder.empty() ? 0 : folder.size() - 1);
    Url url = api(fmt::format("/api/models/{}/tree/{}{}{}", location_.container, location_.revision,
                              path.empty() ? "" : "/", percent_encode(path, "/")),
                  "recursive=true&expand=false");
    std::size_t text = 0;
    for (;;) {
      CKFS_TRY(const HttpAnswer answer, ask_api(url, thing));
      if (answer.status == 404 && !path.empty()) return {};  // no such folder
      if (!answer.is_success()) return Failure(refusal(thing, answer));
      CKFS_TRY(ListingPage page, parse_hub_tree(answer.body, thing));
      const bool is_empty = page.objects.empty();
      CKFS_TRY_VOID(add_objects(std::move(page.objects), folder, text, source));
      const auto next = next_link(find_header(answer.headers, "link"));
      if (!next) return {};
      const auto next_url = resolve_reference(url, *next);
      if (!next_url || next_url->origin() != endpoint_.origin() || *next_url == url || is_empty) {
        return fail(ErrorCode::Corrupt, "{}: the listing has no next page where it says so", thing);
      }
      url = *next_url;
    }
  }

  /// Why the hub refuses, and what a user can do about it.
  Error refusal(std::string_view thing, const HttpAnswer& answer) const {
    const Error said = answer_error(thing, answer);
    const std::string_view code = find_header(answer.headers, "x-error-code");
    const std::string_view log_in =
        token_.empty() ? "set HF_TOKEN, or run hf auth login"
                       : "the token is sent: it may be of another account, or have ended";
    const auto with = [&](std::string_view why) {
      return Error(said.code(), fmt::format("{}; {}", said.message(), why));
    };
    if (code == "GatedRepo" || (answer.status == 403 && !token_.empty())) {
      return with(fmt::format("the repository is gated: ask for access at {}/{} ({})",
                              endpoint_.origin(), location_.container, log_in));
    }
    if (answer.status == 401 || answer.status == 403) {
      return with(fmt::format("no such repository, or it is private or gated ({})", log_in));
    }
    if (code == "RevisionNotFound") {
      return with(fmt::format("no such revision: {}", quote(location_.revision)));
    }
    if (answer.status == 404) return with("no such repository, revision or file");
    return said;
  }

  /// What the resolver says: a redirect with what the file is, or the file.
  AnswerVerdict heed_resolver(std::string_view thing, const RemoteObject& object, Place& place,
                              const HttpAnswer& answer) {
    place.is_asked = false;
    const auto failed = [&](Error error) { return AnswerVerdict{.error = std::move(error)}; };
    if (answer.fault != HttpFault::None) return judge(thing, answer, context_.here.now());
    const bool is_redirect = answer.status >= 301 && answer.status <= 308 && answer.status != 304;
    if (!is_redirect && answer.status != 200) {
      AnswerVerdict verdict = judge(thing, answer, context_.here.now());
      if (verdict.what == AnswerVerdict::Do::Fail) verdict.error = refusal(thing, answer);
      return verdict;
    }
    // Whatever header is there must say what the listing said.
    const auto differs = [&](std::string_view name, std::string_view value) {
      const std::string_view is = find_header(answer.headers, name);
      return !is.empty() && is != value;
    };
    const bool is_large = object.hash.starts_with("sha256:");
    const std::string quoted = fmt::format("\"{}\"", object.version);
    if (differs("x-repo-commit", location_.revision) ||
        differs("x-linked-size", fmt::to_string(object.size)) ||
        (is_large && differs("x-linked-etag", quoted))) {
      return failed(
          {ErrorCode::Stale, fmt::format("{}: the hub gives another file than it listed", thing)});
    }
    if (!is_redirect) {
      place.url = std::exchange(place.next, std::nullopt);
      place.is_own = true;
      place.etag = find_header(answer.headers, "etag");
      if (place.etag.starts_with("W/")) place.etag.clear();
      place.resolved = context_.here.now();
      return {.what = AnswerVerdict::Do::Again};
    }
    const auto url = resolve_reference(*place.next, find_header(answer.headers, "location"));
    const bool is_lower = url && place.next->secure && !url->secure;
    const bool is_inward = url && is_loopback_host(url->host) && !is_loopback_host(endpoint_.host);
    if (!url || is_lower || is_inward || ++place.redirects > kMostRedirects) {
      place.next.reset();
      return failed({ErrorCode::Io, fmt::format("{}: the hub redirects to no place", thing)});
    }
    if (url->origin() == endpoint_.origin()) {
      place.next = *url;
    } else {
      place.url = *url;
      place.is_own = false;
      place.etag.clear();
      place.next.reset();
      place.resolved = context_.here.now();
    }
    return {.what = AnswerVerdict::Do::Again};
  }

  ServiceContext context_;
  SourceLocation location_;
  Url endpoint_;
  std::string token_;
  bool is_file_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace

Result<std::unique_ptr<Service>> make_hub(const ServiceContext& context,
                                          const SourceLocation& location,
                                          const RemoteOptions& options, bool is_file) {
  if (context.here.is_set("HF_HUB_OFFLINE")) {
    return fail(ErrorCode::Io, "{}: HF_HUB_OFFLINE is set: the hub is not asked",
                location.masked());
  }
  std::string endpoint = options.endpoint_url;
  if (endpoint.empty()) endpoint = context.here.variable("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  CKFS_TRY(Url url, parse_endpoint(endpoint, "endpoint of the hub (HF_ENDPOINT)"));
  std::string token = options.anonymous ? "" : hub_token(context.here);
  return std::make_unique<Hub>(context, location, std::move(url), std::move(token), is_file);
}

}  // namespace ckfs
