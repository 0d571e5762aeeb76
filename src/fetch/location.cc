// What a user writes, taken strictly: a mistake that is guessed at here becomes a 404 from a server
// that says less about it.

#include "fetch/location.h"

#include <algorithm>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::size_t kLongestName = 1024;  // of an object (S3's and GCS's own limit)

bool is_word(std::string_view text, std::string_view marks) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) ||
           marks.find(c) != std::string_view::npos;
  });
}

/// The hub's rule for the names of owners and repositories.
bool is_repository_part(std::string_view name) {
  return is_word(name, "-_.") && name.size() <= 96 && name.front() != '-' && name.front() != '.' &&
         name.back() != '-' && name.back() != '.' && name.find("--") == std::string_view::npos &&
         name.find("..") == std::string_view::npos;
}

/// What git takes for the name of a branch or tag, as far as it matters here.
bool is_revision(std::string_view name) {
  return is_word(name, "-_./+@=#,") && name.size() <= 255 && name.front() != '-' &&
         name.front() != '/' && name.back() != '/' && name.find("..") == std::string_view::npos &&
         name.find("//") == std::string_view::npos;
}

Failure bad_location(std::string_view text, std::string_view why) {
  return fail(ErrorCode::InvalidArgument, "{}: {}", one_line(text), why);
}

/// The rest of a location as a path below its container.
Result<std::string> parse_folder(std::string_view text, std::string_view rest) {
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.empty()) return std::string();
  if (const auto fault = object_name_fault(rest)) return bad_location(text, *fault);
  return std::string(rest);
}

/// Cuts what is before the first '/' off `rest`, and that '/'.
std::string_view take_segment(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('/'), rest.size());
  const std::string_view segment = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return segment;
}

/// The revision behind '@': one segment, in which %2F means '/', or a name of the hub's own
/// that has slashes ("refs/pr/1"), as its clients write it.
Result<std::string> take_revision(std::string_view text, std::string_view segment,
                                  std::string_view& rest) {
  CKFS_TRY(std::string revision, percent_decode(segment));
  if (revision == "refs" && !rest.empty()) {
    const std::string_view kind = take_segment(rest);
    const std::string_view name = take_segment(rest);
    if ((kind != "pr" && kind != "convert") || name.empty()) {
      return bad_location(text, "a revision of refs is refs/pr/NUMBER or refs/convert/NAME");
    }
    revision = fmt::format("refs/{}/{}", kind, name);
  }
  if (!is_revision(revision)) {
    return bad_location(
        text, fmt::format("no name of a revision: {} (write '/' in it as %2F)", quote(revision)));
  }
  return revision;
}

Result<SourceLocation> parse_hub(std::string_view text, std::string_view rest) {
  SourceLocation location;
  const std::string_view owner = take_segment(rest);
  if (owner == "datasets" || owner == "spaces" || owner == "buckets") {
    return fail(ErrorCode::Unsupported, "{}: {} of the hub are not models (hf://org/name)",
                one_line(text), owner);
  }
  if (rest.empty()) {
    return bad_location(text, "a repository has an owner and a name: hf://org/name");
  }
  const std::string_view segment = take_segment(rest);
  const std::size_t at = segment.find('@');
  const std::string_view name = segment.substr(0, at);
  if (!is_repository_part(owner) || !is_repository_part(name)) {
    return bad_location(
        text, fmt::format("no name of a repository: {}", quote(fmt::format("{}/{}", owner, name))));
  }
  location.container = fmt::format("{}/{}", owner, name);
  location.revision = "main";
  if (at != std::string_view::npos) {
    CKFS_TRY(location.revision, take_revision(text, segment.substr(at + 1), rest));
  }
  CKFS_TRY(location.path, parse_folder(text, rest));
  return location;
}

