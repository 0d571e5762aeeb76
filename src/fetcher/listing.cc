// JSON by the house's own reader, which is strict about UTF-8, doubled keys, depth and counts.

#include "fetcher/listing.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "fetch/url.h"
#include "fetcher/xml.h"
#include "format/json_tree.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kLargestObject = std::uint64_t{1} << 60;

std::optional<std::uint64_t> number_in(std::string_view digits) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() ||
      value > kLargestObject) {
    return std::nullopt;
  }
  return value;
}

/// The text of a member; empty: it has none, or it is not a string.
std::string_view text_of(const JsonNode& object, std::string_view key) {
  const JsonNode* const member = object.find(key);
  return member != nullptr && member->kind == JsonNode::Kind::String
             ? std::string_view(member->text)
             : std::string_view();
}

/// A size, as a number (the hub) or as a string (Google).
std::optional<std::uint64_t> size_of(const JsonNode& object, std::string_view key) {
  constexpr double kExact = 9007199254740992.0;  // 2^53: behind it doubles are not integers
  const JsonNode* const member = object.find(key);
  if (member == nullptr) return std::nullopt;
  if (member->kind == JsonNode::Kind::String) return number_in(member->text);
  if (member->kind != JsonNode::Kind::Number || !(member->number >= 0 && member->number < kExact)) {
    return std::nullopt;
  }
  const auto size = static_cast<std::uint64_t>(member->number);
  if (static_cast<double>(size) != member->number) return std::nullopt;
  return size;
}

bool is_hex(std::string_view text, std::size_t size) {
  return text.size() == size &&
         std::ranges::all_of(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

/// A list: the house's reader reads objects.
Result<JsonNode> parse_list(std::string_view text, std::string_view thing) {
  CKFS_TRY(JsonNode tree,
           parse_json_tree(fmt::format("{{\"list\":{}}}", text), thing, JsonKeys::Unique));
  const bool is_list = tree.items.size() == 1 && tree.items[0].kind == JsonNode::Kind::List;
  if (!is_list) return fail(ErrorCode::Corrupt, "{}: not a list", thing);
  return std::move(tree.items[0]);
}

/// What the service's names are, where it was asked to encode them: '+' is a space there.
Result<std::string> listed_name(std::string_view text, bool encoded) {
  if (!encoded) return std::string(text);
  std::string spaced(text);
  std::ranges::replace(spaced, '+', ' ');
  return percent_decode(spaced);
}

}  // namespace

Result<ListingPage> parse_s3_listing(std::string_view text, std::string_view thing) {
  ListingPage page;
  ListedObject object;
  std::string fault;
  bool is_listing = false, encoded = false, truncated = false, has_size = false;
  const auto ends = [&](std::string_view path, std::string_view value) {
    const std::size_t slash = path.find('/');
    if (path.substr(0, slash) != "ListBucketResult") {
      fault = fmt::format("it is {} and no ListBucketResult", quote(path.substr(0, slash)));
      return false;
    }
    if (slash == std::string_view::npos) {
      is_listing = true;
      return true;
    }
    path.remove_prefix(slash + 1);
    if (path == "EncodingType") encoded = value == "url";
    if (path == "IsTruncated") truncated = trim(value) == "true";
    if (path == "NextContinuationToken") page.next = value;
    if (path == "Contents/Key") object.name = value;
    if (path == "Contents/ETag") object.version = value;
    if (path == "Contents/LastModified") object.time = parse_iso_time(trim(value)).value_or(0);
    if (path == "Contents/StorageClass")
      object.is_cold = value == "GLACIER" || value == "DEEP_ARCHIVE";
    if (path == "Contents/Size") {
      const auto size = number_in(trim(value));
      has_size = size.has_value();
      object.size = size.value_or(0);
    }
    if (path == "Contents") {
      if (!has_size || object.name.empty() || object.version.empty()) {
        fault = fmt::format("{}: no key, size or ETag", quote(object.name));
        return false;
      }
      page.objects.push_back(std::exchange(object, {}));
      has_size = false;
    }
    return true;
  };
  CKFS_TRY_VOID(read_xml(text, thing, ends));
  if (fault.empty() && !is_listing) fault = "no ListBucketResult";
  if (fault.empty() && truncated && page.next.empty())
    fault = "more objects, and no token for them";
  if (!fault.empty()) return fail(ErrorCode::Corrupt, "{}: {}", thing, fault);
  if (!truncated) page.next.clear();
  // EncodingType may come behind the keys.
  for (ListedObject& each : page.objects) {
    CKFS_TRY(each.name, listed_name(each.name, encoded));
    // Some servers leave the quotes away here, and have them in the header.
    if (!each.version.starts_with('"') && !each.version.starts_with("W/")) {
      each.version = fmt::format("\"{}\"", each.version);
    }
  }
  return page;
}

Result<ListingPage> parse_gcs_listing(std::string_view text, std::string_view thing) {
  CKFS_TRY(const JsonNode tree, parse_json_tree(text, thing, JsonKeys::Unique));
  ListingPage page;
  page.next = text_of(tree, "nextPageToken");
  const JsonNode* const items = tree.find("items");
  if (items == nullptr) return page;  // of no object
  if (items->kind != JsonNode::Kind::List) {
    return fail(ErrorCode::Corrupt, "{}: \"items\" is not a list", thing);
  }
  for (const JsonNode& item : items->items) {
    const std::string_view name = text_of(item, "name");
    const std::string_view generation = text_of(item, "generation");
    const auto size = size_of(item, "size");
    const bool is_number = !generation.empty() && std::ranges::all_of(generation, is_digit);
    if (name.empty() || !size || !is_number) {
      return fail(ErrorCode::Corrupt, "{}: {}: no name, size or generation", thing, quote(name));
    }
    const std::string_view crc = text_of(item, "crc32c");
    page.objects.push_back({.name = std::string(name),
                            .size = *size,
                            .version = std::string(generation),
                            .hash = crc.empty() ? "" : fmt::format("crc32c:{}", crc),
                            .time = parse_iso_time(text_of(item, "updated")).value_or(0)});
    if (text_of(item, "contentEncoding") == "gzip") {
      return fail(ErrorCode::Unsupported,
                  "{}: {}: stored with Content-Encoding: gzip, which cannot be read at random "
                  "(store it as it is)",
                  thing, quote(name));
    }
  }
  return page;
}

Result<ListingPage> parse_hub_tree(std::string_view text, std::string_view thing) {
  CKFS_TRY(const JsonNode list, parse_list(text, thing));
  ListingPage page;
  for (const JsonNode& item : list.items) {
    if (text_of(item, "type") != "file") continue;
    const std::string_view name = text_of(item, "path");
    const JsonNode* const lfs = item.find("lfs");
    const bool is_large = lfs != nullptr && lfs->kind == JsonNode::Kind::Object;
    const auto size = size_of(is_large ? *lfs : item, "size");
    const std::string_view id = text_of(is_large ? *lfs : item, "oid");
    if (name.empty() || !size || *size > kLargestObject || !is_hex(id, is_large ? 64 : 40)) {
      return fail(ErrorCode::Corrupt, "{}: {}: no path, size or object id", thing, quote(name));
    }
    page.objects.push_back({.name = std::string(name),
                            .size = *size,
                            .version = std::string(id),
                            .hash = is_large ? fmt::format("sha256:{}", id) : ""});
  }
  return page;
}

std::optional<std::string> next_link(std::string_view link) {
  while (!link.empty()) {
    const std::size_t open = link.find('<');
    const std::size_t close = open == std::string_view::npos ? open : link.find('>', open);
    if (close == std::string_view::npos) return std::nullopt;
    const std::size_t end = std::min(link.find(",", close), link.size());
    const std::string_view parameters = link.substr(close, end - close);
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos) {
      return std::string(link.substr(open + 1, close - open - 1));
    }
    link.remove_prefix(end);
  }
  return std::nullopt;
}

