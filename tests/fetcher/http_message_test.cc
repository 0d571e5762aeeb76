#include "fetcher/http_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

using ::testing::HasSubstr;

HttpAnswer partial(std::string_view range, HttpHeaders more = {}) {
  HttpAnswer answer{.status = 206, .headers = std::move(more)};
  answer.headers.emplace_back("content-range", range);
  return answer;
}

const RangeWanted kWanted{.range = {10, 20}, .total = 100, .versions = {{"etag", "\"a\""}}};

TEST(ContentRange, IsOfBytesWithAnEndAndATotal) {
  const auto range = parse_content_range("bytes 10-19/100");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->range, (ByteRange{10, 20}));
  EXPECT_EQ(range->total, 100);
  for (const std::string_view text :
       {"bytes 10-19/*", "bytes */100", "bytes 19-10/100", "bytes 10-100/100", "items 10-19/100",
        "bytes 10-19/100 ", "bytes -1-19/100", "bytes 10-18446744073709551615/100", "",
        "bytes 10-19", "bytes 99999999999999999999-1/2"}) {
    EXPECT_FALSE(parse_content_range(text)) << text;
  }
}

TEST(Belief, IsInTheRangeTheTotalAndTheVersionThatWereAsked) {
  EXPECT_EQ(believe(kWanted, partial("bytes 10-19/100", {{"etag", "\"a\""}})).fault,
            HttpFault::None);
  // Some servers answer so (rclone serve s3).
  HttpAnswer answer = partial("bytes 10-19/100", {{"etag", "\"a\""}});
  answer.status = 200;
  EXPECT_EQ(believe(kWanted, answer).fault, HttpFault::None);
}

TEST(Belief, IsRefusedToAnythingElse) {
  const auto of = [](HttpAnswer answer) { return believe(kWanted, answer); };
  EXPECT_EQ(of(partial("bytes 9-18/100", {{"etag", "\"a\""}})).fault, HttpFault::Unwanted);
  EXPECT_EQ(of(partial("bytes 10-18/100", {{"etag", "\"a\""}})).fault, HttpFault::Unwanted);
  EXPECT_EQ(of(partial("bytes 10-19/*", {{"etag", "\"a\""}})).fault, HttpFault::Unwanted);
  const Belief larger = of(partial("bytes 10-19/101", {{"etag", "\"a\""}}));
  EXPECT_EQ(larger.fault, HttpFault::Changed);
  EXPECT_EQ(larger.why, "its size was 100 and is 101");
  const Belief other = of(partial("bytes 10-19/100", {{"etag", "\"b\""}}));
  EXPECT_EQ(other.fault, HttpFault::Changed);
  EXPECT_EQ(other.why, "its etag was \"a\" and is \"b\"");
  EXPECT_EQ(of(partial("bytes 10-19/100", {{"etag", "W/\"a\""}})).fault, HttpFault::Changed);
  EXPECT_EQ(of(partial("bytes 10-19/100")).fault, HttpFault::Changed);
  EXPECT_EQ(of(partial("bytes 10-19/100", {{"etag", "\"a\""}, {"content-encoding", "gzip"}})).fault,
            HttpFault::Unwanted);
  EXPECT_EQ(
      of(partial("bytes 10-19/100", {{"etag", "\"a\""}, {"content-range", "bytes 0-9/100"}})).fault,
      HttpFault::Unwanted);
  HttpAnswer whole{.status = 200, .headers = {{"etag", "\"a\""}, {"content-length", "100"}}};
  EXPECT_EQ(of(whole).fault, HttpFault::Unwanted);
  EXPECT_THAT(of(whole).why, HasSubstr("no ranges"));
}

TEST(Belief, TakesAWholeObjectWhereAllOfItWasWanted) {
  const RangeWanted all{.range = {0, 100}, .total = 100, .versions = {}};
  HttpAnswer answer{.status = 200, .headers = {{"content-length", "100"}}};
  EXPECT_EQ(believe(all, answer).fault, HttpFault::None);
  answer.headers = {{"content-length", "99"}};
  EXPECT_EQ(believe(all, answer).fault, HttpFault::Changed);
  answer.headers = {};
  EXPECT_EQ(believe(all, answer).fault, HttpFault::Changed);
}

TEST(HttpAnswer, IsReadLineByLineWithinBounds) {
  HttpAnswer answer;
  EXPECT_TRUE(take_header_line("HTTP/1.1 100 Continue\r\n", answer));
  EXPECT_TRUE(take_header_line("X-Old: 1\r\n", answer));
  EXPECT_TRUE(take_header_line("HTTP/1.1 206 Partial Content\r\n", answer));
  EXPECT_TRUE(take_header_line("ETag:  \"a\" \r\n", answer));
  EXPECT_TRUE(take_header_line("\r\n", answer));
  EXPECT_EQ(answer.status, 206);
  EXPECT_EQ(answer.headers, (HttpHeaders{{"etag", "\"a\""}}));
  EXPECT_FALSE(take_header_line("no header", answer));
  EXPECT_FALSE(take_header_line(": none", answer));
  EXPECT_FALSE(take_header_line("HTTP/1.1 99999 X", answer));
  int lines = 0;
  while (lines < 10000 && take_header_line("a: b", answer)) ++lines;
  EXPECT_EQ(lines, 256);
}

TEST(AskedWait, IsASpanATimeOrTheHubsLimit) {
  constexpr std::int64_t kNow = 784111777;  // Sun, 06 Nov 1994 08:49:37 GMT
  EXPECT_EQ(asked_wait({{"retry-after", "7"}}, kNow), 7);
  EXPECT_EQ(asked_wait({{"retry-after", "Sun, 06 Nov 1994 08:50:00 GMT"}}, kNow), 23);
  EXPECT_EQ(asked_wait({{"retry-after", "Sun, 06 Nov 1994 08:00:00 GMT"}}, kNow), 0);
  EXPECT_EQ(asked_wait({{"ratelimit", "\"resolvers\";r=0;t=123"}}, kNow), 123);
  EXPECT_EQ(asked_wait({{"retry-after", "99999999999"}}, kNow), 3600);
  EXPECT_EQ(asked_wait({{"retry-after", "soon"}}, kNow), std::nullopt);
  EXPECT_EQ(asked_wait({}, kNow), std::nullopt);
}

}  // namespace
}  // namespace ckfs
