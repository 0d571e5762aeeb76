// What services learn from answers in the middle of a read, and what they refuse to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fetcher/reads.h"
#include "fetcher/scripted_server.h"
#include "fetcher/test_machine.h"

namespace ckfs {
namespace {

using test::Machine;
using test::reply;
using test::ScriptedAnswer;
using test::ScriptedRequest;
using test::ScriptedServer;
using ::testing::HasSubstr;

std::shared_ptr<Service> service(Machine& machine, std::string_view location,
                                 const RemoteOptions& options = {}) {
  return make_service(machine.context, parse_location(location).value(), options, false).value();
}

/// Reads four bytes of the first object.
Result<std::string> read(Machine& machine, std::shared_ptr<Service> service,
                         const RemoteObject& object) {
  Reads reads(*machine.http, 8, 1);
  std::string bytes(4, '?');
  std::optional<Result<void>> result;
  reads.start(1, std::move(service), object, {0, 4}, reinterpret_cast<std::byte*>(bytes.data()),
              [&](Result<void> done) { result = std::move(done); });
  while (!result) machine.http->step(reads.step());
  if (!*result) return Failure(result->error());
  return bytes;
}

ScriptedAnswer bytes_of_it(std::vector<std::string> headers = {}) {
  headers.emplace_back("Content-Range: bytes 0-3/9");
  return reply(206, headers, "data");
}

const RemoteObject kObject{.name = "o", .size = 9, .version = "\"e\""};

ScriptedAnswer s3_error(int status, std::string_view code, std::string_view more = "",
                        const std::vector<std::string>& headers = {}) {
  return reply(status, headers,
               fmt::format("<Error><Code>{}</Code><Message>m</Message>{}</Error>", code, more));
}

Machine& with_keys(Machine& machine, const ScriptedServer& server) {
  machine.variables["AWS_ACCESS_KEY_ID"] = "A";
  machine.variables["AWS_SECRET_ACCESS_KEY"] = "s";
  machine.variables["AWS_ENDPOINT_URL_S3"] = server.url();
  return machine;
}

TEST(S3, GoesToTheRegionThatItIsSentTo) {
  ScriptedServer server([](const ScriptedRequest& request) {
    if (request.header("authorization").find("/eu-west-3/s3/") == std::string::npos) {
      return s3_error(400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>");
    }
    return bytes_of_it({"ETag: \"e\""});
  });
  Machine machine;
  const auto s3 = service(with_keys(machine, server), "s3://b/p");
  EXPECT_EQ(read(machine, s3, kObject).value(), "data");
  EXPECT_EQ(server.requests().size(), 2);
  EXPECT_EQ(read(machine, s3, kObject).value(), "data");
  EXPECT_EQ(server.requests().size(), 3);
  EXPECT_EQ(server.requests()[2].target(), "/b/p/o");
  EXPECT_EQ(server.requests()[2].header("if-match"), "\"e\"");
  EXPECT_EQ(server.requests()[2].header("range"), "bytes=0-3");
}

TEST(S3, AsksForNewKeysWhenThoseThatItHasEnd) {
  std::string good = "one";
  ScriptedServer keys([&](const ScriptedRequest&) {
    return reply(200, {},
                 fmt::format(R"({{"AccessKeyId":"{}","SecretAccessKey":"s","Token":"t",)"
                             R"("Expiration":"2001-09-09T09:00:00Z"}})",
                             good));
  });
  ScriptedServer server([&](const ScriptedRequest& request) {
    return request.header("authorization").find("Credential=" + good + "/") == std::string::npos
               ? s3_error(400, "ExpiredToken")
               : bytes_of_it({"ETag: \"e\""});
  });
  Machine machine;
  machine.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = keys.url();
  machine.variables["AWS_ENDPOINT_URL_S3"] = server.url();
  const auto s3 = service(machine, "s3://b");
  EXPECT_EQ(read(machine, s3, kObject).value(), "data");
  good = "two";
  EXPECT_EQ(read(machine, s3, kObject).value(), "data");
  EXPECT_EQ(keys.requests().size(), 2);
}

TEST(S3, TakesTheServersTimeWhereThatOfTheMachineIsWrong) {
  ScriptedServer server([](const ScriptedRequest& request) {
    return request.header("x-amz-date").starts_with("20010909T03")
               ? bytes_of_it({"ETag: \"e\""})
               : s3_error(403, "RequestTimeTooSkewed", "", {"Date: Sun, 09 Sep 2001 03:00:00 GMT"});
  });
  Machine machine;
  const auto s3 = service(with_keys(machine, server), "s3://b");
  EXPECT_EQ(read(machine, s3, kObject).value(), "data");
}

TEST(S3, SaysWhatAnAnswerMeans) {
  ScriptedAnswer answer;
  ScriptedServer server([&](const ScriptedRequest&) { return answer; });
  Machine machine;
  const auto s3 = service(with_keys(machine, server), "s3://b");
  answer = s3_error(404, "NoSuchKey");
  EXPECT_EQ(read(machine, s3, kObject).error().code(), ErrorCode::Stale);
  answer = s3_error(412, "PreconditionFailed");
  EXPECT_EQ(read(machine, s3, kObject).error().code(), ErrorCode::Stale);
  answer = s3_error(403, "InvalidObjectState");
  EXPECT_THAT(read(machine, s3, kObject).error().message(),
              HasSubstr("it is in an archive (restore it first)"));
  answer = s3_error(403, "AccessDenied");
  EXPECT_THAT(s3->open("").error().message(), HasSubstr("the keys may not list the bucket"));
  answer = bytes_of_it({"ETag: \"other\""});
  EXPECT_EQ(read(machine, s3, kObject).error().code(), ErrorCode::Stale);
}

TEST(S3, NamesItsBucketInTheHostWhereACertificateCoversIt) {
  Machine machine;
  machine.variables["AWS_REGION"] = "eu-west-1";
  const auto url = [&](std::string_view location, std::string_view key) {
    RemoteObject object = kObject;
    object.name = key;
    return (*service(machine, location, {.anonymous = true})->ask(object, {0, 4}))->url.text();
  };
  EXPECT_EQ(url("s3://bucket/p", "step=1/a b+c"),
            "https://bucket.s3.eu-west-1.amazonaws.com/p/step%3D1/a%20b%2Bc");
  EXPECT_EQ(url("s3://my.bucket", "k"), "https://s3.eu-west-1.amazonaws.com/my.bucket/k");
  machine.variables["AWS_REGION"] = "cn-north-1";
  EXPECT_EQ(url("s3://bucket", "k"), "https://bucket.s3.cn-north-1.amazonaws.com.cn/k");
  machine.variables["AWS_ENDPOINT_URL"] = "http://minio:9000/base/";
  EXPECT_EQ(url("s3://bucket", "k"), "http://minio:9000/base/bucket/k");
}

TEST(S3, SendsNothingOfACallerWhoIsAnonymous) {
  ScriptedServer server([](const ScriptedRequest&) { return bytes_of_it({"ETag: \"e\""}); });
  Machine machine;
  const auto s3 = service(with_keys(machine, server), "s3://b", {.anonymous = true});
  EXPECT_EQ(read(machine, s3, kObject).value(), "data");
  EXPECT_EQ(server.requests()[0].header("authorization"), "");
}

TEST(WebSource, FollowsRedirectsWithinBounds) {
  std::string to = "/a";
  ScriptedServer server([&](const ScriptedRequest&) { return reply(302, {"Location: " + to}); });
  Machine machine;
  const auto error = [&] { return service(machine, server.url("/o"))->open("").error().message(); };
  EXPECT_THAT(error(), HasSubstr("more than 5 redirects"));
  EXPECT_EQ(server.requests().size(), 6);
  to = "http://169.254.169.254/latest/meta-data/";
  EXPECT_THAT(error(),
              HasSubstr("redirects to http://169.254.169.254, an address of this machine"));
  to = "file:///etc/passwd";
  EXPECT_THAT(error(), HasSubstr("redirects to no place"));
}

TEST(WebSource, SendsCredentialsToItsOwnOriginOnly) {
  ScriptedServer cdn([](const ScriptedRequest& request) {
    return request.head.find("hush") == std::string::npos && request.header("authorization").empty()
               ? bytes_of_it({"ETag: \"e\""})
               : reply(400);
  });
  ScriptedServer server([&](const ScriptedRequest& request) {
    return request.header("x-token") == "hush" && !request.header("authorization").empty()
               ? reply(302, {"Location: " + cdn.url("/o")})
               : reply(401);
  });
  Machine machine;
  machine.files["/headers"] = "X-Token: hush\n";
  std::string location = server.url("/o");
  location.insert(7, "me:hush@");
  const auto web = service(machine, location, {.header_file = "/headers"});
  const auto source = web->open("");
  ASSERT_TRUE(source) << source.error().message();
  EXPECT_EQ(source->objects.at(0), (RemoteObject{.name = "o", .size = 9, .version = "etag:\"e\""}));
  EXPECT_EQ(read(machine, web, source->objects[0]).value(), "data");
}

TEST(Hub, TellsGatedFromAbsentAndAsksNothingWhenOffline) {
  ScriptedAnswer answer;
  ScriptedServer server([&](const ScriptedRequest&) { return answer; });
  Machine machine;
  machine.variables["HF_ENDPOINT"] = server.url();
  machine.variables["HF_TOKEN"] = "hf_x";
  const auto error = [&] { return service(machine, "hf://o/r")->open("").error().message(); };
  answer = reply(403, {"X-Error-Code: GatedRepo"}, R"({"error":"Access restricted"})");
  EXPECT_THAT(error(), HasSubstr("the repository is gated: ask for access at " + server.url() +
                                 "/o/r (the token is sent"));
  EXPECT_EQ(server.requests()[0].header("authorization"), "Bearer hf_x");
  machine.variables["HF_HUB_DISABLE_IMPLICIT_TOKEN"] = "1";
  answer = reply(401, {}, R"({"error":"Invalid username or password."})");
  EXPECT_THAT(error(), HasSubstr("private or gated (set HF_TOKEN, or run hf auth login)"));
  EXPECT_EQ(server.requests()[1].header("authorization"), "");
  machine.variables["HF_HUB_OFFLINE"] = "1";
  EXPECT_THAT(make_service(machine.context, parse_location("hf://o/r").value(), {}, false)
                  .error()
                  .message(),
              HasSubstr("HF_HUB_OFFLINE is set"));
  EXPECT_EQ(server.requests().size(), 2);
}

}  // namespace
}  // namespace ckfs
