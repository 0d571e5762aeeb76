#include "export/export_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace ckfs {
namespace {

TEST(PartName, IsInTheExportsOwnDirectory) {
  EXPECT_EQ(part_name(12), ".ckfs-export.d/12.part");
  EXPECT_TRUE(is_own_path(part_name(12)) && is_own_path(kRecordName) &&
              is_own_path(".ckfs-export.d"));
  EXPECT_FALSE(is_own_path(".ckfs-export.data") || is_own_path("a/.ckfs-export.d"));
}

TEST(InnerPath, RefusesWhatLeavesTheDirectory) {
  for (const char* path : {"a", "a/b", ".hidden", "a/..b", "..."}) {
    EXPECT_TRUE(is_inner_path(path)) << path;
  }
  for (const char* path : {"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a/.."}) {
    EXPECT_FALSE(is_inner_path(path)) << path;
  }
  EXPECT_FALSE(is_inner_path(std::string_view("a\0b", 3)));
}

RC_GTEST_PROP(ExportRecord, ReadsWhatItWrote, ()) {
  ExportRecord record{
      .origin = {.fingerprint = *rc::gen::arbitrary<std::uint64_t>(),
                 .view = *rc::gen::container<std::string>(rc::gen::inRange(' ', '~')),
                 .layout_version = *rc::gen::inRange(0, 100)},
      .files = {}};
  const auto names = *rc::gen::container<std::vector<std::string>>(
      rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::suchThat(
          rc::gen::arbitrary<char>(), [](char c) { return c != '/' && c != '\0'; }))));
  for (const std::string& name : names) {
    record.files["dir/x" + name] = {.size = *rc::gen::arbitrary<std::uint64_t>(),
                                    .synced = *rc::gen::arbitrary<std::uint64_t>(),
                                    .finished = *rc::gen::arbitrary<bool>()};
  }
  const Result<ExportRecord> read = parse_record(to_json(record));
  RC_ASSERT(read.has_value());
  RC_ASSERT(*read == record);
}

TEST(ExportRecord, IsRefusedWhereItIsNone) {
  const std::string good = R"({"version":1,"fingerprint":"00ff","view":"v","layout_version":1,)"
                           R"("files":{"a":{"size":1,"synced":0,"finished":true}}})";
  ASSERT_TRUE(parse_record(good).has_value());
  EXPECT_EQ(parse_record(good)->origin.fingerprint, 0xffu);

  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::vector<std::string> bad{
      "",
      "[]",
      "{",
      good.substr(0, good.size() - 1),
      with(R"("version":1)", R"("version":2)"),
      with(R"("00ff")", R"("zz")"),
      with(R"("00ff")", R"("")"),
      with(R"("00ff")", R"("11112222333344445")"),
      with(R"("00ff")", "255"),
      with(R"("v")", "1"),
      with(R"("layout_version":1)", R"("layout_version":"1")"),
      with(R"({"a":)", R"({"../a":)"),
      with(R"({"a":)", R"({"/etc/passwd":)"),
      with(R"("size":1)", R"("size":-1)"),
      with(R"("size":1)", R"("sizes":1)"),
      with(R"("finished":true)", R"("finished":1)"),
  };
  for (const std::string& text : bad) {
    const Result<ExportRecord> read = parse_record(text);
    ASSERT_FALSE(read.has_value()) << text;
    EXPECT_EQ(read.error().code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(read.error().message(), testing::HasSubstr(".ckfs-export.d/record.json"));
  }
}

}  // namespace
}  // namespace ckfs
