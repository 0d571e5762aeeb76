// The tree of a mount without a kernel: the tests play the kernel, which looks names up, lists,
// opens, reads and forgets.

#include "fs/filesystem.h"

#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sstream>
#include <stdlib.h>
#include <sys/stat.h>
#include <thread>

#include "api/inside.h"
#include "api/open.h"
#include "fs/inode_table.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// One BF16 tensor "w" of two elements: 1 and 2.
std::string tiny_safetensors() {
  std::string header = R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
  header.resize(64, ' ');
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + std::string("\x80\x3f\x00\x40", 4);
}

class FilesystemTest : public testing::Test {
 protected:
  FilesystemTest() {
    source_.write("model.safetensors", tiny_safetensors());
    source_.write("config.json", "{\"model_type\": \"x\", \"dtype\": \"bfloat16\"}\n");
    source_.write("assets/deep/notes.txt", "deep");
    source_.write("assets/readme.txt", "shallow");
  }

  Filesystem make(FilesystemOptions options = {}) {
    auto checkpoint = Checkpoint::open(source_.path());
    if (!checkpoint) throw std::runtime_error(checkpoint.error().message());
    return Filesystem(*checkpoint, options);
  }

  TemporaryDirectory source_;
};

/// Looks a path up from the root, part by part.
Result<Attributes> walk(Filesystem& filesystem, const stdfs::path& path) {
  Attributes at;
  at.inode = kRootInode;
  for (const auto& part : path) {
    auto next = filesystem.lookup(at.inode, part.native());
    if (!next) return next;
    at = *next;
  }
  return at;
}

std::vector<std::string> names(Filesystem& filesystem, InodeNumber inode) {
  std::vector<std::string> result;
  const auto entries = filesystem.list(inode, 0, 1000).value();
  for (const DirectoryEntry& entry : entries) result.push_back(entry.name);
  return result;
}

ErrorCode code_of(const auto& result) {
  return result ? throw std::runtime_error("no error") : result.error().code();
}

TEST_F(FilesystemTest, RootListsAvailableViewsAndControlDirectorySorted) {
  Filesystem filesystem = make();
  EXPECT_THAT(names(filesystem, kRootInode),
              ElementsAre(".", "..", ".ckfs", "bf16-safetensors", "dcp", "fp16-safetensors",
                          "fp32-consolidated", "fp32-safetensors", "source"));
}

TEST_F(FilesystemTest, RefusedNamesAreExplainedInTheControlDirectory) {
  Filesystem filesystem = make();
  const auto refused = [&] {
    const auto file = filesystem.open(walk(filesystem, ".ckfs/refused").value().inode).value();
    std::string text = text_of(filesystem.read(file, 0, 1 << 16).value());
    filesystem.close(file);
    return text;
  };
  EXPECT_EQ(refused(), "");
  for (const char* name : {"bf16-safetensors@max_shard=5XB", "model.safetensors", ".git",
                           "bf16_safetensors", "model.safetensors"}) {
    EXPECT_EQ(code_of(filesystem.lookup(kRootInode, name)), ErrorCode::NotFound);
  }
  EXPECT_EQ(refused(),
            "bf16-safetensors@max_shard=5XB: max_shard: \"5XB\" is not a size (a number, then KB, "
            "MB, GB, TB, KiB, MiB, GiB or TiB)\n"
            "bf16_safetensors: no such view\n"
            "model.safetensors: no such view\n");
  for (int i = 0; i < 100; ++i) {
    (void)filesystem.lookup(kRootInode, "name" + std::to_string(i));
  }
  const std::string last = refused();
  EXPECT_EQ(std::ranges::count(last, '\n'), 16);
  EXPECT_THAT(last, testing::StartsWith("name84: no such view\n"));
}

