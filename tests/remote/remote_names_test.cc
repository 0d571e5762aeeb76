// Names of a listing, looked up as those of directories.
#include "remote/remote_names.h"

#include <cerrno>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

RemoteNames names_of(const std::vector<std::string>& objects, std::string_view location,
                     bool is_file = false) {
  RemoteSource source;
  source.pinned = parse_location(location).value();
  source.is_file = is_file;
  source.time = 1000;
  for (const std::string& name : objects) {
    source.objects.push_back({.name = name, .size = name.size(), .version = "v" + name});
  }
  return RemoteNames(std::move(source));
}

std::vector<std::string> list(const RemoteNames& names, std::string_view directory) {
  std::vector<std::string> found;
  const auto listed = names.list(directory);
  if (!listed) return {std::to_string(listed.error())};
  for (const StoreEntry& entry : *listed) {
    found.push_back(entry.name + (entry.kind == FileKind::Directory ? "/" : ""));
  }
  return found;
}

TEST(RemoteNames, ListsWhatIsBelowADirectoryAndNoMore) {
  const RemoteNames names =
      names_of({"a", "a.b", "b-c/x", "b/c/d", "b/c/e", "b/f", "b0", "c/x"}, "s3://bucket/run");
  EXPECT_THAT(list(names, ""), ElementsAre("a", "a.b", "b/", "b-c/", "b0", "c/"));
  EXPECT_THAT(list(names, "b"), ElementsAre("c/", "f"));
  EXPECT_THAT(list(names, "b/c"), ElementsAre("d", "e"));
  EXPECT_THAT(list(names, "b/f"), ElementsAre(std::to_string(ENOTDIR)));
  EXPECT_THAT(list(names, "bb"), ElementsAre(std::to_string(ENOENT)));
}

TEST(RemoteNames, TakesAKeyThatOthersBeginWithForADirectory) {
  const RemoteNames names = names_of({"a", "a/b"}, "s3://bucket/run");
  EXPECT_THAT(list(names, ""), ElementsAre("a/"));
  EXPECT_EQ(names.look("a")->kind, FileKind::Directory);
}

TEST(RemoteNames, LooksAtFilesAndDirectories) {
  const RemoteNames names = names_of({"a/bb"}, "s3://bucket/run");
  EXPECT_EQ(names.look("")->kind, FileKind::Directory);
  EXPECT_EQ(names.look("a")->kind, FileKind::Directory);
  const auto file = names.look("a/bb");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->kind, FileKind::File);
  EXPECT_EQ(file->fingerprint.size, 4U);
  EXPECT_EQ(file->fingerprint.mtime_ns, 1'000'000'000'000);
  EXPECT_NE(file->fingerprint.version, 0U);
  EXPECT_EQ(names.look("a/b").error(), ENOENT);
}

TEST(RemoteNames, FindsNamesInPathsBelowItsRoot) {
  const RemoteNames names = names_of({"a/b"}, "s3://bucket/run");
  EXPECT_EQ(names.root(), "s3://bucket/run");
  EXPECT_EQ(names.path(), "s3://bucket/run");
  EXPECT_EQ(names.name_of("s3://bucket/run"), "");
  EXPECT_EQ(names.name_of("s3://bucket/run/"), "");
  EXPECT_EQ(names.name_of(names.path() / "a/b"), "a/b");
  EXPECT_EQ(names.name_of("s3://bucket/running"), std::nullopt);
  EXPECT_EQ(names.name_of("/bucket/run/a"), std::nullopt);
}

TEST(RemoteNames, HidesTheSecretsOfASignedUrl) {
  const RemoteNames names =
      names_of({"m.safetensors"}, "https://me:secret@host/a/m.safetensors?sig=secret", true);
  EXPECT_EQ(names.path().native().find("secret"), std::string::npos);
  EXPECT_TRUE(names.path().native().ends_with("/a/m.safetensors"));
  EXPECT_EQ(names.name_of(names.path()), "m.safetensors");
}

TEST(RemoteNames, OfAnEmptySourceAreNone) {
  const RemoteNames names = names_of({}, "gs://bucket");
  EXPECT_THAT(list(names, ""), IsEmpty());
}

}  // namespace
}  // namespace ckfs
