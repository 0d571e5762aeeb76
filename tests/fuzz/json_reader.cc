// Fuzz target: what read_json() takes, and finds in it, is what nlohmann's reader does.
#include "format/json_reader.h"

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "support/json_recorder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  // A NUL ends the text for nlohmann's.
  if (!is_utf8(text) || text.find('\0') != std::string_view::npos) return 0;
  JsonRecorder ours, theirs;
  std::size_t end = 0;
  const bool whole = read_json(text, {.token_bytes = size}, end, ours);
  CKFS_CHECK(whole == ours.error.empty());
  CKFS_CHECK(whole == nlohmann::json::sax_parse(text, &theirs));
  CKFS_CHECK(!whole || (ours.events == theirs.events && end == size));
  return 0;
}
