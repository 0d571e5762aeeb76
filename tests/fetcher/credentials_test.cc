// Each place where a caller's keys may be, against stand-ins on the loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fetcher/aws_credentials.h"
#include "fetcher/gcs_credentials.h"
#include "fetcher/scripted_server.h"
#include "fetcher/test_machine.h"
#include "fetcher/web.h"

namespace ckfs {
namespace {

using test::reply;
using test::ScriptedRequest;
using test::ScriptedServer;
using ::testing::HasSubstr;
using ::testing::Not;

struct CloudMachine : test::Machine {
  AwsKeys aws() { return AwsCredentials(context).keys().value(); }
  std::string aws_error() { return AwsCredentials(context).keys().error().message(); }
};

// 2001-09-09T01:46:40Z is the machine's now.
constexpr std::string_view kInAnHour = "2001-09-09T02:46:40Z";

std::string keys_json(std::string_view id, std::string_view ends = kInAnHour) {
  return fmt::format(
      R"({{"Code":"Success","AccessKeyId":"{}","SecretAccessKey":"s","Token":"t","Expiration":"{}"}})",
      id, ends);
}

std::string sts_xml(std::string_view action, std::string_view id) {
  return fmt::format(
      "<{0}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{0}Result><Credentials>"
      "<AccessKeyId>{1}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
      "<SessionToken>t</SessionToken><Expiration>{2}</Expiration></Credentials></{0}Result>"
      "</{0}Response>",
      action, id, kInAnHour);
}

TEST(AwsCredentials, OfTheEnvironmentComeFirst) {
  CloudMachine machine;
  machine.files["/home/u/.aws/credentials"] =
      "[default]\naws_access_key_id = FILE\naws_secret_access_key = f\n";
  machine.variables["AWS_ACCESS_KEY_ID"] = "ENV";
  machine.variables["AWS_SECRET_ACCESS_KEY"] = "e";
  machine.variables["AWS_SESSION_TOKEN"] = "tok";
  EXPECT_EQ(machine.aws(), (AwsKeys{"ENV", "e", "tok"}));
}

TEST(AwsCredentials, OfAProfileAreInTheTwoFilesOfAws) {
  CloudMachine machine;
  machine.files["/home/u/.aws/credentials"] =
      "# keys\n[default]\naws_access_key_id = ONE\naws_secret_access_key = 1\n"
      "[other]\naws_access_key_id=TWO\naws_secret_access_key=2 # old\naws_session_token=t\n";
  machine.files["/home/u/.aws/config"] =
      "[default]\nregion = eu-west-1\n[profile other]\nregion = us-west-2\n"
      "endpoint_url = http://minio:9000\ns3 =\n  max_concurrent_requests = 20\n";
  EXPECT_EQ(machine.aws(), (AwsKeys{"ONE", "1", ""}));
  EXPECT_EQ(AwsCredentials(machine.context).region(), "eu-west-1");
  machine.variables["AWS_PROFILE"] = "other";
  EXPECT_EQ(machine.aws(), (AwsKeys{"TWO", "2", "t"}));
  EXPECT_EQ(AwsCredentials(machine.context).region(), "us-west-2");
  EXPECT_EQ(AwsCredentials(machine.context).endpoint_url("s3"), "http://minio:9000");
  machine.variables["AWS_ENDPOINT_URL_S3"] = "http://s3:1";
  machine.variables["AWS_REGION"] = "ap-south-1";
  EXPECT_EQ(AwsCredentials(machine.context).endpoint_url("s3"), "http://s3:1");
  EXPECT_EQ(AwsCredentials(machine.context).region(), "ap-south-1");
}

TEST(AwsCredentials, OfARoleAreAskedForWithItsSource) {
  ScriptedServer sts([](const ScriptedRequest& request) {
    const bool is_right =
        request.body.starts_with("Action=AssumeRole&") &&
        request.body.find("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr") != std::string::npos &&
        request.body.find("ExternalId=x") != std::string::npos &&
        request.header("authorization").find("Credential=BASE/20010909/eu-west-1/sts/") !=
            std::string::npos;
    return is_right ? reply(200, {}, sts_xml("AssumeRole", "ROLE")) : reply(403);
  });
  CloudMachine machine;
  machine.variables["AWS_PROFILE"] = "role";
  machine.variables["AWS_ENDPOINT_URL_STS"] = sts.url();
  machine.files["/home/u/.aws/config"] =
      "[profile role]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\nexternal_id = x\n"
      "region = eu-west-1\n[profile base]\naws_access_key_id = BASE\naws_secret_access_key = b\n"
      "[profile round]\nrole_arn = arn:x\nsource_profile = trip\n"
      "[profile trip]\nrole_arn = arn:y\nsource_profile = round\n";
  EXPECT_EQ(machine.aws(), (AwsKeys{"ROLE", "s", "t"}));
  machine.variables["AWS_PROFILE"] = "round";
  EXPECT_THAT(machine.aws_error(), HasSubstr("no keys to take it with (source_profile)"));
}

TEST(AwsCredentials, OfAWebIdentityReadItsTokenEachTime) {
  std::string token = "one";
  ScriptedServer sts([&](const ScriptedRequest& request) {
    const bool is_right = request.body.find("WebIdentityToken=" + token) != std::string::npos &&
                          request.header("authorization").empty();
    return is_right ? reply(200, {}, sts_xml("AssumeRoleWithWebIdentity", "POD-" + token))
                    : reply(400, {},
                            "<ErrorResponse><Error><Code>InvalidIdentityToken</Code>"
                            "<Message>m</Message></Error></ErrorResponse>");
  });
  CloudMachine machine;
  machine.variables["AWS_ENDPOINT_URL_STS"] = sts.url();
  machine.variables["AWS_ROLE_ARN"] = "arn:r";
  machine.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = "/token";
  machine.files["/token"] = "one\n";
  AwsCredentials credentials(machine.context);
  EXPECT_EQ(credentials.keys()->id, "POD-one");
  EXPECT_EQ(credentials.keys()->id, "POD-one");
  EXPECT_EQ(sts.requests().size(), 1);
  machine.files["/token"] = token = "two";
  machine.now += 3600 - 299;  // five minutes before they end
  EXPECT_EQ(credentials.keys()->id, "POD-two");
  machine.files["/token"] = "bad";
  credentials.forget();
  EXPECT_THAT(credentials.keys().error().message(),
              HasSubstr("role \"arn:r\" of a web identity: the server answers 400 "
                        "InvalidIdentityToken: m"));
}

TEST(AwsCredentials, ThatAreStillGoodAreKeptWhileTheirSourceIsAway) {
  bool is_away = false;
  ScriptedServer container([&](const ScriptedRequest&) {
    return is_away ? reply(404) : reply(200, {}, keys_json("TASK"));
  });
  CloudMachine machine;
  machine.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url("/keys");
  AwsCredentials credentials(machine.context);
  EXPECT_EQ(credentials.keys()->id, "TASK");
  is_away = true;
  machine.now += 3600 - 200;
  EXPECT_EQ(credentials.keys()->id, "TASK");
  machine.now += 200;
  EXPECT_FALSE(credentials.keys());
}

TEST(AwsCredentials, OfSingleSignOnNeedALogin) {
  ScriptedServer portal([](const ScriptedRequest& request) {
    const bool is_right =
        request.target() == "/federation/credentials?role_name=Reader&account_id=123" &&
        request.header("x-amz-sso_bearer_token") == "bearer";
    return is_right ? reply(200, {},
                            R"({"roleCredentials":{"accessKeyId":"SSO","secretAccessKey":"s",)"
                            R"("sessionToken":"t","expiration":1000003600000}})")
                    : reply(401);
  });
  CloudMachine machine;
  machine.variables["AWS_ENDPOINT_URL_SSO"] = portal.url();
  machine.files["/home/u/.aws/config"] =
      "[default]\nsso_session = corp\nsso_account_id = 123\nsso_role_name = Reader\n"
      "[sso-session corp]\nsso_region = eu-west-1\nsso_start_url = https://x\n";
  EXPECT_THAT(machine.aws_error(), HasSubstr("aws sso login --profile default"));
  std::string asked;
  machine.here.read_file = [&](const std::string& name) -> Result<std::string> {
    if (name.find("/sso/cache/") != std::string::npos) {
      asked = name;
      return std::string(
          R"({"accessToken":"bearer","expiresAt":"2001-09-09T02:00:00Z","region":"eu-west-1"})");
    }
    const auto found = machine.files.find(name);
    if (found == machine.files.end()) return fail(ErrorCode::NotFound, "{}", name);
    return found->second;
  };
  EXPECT_EQ(machine.aws(), (AwsKeys{"SSO", "s", "t"}));
  // SHA-1 of "corp"
  EXPECT_EQ(asked, "/home/u/.aws/sso/cache/ee0bfd2552fbd840c02cc48b6e823320543c450f.json");
  machine.now += 3600;
  EXPECT_THAT(machine.aws_error(), HasSubstr("aws sso login"));
}

TEST(AwsCredentials, OfAContainerComeWithItsToken) {
  ScriptedServer container([](const ScriptedRequest& request) {
    return request.header("authorization") == "pod" ? reply(200, {}, keys_json("EKS")) : reply(403);
  });
  CloudMachine machine;
  machine.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = container.url("/v1/credentials");
  machine.variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = "/pod";
  machine.files["/pod"] = "pod\n";
  EXPECT_EQ(machine.aws(), (AwsKeys{"EKS", "s", "t"}));
  // A strange host would get the token.
  machine.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://example.com/keys";
  EXPECT_THAT(machine.aws_error(), HasSubstr("neither this machine nor https"));
}

TEST(AwsCredentials, OfAMachineComeByItsMetadataService) {
  ScriptedServer metadata([](const ScriptedRequest& request) {
    if (request.method() == "PUT" && request.target() == "/latest/api/token" &&
        request.header("x-aws-ec2-metadata-token-ttl-seconds") == "21600") {
      return reply(200, {}, "imds");
    }
    if (request.header("x-aws-ec2-metadata-token") != "imds") return reply(401);
    constexpr std::string_view kRoles = "/latest/meta-data/iam/security-credentials/";
    if (request.target() == kRoles) return reply(200, {}, "role-1");
    if (request.target() == std::string(kRoles) + "role-1") {
      return reply(200, {}, keys_json("EC2"));
    }
    return reply(404);
  });
  CloudMachine machine;
  machine.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = metadata.url();
  EXPECT_THAT(machine.aws_error(), HasSubstr("no AWS credentials"));
  machine.variables.erase("AWS_EC2_METADATA_DISABLED");
  EXPECT_EQ(machine.aws(), (AwsKeys{"EC2", "s", "t"}));
}

TEST(AwsCredentials, OfAProgramAreAskedForByTheNameOfTheProfileAndRenewed) {
  CloudMachine machine;
  machine.variables["AWS_PROFILE"] = "work";
  machine.files["/home/u/.aws/config"] =
      "[profile work]\ncredential_process = /bin/tool --for me\n";
  std::vector<std::string> asked;
  std::string output;
  machine.here.run_credential_process = [&](const std::string& profile) -> Result<std::string> {
    asked.push_back(profile);
    return output;
  };
  const ServiceContext context{*machine.http, machine.here};
  AwsCredentials credentials(context);
  output = R"({"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S", "SessionToken": "T",
               "Expiration": "2001-09-09T02:46:40Z"})";
  EXPECT_EQ(credentials.keys().value(), (AwsKeys{"A", "S", "T"}));
  EXPECT_EQ(credentials.keys().value(), (AwsKeys{"A", "S", "T"}));
  EXPECT_EQ(asked, std::vector<std::string>{"work"});
  machine.now += 3400;  // they end in less than five minutes
  output = R"({"Version": 1, "AccessKeyId": "B", "SecretAccessKey": "S2"})";
  EXPECT_EQ(credentials.keys().value(), (AwsKeys{"B", "S2", ""}));
  EXPECT_EQ(asked.size(), 2u);
  for (const auto& [text, says] : {std::pair(R"({"Version": 2})", "not of \"Version\": 1"),
                                   std::pair(R"({"Version": 1})", "no keys in it"),
                                   std::pair("nonsense", "credential_process")}) {
    output = text;
    const auto keys = AwsCredentials(context).keys();
    ASSERT_FALSE(keys);
    EXPECT_THAT(keys.error().message(), HasSubstr(says));
    EXPECT_THAT(keys.error().message(), HasSubstr("profile \"work\""));
  }
}