Result<SourceLocation> parse_bucket(std::string_view text, std::string_view rest,
                                    RemoteService service) {
  if (rest.starts_with("arn:")) {
    return fail(ErrorCode::Unsupported, "{}: access points are not supported (name the bucket)",
                one_line(text));
  }
  SourceLocation location{.service = service, .container = {}, .revision = {}, .path = {}};
  const std::string_view bucket = take_segment(rest);
  // AWS has 63 characters and no capitals; servers that are compatible have what they have.
  if (!is_word(bucket, "-_.") || bucket.size() > 255 || bucket.front() == '.' ||
      bucket.front() == '-' || bucket.find("..") != std::string_view::npos) {
    return bad_location(text, fmt::format("no name of a bucket: {}", quote(bucket)));
  }
  location.container = bucket;
  CKFS_TRY(location.path, parse_folder(text, rest));
  return location;
}

Result<SourceLocation> parse_web(std::string_view text) {
  SourceLocation location{
      .service = RemoteService::Web, .container = {}, .revision = {}, .path = {}};
  CKFS_TRY(location.url, parse_url(text));
  // A browser shows pages, not files; a user who copies an address means the model.
  if (location.url.host == "huggingface.co" &&
      location.url.path.find("/resolve/") == std::string::npos) {
    std::string_view rest = std::string_view(location.url.path).substr(1);
    const std::string_view owner = take_segment(rest);
    const std::string_view name = take_segment(rest);
    const bool is_model = is_repository_part(owner) && is_repository_part(name);
    return fail(ErrorCode::InvalidArgument,
                "{}: a page of the hub (name the model itself: hf://{})", location.masked(),
                is_model ? fmt::format("{}/{}", owner, name) : "ORG/NAME");
  }
  return location;
}

}  // namespace

std::string SourceLocation::text() const {
  const std::string below = path.empty() ? "" : "/" + path;
  switch (service) {
    case RemoteService::Hub:
      return fmt::format("hf://{}@{}{}", container, percent_encode(revision), below);
    case RemoteService::Web:
      return url.text();
    case RemoteService::S3:
      return fmt::format("s3://{}{}", container, below);
    case RemoteService::Gcs:
      return fmt::format("gs://{}{}", container, below);
  }
  return {};
}

std::string SourceLocation::masked() const {
  return service == RemoteService::Web ? url.masked() : text();
}

bool is_location(std::string_view text) {
  const std::size_t colon = text.find("://");
  return colon != std::string_view::npos && is_word(text.substr(0, colon), "+-.") &&
         !is_digit(text.front());
}

Result<SourceLocation> parse_location(std::string_view text) {
  if (text.size() > kLongestUrl) {
    return fail(ErrorCode::InvalidArgument, "a location of {} bytes (at most {})", text.size(),
                kLongestUrl);
  }
  const auto behind = [&](std::string_view scheme) { return text.substr(scheme.size()); };
  if (text.starts_with("hf://")) return parse_hub(text, behind("hf://"));
  if (text.starts_with("s3://")) return parse_bucket(text, behind("s3://"), RemoteService::S3);
  if (text.starts_with("gs://")) return parse_bucket(text, behind("gs://"), RemoteService::Gcs);
  if (text.starts_with("https://") || text.starts_with("http://")) return parse_web(text);
  // Of any other location the scheme alone is printed: the rest may have a password.
  return fail(ErrorCode::InvalidArgument,
              "{}: not a location of a source (hf://, https://, http://, s3:// and gs:// are)",
              quote(text.substr(0, std::min(text.find("://"), std::size_t{32}))));
}

std::optional<std::string_view> object_name_fault(std::string_view name) {
  if (name.empty()) return "its name is empty";
  if (name.size() > kLongestName) return "its name is longer than 1024 bytes";
  if (!is_utf8(name)) return "its name is not UTF-8";
  if (std::ranges::any_of(name, [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte < 0x20 || byte == 0x7F;
      })) {
    return "its name has a control character";
  }
  for (std::string_view rest = name;;) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view segment = rest.substr(0, end);
    if (segment.empty()) return "a part of its name is empty (//)";
    if (segment == "." || segment == "..") return "a part of its name is . or ..";
    if (end == rest.size()) return std::nullopt;
    rest.remove_prefix(end + 1);
  }
}

std::string shown_source(const std::string& source) {
  if (!is_location(source)) return source;
  const auto location = parse_location(source);
  // Any other URL may have a secret anywhere: only its scheme is shown.
  if (!location) return source.substr(0, source.find("://"));
  return location->service == RemoteService::Web ? location->masked() : source;
}

}  // namespace ckfs
