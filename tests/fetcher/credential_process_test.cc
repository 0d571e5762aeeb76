// Programs that print keys, started by the supervisor of a fetcher.
#include "fetcher/credential_process.h"

#include <array>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

namespace ckfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr milliseconds kLong = seconds(60);

TEST(CommandWords, ArePartedAsAShellPartsThem) {
  EXPECT_THAT(command_words("  /bin/tool  --for me\t").value(),
              ElementsAre("/bin/tool", "--for", "me"));
  EXPECT_THAT(command_words(R"("/a b/tool" 'x "y" \z' "q\"r" s\ t "")").value(),
              ElementsAre("/a b/tool", R"(x "y" \z)", "q\"r", "s t", ""));
  // No shell: what one would do something with is a word.
  EXPECT_THAT(command_words("echo $HOME; `id` *").value(),
              ElementsAre("echo", "$HOME;", "`id`", "*"));
  EXPECT_FALSE(command_words("tool \"open"));
  EXPECT_FALSE(command_words(" "));
}

TEST(CommandOutput, IsWhatTheProgramPrints) {
  EXPECT_EQ(output_of({"printf", "%s|", "a b", "c"}, kLong).value(), "a b|c|");
}

TEST(CommandOutput, IsAnErrorWhereTheProgramFailsOrHasNoEnd) {
  const auto error = [](std::vector<std::string> words, milliseconds patience = kLong) {
    const auto output = output_of(words, patience);
    return output ? "none: " + *output : output.error().message();
  };
  EXPECT_THAT(error({"/nowhere/tool"}), HasSubstr("/nowhere/tool: start"));
  EXPECT_THAT(error({"sh", "-c", "echo half; exit 3"}), HasSubstr("sh: it ended with status 3"));
  EXPECT_THAT(error({"cat", "/dev/zero"}), HasSubstr("cat: it gave no end of its output"));
  EXPECT_THAT(error({"sleep", "1000"}, milliseconds(20)), HasSubstr("sleep: it gave no end"));
}

TEST(CommandOutput, IsNotWaitedForWhenTheClientIsGone) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd ours(ends[0]);
  UniqueFd(ends[1]).reset();
  EXPECT_FALSE(output_of({"sleep", "1000"}, kLong, ours.get()));
}

TEST(Credentials, OfAProfileComeFromItsOwnCommand) {
  Surroundings here{.variable =
                        [](const char* name) {
                          return std::string(name) == "HOME" ? std::string("/home/u")
                                                             : std::string();
                        },
                    .read_file = [](const std::string& path) -> Result<std::string> {
                      if (path != "/home/u/.aws/config")
                        return fail(ErrorCode::NotFound, "{}: not there", path);
                      return std::string(
                          "[profile a]\ncredential_process = printf of-a\n"
                          "[profile none]\nregion = x\n"
                          "[profile bad]\ncredential_process = false\n");
                    },
                    .now = [] { return std::int64_t{0}; }};
  CredentialChannel channel = CredentialChannel::make().value();
  const auto ask = [&](const std::string& profile) {
    auto answer = std::async(std::launch::async,
                             [&] { return ask_for_credentials(channel.asking.get(), profile); });
    pollfd asked{channel.answering.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&asked, 1, 60'000), 1);
    answer_for_credentials(channel.answering.get(), here, -1);
    const auto output = answer.get();
    return output ? *output : output.error().message();
  };
  EXPECT_EQ(ask("a"), "of-a");
  EXPECT_EQ(ask("none"), "no credential_process");
  EXPECT_EQ(ask("strange; rm -rf /"), "no credential_process");
  EXPECT_THAT(ask("bad"), HasSubstr("false: it ended with status 1"));
  EXPECT_FALSE(ask_for_credentials(channel.asking.get(), ""));
}

}  // namespace
}  // namespace ckfs
