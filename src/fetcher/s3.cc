// A prefix is a directory's name: `model` must not list `model-old/` too, so '/' is added; where
// nothing lies below it, it is the key of one object.

#include "fetcher/s3.h"

#include <algorithm>

#include "base/text.h"
#include "fetcher/aws_credentials.h"
#include "fetcher/listing.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::size_t kMostS3Page = std::size_t{16} << 20;

bool is_region(std::string_view text) {
  return !text.empty() && text.size() <= 32 && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '-';
  });
}

class S3 final : public Service {
 public:
  S3(const ServiceContext& context, SourceLocation location, const RemoteOptions& options,
     std::optional<Url> endpoint, bool is_file)
      : context_(context),
        location_(std::move(location)),
        options_(options),
        credentials_(context),
        endpoint_(std::move(endpoint)),
        region_(credentials_.region()),
        is_file_(is_file) {
    if (!is_region(region_)) region_ = "us-east-1";
  }

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
    HttpRequest request{.url = url_of(key), .headers = {{"if-match", object.version}}};
    request.wanted = RangeWanted{range, object.size, {{"etag", object.version}}, nullptr};
    CKFS_TRY_VOID(finish(request));
    return std::optional(std::move(request));
  }

  AnswerVerdict heed(const RemoteObject& object, const HttpRequest& /*request*/,
                     const HttpAnswer& answer) override {
    const std::string thing = fmt::format("{}: {}", location_.masked(), quote(object.name));
    AnswerVerdict verdict = heed_any(thing, answer);
    if (verdict.what == AnswerVerdict::Do::Fail && answer.fault == HttpFault::None &&
        answer.status == 404) {
      verdict.error = Error(ErrorCode::Stale,
                            fmt::format("{}: it was there and is not any more (open the source "
                                        "again)",
                                        thing));
    }
    return verdict;
  }

 private:
  Url url_of(std::string_view key) const {
    Url url;
    if (endpoint_) {
      url = *endpoint_;
      url.path += "/" + location_.container;
    } else if (location_.container.find_first_of("._") != std::string::npos ||
               std::ranges::any_of(location_.container,
                                   [](char c) { return c >= 'A' && c <= 'Z'; })) {
      // No certificate covers a bucket with dots.
      url.host = fmt::format("s3.{}.{}", region_, aws_domain(region_));
      url.path = "/" + location_.container;
    } else {
      url.host = fmt::format("{}.s3.{}.{}", location_.container, region_, aws_domain(region_));
    }
    if (!endpoint_) url.port = 443;
    url.path += "/" + percent_encode(key, "/");
    return url;
  }

  /// Adds what makes a request the caller's.
  Result<void> finish(HttpRequest& request) {
    if (options_.requester_pays) request.headers.emplace_back("x-amz-request-payer", "requester");
    if (options_.anonymous) return {};
    CKFS_TRY(const AwsKeys keys, credentials_.keys());
    const std::string host = request.url.authority();
    sign_aws({.host = host, .path = request.url.path, .query = request.url.query}, keys,
             {region_, "s3"}, context_.here.now() + clock_ahead_, request.headers);
    return {};
  }

  /// Learns from an answer what the next request needs; else as judge().
  AnswerVerdict heed_any(std::string_view thing, const HttpAnswer& answer) {
    if (answer.fault != HttpFault::None || answer.is_success()) {
      return judge(thing, answer, context_.here.now());
    }
    const ServiceError said = parse_service_error(answer.body);
    // Another region: the header says so, or the text of the error.
    std::string region(find_header(answer.headers, "x-amz-bucket-region"));
    if (region.empty()) region = said.region;
    const bool is_elsewhere = answer.status == 301 || answer.status == 307 ||
                              said.code == "AuthorizationHeaderMalformed" ||
                              said.code == "IllegalLocationConstraintException";
    if (is_elsewhere && is_region(region) && moves_ < 3) {
      if (region != region_) {
        ++moves_;
        region_ = region;
      }
      return {.what = AnswerVerdict::Do::Again, .error = answer_error(thing, answer)};
    }
    const bool is_old = said.code == "ExpiredToken" || said.code == "TokenRefreshRequired" ||
                        said.code == "InvalidToken" || said.code == "ExpiredTokenException";
    if (is_old && context_.here.now() > renewed_ + 30) {
      renewed_ = context_.here.now();
      credentials_.forget();
      return {.what = AnswerVerdict::Do::Again, .error = answer_error(thing, answer)};
    }
    if (said.code == "RequestTimeTooSkewed") {
      const auto theirs = parse_http_time(find_header(answer.headers, "date"));
      const std::int64_t ahead = theirs ? *theirs - context_.here.now() : 0;
      if (std::abs(ahead - clock_ahead_) > 60) {
        clock_ahead_ = ahead;
        return {.what = AnswerVerdict::Do::Again, .error = answer_error(thing, answer)};
      }
    }
    if (said.code == "SlowDown" || said.code == "RequestTimeout") {
      return {.what = AnswerVerdict::Do::Later,
              .error = answer_error(thing, answer),
              .is_pushback = said.code == "SlowDown"};
    }
    AnswerVerdict verdict = judge(thing, answer, context_.here.now());
    if (verdict.what == AnswerVerdict::Do::Fail && said.code == "InvalidObjectState") {
      verdict.error =
          Error(ErrorCode::Io, fmt::format("{}: it is in an archive (restore it first)", thing));
    }
    return verdict;
  }

  /// Lists keys that begin with `prefix`, by names that begin behind `below`.
  Result<void> list(RemoteSource& source, std::string_view prefix, std::string_view below) {
    const std::string thing = location_.masked();
    std::string token;
    std::size_t text = 0;
    int again = 0;
    for (;;) {
      HttpRequest request{.url = url_of(""), .headers = {}, .most_body = kMostS3Page};
      if (request.url.path.size() > 1) request.url.path.pop_back();  // "/bucket"
      request.url.query = fmt::format(
          "{}encoding-type=url&list-type=2&prefix={}",
          token.empty() ? "" : fmt::format("continuation-token={}&", percent_encode(token)),
          percent_encode(prefix));
      CKFS_TRY_VOID(finish(request));
      CKFS_TRY(const HttpAnswer answer, call(context_, request, thing));
      if (!answer.is_success()) {
        const AnswerVerdict verdict = heed_any(thing, answer);
        if (verdict.what == AnswerVerdict::Do::Again && again++ < 8) continue;
        return Failure(list_error(thing, answer));
      }
      CKFS_TRY(ListingPage page, parse_s3_listing(answer.body, thing));
      CKFS_TRY_VOID(add_objects(std::move(page.objects), below, text, source));
      if (page.next.empty()) return {};
      if (page.next == token) {
        return fail(ErrorCode::Corrupt, "{}: the listing has no next page where it says so", thing);
      }
      token = std::move(page.next);
    }
  }

  Error list_error(std::string_view thing, const HttpAnswer& answer) const {
    const Error said = answer_error(thing, answer);
    const std::string code = parse_service_error(answer.body).code;
    if (code == "AccessDenied" || (code.empty() && answer.status == 403)) {
      return {said.code(), fmt::format("{}; {}", said.message(),
                                       options_.anonymous ? "the bucket is not public"
                                                          : "the keys may not list the bucket")};
    }
    return said;
  }

  ServiceContext context_;
  SourceLocation location_;
  RemoteOptions options_;
  AwsCredentials credentials_;
  std::optional<Url> endpoint_;
  std::string region_;
  bool is_file_;
  int moves_ = 0;                 // to other regions
  std::int64_t renewed_ = 0;      // when the keys were last thrown away
  std::int64_t clock_ahead_ = 0;  // of the server, in seconds
};

}  // namespace

Result<std::unique_ptr<Service>> make_s3(const ServiceContext& context,
                                         const SourceLocation& location,
                                         const RemoteOptions& options, bool is_file) {
  std::string text = options.endpoint_url;
  if (text.empty()) text = AwsCredentials(context).endpoint_url("s3");
  std::optional<Url> endpoint;
  if (!text.empty()) {
    CKFS_TRY(endpoint, parse_endpoint(text, "endpoint of S3"));
  }
  return std::make_unique<S3>(context, location, options, std::move(endpoint), is_file);
}

}  // namespace ckfs
