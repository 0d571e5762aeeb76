// Fuzz target: an index. What is accepted must be found again, and be written and read back equal.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "format/hf_index.h"
#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = parse_hf_index(text, "f");
  if (!index) {
    CKFS_CHECK(index.error().message().find('\n') == std::string::npos);
    return 0;
  }
  std::vector<IndexName> names;
  for (std::size_t i = 0; i < index->size(); ++i) {
    const HfIndex::Entry entry = (*index)[i];
    std::size_t near = size % (index->size() + 2);
    CKFS_CHECK(index->find(entry.name, near) == entry.file);
    names.push_back({entry.name, index->files()[entry.file]});
  }
  const std::string written = render_hf_index(names, size);
  HfIndexMeasure measure;
  for (const IndexName& name : names) measure.add(name);
  CKFS_CHECK(written.size() == measure.nbytes(size));
  const auto again = parse_hf_index(written, "f");
  CKFS_CHECK(again.has_value() && again->size() == names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    CKFS_CHECK((*again)[i].name == names[i].name);
    CKFS_CHECK(again->files()[(*again)[i].file] == names[i].file);
  }
  return 0;
}