Result<HubRevision> parse_hub_revision(std::string_view text, std::string_view thing) {
  CKFS_TRY(const JsonNode tree, parse_json_tree(text, thing, JsonKeys::LastWins));
  const std::string_view commit = text_of(tree, "sha");
  if (!is_hex(commit, 40)) return fail(ErrorCode::Corrupt, "{}: no commit", thing);
  return HubRevision{std::string(commit),
                     parse_iso_time(text_of(tree, "lastModified")).value_or(0)};
}

ServiceError parse_service_error(std::string_view text) {
  constexpr std::size_t kLongest = 300;
  ServiceError error;
  const auto keep = [](std::string& to, std::string_view value) {
    to = one_line(trim(value).substr(0, kLongest));
  };
  if (trim(text).starts_with('<')) {
    const auto ends = [&](std::string_view path, std::string_view value) {
      const std::string_view name = path.substr(path.rfind('/') + 1);
      if (path == "Error/Code" || path == "ErrorResponse/Error/Code") keep(error.code, value);
      if (path == "Error/Message" || path == "ErrorResponse/Error/Message") {
        keep(error.message, value);
      }
      if (name == "Region") keep(error.region, value);
      return true;
    };
    if (read_xml(text, "error", ends) && !error.code.empty()) return error;
    return {};  // a page for people
  }
  if (trim(text).starts_with('{')) {
    const auto tree = parse_json_tree(text, "error", JsonKeys::LastWins);
    if (!tree) return {};
    // {"error": "text"}, {"error": {"code": 404, "message": "text", "status": "X"}} or, of AWS,
    // {"Error": {"Code": "X", "Message": "text"}}; of OAuth with "error_description".
    for (const std::string_view key : {"error", "Error"}) {
      const JsonNode* const member = tree->find(key);
      if (member == nullptr) continue;
      if (member->kind == JsonNode::Kind::String) {
        const std::string_view more = text_of(*tree, "error_description");
        keep(more.empty() ? error.message : error.code, member->text);
        if (!more.empty()) keep(error.message, more);
        return error;
      }
      for (const std::string_view name : {"status", "Code"}) {
        if (!text_of(*member, name).empty()) keep(error.code, text_of(*member, name));
      }
      for (const std::string_view name : {"message", "Message"}) {
        if (!text_of(*member, name).empty()) keep(error.message, text_of(*member, name));
      }
    }
    return error;
  }
  keep(error.message, text.substr(0, text.find('\n')));
  return error;
}

}  // namespace ckfs
