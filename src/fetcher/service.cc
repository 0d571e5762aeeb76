// What all services have in common: which failures pass, and which names can be files.

#include "fetcher/service.h"

#include <algorithm>
#include <random>

#include "base/text.h"
#include "fetcher/gcs.h"
#include "fetcher/hub.h"
#include "fetcher/listing.h"
#include "fetcher/s3.h"
#include "fetcher/web.h"

namespace ckfs {
namespace {

std::string fault_text(std::string_view thing, const HttpAnswer& answer) {
  if (answer.fault == HttpFault::Untrusted) {
    return fmt::format("{}: TLS: {} (a certificate of your own: CURL_CA_BUNDLE)", thing,
                       answer.why);
  }
  return fmt::format("{}: {}", thing, answer.why);
}

bool passes(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
         status == 504;
}

}  // namespace

Error answer_error(std::string_view thing, const HttpAnswer& answer) {
  if (answer.fault != HttpFault::None) return {ErrorCode::Io, fault_text(thing, answer)};
  const ServiceError said = parse_service_error(answer.body);
  const std::string_view id = request_id(answer.headers);
  std::string text = fmt::format("{}: the server answers {}", thing, answer.status);
  if (!said.code.empty()) (text += ' ') += said.code;
  if (!said.message.empty()) (text += ": ") += said.message;
  if (!id.empty()) text += fmt::format(" (request {})", one_line(id));
  return {answer.status == 404 ? ErrorCode::NotFound : ErrorCode::Io, std::move(text)};
}

AnswerVerdict judge(std::string_view thing, const HttpAnswer& answer, std::int64_t now) {
  AnswerVerdict verdict{.error = answer_error(thing, answer)};
  switch (answer.fault) {
    case HttpFault::None:
      break;
    case HttpFault::Connect:
    case HttpFault::Cut:
      verdict.what = AnswerVerdict::Do::Later;
      return verdict;
    case HttpFault::Hedged:
      verdict.what = AnswerVerdict::Do::Again;
      return verdict;
    case HttpFault::Stalled:
      verdict.what = AnswerVerdict::Do::Later;
      verdict.is_pushback = true;
      return verdict;
    case HttpFault::Changed:
      verdict.error = Error(ErrorCode::Stale, fmt::format("{}: it was changed: {} (open the source "
                                                          "again)",
                                                          thing, answer.why));
      return verdict;
    default:
      return verdict;
  }
  if (passes(answer.status)) {
    verdict.what = AnswerVerdict::Do::Later;
    verdict.wait = asked_wait(answer.headers, now);
    verdict.is_pushback = answer.status == 429 || answer.status == 503;
  } else if (answer.status == 412 || answer.status == 416) {
    verdict.error = Error(
        ErrorCode::Stale,
        fmt::format("{}: it was changed (status {}; open the source again)", thing, answer.status));
  }
  return verdict;
}

Result<HttpAnswer> call(const ServiceContext& context, const HttpRequest& request,
                        std::string_view thing) {
  const Patience& patience = context.http.patience();
  constexpr std::chrono::seconds kForAConnection(15);
  const FetchTime begin = std::chrono::steady_clock::now();
  const FetchTime end = begin + patience.timeout, patient_end = begin + kForAConnection;
  Backoff backoff(std::random_device{}());
  for (unsigned attempt = 0;; ++attempt) {
    HttpAnswer answer = context.http.fetch(request);
    const AnswerVerdict verdict = judge(thing, answer, context.here.now());
    if (answer.fault == HttpFault::Hedged) continue;
    if (verdict.what != AnswerVerdict::Do::Later) {
      if (answer.fault != HttpFault::None) return Failure(verdict.error);
      return answer;
    }
    const FetchDuration wait = backoff.wait(attempt, verdict.wait, patience);
    // A host that does not exist, or listens at no such port: a user waits for the answer.
    const FetchTime last = answer.fault == HttpFault::Connect ? std::min(end, patient_end) : end;
    if (std::chrono::steady_clock::now() + wait >= last) return Failure(verdict.error);
    context.http.wait(wait);
  }
}

Result<void> add_objects(std::vector<ListedObject> listed, std::string_view prefix,
                         std::size_t& text, RemoteSource& source) {
  constexpr std::size_t kMostRefused = 100;
  for (ListedObject& each : listed) {
    // The place of a directory, which some tools make.
    if (each.name.ends_with('/') && each.size == 0) continue;
    text += each.name.size() + each.version.size() + each.hash.size();
    if (source.objects.size() == kMostObjects || text > kMostListedText) {
      return fail(ErrorCode::Unsupported, "{}: more than {} objects (name a part of it)",
                  source.pinned.masked(), source.objects.size());
    }
    const bool is_below = each.name.starts_with(prefix);
    std::string name = is_below ? each.name.substr(prefix.size()) : each.name;
    if (each.version.size() + each.hash.size() > 2048) {
      return fail(ErrorCode::Corrupt, "{}: {}: a version of {} bytes", source.pinned.masked(),
                  quote(name), each.version.size());
    }
    const auto fault = is_below ? object_name_fault(name)
                                : std::optional<std::string_view>("it is not below the location");
    if (fault || each.is_cold) {
      if (source.refused.size() < kMostRefused) {
        source.refused.push_back(fmt::format(
            "{}: {}", quote(name), fault ? *fault : "it is in an archive (restore it first)"));
      }
      continue;
    }
    source.time = std::max(source.time, each.time);
    source.objects.push_back({.name = std::move(name),
                              .size = each.size,
                              .version = std::move(each.version),
                              .hash = std::move(each.hash),
                              .time = each.time});
  }
  return {};
}

Result<void> finish_objects(std::string_view thing, RemoteSource& source) {
  std::ranges::sort(source.objects, {}, &RemoteObject::name);
  const auto same = std::ranges::adjacent_find(source.objects, {}, &RemoteObject::name);
  if (same != source.objects.end()) {
    return fail(ErrorCode::Corrupt, "{}: {} is listed twice", thing, quote(same->name));
  }
  // A key that is also what others have before a '/': a file cannot be a directory.
  const auto begins_another = [&](const RemoteObject& object) {
    const std::string directory = object.name + "/";
    const auto next = std::ranges::lower_bound(source.objects, directory, {}, &RemoteObject::name);
    return next != source.objects.end() && next->name.starts_with(directory);
  };
  for (const RemoteObject& object : source.objects) {
    if (begins_another(object)) {
      return fail(ErrorCode::Unsupported,
                  "{}: {} is an object, and a directory of others (rename it)", thing,
                  quote(object.name));
    }
  }
  if (source.objects.empty()) {
    if (!source.refused.empty()) {
      return fail(ErrorCode::Unsupported, "{}: no object there can be read: {}", thing,
                  source.refused.front());
    }
    return fail(ErrorCode::NotFound, "{}: no object has that name, or a name below it", thing);
  }
  return {};
}

Result<RemoteSource> open_prefix(const SourceLocation& location, const ListKeys& list) {
  RemoteSource source{.pinned = location};
  const std::string& path = location.path;
  const std::string prefix = path.empty() ? "" : path + "/";
  CKFS_TRY_VOID(list(source, prefix, prefix));
  if (source.objects.empty() && source.refused.empty() && !path.empty()) {
    const std::string above = path.substr(0, path.rfind('/') + 1);
    CKFS_TRY_VOID(list(source, path, above));
    const std::string name = path.substr(above.size());
    std::erase_if(source.objects, [&](const auto& each) { return each.name != name; });
    source.refused.clear();
    source.is_file = true;
    if (!source.objects.empty()) source.time = source.objects.front().time;
  }
  CKFS_TRY_VOID(finish_objects(location.masked(), source));
  return source;
}

std::string key_of(const SourceLocation& location, const RemoteObject& object, bool is_file) {
  if (is_file) return location.path;
  return location.path.empty() ? object.name : location.path + "/" + object.name;
}

Result<Url> parse_endpoint(std::string_view text, std::string_view option) {
  auto url = parse_url(text);
  if (!url) return Failure(url.error().within(std::string(option)));
  if (!url->query.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: an endpoint has no query", option);
  }
  while (url->path.ends_with('/')) url->path.pop_back();
  return *std::move(url);
}

Result<std::unique_ptr<Service>> make_service(const ServiceContext& context,
                                              const SourceLocation& location,
                                              const RemoteOptions& options, bool is_file) {
  switch (location.service) {
    case RemoteService::Hub:
      return make_hub(context, location, options, is_file);
    case RemoteService::Web:
      return make_web(context, location, options, is_file);
    case RemoteService::S3:
      return make_s3(context, location, options, is_file);
    case RemoteService::Gcs:
      return make_gcs(context, location, options, is_file);
  }
  return fail(ErrorCode::Internal, "an unknown service");
}

}  // namespace ckfs