constexpr std::string_view kToken = R"({"access_token":"ya29","expires_in":3600,"token_type":"B"})";

std::string google(CloudMachine& machine) {
  const auto authorization = GcsCredentials(machine.context).authorization();
  return authorization ? *authorization : authorization.error().message();
}

TEST(GcsCredentials, OfAUserAreARefreshToken) {
  ScriptedServer server([](const ScriptedRequest& request) {
    return request.body ==
                   "grant_type=refresh_token&client_id=id&client_secret=secret&refresh_token=1%2F%"
                   "2F0"
               ? reply(200, {}, kToken)
               : reply(400, {}, R"({"error":"invalid_grant","error_description":"Bad Request"})");
  });
  CloudMachine machine;
  const auto file = [&](std::string_view token) {
    return fmt::format(R"({{"type":"authorized_user","client_id":"id","client_secret":"secret",)"
                       R"("refresh_token":"{}","token_uri":"{}"}})",
                       token, server.url("/token"));
  };
  machine.files["/home/u/.config/gcloud/application_default_credentials.json"] = file("1//0");
  EXPECT_EQ(google(machine), "Bearer ya29");
  machine.variables["GOOGLE_APPLICATION_CREDENTIALS"] = "/named.json";
  EXPECT_THAT(google(machine), HasSubstr("credentials of Google: /named.json: not there"));
  machine.files["/named.json"] = file("old");
  EXPECT_THAT(google(machine), HasSubstr("the server answers 400 invalid_grant: Bad Request"));
}

