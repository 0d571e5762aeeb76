// Fuzz target: locations and URLs. What is accepted is printed and parsed to the same, and neither
// its masked form nor an error has the password.
#include "fetch/location.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto location = parse_location(text);
  if (location) {
    const auto again = parse_location(location->text());
    CKFS_CHECK(again.has_value() && *again == *location);
    const std::string masked = location->masked();
    CKFS_CHECK(location->url.user.empty() || masked.starts_with("http://***@") ||
               masked.starts_with("https://***@"));
  }
  const Url base = parse_url("https://host.example/a/b?c").value();
  const auto reference = resolve_reference(base, text);
  if (reference) CKFS_CHECK(parse_url(reference->text()).value() == *reference);
  if (const auto decoded = percent_decode(text)) {
    CKFS_CHECK(percent_decode(percent_encode(*decoded)).value() == *decoded);
  }
  return 0;
}