TEST_F(FilesystemTest, AListedViewThatCannotBeShownIsExplained) {
  OpenOptions options;
  options.choose.recipes.push_back(
      {.file = "mine.json",
       .text = R"({"view": "mine", "rules": [{"take": "w", "give": "__metadata__"}]})"});
  Filesystem filesystem(open(source_.path(), options), {});
  EXPECT_THAT(names(filesystem, kRootInode), Contains("mine"));
  const Attributes view = walk(filesystem, "mine").value();

  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(code_of(filesystem.list(view.inode, 0, 10)), ErrorCode::Unsupported);
    EXPECT_EQ(code_of(filesystem.lookup(view.inode, "config.json")), ErrorCode::Unsupported);
  }
  spdlog::set_default_logger(before);

  const std::string reason =
      "mine: \"__metadata__\": a name that no tensor of a safetensors file can have\n";
  EXPECT_THAT(log.str(), HasSubstr("a listed view that cannot be shown: " + reason));
  EXPECT_EQ(std::ranges::count(log.str(), '\n'), 1);
  const auto file = filesystem.open(walk(filesystem, ".ckfs/refused").value().inode).value();
  EXPECT_EQ(text_of(filesystem.read(file, 0, 1 << 16).value()), reason);
}

TEST_F(FilesystemTest, ListingLooksNothingUpAndBuildsNothing) {
  Filesystem filesystem = make();
  names(filesystem, kRootInode);
  EXPECT_EQ(filesystem.statistics()->files, 0U);
}

TEST_F(FilesystemTest, ListingGoesOnAtAnyOffset) {
  Filesystem filesystem = make();
  const auto view = walk(filesystem, "source").value();
  const auto all = filesystem.list(view.inode, 0, 1000).value();
  ASSERT_GE(all.size(), 5U);
  for (std::size_t begin = 0; begin <= all.size(); ++begin) {
    const std::uint64_t offset = begin == 0 ? 0 : all[begin - 1].next_offset;
    const auto rest = filesystem.list(view.inode, offset, 2).value();
    ASSERT_EQ(rest.size(), std::min<std::size_t>(2, all.size() - begin));
    for (std::size_t i = 0; i < rest.size(); ++i) {
      EXPECT_EQ(rest[i].name, all[begin + i].name);
      EXPECT_EQ(rest[i].next_offset, all[begin + i].next_offset);
    }
  }
  EXPECT_THAT(filesystem.list(view.inode, 1u << 30, 10).value(), IsEmpty());
}

TEST_F(FilesystemTest, SideFilesInFoldersGetDirectories) {
  Filesystem filesystem = make();
  const auto view = walk(filesystem, "source").value();
  EXPECT_THAT(names(filesystem, view.inode),
              ElementsAre(".", "..", "assets", "config.json", "model.safetensors"));
  const auto assets = walk(filesystem, "source/assets").value();
  EXPECT_TRUE(assets.directory);
  EXPECT_THAT(names(filesystem, assets.inode), ElementsAre(".", "..", "deep", "readme.txt"));
  const auto file = walk(filesystem, "source/assets/deep/notes.txt").value();
  EXPECT_FALSE(file.directory);
  EXPECT_EQ(file.size, 4U);

  const auto listing = filesystem.list(assets.inode, 0, 10).value();
  EXPECT_EQ(listing[0].attributes.inode, assets.inode);
  EXPECT_EQ(listing[1].attributes.inode, view.inode);
  EXPECT_EQ(listing[2].attributes.inode, walk(filesystem, "source/assets/deep").value().inode);
}

TEST_F(FilesystemTest, ReadGivesTheBytesAndStopsAtTheEnd) {
  Filesystem filesystem = make();
  const auto file = walk(filesystem, "source/assets/readme.txt").value();
  const auto handle = filesystem.open(file.inode).value();
  EXPECT_EQ(text_of(filesystem.read(handle, 0, 100).value()), "shallow");
  EXPECT_EQ(text_of(filesystem.read(handle, 3, 2).value()), "ll");
  EXPECT_EQ(filesystem.read(handle, 0, 0).value().size(), 0U);
  EXPECT_EQ(filesystem.read(handle, 7, 1).value().size(), 0U);
  EXPECT_EQ(filesystem.read(handle, UINT64_MAX, SIZE_MAX).value().size(), 0U);
  filesystem.close(handle);
  EXPECT_EQ(code_of(filesystem.read(handle, 0, 1)), ErrorCode::BadHandle);
}