TEST(GcsCredentials, OfAMachineComeByItsMetadataServer) {
  ScriptedServer server([](const ScriptedRequest& request) {
    const bool is_right =
        request.header("metadata-flavor") == "Google" &&
        request.target().starts_with("/computeMetadata/v1/instance/service-accounts/default/token");
    return is_right ? reply(200, {}, kToken) : reply(403);
  });
  CloudMachine machine;
  machine.variables["GCE_METADATA_HOST"] = server.url().substr(7);
  GcsCredentials credentials(machine.context);
  EXPECT_EQ(credentials.authorization().value(), "Bearer ya29");
  EXPECT_EQ(credentials.authorization().value(), "Bearer ya29");
  EXPECT_EQ(server.requests().size(), 1);
  machine.now += 3400;
  EXPECT_EQ(credentials.authorization().value(), "Bearer ya29");
  EXPECT_EQ(server.requests().size(), 2);
}

TEST(GcsCredentials, OfAnExternalAccountAreExchangedAndImpersonate) {
  ScriptedServer server([](const ScriptedRequest& request) {
    if (request.target() == "/sts" &&
        request.body.find("subject_token=jwt&") != std::string::npos) {
      return reply(200, {}, R"({"access_token":"federated","expires_in":3600})");
    }
    if (request.target() == "/impersonate" &&
        request.header("authorization") == "Bearer federated") {
      return reply(200, {}, R"({"accessToken":"service","expireTime":"2001-09-09T02:46:40Z"})");
    }
    return reply(403);
  });
  CloudMachine machine;
  machine.variables["GOOGLE_APPLICATION_CREDENTIALS"] = "/external.json";
  machine.files["/subject"] = R"({"id_token":"jwt"})";
  machine.files["/external.json"] = fmt::format(
      R"({{"type":"external_account","audience":"a","subject_token_type":"t","token_url":"{0}/sts",)"
      R"("service_account_impersonation_url":"{0}/impersonate","credential_source":{{)"
      R"("file":"/subject","format":{{"type":"json","subject_token_field_name":"id_token"}}}}}})",
      server.url());
  EXPECT_EQ(google(machine), "Bearer service");
}

