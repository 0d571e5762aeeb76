#include "io/source_store.h"

#include <algorithm>
#include <cerrno>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/source_files.h"
#include "support/delaying_store.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::ElementsAre;

class LocalStore : public testing::Test {
 protected:
  TemporaryDirectory directory_;
  const std::unique_ptr<OpenStore> store_ = make_local_store();
};

TEST_F(LocalStore, ListsByNameAndDoesNotFollowLinks) {
  directory_.write("b.bin", "12345");
  directory_.write("d/inner", "");
  std::filesystem::create_symlink("b.bin", directory_ / "c");
  std::filesystem::create_symlink("nowhere", directory_ / "a");
  ASSERT_EQ(::mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  const auto entries = store_->list(directory_.path());
  ASSERT_TRUE(entries);
  std::vector<std::pair<std::string, FileKind>> found;
  for (const StoreEntry& entry : *entries) found.emplace_back(entry.name, entry.kind);
  EXPECT_THAT(found,
              ElementsAre(std::pair("a", FileKind::Link), std::pair("b.bin", FileKind::File),
                          std::pair("c", FileKind::Link), std::pair("d", FileKind::Directory),
                          std::pair("fifo", FileKind::Other)));
  EXPECT_EQ(store_->list(directory_ / "absent").error(), ENOENT);
  EXPECT_EQ(store_->list(directory_ / "b.bin").error(), ENOTDIR);
}

TEST_F(LocalStore, LooksBehindLinks) {
  directory_.write("b.bin", "12345");
  std::filesystem::create_symlink("b.bin", directory_ / "link");
  const auto status = store_->look(directory_ / "link");
  ASSERT_TRUE(status);
  EXPECT_EQ(status->kind, FileKind::File);
  EXPECT_EQ(status->fingerprint.size, 5U);
  EXPECT_EQ(status->names, 1U);
  EXPECT_EQ(store_->resolve(directory_ / "d" / ".." / "link").error(), ENOENT);
  EXPECT_EQ(*store_->resolve(directory_ / "link"), *store_->resolve(directory_ / "b.bin"));
  const auto fd = store_->open(directory_ / "link");
  ASSERT_TRUE(fd);
  EXPECT_EQ(store_->look(fd->get())->fingerprint, status->fingerprint);
  std::filesystem::remove(directory_ / "b.bin");
  EXPECT_EQ(store_->look(fd->get())->names, 0U);
  EXPECT_TRUE(is_absent(store_->look(directory_ / "link").error()));
}

TEST_F(LocalStore, GivesFirstBytesOrAsManyAsThereAre) {
  directory_.write("b.bin", "12345");
  const auto text = [&](const std::string& name, std::size_t count) {
    const std::vector<std::byte> bytes = store_->first_bytes(directory_ / name, count);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(text("b.bin", 3), "123");
  EXPECT_EQ(text("b.bin", 10), "12345");
  EXPECT_EQ(text("absent", 10), "");
  ASSERT_EQ(::mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(text("fifo", 10), "");  // and does not wait for a writer
}

// What SourceFiles::add() makes of it.

std::vector<NewFile> some_files(const TemporaryDirectory& directory, int count) {
  std::vector<NewFile> files;
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    files.push_back(
        {name, directory.write(name, std::string(static_cast<std::size_t>(i), 'x')), true});
  }
  return files;
}

TEST(RegisteredFiles, HaveNumbersInTheOrderGiven) {
  const TemporaryDirectory directory;
  const auto files = LocalFiles::create({}).value();
  ASSERT_EQ(files->add("before", directory.write("before", "")).value(), 0U);
  ASSERT_EQ(files->add(some_files(directory, 300)).value(), 1U);
  EXPECT_EQ(files->add({}).value(), 301U);
  for (FileId id = 1; id <= 300; ++id) {
    EXPECT_EQ(files->name(id), std::to_string(id - 1));
    EXPECT_EQ(files->size(id), id - 1);
  }
}

TEST(RegisteredFiles, CostTwoOperationsWhereTheyArePlain) {
  const TemporaryDirectory directory;
  FarAway far;
  const auto files = LocalFiles::with_reader({}, std::make_unique<DelayingReader>(far),
                                             std::make_unique<DelayingStore>(far));
  ASSERT_TRUE(files->add(some_files(directory, 100)));
  EXPECT_EQ(far.opens, 100U);
  EXPECT_EQ(far.looks, 100U);
  EXPECT_EQ(far.operations(), 200U);
}

TEST(RegisteredFiles, AreAllOrNoneAndTheFirstAtFaultIsNamed) {
  const TemporaryDirectory directory;
  const auto files = LocalFiles::create({}).value();
  std::vector<NewFile> wanted = some_files(directory, 300);
  for (const std::size_t broken : {299U, 41U, 40U, 200U}) wanted[broken].path += ".absent";
  const auto added = files->add(wanted);
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().message(), "40: open: No such file or directory");
  EXPECT_EQ(files->count(), 0U);
  EXPECT_EQ(files->add(some_files(directory, 2)).value(), 0U);
}

TEST(RegisteredFiles, ThatMayNotBeReadAreRefused) {
  const bool is_root = ::geteuid() == 0;  // who may read all
  ASSERT_EQ(::seteuid(is_root ? 65534 : ::geteuid()), 0);
  {
    const TemporaryDirectory directory;
    const auto path = directory.write("secret", "text");
    EXPECT_EQ(::chmod(path.c_str(), 0), 0);
    const auto files = LocalFiles::create({.engine = IoEngine::Pread}).value();
    const auto added = files->add("secret", path);
    EXPECT_EQ(added ? "" : added.error().message(), "secret: open: Permission denied");
  }
  ASSERT_EQ(::seteuid(is_root ? 0 : ::geteuid()), 0);
}

// A change of nothing but the ctime.

Result<void> read_all(SourceFiles& files, FileId id) {
  std::vector<std::byte> bytes(files.size(id));
  return files.read_at(id, 0, bytes);
}

/// The clock of a file system ticks every few milliseconds only.
void change_ctime(const std::filesystem::path& path) {
  const auto store = make_local_store();
  const auto before = store->look(path)->fingerprint.ctime_ns;
  for (int i = 0; i < 1'000'000; ++i) {
    ASSERT_EQ(::chmod(path.c_str(), i % 2 == 0 ? 0600 : 0640), 0);
    if (store->look(path)->fingerprint.ctime_ns != before) return;
  }
  FAIL() << "ctime stands still";
}

TEST(ChangedCtime, IsNoReasonToRefuseReadsUnlessStrict) {
  const TemporaryDirectory directory;
  const auto path = directory.write("a.bin", "12345");
  const auto files = LocalFiles::create({}).value();
  const auto strict = LocalFiles::create({.strict = true}).value();
  const FileId id = files->add("a.bin", path).value();
  ASSERT_EQ(strict->add("a.bin", path).value(), id);
  ASSERT_TRUE(read_all(*strict, id));
  change_ctime(path);
  EXPECT_TRUE(read_all(*files, id));
  const auto stale = read_all(*strict, id);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code(), ErrorCode::Stale);
  EXPECT_THAT(stale.error().message(), testing::HasSubstr("its attributes changed at"));
}

TEST(ChangedCtime, OfADeletedFileIsThatItWasDeleted) {
  const TemporaryDirectory directory;
  const auto path = directory.write("a.bin", "12345");
  const auto files =
      LocalFiles::create({.path_check_interval = std::chrono::hours(1), .strict = true}).value();
  const FileId id = files->add("a.bin", path).value();
  ASSERT_TRUE(read_all(*files, id));
  std::filesystem::remove(path);
  EXPECT_TRUE(read_all(*files, id));  // its path is not looked at yet
}

}  // namespace
}  // namespace ckfs