TEST_F(FilesystemTest, ConvertedViewHasConvertedBytes) {
  Filesystem filesystem = make();
  const auto file = walk(filesystem, "fp32-safetensors/model.safetensors").value();
  const auto handle = filesystem.open(file.inode).value();
  const auto all = text_of(filesystem.read(handle, 0, 1 << 20).value());
  EXPECT_EQ(all.size(), file.size);
  EXPECT_TRUE(all.ends_with(std::string("\0\0\x80\x3f\0\0\0\x40", 8)));
}

TEST_F(FilesystemTest, NamesThatAreNotThereAreNotFound) {
  Filesystem filesystem = make();
  for (const char* path :
       {"nothing", ".git", "source/nothing", "source/assets/nothing", ".ckfs/nothing",
        "bf16-safetensors@", "bf16-safetensors@nothing=1", "bf16-safetensors@max_shard=many", "@",
        "source@x=1", "bf16-safetensors@cast=all,cast=all"}) {
    EXPECT_EQ(code_of(walk(filesystem, path)), ErrorCode::NotFound) << path;
  }
}

TEST_F(FilesystemTest, RefusedNamesDoNotFillTheLog) {
  Filesystem filesystem = make();
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  for (int i = 0; i < 5000; ++i) {
    const std::string name = fmt::format("bf16-safetensors@size={}", i);
    for (int again = 0; again < 3; ++again) {
      const auto refused = filesystem.lookup(kRootInode, name);
      ASSERT_FALSE(refused.has_value());
      ASSERT_EQ(refused.error().code(), ErrorCode::NotFound);
    }
  }
  spdlog::set_default_logger(before);
  const std::string log = text.str();
  EXPECT_THAT(log, HasSubstr("bf16-safetensors@size=0"));
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 600);
}

TEST_F(FilesystemTest, KindsOfInodesAreToldApart) {
  Filesystem filesystem = make();
  const auto file = walk(filesystem, "source/config.json").value();
  const auto view = walk(filesystem, "source").value();
  EXPECT_EQ(code_of(filesystem.lookup(file.inode, "x")), ErrorCode::NotDirectory);
  EXPECT_EQ(code_of(filesystem.list(file.inode, 0, 1)), ErrorCode::NotDirectory);
  EXPECT_EQ(code_of(filesystem.open(view.inode)), ErrorCode::IsDirectory);
  EXPECT_EQ(code_of(filesystem.open(kRootInode)), ErrorCode::IsDirectory);
  EXPECT_EQ(code_of(filesystem.open(walk(filesystem, ".ckfs").value().inode)),
            ErrorCode::IsDirectory);
  EXPECT_EQ(code_of(filesystem.open(12345)), ErrorCode::NotFound);
  EXPECT_EQ(code_of(filesystem.attributes(12345)), ErrorCode::NotFound);
  EXPECT_EQ(code_of(filesystem.read(12345, 0, 1)), ErrorCode::BadHandle);
}

TEST_F(FilesystemTest, EverySpellingOfAViewHasTheSameInodes) {
  Filesystem filesystem = make();
  const auto plain = walk(filesystem, "bf16-safetensors/model.safetensors").value();
  // cast=all is what a plain source gets by default.
  const auto spelt = walk(filesystem, "bf16-safetensors@cast=all/model.safetensors").value();
  EXPECT_EQ(plain.inode, spelt.inode);

  const auto decimal = walk(filesystem, "bf16-safetensors@max_shard=5GB").value();
  const auto digits = walk(filesystem, "bf16-safetensors@max_shard=5000000000").value();
  EXPECT_EQ(decimal.inode, digits.inode);
  EXPECT_NE(decimal.inode, walk(filesystem, "bf16-safetensors").value().inode);
}

TEST_F(FilesystemTest, InodesAreTheSameInEveryMount) {
  Filesystem one = make();
  Filesystem two = make();
  std::set<InodeNumber> seen = {kRootInode};
  for (const char* path :
       {".ckfs", ".ckfs/metrics", ".ckfs/refused", ".ckfs/views.json", ".ckfs/status.json",
        "source", "source/assets", "source/config.json", "bf16-safetensors",
        "bf16-safetensors/config.json", "bf16-safetensors@max_shard=1MB",
        "bf16-safetensors@max_shard=1MB/config.json"}) {
    const auto inode = walk(one, path).value().inode;
    EXPECT_EQ(inode, walk(two, path).value().inode) << path;
    EXPECT_TRUE(seen.insert(inode).second) << path;
  }
}

