// Fuzz target: a config.json. An edited one must be valid, without quantization, and editing it
// again must change nothing.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "format/json_text.h"
#include "format/quantization_config.h"
#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto found = find_quantization(text, "f");
  const auto edited = dense_config(text, "bfloat16", "f");
  if (!edited) {
    CKFS_CHECK(edited.error().message().find('\n') == std::string::npos);
    return 0;
  }
  const auto again = dense_config(*edited, "bfloat16", "f");
  CKFS_CHECK(again.has_value() && *again == *edited);
  const auto left = find_quantization(*edited, "f");
  CKFS_CHECK(left.has_value() && !*left);
  return 0;
}
