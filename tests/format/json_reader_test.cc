#include "format/json_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "support/json_recorder.h"
#include "support/sanitized.h"

namespace ckfs {
namespace {

using std::string_view_literals::operator""sv;
using testing::ElementsAre;

constexpr JsonOptions kOptions{.token_bytes = 1000};

std::string error_of(std::string_view text, const JsonOptions& options = kOptions) {
  JsonRecorder recorder;
  std::size_t end = 0;
  const bool whole = read_json(text, options, end, recorder);
  EXPECT_EQ(whole, recorder.error.empty()) << text.substr(0, 100);
  return recorder.error;
}

std::vector<std::string> events_of(std::string_view text, const JsonOptions& options = kOptions) {
  JsonRecorder recorder;
  std::size_t end = 0;
  EXPECT_TRUE(read_json(text, options, end, recorder)) << text << ": " << recorder.error;
  return recorder.events;
}

/// Both readers see the same, up to where the text is no JSON, if there is such a place.
void expect_as_nlohmann(std::string_view text) {
  JsonRecorder ours, theirs;
  std::size_t end = 0;
  const bool whole = read_json(text, kOptions, end, ours);
  ASSERT_EQ(whole, nlohmann::json::sax_parse(text, &theirs))
      << text << "\nours: " << ours.error << "\ntheirs: " << theirs.error;
  ASSERT_EQ(ours.error.empty(), whole) << text;
  if (whole) {
    ASSERT_EQ(ours.events, theirs.events) << text;
  }
}

TEST(JsonReader, SeesWhatNlohmannSees) {
  for (const std::string_view text : {
           R"({})",
           R"([])",
           R"( { "a" : [ 1 , -2 , 3.5 , true , false , null , "b" , { } , [ ] ] } )",
           R"({"a":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]}})",
           R"(["\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00"])",
           R"([0,-0,1,-1,10,18446744073709551615,18446744073709551616,-9223372036854775808])",
           R"([-9223372036854775809,9223372036854775808,123456789012345678901234567890])",
           R"([0.0,-0.0,1e5,1E+5,1e-5,1.5e300,1e308,0.1,3.14159265358979312,5e-324,2.2e-308])",
           R"([1e309])",
           R"([-1e309])",
           R"([1e999999999999999999999])",
           R"([1e-999999999999999999999,-1e-400,0e999,0.0e99999999999999999999,0.000e400])",
           R"([1e9223372036854775807])",
           R"([1e-9223372036854775808,0.1e-9223372036854775807])",
           R"([0.00000000000000000001e320])",
           R"([0.00000000000000000001e330])",
           R"([100000000000000000000e-345])",
           "\"a string alone\"",
           "17",
           "-",
           "",
           "  ",
       }) {
    expect_as_nlohmann(text);
  }
  expect_as_nlohmann("[1" + std::string(320, '0') + "]");
  expect_as_nlohmann("[1" + std::string(320, '0') + "e-320]");
  expect_as_nlohmann("[0." + std::string(320, '0') + "1e321]");
}

/// Every text of four pieces, and every beginning of a longer one with another piece behind it.
TEST(JsonReader, SeesWhatNlohmannSeesInBrokenTexts) {
  constexpr std::string_view kPieces[] = {"{",           "}",
                                          "[",           "]",
                                          ",",           ":",
                                          "\"a\"",       "\"",
                                          "\\",          "1",
                                          "-",           "0",
                                          ".",           "e",
                                          "+",           "true",
                                          "nul",         "null",
                                          " ",           "\"\\u00e9\"",
                                          "\"\\ud8\"",   "\"\\ud83d\\ude00\"",
                                          "\"\\ude00\"", "\"\x01\"",
                                          "NaN",         "/",
                                          "\"\xc3\xa9\""};
  for (const std::string_view a : kPieces) {
    for (const std::string_view b : kPieces) {
      for (const std::string_view c : kPieces) {
        expect_as_nlohmann(fmt::format("{}{}{}", a, b, c));
        expect_as_nlohmann(fmt::format("[{}{}{}]", a, b, c));
        expect_as_nlohmann(fmt::format("{{{}{}{}}}", a, b, c));
      }
    }
  }
  constexpr std::string_view kText =
      R"( {"a": [1, -2.5e+3, "b\n\u0041\ud83d\ude00"], "c": {"d": null, "e": [true, false]}} )";
  for (std::size_t size = 0; size <= kText.size(); ++size) {
    expect_as_nlohmann(kText.substr(0, size));
    for (const std::string_view piece : kPieces) {
      expect_as_nlohmann(fmt::format("{}{}{}", kText.substr(0, size), piece, kText.substr(size)));
      if (size < kText.size()) {
        expect_as_nlohmann(
            fmt::format("{}{}{}", kText.substr(0, size), piece, kText.substr(size + 1)));
      }
    }
  }
}

TEST(JsonReader, SeesWhatNlohmannSeesInRandomTexts) {
  std::mt19937 random(1);
  constexpr std::string_view kAlphabet = "{}[],:\"\\0123456789.eE+-truefalsn u\n\taF/";
  for (int i = 0; i < (kSanitized ? 20'000 : 200'000); ++i) {
    std::string text(random() % 24, ' ');
    for (char& c : text) c = kAlphabet[random() % kAlphabet.size()];
    expect_as_nlohmann(text);
    std::string number = "[" + std::to_string(static_cast<std::int64_t>(random()) - 5) + "." +
                         std::to_string(random()) + "e" +
                         std::to_string(static_cast<int>(random() % 700) - 350) + "]";
    expect_as_nlohmann(number);
  }
}

TEST(JsonReader, FindsTheEndOfAStringWhereverItLies) {
  for (std::size_t before = 0; before < 9; ++before) {
    for (std::size_t size = 0; size < 20; ++size) {
      for (const std::string_view inner : {"", "\\\"", "\\\\", "\\u0061", "\x7f", "\xc3\xa9"}) {
        const std::string text = fmt::format("{{\"{}\":\"{}{}{}\"}}", std::string(before, 'b'),
                                             std::string(size, 'a'), inner, std::string(size, 'c'));
        expect_as_nlohmann(text);
      }
      for (const char bad : {'\0', '\n', '\x1f'}) {
        std::string text = "[\"" + std::string(before + size, 'a') + "b\"]";
        text[2 + size] = bad;
        EXPECT_EQ(error_of(text), "1: not JSON: a control character in a string");
      }
    }
  }
}

TEST(JsonReader, GivesSlicesOfTheTextWhereNothingIsEscaped) {
  class Handler : public JsonRecorder {
   public:
    explicit Handler(std::string_view text) : text_(text) {}
    bool key(std::string_view key) {
      offsets.push_back(offset_in(text_, key));
      ends.push_back(end);
      return true;
    }
    std::vector<std::optional<std::size_t>> offsets;
    std::vector<std::size_t> ends;
    std::size_t end = 0;

   private:
    std::string_view text_;
  };
  constexpr std::string_view kText = R"( {"one":1, "t\u0077o" :2, "": 3})";
  Handler handler(kText);
  ASSERT_TRUE(read_json(kText, kOptions, handler.end, handler));
  EXPECT_THAT(handler.offsets, ElementsAre(3U, std::nullopt, 27U));
  EXPECT_THAT(handler.ends, ElementsAre(7U, 21U, 28U));
  EXPECT_EQ(handler.end, kText.size());
}

TEST(JsonReader, ReportsWhatIsWrongAndWhere) {
  EXPECT_EQ(error_of(R"({"a":1)"), "6: not JSON: the text ends");
  EXPECT_EQ(error_of(R"({"a" 1})"), "5: not JSON: no ':' after a key");
  EXPECT_EQ(error_of(R"({"a":})"), "5: not JSON: no value where one must be");
  EXPECT_EQ(error_of(R"({1:2})"), "1: not JSON: no key where one must be");
  EXPECT_EQ(error_of(R"({"a":1,})"), "7: not JSON: no key where one must be");
  EXPECT_EQ(error_of(R"([1,])"), "3: not JSON: no value where one must be");
  EXPECT_EQ(error_of(R"([1 2])"), "3: not JSON: neither ',' nor ']' after an element");
  EXPECT_EQ(error_of(R"({"a":1])"), "6: not JSON: neither ',' nor '}' after a member");
  EXPECT_EQ(error_of(R"({} {})"), "3: not JSON: text after the value");
  EXPECT_EQ(error_of(R"({"a":01})"), "5: not JSON: a number that JSON does not have");
  EXPECT_EQ(error_of(R"({"a":1e999})"), "5: not JSON: a number that does not fit a double");
  EXPECT_EQ(error_of(R"({"a":"\x"})"),
            "5: not JSON: an escape that JSON does not have, or half of a surrogate pair");
  EXPECT_EQ(error_of(R"({"a":"b)"), "5: not JSON: a string without an end");
  EXPECT_EQ(error_of(R"({"a":True})"), "5: not JSON: a character that cannot begin a value");
  EXPECT_EQ(error_of(R"({"a":truth})"), "5: not JSON: a word that JSON does not have");
}

TEST(JsonReader, BoundsStringsAndNumbers) {
  constexpr JsonOptions kTen{.token_bytes = 10};
  EXPECT_EQ(error_of(R"({"1234567890": "1234567890", "a": 1234567890})", kTen), "");
  const std::string too_long = "a text longer than 10 bytes, the limit";
  EXPECT_EQ(error_of(R"({"a":"12345678901"})", kTen), "5: " + too_long);
  EXPECT_EQ(error_of(R"({"12345678901":1})", kTen), "1: " + too_long);
  EXPECT_EQ(error_of(R"({"a":12345678901})", kTen), "5: " + too_long);
  EXPECT_EQ(error_of(R"({"a":"\u0061\u0061"})", kTen), "5: " + too_long);
  EXPECT_EQ(error_of(R"({"a":"\u0061\u0061)", kTen), "5: " + too_long);
  EXPECT_EQ(error_of(R"({"a":"\u0061\u00)", kTen),
            "5: not JSON: an escape that JSON does not have, or half of a surrogate pair");
}

TEST(JsonReader, TakesPythonsWordsAsStringsWhereAsked) {
  constexpr JsonOptions kPython{.token_bytes = 10, .python_words = true};
  EXPECT_THAT(events_of(R"([NaN,Infinity,-Infinity,-1,null])", kPython),
              ElementsAre("[", "sNaN", "sInfinity", "s-Infinity", "i-1", "null", "]"));
  for (const std::string_view text :
       {"[NaN1]", "[1NaN]", "[-NaN]", "[Inf]", "[-Inf]", "{NaN:1}", "[+Infinity]"}) {
    EXPECT_NE(error_of(text, kPython), "") << text;
  }
  EXPECT_NE(error_of("[NaN]"), "");
  EXPECT_NE(error_of("[-Infinity]"), "");
}

TEST(JsonReader, StopsWhereTheHandlerStops) {
  class Stopper : public JsonRecorder {
   public:
    bool number_unsigned(std::uint64_t /*value*/) { return false; }
  };
  Stopper stopper;
  std::size_t end = 0;
  EXPECT_FALSE(read_json(R"(["a", 1, "b"])", kOptions, end, stopper));
  EXPECT_THAT(stopper.events, ElementsAre("[", "sa"));
  EXPECT_EQ(stopper.error, "");
  EXPECT_EQ(end, 7U);
}

TEST(JsonReader, NestsWithoutAStack) {
  constexpr std::size_t kDepth = 5'000'000;
  EXPECT_EQ(error_of(std::string(kDepth, '[')), fmt::format("{}: not JSON: the text ends", kDepth));
  EXPECT_EQ(error_of(std::string(kDepth, '[') + std::string(kDepth, ']')), "");
}

TEST(JsonReader, ChecksTheTextBeforeItIsRead) {
  const auto check = [](std::string_view text) {
    const auto checked = check_json_object(text, "f.json");
    return checked ? std::string() : checked.error().message();
  };
  EXPECT_EQ(check(" {}"), "");
  EXPECT_EQ(check("{\"\xc3\xa9\"}"), "");
  EXPECT_EQ(check(""), "f.json: not JSON, only white space");
  EXPECT_EQ(check(" [1]"), "f.json: not a JSON object: its first byte is 0x5b");
  EXPECT_EQ(check("{\"12345678\xe9\"}"), "f.json: byte 10 is not UTF-8");
  for (const std::string_view text :
       {"  {\"a\\\0\": 1}"sv, "  {\"abc\0\": 1}"sv, "  {\"a\": 1\0}"sv, "  {\"ab\"}\0"sv}) {
    EXPECT_EQ(check(text), fmt::format("f.json: byte {} is NUL", text.find('\0')));
  }
}

TEST(JsonReader, CountsStringsForTables) {
  EXPECT_EQ(max_json_strings(R"({"a":"b","c":[]})"), 3U);
  EXPECT_EQ(max_json_strings(""), 0U);
}

}  // namespace
}  // namespace ckfs
