#include "format/json_scan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>

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

/// The byte of the first string that is longer than `limit`, a character at a time.
std::optional<std::size_t> long_string(std::string_view text, std::size_t limit) {
  bool inside = false;
  std::size_t size = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    size = inside ? size + 1 : 1;
    if (inside && c == '\\') {
      ++size;
      ++i;
    } else if (c == '"') {
      inside = !inside;
    }
    if (inside && size > limit + 2) return i;
    if (!inside && c == '"' && size > limit + 2) return i;
  }
  return std::nullopt;
}

TEST(JsonScan, FindsLongStringsWhereverTheyLieAndWhateverIsInThem) {
  constexpr std::size_t kLimit = 21;
  for (std::size_t before = 0; before < 9; ++before) {
    for (std::size_t size = 0; size <= 2 * kLimit; ++size) {
      for (std::size_t escape = 0; escape <= size; ++escape) {
        std::string inner(size, 'a');
        if (escape > 0) inner.replace(escape - 1, 1, escape % 2 == 0 ? "\\\"" : "\\\\");
        const std::string text =
            "{\"" + std::string(before, 'b') + "\": \"" + inner + "\", \"c\": [1, \"\"]}";
        const auto scanned =
            scan_json(text, {.string_bytes = kLimit, .whitespace_bytes = 1}, "f.json");
        const auto at = long_string(text, kLimit);
        ASSERT_EQ(!scanned, at.has_value()) << text;
        if (at) {
          EXPECT_EQ(
              scanned.error().message(),
              fmt::format("f.json: the text at byte {} is longer than {} bytes", *at, kLimit));
        } else {
          EXPECT_EQ(scanned->strings, 4U);
          EXPECT_EQ(scanned->values, 4U);
        }
      }
    }
  }
}

TEST(JsonScan, TakesAStringWithoutAnEndForTheGrammarToRefuse) {
  for (std::size_t size = 0; size < 20; ++size) {
    const std::string text = "{\"" + std::string(size, 'a');
    EXPECT_TRUE(scan_json(text, {.string_bytes = 20, .whitespace_bytes = 1}, "f.json")) << text;
    EXPECT_TRUE(scan_json(text + '\\', {.string_bytes = 20, .whitespace_bytes = 1}, "f.json"));
  }
}

}  // namespace
}  // namespace ckfs
