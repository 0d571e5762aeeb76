#include "api/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

#include "api/open.h"

namespace ckfs {
namespace {

using testing::HasSubstr;
using testing::Not;

using Json = nlohmann::json;

Checkpoint deepseek_source() {
  return open(std::filesystem::path(CKFS_TEST_DATA) / "hf/deepseek-v3-fp8/source");
}

const MountFacts kMount{.mountpoint = "/mnt/a \"b\"\\c\nlast",
                        .source = "/srv/\xff",
                        .log = "/var/log/ckfs.log",
                        .pid = 42,
                        .started = 1'700'000'000};

MountErrors two_kinds() {
  MountErrors errors;
  errors.counts[{"read", "ESTALE", "stale"}] = 2;
  errors.counts[{"open", "EROFS", "read_only"}] = 5;
  errors.last = {{"read", "ESTALE", "stale"}, 1'700'000'100, "model.safetensors: changed"};
  return errors;
}

TEST(Status, IsReadBackAsATable) {
  const Checkpoint checkpoint = deepseek_source();
  const auto view = checkpoint.view("source");
  ASSERT_TRUE(view->open("config.json")->read(0, 100));
  const std::string json = status_json(checkpoint);
  EXPECT_EQ(Json::parse(json)["bytes_to_readers"], 100);
  const auto text = status_text(json);
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_THAT(*text, HasSubstr("bytes to readers               100  100 B\n"));
  EXPECT_THAT(*text, HasSubstr("x  config.json\n"));
}

TEST(Status, OfAnUnknownShapeIsRefused) {
  for (const char* text : {"", "[]", "{}", "{\"version\": 2}", "{\"version\": \"1\"}", "nonsense",
                           "{\"version\": 1, \"requests\": -1}"}) {
    const auto table = status_text(text);
    ASSERT_FALSE(table) << text;
    EXPECT_EQ(table.error().code(), ErrorCode::Corrupt);
  }
}

TEST(Status, SaysWhichMountItIsAndWhatWentWrong) {
  const std::string json =
      status_json(deepseek_source(), kMount, two_kinds(), kMount.started + 90'061);
  const Json parsed = Json::parse(json);
  EXPECT_EQ(parsed["pid"], 42);
  EXPECT_EQ(parsed["uptime"], 90'061);
  EXPECT_EQ(parsed["errors"].size(), 2u);
  EXPECT_EQ(parsed["last_error"]["message"], "model.safetensors: changed");
  const auto text = status_text(json);
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_THAT(*text, HasSubstr("log                /var/log/ckfs.log\n"));
  EXPECT_THAT(*text, HasSubstr("pid                42\n"));
  EXPECT_THAT(*text, HasSubstr("uptime             1 d 01:01:01\n"));
  EXPECT_THAT(*text, HasSubstr("errors                           7  read_only 5, stale 2\n"));
  EXPECT_THAT(*text, HasSubstr("last error         2023-11-14 22:15:00 UTC: "
                               "model.safetensors: changed\n"));
  const auto errors = status_errors(json);
  ASSERT_TRUE(errors);
  EXPECT_EQ(errors->count, 7u);
  EXPECT_TRUE(errors->stale);
}

TEST(Status, OfADaemonBeforeThisVersionIsRead) {
  const auto text = status_text(
      R"({"version": 1, "requests": 3, "bytes_to_readers": 1, "source_bytes": 2, "tiles": 0,
          "hits": 0, "memory": 0, "memory_peak": 0, "memory_budget": 67108864, "io": "pread",
          "files": []})");
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_THAT(*text, testing::StartsWith("requests                         3\n"));
  EXPECT_THAT(*text, Not(HasSubstr("errors")));
  EXPECT_THAT(*text, Not(HasSubstr("bytes delivered")));
}

TEST(Status, OfHostileNamesStaysInItsLines) {
  const auto text = status_text(
      R"({"version": 1, "requests": 3, "bytes_to_readers": 1, "source_bytes": 2, "io": "a\nb",
          "mountpoint": "\u001b[2J\nforged", "errors": [7, {"operation": "x"}], "pid": "none",
          "last_error": {"time": 18446744073709551615, "message": "a\nb"},
          "files": [{"path": "p\nq", "bytes": 1, "requests": 1}, {}], "given": [[]]})");
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_THAT(*text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(*text, Not(HasSubstr("\nforged")));
  EXPECT_THAT(*text, HasSubstr("errors                           0\n"));
  EXPECT_THAT(*text, HasSubstr("last error         253402300800 s since 1970: a b\n"));
}

TEST(Metrics, HaveTheMountAndTheSourceInEverySample) {
  const std::string text = metrics_text(deepseek_source(), kMount, two_kinds());
  // As the grammar of text format 0.0.4 has it: of a value, backslash, quotes and line ends.
  const std::string labels = R"({mount="/mnt/a \"b\"\\c\nlast",source="/srv/)"
                             "\uFFFD\"";
  std::istringstream lines(text);
  std::set<std::string> samples;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# ")) continue;
    EXPECT_EQ(line.substr(line.find('{'), labels.size()), labels);
    EXPECT_TRUE(samples.insert(line.substr(0, line.rfind(' '))).second) << line;
  }
  EXPECT_GT(samples.size(), 60u);
  EXPECT_THAT(text, HasSubstr(",operation=\"read\",error=\"ESTALE\",kind=\"stale\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("# HELP ckfs_hits_total Tile cache hits.\n"));
  EXPECT_THAT(text, HasSubstr("ckfs_start_time_seconds" + labels + "} 1700000000\n"));
}

TEST(Metrics, AndTheStatusHaveTheSameCounters) {
  const Checkpoint checkpoint = deepseek_source();
  const Json status = Json::parse(status_json(checkpoint));
  const std::string text = metrics_text(checkpoint);
  for (const auto& [name, value] : status.items()) {
    if (!value.is_number() ||
        std::set<std::string>{"version", "pid", "started", "uptime", "source_bytes"}.contains(
            name)) {
      continue;
    }
    const bool bytes = name.starts_with("memory");
    EXPECT_THAT(text,
                HasSubstr("# TYPE ckfs_" + name + (bytes ? "_bytes gauge" : "_total counter")));
  }
}

}  // namespace
}  // namespace ckfs
