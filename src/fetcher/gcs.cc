// `generation=` in the URL, and not the precondition ifGenerationMatch: emulators ignore that, and
// one ignores both, so what counts is x-goog-generation in the answer.

#include "fetcher/gcs.h"

#include "base/text.h"
#include "fetcher/gcs_credentials.h"
#include "fetcher/listing.h"

namespace ckfs {
namespace {

constexpr std::size_t kMostGcsPage = std::size_t{16} << 20;

class Gcs final : public Service {
 public:
  Gcs(const ServiceContext& context, SourceLocation location, Url endpoint, bool anonymous,
      std::string billed, bool is_file)
      : context_(context),
        location_(std::move(location)),
        credentials_(context),
        endpoint_(std::move(endpoint)),
        anonymous_(anonymous),
        billed_(std::move(billed)),
        is_file_(is_file) {}

  Result<RemoteSource> open(std::string_view /*known*/) override {
    const auto lists = [this](RemoteSource& into, std::string_view prefix, std::string_view below) {
      return list(into, prefix, below);
    };
    CKFS_TRY(RemoteSource source, open_prefix(location_, lists));
    is_file_ = source.is_file;
    return source;
  }

  Result<std::optional<HttpRequest>> ask(const RemoteObject& object, ByteRange range) override {
    const std::string key = key_of(location_, object, is_file_);
    HttpRequest request{
        .url = api("/" + percent_encode(key),
                   fmt::format("alt=media&generation={}", percent_encode(object.version))),
        .headers = {}};
    request.wanted = RangeWanted{range, object.size, {{"x-goog-generation", object.version}}};
    CKFS_TRY_VOID(authorize(request));
    return std::optional(std::move(request));
  }

  AnswerVerdict heed(const RemoteObject& object, const HttpRequest& /*request*/,
                     const HttpAnswer& answer) override {
    const std::string thing = fmt::format("{}: {}", location_.masked(), quote(object.name));
    if (learns(answer))
      return {.what = AnswerVerdict::Do::Again, .error = answer_error(thing, answer)};
    if (answer.fault == HttpFault::None && answer.status == 404) {
      return {.error = Error(ErrorCode::Stale,
                             fmt::format("{}: its generation {} is not there any more (open the "
                                         "source again)",
                                         thing, object.version))};
    }
    return judge(thing, answer, context_.here.now());
  }

 private:
  Url api(std::string_view below, std::string_view query) const {
    Url url = endpoint_;
    url.path += fmt::format("/storage/v1/b/{}/o{}", percent_encode(location_.container), below);
    url.query = query;
    if (!billed_.empty()) url.query += "&userProject=" + percent_encode(billed_);
    return url;
  }

  Result<void> authorize(HttpRequest& request) {
    if (anonymous_) return {};
    CKFS_TRY(std::string authorization, credentials_.authorization());
    request.headers.emplace_back("authorization", std::move(authorization));
    return {};
  }

  /// A token that has ended, once in half a minute.
  bool learns(const HttpAnswer& answer) {
    if (answer.fault != HttpFault::None || answer.status != 401 || anonymous_ ||
        context_.here.now() <= renewed_ + 30) {
      return false;
    }
    renewed_ = context_.here.now();
    credentials_.forget();
    return true;
  }

  Result<void> list(RemoteSource& source, std::string_view prefix, std::string_view below) {
    const std::string thing = location_.masked();
    std::string token;
    std::size_t text = 0;
    for (;;) {
      constexpr std::string_view kFields =
          "items(name,size,generation,crc32c,updated,contentEncoding),nextPageToken";
      HttpRequest request{
          .url = api("", fmt::format("prefix={}&fields={}{}{}", percent_encode(prefix),
                                     percent_encode(kFields),
                                     token.empty() ? "" : "&pageToken=", percent_encode(token))),
          .headers = {},
          .most_body = kMostGcsPage};
      CKFS_TRY_VOID(authorize(request));
      CKFS_TRY(const HttpAnswer answer, call(context_, request, thing));
      if (!answer.is_success()) {
        if (learns(answer)) continue;
        const Error said = answer_error(thing, answer);
        if (answer.status != 401 && answer.status != 403) return Failure(said);
        return fail(said.code(), "{}; {}", said.message(),
                    anonymous_ ? "it is not public" : "the account may not list the bucket");
      }
      CKFS_TRY(ListingPage page, parse_gcs_listing(answer.body, thing));
      CKFS_TRY_VOID(add_objects(std::move(page.objects), below, text, source));
      if (page.next.empty()) return {};
      if (page.next == token) {
        return fail(ErrorCode::Corrupt, "{}: the listing has no next page where it says so", thing);
      }
      token = std::move(page.next);
    }
  }

  ServiceContext context_;
  SourceLocation location_;
  GcsCredentials credentials_;
  Url endpoint_;
  bool anonymous_;
  std::string billed_;  // the project that pays, or empty
  bool is_file_;
  std::int64_t renewed_ = 0;
};

}  // namespace

Result<std::unique_ptr<Service>> make_gcs(const ServiceContext& context,
                                          const SourceLocation& location,
                                          const RemoteOptions& options, bool is_file) {
  bool anonymous = options.anonymous;
  std::string endpoint = options.endpoint_url;
  if (endpoint.empty()) {
    endpoint = context.here.variable("STORAGE_EMULATOR_HOST");
    if (!endpoint.empty()) {
      anonymous = true;  // no account of Google's is of use to it
      if (endpoint.find("://") == std::string::npos) endpoint.insert(0, "http://");
    }
  }
  if (endpoint.empty()) endpoint = "https://storage.googleapis.com";
  CKFS_TRY(Url url, parse_endpoint(endpoint, "endpoint of Google Cloud Storage"));
  std::string billed;
  if (options.requester_pays) billed = context.here.variable("GOOGLE_CLOUD_PROJECT");
  return std::make_unique<Gcs>(context, location, std::move(url), anonymous, std::move(billed),
                               is_file);
}

}  // namespace ckfs