TEST(GcsCredentials, SendNoSecretToAHostWithoutTls) {
  CloudMachine machine;
  machine.variables["GOOGLE_APPLICATION_CREDENTIALS"] = "/key.json";
  machine.files["/key.json"] =
      R"({"type":"authorized_user","refresh_token":"r","token_uri":"http://example.com/t"})";
  EXPECT_THAT(google(machine), HasSubstr("http://example.com is not https"));
  machine.files["/key.json"] = R"({"type":"other"})";
  EXPECT_THAT(google(machine), HasSubstr("credentials of type \"other\""));
  machine.files["/key.json"] =
      R"({"type":"service_account","client_email":"a@b","private_key":"-----BEGIN secret"})";
  EXPECT_THAT(google(machine), HasSubstr("private key: no RSA key in PEM"));
  EXPECT_THAT(google(machine), Not(HasSubstr("BEGIN")));
}

TEST(Netrc, HasALoginForEachHost) {
  constexpr std::string_view kFile =
      "machine a.example login me password p@ss\n# note\nmachine b.example\n  login you\n"
      "  password two\ndefault login any password one\n";
  EXPECT_EQ(find_netrc(kFile, "a.example"), "me:p%40ss");
  EXPECT_EQ(find_netrc(kFile, "b.example"), "you:two");
  EXPECT_EQ(find_netrc(kFile, "c.example"), "any:one");
  EXPECT_EQ(find_netrc("machine a login x", "b"), "");
  EXPECT_EQ(find_netrc("", "b"), "");
}

}  // namespace
}  // namespace ckfs
