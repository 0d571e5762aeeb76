// Fuzz target: the name of a view's directory. What is accepted has one canonical name, which
// stands for the same view.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/work_limit.h"
#include "view/view.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const std::string_view name(reinterpret_cast<const char*>(data), size);
  const auto spec = parse_view_spec(name);
  if (!spec) {
    CKFS_CHECK(spec.error().message().find('\n') == std::string::npos);
    return 0;
  }
  const std::string canonical = spec->canonical();
  // "50.4MB" becomes "50400KB"; no size takes more than the digits of 2^64.
  CKFS_CHECK(canonical.size() <= name.size() + 20 * spec->parameters.size());
  CKFS_CHECK(canonical.find('/') == std::string::npos);
  const auto again = parse_view_spec(canonical);
  CKFS_CHECK(again.has_value() && again->canonical() == canonical);
  CKFS_CHECK(again->view == spec->view && again->parameters == spec->parameters);
  return 0;
}
