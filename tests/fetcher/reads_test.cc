// The machine that reads ranges, against a server that fails as it is told.
#include "fetcher/reads.h"

#include <algorithm>
#include <atomic>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <random>

#include "fetcher/scripted_server.h"

namespace ckfs {
namespace {

using test::reply;
using test::ScriptedAnswer;
using test::ScriptedRequest;
using test::ScriptedServer;
using ::testing::HasSubstr;

constexpr std::size_t kSize = 200'000;

std::string content() {
  std::mt19937 random(7);
  std::string bytes(kSize, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

/// The range that a request asks for, in words that a client may believe.
ScriptedAnswer serve(const ScriptedRequest& request, std::string_view bytes,
                     std::string_view etag = "\"1\"") {
  const std::string range = request.header("range");
  const std::size_t dash = range.find('-');
  const std::size_t begin = std::stoul(range.substr(6, dash - 6));
  const std::size_t end = std::stoul(range.substr(dash + 1)) + 1;
  return reply(206,
               {fmt::format("Content-Range: bytes {}-{}/{}", begin, end - 1, bytes.size()),
                fmt::format("ETag: {}", etag)},
               bytes.substr(begin, end - begin));
}

/// A service of one URL.
class OneUrl final : public Service {
 public:
  explicit OneUrl(std::string url) : url_(parse_url(url).value()) {}
  Result<RemoteSource> open(std::string_view) override { return RemoteSource{}; }
  Result<std::optional<HttpRequest>> ask(const RemoteObject& object, ByteRange range) override {
    HttpRequest request{.url = url_, .headers = {}};
    request.wanted = RangeWanted{range, object.size, {{"etag", object.version}}};
    return std::optional(std::move(request));
  }
  AnswerVerdict heed(const RemoteObject& /*object*/, const HttpRequest& /*request*/,
                     const HttpAnswer& answer) override {
    return judge("thing", answer, 0);
  }

 private:
  Url url_;
};

/// Patience that tests can wait for.
HttpOptions quick() {
  HttpOptions options;
  options.patience = {.connect = FetchDuration(1000),
                      .first_byte_least = FetchDuration(200),
                      .first_byte_most = FetchDuration(200),
                      .slow_for = FetchDuration(200),
                      .slow_rate = 1000,
                      .backoff_first = FetchDuration(1),
                      .backoff_most = FetchDuration(5),
                      .timeout = FetchDuration(20'000)};
  return options;
}

struct Reader {
  explicit Reader(const std::string& url, HttpOptions options = quick())
      : http(HttpClient::make(options).value()),
        service(std::make_shared<OneUrl>(url)),
        reads(*http, 16, 1) {}

  /// Reads all of the object in pieces of that size; gives the first error.
  Result<std::string> read(std::size_t piece = kSize) {
    std::string bytes(kSize, '?');
    Result<void> result;
    std::size_t left = 0;
    for (std::size_t at = 0; at < kSize; at += piece) {
      ++left;
      const ByteRange range{at, std::min(at + piece, kSize)};
      reads.start(next++, service, object, range, reinterpret_cast<std::byte*>(bytes.data()) + at,
                  [&](Result<void> done) {
                    --left;
                    if (!done && result) result = std::move(done);
                  });
    }
    while (left > 0) http->step(reads.step());
    if (!result) return Failure(result.error());
    return bytes;
  }

  std::unique_ptr<HttpClient> http;
  std::shared_ptr<Service> service;
  RemoteObject object{.name = "o", .size = kSize, .version = "\"1\""};
  Reads reads;
  std::uint64_t next = 1;
};

TEST(Reads, GiveTheBytes) {
  const std::string bytes = content();
  ScriptedServer server([&](const ScriptedRequest& request) { return serve(request, bytes); });
  Reader reader(server.url("/o"));
  EXPECT_EQ(reader.read(10'000).value(), bytes);
  EXPECT_EQ(server.requests().size(), 20);
  EXPECT_EQ(reader.reads.counts().retries, 0);
}

TEST(Reads, AreMoreAtOnceWhereThatIsFaster) {
  const std::string bytes = content();
  ScriptedServer server([&](const ScriptedRequest& request) { return serve(request, bytes); });
  Reader reader(server.url("/o"));
  EXPECT_EQ(reader.reads.window(), 8);
  for (int i = 0; i < 20 && reader.reads.window() == 8; ++i) {
    EXPECT_EQ(reader.read(1'000).value(), bytes);
  }
  EXPECT_GT(reader.reads.window(), 8);
}

TEST(Reads, TryAgainWhatPasses) {
  const std::string bytes = content();
  std::atomic<int> count = 0;
  ScriptedServer server([&](const ScriptedRequest& request) -> ScriptedAnswer {
    switch (++count % 7) {
      case 0:
        return reply(503, {"Retry-After: 0"});
      case 1:
        return reply(500);
      case 2:
        return {"", ScriptedAnswer::Then::Close};
      case 3: {  // cut in the middle
        ScriptedAnswer answer = serve(request, bytes);
        answer.bytes.resize(answer.bytes.size() - 3000);
        answer.then = ScriptedAnswer::Then::Close;
        return answer;
      }
      default:
        return serve(request, bytes);
    }
  });
  Reader reader(server.url("/o"));
  EXPECT_EQ(reader.read(10'000).value(), bytes);
  EXPECT_GT(reader.reads.counts().retries, 5);
}

TEST(Reads, GoOnWhereTheConnectionEnded) {
  const std::string bytes = content();
  ScriptedServer server([&](const ScriptedRequest& request) {
    ScriptedAnswer answer = serve(request, bytes);
    if (answer.bytes.size() > 60'000) {
      answer.bytes.resize(60'000);
      answer.then = ScriptedAnswer::Then::Close;
    }
    return answer;
  });
  Reader reader(server.url("/o"));
  EXPECT_EQ(reader.read().value(), bytes);
  const auto requests = server.requests();
  EXPECT_EQ(requests.size(), 4);
  for (std::size_t i = 1; i < requests.size(); ++i) {
    EXPECT_NE(requests[i].header("range"), requests[i - 1].header("range"));
  }
  // No byte is asked for twice.
  EXPECT_EQ(reader.reads.counts().bytes, kSize);
}

TEST(Reads, LeaveAConnectionThatStalls) {
  const std::string bytes = content();
  std::atomic<int> count = 0;
  ScriptedServer server([&](const ScriptedRequest& request) -> ScriptedAnswer {
    const int now = ++count;
    if (now == 1) return {"", ScriptedAnswer::Then::Hang};
    ScriptedAnswer answer = serve(request, bytes);
    if (now == 2) {
      answer.bytes.resize(50'000);
      answer.then = ScriptedAnswer::Then::Hang;
    }
    return answer;
  });
  Reader reader(server.url("/o"));
  EXPECT_EQ(reader.read().value(), bytes);
  EXPECT_EQ(count, 3);
}

TEST(Reads, AskAnotherConnectionWhereOneIsSlowerThanUsual) {
  const std::string bytes = content();
  std::atomic<int> count = 0;
  ScriptedServer server([&](const ScriptedRequest& request) -> ScriptedAnswer {
    if (++count == 150) return {"", ScriptedAnswer::Then::Hang};
    return serve(request, bytes);
  });
  HttpOptions options = quick();
  options.patience.hedge_least = FetchDuration(50);
  options.patience.first_byte_least = options.patience.first_byte_most = FetchDuration(60'000);
  Reader reader(server.url("/o"), options);
  EXPECT_EQ(reader.read(1'000).value(), bytes);
  EXPECT_EQ(count, 201);
}

TEST(Reads, OfAnotherVersionAreStaleAndNeverMixed) {
  const std::string bytes = content();
  for (int at = 1; at <= 20; ++at) {
    std::atomic<int> count = 0;
    ScriptedServer server([&](const ScriptedRequest& request) {
      return serve(request, bytes, ++count >= at ? "\"2\"" : "\"1\"");
    });
    Reader reader(server.url("/o"));
    const auto result = reader.read(10'000);
    ASSERT_FALSE(result) << at;
    EXPECT_EQ(result.error().code(), ErrorCode::Stale);
    EXPECT_THAT(result.error().message(), HasSubstr("its etag was \"1\" and is \"2\""));
  }
}

TEST(Reads, BelieveNoRangeThatWasNotAsked) {
  const std::string bytes = content();
  ScriptedServer server([&](const ScriptedRequest&) {
    return reply(206, {"Content-Range: bytes 1-10000/200000", "ETag: \"1\""},
                 std::string_view(bytes).substr(0, 10'000));
  });
  Reader reader(server.url("/o"));
  const auto result = reader.read(10'000);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::Io);
  EXPECT_THAT(result.error().message(), HasSubstr("the server sends bytes [1, 10001) for ["));
}

TEST(Reads, EndATransferThatIsAllOfTheObjectBeforeItsFirstByte) {
  // A server without ranges, whose object would be a terabyte.
  ScriptedServer server([](const ScriptedRequest&) -> ScriptedAnswer {
    return {"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\nbytes",
            ScriptedAnswer::Then::Hang};
  });
  Reader reader(server.url("/o"));
  EXPECT_THAT(reader.read(10'000).error().message(), HasSubstr("sends no ranges"));
}

TEST(Reads, ThatAreRefusedSayWhy) {
  ScriptedServer server([](const ScriptedRequest&) {
    return reply(403, {"x-amz-request-id: R1"},
                 "<Error><Code>AccessDenied</Code><Message>No</Message></Error>");
  });
  Reader reader(server.url("/o"));
  EXPECT_EQ(reader.read().error().message(),
            "thing: the server answers 403 AccessDenied: No (request R1)");
  EXPECT_EQ(server.requests().size(), 1);
}

TEST(Reads, EndWhenTheirTimeIsUp) {
  ScriptedServer server([](const ScriptedRequest&) { return reply(503); });
  HttpOptions options = quick();
  options.patience.timeout = FetchDuration(300);
  Reader reader(server.url("/o"), options);
  const auto result = reader.read();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::Io);
  EXPECT_THAT(result.error().message(), HasSubstr("the server answers 503 (no answer within"));
}

TEST(Reads, WaitForAServerThatIsAway) {
  const std::string bytes = content();
  std::string url;
  {
    const ScriptedServer gone([](const ScriptedRequest&) { return reply(500); });
    url = gone.url("/o");
  }
  HttpOptions options = quick();
  options.patience.timeout = FetchDuration(300);
  Reader reader(url, options);
  EXPECT_THAT(reader.read().error().message(), HasSubstr("no answer within the time"));
}

TEST(Reads, ThatAreCancelledWriteNothingAfterwards) {
  ScriptedServer server([](const ScriptedRequest&) -> ScriptedAnswer {
    return {"HTTP/1.1 206 X\r\nContent-Range: bytes 0-199999/200000\r\nETag: \"1\"\r\n\r\nbegin",
            ScriptedAnswer::Then::Hang};
  });
  Reader reader(server.url("/o"));
  std::string bytes(kSize, '?');
  std::optional<Error> error;
  reader.reads.start(1, reader.service, reader.object, {0, kSize},
                     reinterpret_cast<std::byte*>(bytes.data()),
                     [&](const Result<void>& done) { error = done.error(); });
  while (bytes[4] == '?') reader.http->step(reader.reads.step());
  reader.reads.cancel(1);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Stopped);
  EXPECT_EQ(reader.http->in_flight(), 0);
  EXPECT_EQ(reader.reads.size(), 0);
}

TEST(Reads, KeepTheServiceThatTheyWereStartedWith) {
  const std::string bytes = content();
  std::atomic<int> asked = 0;
  ScriptedServer server([&](const ScriptedRequest& request) {
    return ++asked == 1 ? reply(503) : serve(request, bytes);
  });
  Reader reader(server.url("/o"));
  std::string got(4, '?');
  std::optional<Result<void>> result;
  reader.reads.start(1, std::exchange(reader.service, nullptr), reader.object, {0, 4},
                     reinterpret_cast<std::byte*>(got.data()),
                     [&](Result<void> done) { result = std::move(done); });
  while (!result) reader.http->step(reader.reads.step());
  ASSERT_TRUE(*result) << result->error().message();
  EXPECT_EQ(got, bytes.substr(0, 4));
}

TEST(HttpClient, SendsACallersHeadersAndNoOthersOfItsOwn) {
  ScriptedServer server([](const ScriptedRequest&) { return reply(200, {}, "fine"); });
  const auto http = HttpClient::make({}).value();
  HttpRequest request{.method = "POST",
                      .url = parse_url(server.url("/a/../b?x=%2F")).value(),
                      .headers = {{"x-one", "1"}},
                      .body = "body"};
  request.url.user = "me:p%40ss";
  EXPECT_EQ(http->fetch(request).body, "fine");
  const ScriptedRequest sent = server.requests().at(0);
  EXPECT_EQ(sent.target(), "/a/../b?x=%2F");
  EXPECT_EQ(sent.header("x-one"), "1");
  EXPECT_EQ(sent.header("accept-encoding"), "identity");
  EXPECT_EQ(sent.header("authorization"), "Basic bWU6cEBzcw==");
  EXPECT_EQ(sent.header("user-agent"), "");
  EXPECT_EQ(sent.header("expect"), "");
  EXPECT_EQ(sent.body, "body");
}

TEST(HttpClient, KeepsAListingWithinItsBound) {
  ScriptedServer server(
      [](const ScriptedRequest&) { return reply(200, {}, std::string(5000, 'x')); });
  const auto http = HttpClient::make({}).value();
  HttpRequest request{.url = parse_url(server.url()).value(), .headers = {}, .most_body = 4999};
  EXPECT_EQ(http->fetch(request).fault, HttpFault::TooLong);
  request.most_body = 5000;
  EXPECT_EQ(http->fetch(request).body.size(), 5000);
}

TEST(HttpClient, GoesToNoMetadataServiceUnlessThatIsMeant) {
  const auto http = HttpClient::make(quick()).value();
  HttpRequest request{.url = parse_url("http://169.254.169.254/latest").value(), .headers = {}};
  EXPECT_EQ(http->fetch(request).why, "its address is of this machine alone");
  request.url = parse_url("http://[::ffff:169.254.169.254]/latest").value();
  EXPECT_EQ(http->fetch(request).fault, HttpFault::Connect);
}

}  // namespace
}  // namespace ckfs
