// Fuzz target: the record of an export. What is accepted names files within OUT, and is written and
// read back equal.
#include "export/export_record.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const auto record = parse_record({reinterpret_cast<const char*>(data), size});
  if (!record) {
    CKFS_CHECK(record.error().message().find('\n') == std::string::npos);
    return 0;
  }
  for (const auto& [path, file] : record->files) {
    CKFS_CHECK(is_inner_path(path));
  }
  const auto again = parse_record(to_json(*record));
  CKFS_CHECK(again.has_value() && *again == *record);
  return 0;
}
