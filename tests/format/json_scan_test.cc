#include "format/json_scan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

using std::string_view_literals::operator""sv;

TEST(JsonScan, FindsANulBehindABackslashToo) {
  const ScanLimits limits{.string_bytes = 100, .whitespace_bytes = 100};
  for (const std::string_view text :
       {"  {\"a\\\0\": 1}"sv, "  {\"abc\0\": 1}"sv, "  {\"a\": 1\0}"sv, "  {\"ab\"}\0"sv}) {
    const auto scanned = scan_json(text, limits, "f.json");
    ASSERT_FALSE(scanned);
    EXPECT_EQ(scanned.error().message(), fmt::format("f.json: byte {} is NUL", text.find('\0')));
  }
  EXPECT_TRUE(scan_json("{\"a\\\"\": 1}", limits, "f.json"));
}

}  // namespace
}  // namespace ckfs
