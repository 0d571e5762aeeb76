#include "serve/request.h"

#include <gtest/gtest.h>

namespace ckfs {
namespace {

using Parameters = std::vector<std::pair<std::string, std::string>>;

constexpr std::string_view kRequest =
    "GET /bucket/a%20b+c/%E2%82%AC?list-type=2&prefix=x%2Fy+z&flag HTTP/1.1\r\n"
    "Host: Example.org:9000\r\nRange:  bytes=0-1 \r\nX-Two: a\r\nx-two: b\r\n\r\n";

TEST(TakeRequest, SplitsALineAndItsHeaders) {
  const std::string bytes = fmt::format("{}GET /next", kRequest);
  const TakenRequest taken = take_request(bytes);
  ASSERT_FALSE(taken.bad);
  EXPECT_EQ(taken.used, kRequest.size());
  const ServeRequest& request = taken.request;
  EXPECT_EQ(request.method, "GET");
  EXPECT_EQ(request.path, "/bucket/a b+c/\xE2\x82\xAC");
  EXPECT_EQ(request.query, (Parameters{{"list-type", "2"}, {"prefix", "x/y+z"}, {"flag", ""}}));
  EXPECT_EQ(request.authority, "Example.org:9000");
  EXPECT_EQ(request.host, "example.org");
  EXPECT_EQ(request.header("range"), "bytes=0-1");
  EXPECT_TRUE(request.keeps_alive);
  EXPECT_FALSE(request.has_body);
  EXPECT_EQ(request.parameter("flag"), "");
  EXPECT_EQ(request.parameter("none"), std::nullopt);
}

TEST(TakeRequest, WaitsForTheRestOfOneThatIsCutAnywhere) {
  for (std::size_t size = 0; size < kRequest.size(); ++size) {
    const TakenRequest taken = take_request(kRequest.substr(0, size));
    EXPECT_EQ(taken.used, 0U) << size;
    EXPECT_FALSE(taken.bad) << size;
  }
}

TEST(TakeRequest, TakesTheHostOfATargetInAbsoluteForm) {
  const TakenRequest taken =
      take_request("GET HTTP://[::1]:80?x=1 HTTP/1.1\r\nHost: other\r\n\r\n");
  ASSERT_FALSE(taken.bad);
  EXPECT_EQ(taken.request.host, "[::1]");
  EXPECT_EQ(taken.request.authority, "[::1]:80");
  EXPECT_EQ(taken.request.path, "/");
  EXPECT_EQ(taken.request.parameter("x"), "1");
}

TEST(TakeRequest, KnowsWhichConnectionsGoOnAndWhichHaveABody) {
  const auto taken = [](std::string_view line, std::string_view headers) {
    return take_request(fmt::format("GET / {}\r\nHost: a\r\n{}\r\n", line, headers)).request;
  };
  EXPECT_TRUE(taken("HTTP/1.1", "").keeps_alive);
  EXPECT_FALSE(taken("HTTP/1.1", "Connection: close\r\n").keeps_alive);
  EXPECT_FALSE(taken("HTTP/1.0", "").keeps_alive);
  EXPECT_TRUE(taken("HTTP/1.0", "").is_old);
  EXPECT_TRUE(taken("HTTP/1.0", "Connection: keep-alive\r\n").keeps_alive);
  EXPECT_FALSE(taken("HTTP/1.1", "Content-Length: 0\r\n").has_body);
  EXPECT_TRUE(taken("HTTP/1.1", "Content-Length: 1\r\n").has_body);
  EXPECT_TRUE(taken("HTTP/1.1", "Transfer-Encoding: chunked\r\n").has_body);
}

TEST(TakeRequest, RefusesWhatTwoProgramsMayReadInTwoWays) {
  for (const std::string_view headers :
       {"Name : a\r\n", "Content-Length: 1\r\nContent-Length: 2\r\n", "Content-Length: -1\r\n",
        "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "A\r\n", ": a\r\n", "Host: b\r\n",
        "A: \x01\r\n"}) {
    const TakenRequest taken =
        take_request(fmt::format("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", headers));
    ASSERT_TRUE(taken.bad) << headers;
    EXPECT_EQ(taken.bad->status, 400) << headers;
  }
}

TEST(TakeRequest, HasALimit) {
  std::string bytes = "GET / HTTP/1.1\r\nHost: a\r\n";
  while (bytes.size() < kLongestRequest) bytes += "A: b\r\n";
  ASSERT_TRUE(take_request(bytes).bad);
  EXPECT_EQ(take_request(bytes).bad->status, 431);
  const TakenRequest endless = take_request("GET /" + std::string(kLongestRequest, 'a'));
  ASSERT_TRUE(endless.bad);
  EXPECT_EQ(endless.bad->status, 431);
}

}  // namespace
}  // namespace ckfs
