// Fuzz target: what servers answer. The first byte says to what: listings and errors in XML and
// JSON, headers, links, times. Names and sizes that are accepted are within their bounds.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fetcher/http_message.h"
#include "fetcher/listing.h"
#include "fuzz/work_limit.h"
#include "wire/times.h"

namespace {

void check(const ckfs::Result<ckfs::ListingPage>& page) {
  if (!page) {
    CKFS_CHECK(page.error().message().find('\n') == std::string::npos);
    return;
  }
  for (const ckfs::ListedObject& object : page->objects) {
    CKFS_CHECK(!object.version.empty() && object.size <= std::uint64_t{1} << 60);
  }
}

void check_headers(std::string_view text) {
  ckfs::HttpAnswer answer;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (!ckfs::take_header_line(text.substr(0, end), answer)) break;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  CKFS_CHECK(answer.headers.size() <= 256);
  const ckfs::RangeWanted wanted{{10, 20}, 100, {{"etag", "\"a\""}}};
  const ckfs::Belief belief = ckfs::believe(wanted, answer);
  if (belief.fault == ckfs::HttpFault::None) {
    const auto range =
        ckfs::parse_content_range(ckfs::find_header(answer.headers, "content-range"));
    CKFS_CHECK(range && range->range == wanted.range && range->total == wanted.total);
    CKFS_CHECK(ckfs::find_header(answer.headers, "etag") == "\"a\"");
  }
  const auto wait = ckfs::asked_wait(answer.headers, 1'000'000'000);
  CKFS_CHECK(!wait || (*wait >= 0 && *wait <= 3600));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  if (size == 0) return 0;
  const WorkLimit limit(size);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0:
      check(parse_s3_listing(text, "s"));
      break;
    case 1:
      check(parse_gcs_listing(text, "s"));
      break;
    case 2:
      check(parse_hub_tree(text, "s"));
      break;
    case 3: {
      const ServiceError error = parse_service_error(text);
      CKFS_CHECK(error.message.find('\n') == std::string::npos);
      break;
    }
    case 4:
      check_headers(text);
      break;
    case 5:
      (void)next_link(text);
      (void)parse_hub_revision(text, "s");
      break;
    default:
      (void)parse_iso_time(text);
      (void)parse_http_time(text);
  }
  return 0;
}