// A source may give its files names of any hash.
TEST_F(FilesystemTest, NoFileHasTheNumberOfSomethingElse) {
  const Checkpoint checkpoint = Checkpoint::open(source_.path()).value();
  const View view = checkpoint.view("source").value();
  const auto tree = build_tree(view).value();
  const std::uint64_t top = directory_inode("source");
  const auto hold = [&](std::uint64_t inode, const std::string& name) {
    InodeTable table(64, ~std::uint64_t{0}, {{inode, name}});
    const auto held = table.hold(tree, std::nullopt);
    EXPECT_EQ(table.views().size(), held ? 1U : 0U);
    return held.has_value();
  };
  EXPECT_TRUE(hold(top, "source"));
  EXPECT_FALSE(hold(top, ""));
  EXPECT_FALSE(hold(top, "bf16-safetensors"));
  for (std::size_t i = 0; i < view.files().size(); ++i) {
    EXPECT_FALSE(hold(file_inode(view, i), "")) << i;
    EXPECT_FALSE(hold(file_inode(view, i), "source")) << i;
  }
  EXPECT_FALSE(hold(directory_inode("source/assets"), "source"));
}

TEST_F(FilesystemTest, MtimeIsTheSourcesOrTheOptions) {
  const auto second = std::chrono::seconds(1'500'000'000);
  for (const auto& entry : stdfs::recursive_directory_iterator(source_.path())) {
    if (!entry.is_regular_file()) continue;
    const timespec times[2] = {{second.count(), 5}, {second.count(), 5}};
    ASSERT_EQ(::utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
  }
  Filesystem plain = make();
  Filesystem told = make({.mtime = 42});
  for (const char* path : {"source", "source/config.json", "bf16-safetensors/model.safetensors"}) {
    EXPECT_EQ(walk(plain, path).value().mtime, second.count()) << path;
    EXPECT_EQ(walk(told, path).value().mtime, 42) << path;
  }
}

TEST_F(FilesystemTest, ControlFilesAreSnapshotsOfSizeZero) {
  Filesystem filesystem = make();
  EXPECT_THAT(names(filesystem, walk(filesystem, ".ckfs").value().inode),
              ElementsAre(".", "..", "metrics", "refused", "status.json", "views.json"));
  const auto status = walk(filesystem, ".ckfs/status.json").value();
  EXPECT_TRUE(status.volatile_content);
  EXPECT_EQ(status.size, 0U);

  const auto before = filesystem.open(status.inode).value();
  const auto text = text_of(filesystem.read(before, 0, 1 << 20).value());
  EXPECT_FALSE(text.empty());
  const auto file = filesystem.open(walk(filesystem, "source/config.json").value().inode).value();
  ASSERT_TRUE(filesystem.read(file, 0, 100));
  const auto after = filesystem.open(status.inode).value();
  EXPECT_EQ(text_of(filesystem.read(before, 0, 1 << 20).value()), text);
  EXPECT_NE(text_of(filesystem.read(after, 0, 1 << 20).value()), text);
  EXPECT_EQ(text_of(filesystem.read(before, 1, 5).value()), text.substr(1, 5));
}

TEST_F(FilesystemTest, SnapshotsThatAreHeldAreBounded) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  Filesystem filesystem(open(source_.path()), {.held_snapshots = kMost});
  const auto views = walk(filesystem, ".ckfs/views.json").value();
  std::vector<std::uint64_t> handles;
  auto last = filesystem.open(views.inode);
  const std::size_t size = text_of(filesystem.read(last.value(), 0, 1 << 20).value()).size();
  while (last && handles.size() * size <= 2 * kMost) {
    handles.push_back(*last);
    last = filesystem.open(views.inode);
  }
  EXPECT_EQ(code_of(last), ErrorCode::OutOfMemory);
  EXPECT_EQ(handles.size(), kMost / size);
  EXPECT_EQ(filesystem.open_files(), handles.size());

  filesystem.close(handles.back());
  EXPECT_TRUE(filesystem.open(views.inode));
  EXPECT_EQ(code_of(filesystem.open(views.inode)), ErrorCode::OutOfMemory);
}

TEST_F(FilesystemTest, ViewsJsonNamesParameterisedViewsInUse) {
  Filesystem filesystem = make();
  ASSERT_TRUE(walk(filesystem, "bf16-safetensors@max_shard=1MB"));
  const auto file = walk(filesystem, ".ckfs/views.json").value();
  const auto text =
      text_of(filesystem.read(filesystem.open(file.inode).value(), 0, 1 << 20).value());
  EXPECT_THAT(text, HasSubstr("\"bf16-safetensors@max_shard=1MB\""));
  EXPECT_THAT(text, HasSubstr("\"fp32-consolidated\""));
}

TEST_F(FilesystemTest, AttributesTellExactnessSourceAndView) {
  Filesystem filesystem = make();
  const auto file = walk(filesystem, "fp16-safetensors/model.safetensors").value();
  EXPECT_EQ(filesystem.attribute(file.inode, "user.ckfs.exactness").value(), "lossy");
  EXPECT_EQ(filesystem.attribute(file.inode, "user.ckfs.source").value(), "model.safetensors");
  EXPECT_EQ(filesystem.attribute(file.inode, "user.ckfs.view").value(), "fp16-safetensors");
  EXPECT_EQ(filesystem.attribute_names(file.inode).value().size(), 3U);
  EXPECT_EQ(code_of(filesystem.attribute(file.inode, "user.other")), ErrorCode::NoAttribute);
  EXPECT_EQ(code_of(filesystem.attribute(kRootInode, "user.ckfs.view")), ErrorCode::NoAttribute);

  const auto view = walk(filesystem, "fp16-safetensors").value();
  EXPECT_EQ(filesystem.attribute(view.inode, "user.ckfs.view").value(), "fp16-safetensors");
}

TEST_F(FilesystemTest, StatisticsAreThoseOfTheView) {
  Filesystem filesystem = make();
  const auto view = walk(filesystem, "source").value();
  const auto sum = filesystem.statistics(view.inode).value();
  EXPECT_EQ(sum.files, 4U);
  EXPECT_EQ(sum.bytes, 4U + 7U + 76U + stdfs::file_size(source_.path() / "config.json"));
  EXPECT_EQ(filesystem.statistics(walk(filesystem, "source/assets").value().inode)->bytes,
            sum.bytes);
  EXPECT_EQ(filesystem.statistics()->bytes, sum.bytes);
}

TEST_F(FilesystemTest, StatisticsThatDoNotAddUpAreAnError) {
  const TemporaryDirectory large("/dev/shm");  // its files may be of any size
  large.write("model.safetensors", tiny_safetensors());
  large.write("config.json", "{}");
  large.write("notes.txt", "");
  stdfs::resize_file(large.path() / "notes.txt", (std::uint64_t{1} << 60) - (1 << 20));
  Filesystem filesystem(Checkpoint::open(large.path()).value(), {});
  for (int n = 1; n <= 8; ++n) {
    const std::string view = "bf16-safetensors@max_shard=" + std::to_string(1000 + n) + "MB";
    EXPECT_TRUE(walk(filesystem, stdfs::path(view) / "notes.txt")) << view;
  }
  EXPECT_EQ(filesystem.statistics()->files, 24U);
  const auto view = walk(filesystem, "fp32-safetensors/notes.txt").value();
  EXPECT_EQ(filesystem.statistics(view.inode)->files, 3U);
  const auto sum = filesystem.statistics();
  ASSERT_FALSE(sum);
  EXPECT_THAT(sum.error().message(), testing::HasSubstr("(limit 9223372036854775807)"));
}

std::string sized(int n) {
  return "bf16-safetensors@max_shard=" + std::to_string(1000 + n) + "MB";
}

TEST_F(FilesystemTest, ForgottenViewsMakeRoomAndComeBackIdentical) {
  Filesystem filesystem = make();
  std::vector<InodeNumber> inodes;
  for (int n = 0; n < 200; ++n) {
    const auto view = filesystem.lookup(kRootInode, sized(n)).value();
    const auto file = filesystem.lookup(view.inode, "model.safetensors").value();
    inodes.push_back(file.inode);
    filesystem.forget(file.inode, 1);
    filesystem.forget(view.inode, 1);
  }
  EXPECT_THAT(filesystem.take_crowded(), IsEmpty());
  EXPECT_EQ(code_of(filesystem.attributes(inodes[0])), ErrorCode::NotFound);
  EXPECT_EQ(filesystem.attributes(inodes[199]).value().inode, inodes[199]);
  EXPECT_EQ(filesystem.statistics()->files, 64 * 2U + 64 * 2U);  // 64 views of four files

  const auto again = walk(filesystem, sized(0) + "/model.safetensors").value();
  EXPECT_EQ(again.inode, inodes[0]);
}

TEST_F(FilesystemTest, ViewsWithOpenFilesAreNeverDropped) {
  Filesystem filesystem = make();
  const auto view = filesystem.lookup(kRootInode, sized(0)).value();
  const auto file = filesystem.lookup(view.inode, "config.json").value();
  const auto handle = filesystem.open(file.inode).value();
  filesystem.forget(file.inode, 1);
  filesystem.forget(view.inode, 1);
  for (int n = 1; n < 100; ++n) {
    filesystem.forget(filesystem.lookup(kRootInode, sized(n)).value().inode, 1);
  }
  EXPECT_TRUE(filesystem.attributes(file.inode));
  EXPECT_GT(filesystem.read(handle, 0, 10).value().size(), 0U);
  filesystem.close(handle);
  for (int n = 100; n < 200; ++n) {
    filesystem.forget(filesystem.lookup(kRootInode, sized(n)).value().inode, 1);
  }
  EXPECT_EQ(code_of(filesystem.attributes(file.inode)), ErrorCode::NotFound);
}

TEST_F(FilesystemTest, CrowdedOutViewsAreNamedOnceByTheirSpelling) {
  Filesystem filesystem = make();
  std::vector<InodeNumber> views;
  for (int n = 0; n < 64; ++n) views.push_back(walk(filesystem, sized(n)).value().inode);
  EXPECT_THAT(filesystem.take_crowded(), IsEmpty());
  ASSERT_TRUE(walk(filesystem, "bf16-safetensors@max_shard=1MiB"));
  EXPECT_THAT(filesystem.take_crowded(), ElementsAre("bf16-safetensors@max_shard=1000MB"));
  EXPECT_THAT(filesystem.take_crowded(), IsEmpty());
  EXPECT_TRUE(filesystem.attributes(views[0]));
  // The kernel let go of the name, while a mapping still refers to the view, and was asked for it
  // again.
  ASSERT_TRUE(walk(filesystem, sized(0)));
  for (int n = 1; n < 64; ++n) ASSERT_TRUE(walk(filesystem, sized(n)));
  ASSERT_TRUE(walk(filesystem, "bf16-safetensors@max_shard=1MiB"));
  EXPECT_THAT(filesystem.take_crowded(), ElementsAre(sized(0)));
  EXPECT_THAT(filesystem.take_crowded(), IsEmpty());
  filesystem.forget(views[0], 2);
  EXPECT_EQ(code_of(filesystem.attributes(views[0])), ErrorCode::NotFound);
}

TEST_F(FilesystemTest, ManyThreadsSeeOneTree) {
  Filesystem filesystem = make();
  const auto expected = walk(filesystem, "fp32-safetensors/model.safetensors").value();
  std::atomic<int> wrong = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 50; ++round) {
        const auto view = filesystem.lookup(kRootInode, sized((t * 50 + round) % 90));
        if (!view) return void(++wrong);
        const auto side = filesystem.lookup(view->inode, "config.json");
        const auto file = walk(filesystem, "fp32-safetensors/model.safetensors");
        if (!side || !file || file->inode != expected.inode) return void(++wrong);
        const auto handle = filesystem.open(side->inode);
        if (!handle || !filesystem.read(*handle, 0, 10)) return void(++wrong);
        filesystem.close(*handle);
        filesystem.forget(side->inode, 1);
        filesystem.forget(view->inode, 1);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace ckfs
