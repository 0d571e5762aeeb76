// Listing a source that gives errors: what cannot be seen is not taken for what is not there.
#include "source/source_tree.h"

#include <cerrno>
#include <cstring>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "io/reader.h"
#include "source/hub_cache.h"
#include "source/open_checkpoint.h"
#include "source/orbax_writer.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;

/// This machine's files, but looking at one path, or listing it, gives an error.
class FailingStore final : public OpenStore {
 public:
  enum class What { All, Listing };
  FailingStore(fs::path path, int error, What what = What::All)
      : path_(std::move(path)), error_(error), what_(what) {}

  Tried<std::vector<StoreEntry>> list(const fs::path& directory) override {
    if (directory.lexically_normal() == path_) return tl::unexpected(error_);
    return here_->list(directory);
  }
  Tried<FileStatus> look(const fs::path& path) override {
    const bool fails = what_ == What::All && path.lexically_normal() == path_;
    if (fails) return tl::unexpected(error_);
    return here_->look(path);
  }
  Tried<fs::path> resolve(const fs::path& path) override { return here_->resolve(path); }
  Tried<fs::path> link_target(const fs::path& path) override { return here_->link_target(path); }
  Tried<UniqueFd> open(const fs::path& path) override { return here_->open(path); }
  Tried<FileStatus> look(int fd) override { return here_->look(fd); }

 private:
  fs::path path_;
  int error_;
  What what_;
  std::unique_ptr<OpenStore> here_ = make_local_store();
};

class Listing : public testing::Test {
 protected:
  Listing() {
    top_.write("source/model.safetensors", safetensors_text({{"x", 1}}, 1));
    top_.write("source/folder/text", "text");
  }

  fs::path source() const { return fs::canonical(top_.path()) / "source"; }

  /// "": opened, or the message; where looking at `path` gives `error`.
  std::string open(const fs::path& path, int error, const OpenCheckpointOptions& options = {}) {
    files_ = LocalFiles::with_reader({.engine = IoEngine::Pread}, make_pread_reader(),
                                     std::make_unique<FailingStore>(path, error));
    auto catalog = open_checkpoint(source(), *files_, options);
    if (!catalog) return catalog.error().message();
    catalog_ = *catalog;
    return "";
  }

  std::string note(std::string_view subject) const {
    for (const Note& note : catalog_->notes()) {
      if (note.subject == subject) return note.text;
    }
    return "";
  }

  const TemporaryDirectory top_;
  std::unique_ptr<SourceFiles> files_;
  std::shared_ptr<const Catalog> catalog_;
};

TEST_F(Listing, FailsAtADirectoryOfAHubCacheThatCannotBeListed) {
  const std::string hub = "models--o--n/";
  top_.write(hub + "snapshots/1/model.safetensors", safetensors_text({{"x", 1}}, 1));
  top_.write(hub + "blobs/2.incomplete", "a");
  const fs::path repository = fs::canonical(top_.path()) / "models--o--n";
  top_.write(hub + "refs/main", "1");
  for (const char* directory : {"blobs", "snapshots", "refs"}) {
    const fs::path path = repository / directory;
    for (const int error : {EIO, ESTALE}) {
      for (const fs::path& asked : {repository, repository / "snapshots/1"}) {
        FailingStore store(path, error);
        const auto found = find_hub_snapshot(asked, store);
        ASSERT_FALSE(found) << path;
        EXPECT_EQ(found.error().message(),
                  path.string() + ": cannot look at: " + std::strerror(error));
      }
    }
    for (const int error : {EIO, EACCES}) {
      FailingStore store(path, error, FailingStore::What::Listing);
      const auto found = find_hub_snapshot(repository, store);
      // Nothing asks for all references, and blobs that may not be listed may be read.
      const std::string_view name = directory;
      ASSERT_EQ(found.has_value(), name == "refs" || (name == "blobs" && error == EACCES));
      if (!found) {
        EXPECT_EQ(found.error().message(),
                  path.string() + ": cannot list: " + std::strerror(error));
      }
    }
  }
  FailingStore gone(repository / "blobs", ENOENT);
  const auto found = find_hub_snapshot(repository, gone);
  ASSERT_TRUE(found && *found);
  EXPECT_TRUE((*found)->incomplete.empty());
  FailingStore whole(repository / "none", EIO);
  EXPECT_EQ(find_hub_snapshot(repository, whole).value()->incomplete.size(), 1U);
}

TEST_F(Listing, FailsAtADirectoryThatCannotBeLookedAt) {
  for (const int error : {EIO, EACCES, ESTALE, ETIMEDOUT, ENOMEM, ELOOP}) {
    EXPECT_EQ(open(source() / "folder", error),
              std::string("folder: cannot look at: ") + std::strerror(error));
  }
  // Removed since it was listed.
  EXPECT_EQ(open(source() / "folder", ENOENT), "");
  EXPECT_EQ(note("folder"), "neither a file nor a directory; not shown");
}

TEST_F(Listing, FailsAtALinkUnlessItsTargetIsOutOfReach) {
  fs::create_symlink("model.safetensors", source() / "link");
  for (const int error : {EIO, ESTALE, ETIMEDOUT, ENOMEM}) {
    EXPECT_EQ(open(source() / "link", error),
              std::string("link: cannot look at: ") + std::strerror(error));
  }
  for (const int error : {ENOENT, ENOTDIR, ELOOP, EACCES}) {
    EXPECT_EQ(open(source() / "link", error), "");
    EXPECT_EQ(note("link"), "a link to a file that is absent or out of reach; not shown");
  }
}

TEST_F(Listing, CallsNoLinkAbsentThatLeadsToSomethingElse) {
  ASSERT_EQ(::mkfifo((top_ / "fifo").c_str(), 0600), 0);
  fs::create_symlink(top_ / "fifo", source() / "link");
  EXPECT_EQ(open(source() / "other", ENOENT), "");
  EXPECT_EQ(note("link"), "neither a file nor a directory; not shown");
}

TEST_F(Listing, FailsAtAConfigurationThatCannotBeLookedAt) {
  fs::remove(source() / "model.safetensors");
  OrbaxWriter().write(top_, "source/");
  top_.write("model/config.json", "{}");
  fs::create_symlink("config.json", top_ / "model/tokenizer.json");
  const fs::path model = source().parent_path() / "model";
  EXPECT_THAT(open(model / "tokenizer.json", EIO, {.config = model}),
              EndsWith("model/tokenizer.json: cannot look at: Input/output error"));
}

}  // namespace
}  // namespace ckfs
