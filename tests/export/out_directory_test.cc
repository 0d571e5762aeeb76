// OUT as a place where somebody else plants links, and on file systems that cannot do everything.
#include "export/out_directory.h"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <vector>

#include "io/page_cache.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// Both ways of walking must refuse the same.
class OutDirectoryWalk : public testing::TestWithParam<PathWalk> {
 protected:
  OutDirectory open(const std::string& name = "out") const {
    Result<OutDirectory> out = OutDirectory::open(directory_ / name, {.walk = GetParam()});
    EXPECT_TRUE(out.has_value()) << out.error().message();
    return std::move(*out);
  }

  /// All that can be done with a path.
  static std::vector<std::pair<std::string, Result<void>>> try_all(const OutDirectory& out,
                                                                   const std::string& path) {
    const auto drop = [](auto result) -> Result<void> {
      if (!result) return Failure(result.error());
      return {};
    };
    std::vector<std::pair<std::string, Result<void>>> done;
    done.emplace_back("create", drop(out.create(path)));
    done.emplace_back("reopen", drop(out.reopen(path)));
    done.emplace_back("remove", out.remove(path));
    done.emplace_back("rename to", out.rename("plain", path));
    done.emplace_back("rename from", out.rename(path, "gone"));
    done.emplace_back("make_parents", out.make_parents(path + "/x/y"));
    done.emplace_back("read_text", drop(out.read_text(path, 100)));
    done.emplace_back("replace_text", out.replace_text(path, "new"));
    done.emplace_back("sync_directory", out.sync_directory(path.substr(0, path.rfind('/'))));
    return done;
  }

  TemporaryDirectory directory_;
};

TEST_P(OutDirectoryWalk, FollowsNoLinkAtAnyDepth) {
  directory_.write("elsewhere/d/file", "mine");
  directory_.write("elsewhere/file", "mine");
  for (const char* const target : {"../elsewhere", ".", "b", ""}) {
    for (const std::string link : {"a", "a/b", "a/b/c"}) {
      fs::remove_all(directory_ / "out");
      directory_.write("out/plain", "plain");
      fs::create_directories((directory_ / "out" / link).parent_path());
      const fs::path to = *target == '\0' ? directory_ / "elsewhere" : fs::path(target);
      fs::create_directory_symlink(to, directory_ / "out" / link);
      const OutDirectory out = open();
      for (const char* const below : {"/file", "/d/file", "/new"}) {
        for (const auto& [what, result] : try_all(out, link + below)) {
          ASSERT_FALSE(result.has_value()) << what << " of " << link << below;
          EXPECT_EQ(result.error().system_error(), ELOOP) << what << result.error().message();
          EXPECT_THAT(result.error().message(), HasSubstr("a symbolic link")) << what;
        }
        EXPECT_FALSE(out.entry(link + below));
        out.set_directory_mtime(link, 1);
      }
    }
  }
  const auto untouched = [&](const std::string& path) {
    std::ifstream file(directory_ / path);
    std::string text;
    file >> text;
    struct stat status;
    return text == "mine" && ::stat((directory_ / path).parent_path().c_str(), &status) == 0 &&
           status.st_mtim.tv_sec != 1;
  };
  EXPECT_TRUE(untouched("elsewhere/file"));
  EXPECT_TRUE(untouched("elsewhere/d/file"));
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(directory_ / "elsewhere"), {}), 3);
}

TEST_P(OutDirectoryWalk, ReplacesALinkInThePlaceOfAFile) {
  directory_.write("elsewhere", "mine");
  fs::create_directories(directory_ / "out/d");
  for (const std::string path : {"file", "d/file"}) {
    fs::create_symlink(directory_ / "elsewhere", directory_ / "out" / path);
    const OutDirectory out = open();
    EXPECT_FALSE(out.entry(path)->regular);
    EXPECT_FALSE(out.reopen(path).has_value());
    EXPECT_FALSE(out.read_text(path, 100).has_value());
    ASSERT_TRUE(out.replace_text(path, "new").has_value());
    EXPECT_EQ(out.read_text(path, 100).value(), "new");
    EXPECT_FALSE(fs::is_symlink(directory_ / "out" / path));
    EXPECT_EQ(fs::file_size(directory_ / "elsewhere"), 4U);
  }
}

TEST_P(OutDirectoryWalk, WorksBelowPlainDirectories) {
  const OutDirectory out = open();
  ASSERT_TRUE(out.make_parents("a/b/c/file").has_value());
  Result<OutFile> file = out.create("a/b/c/file");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  ASSERT_TRUE(file->write(0, std::as_bytes(std::span("abc", 3))).has_value());
  ASSERT_TRUE(out.rename("a/b/c/file", "a/other").has_value());
  EXPECT_EQ(out.entry("a/other")->size, 3U);
  EXPECT_EQ(out.read_text("a/other", 3).value(), "abc");
  EXPECT_TRUE(out.sync_directory("a/b/c").has_value());
  out.set_directory_mtime("a/b", 1);
  EXPECT_EQ(out.entry("a/b")->mtime, 1);
  EXPECT_EQ(out.find_foreign([](const std::string&) { return true; }).value(), std::nullopt);
  EXPECT_EQ(out.find_foreign([](const std::string&) { return false; }).value(), "a/other");
  ASSERT_TRUE(out.remove("a/other").has_value());
  EXPECT_TRUE(out.remove("a/other").has_value());
  EXPECT_TRUE(out.remove("not/there").has_value());
  EXPECT_FALSE(out.entry("a/other"));
  EXPECT_EQ(out.read_text("a/other", 3).value(), std::nullopt);
}

TEST_P(OutDirectoryWalk, FindsALinkToADirectoryForeign) {
  directory_.write("elsewhere/file", "mine");
  const OutDirectory out = open();
  fs::create_directory_symlink(directory_ / "elsewhere", directory_ / "out/link");
  EXPECT_EQ(out.find_foreign([](const std::string&) { return false; }).value(), "link");
  EXPECT_EQ(out.find_foreign([](const std::string& path) { return path == "link"; }).value(),
            std::nullopt);
}

TEST_P(OutDirectoryWalk, OpensNoFifoToWaitForItsOtherEnd) {
  const OutDirectory out = open();
  ASSERT_EQ(::mkfifo((directory_ / "out/fifo").c_str(), 0600), 0);
  EXPECT_FALSE(out.read_text("fifo", 100).has_value());
  EXPECT_FALSE(out.reopen("fifo").has_value());
  EXPECT_TRUE(out.replace_text("fifo", "text").has_value());
}

INSTANTIATE_TEST_SUITE_P(Ways, OutDirectoryWalk,
                         testing::Values(PathWalk::Kernel, PathWalk::Components),
                         [](const auto& way) {
                           return way.param == PathWalk::Kernel ? "Kernel" : "Components";
                         });

/// From now on `call` fails with `error` in this process: an old kernel, or a sandbox.
bool forbid(unsigned call, int error) {
  const std::array<sock_filter, 4> filter = {
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call},
      sock_filter{BPF_RET | BPF_K, 0, 0,
                  SECCOMP_RET_ERRNO | (static_cast<unsigned>(error) & SECCOMP_RET_DATA)},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program{filter.size(), const_cast<sock_filter*>(filter.data())};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(OpenDirectoryBeneath, GoesByComponentsWhereTheKernelDoesNot) {
  const TemporaryDirectory directory;
  directory.write("a/b/file", "");
  fs::create_directory_symlink("b", directory / "a/link");
  for (const int error : {ENOSYS, EPERM}) {
    EXPECT_EXIT(
        {
          const UniqueFd top(::open(directory.path().c_str(), O_RDONLY | O_DIRECTORY));
          if (!forbid(SYS_openat2, error)) std::exit(2);
          if (open_directory_beneath(top.get(), "a/link") || errno != ELOOP) std::exit(3);
          if (open_directory_beneath(top.get(), "a/none") || errno != ENOENT) std::exit(4);
          if (open_directory_beneath(top.get(), "a/b/file") || errno != ENOTDIR) std::exit(5);
          std::exit(open_directory_beneath(top.get(), "a/b") ? 0 : 6);
        },
        testing::ExitedWithCode(0), "");
  }
}

TEST(OutDirectory, WritesWhereAFileSystemGivesNoRights) {
  const TemporaryDirectory directory;
  const OutDirectory out = OutDirectory::open(directory / "out").value();
  const auto mode_of = [&](const char* name) {
    struct stat status{};
    EXPECT_EQ(::stat((directory / "out" / name).c_str(), &status), 0);
    return status.st_mode & 0777;
  };
  const mode_t before = ::umask(002);
  EXPECT_TRUE(out.create("given").has_value());
  EXPECT_EXIT(
      {
        if (!forbid(SYS_fchmod, EPERM)) std::exit(2);
        std::exit(out.create("not-given").has_value() ? 0 : 3);
      },
      testing::ExitedWithCode(0), "");
  ::umask(before);
  EXPECT_EQ(mode_of("given"), 0664U);
  EXPECT_EQ(mode_of("not-given"), 0644U);
}

TEST(OutDirectory, TrustsNoAclThatLetsOthersWrite) {
  const TemporaryDirectory directory;
  directory.write("out/d/file", "text");
  const OutDirectory out = OutDirectory::open(directory / "out").value();
  const auto user = static_cast<std::uint16_t>(ACL_USER);
  const auto group = static_cast<std::uint16_t>(ACL_GROUP);
  constexpr std::uint32_t kNobody = ACL_UNDEFINED_ID;
  constexpr std::uint16_t kRead = ACL_READ;
  constexpr std::uint16_t kBoth = ACL_READ | ACL_WRITE;
  // What the entry may, the mask, and what is said.
  struct Case {
    posix_acl_xattr_entry named;
    std::uint16_t mask;
    bool trusted;
  };
  for (const Case& one : {Case{{user, kBoth, 12345}, kBoth, false},
                          {{group, kBoth, 12345}, kBoth, false},
                          {{user, kBoth, 12345}, kRead, true},
                          {{user, kRead, 12345}, kBoth, true},
                          {{user, kBoth, ::geteuid()}, kBoth, true},
                          {{user, kBoth, 0}, kBoth, true},
                          {{group, kBoth, ::getegid()}, kBoth, true}}) {
    for (const std::string path : {"", "d", "d/file"}) {
      const std::array<posix_acl_xattr_entry, 5> entries = {{
          {ACL_USER_OBJ, kBoth, kNobody},
          one.named.e_tag == user ? one.named
                                  : posix_acl_xattr_entry{ACL_GROUP_OBJ, kRead, kNobody},
          one.named.e_tag == user ? posix_acl_xattr_entry{ACL_GROUP_OBJ, kRead, kNobody}
                                  : one.named,
          {ACL_MASK, one.mask, kNobody},
          {ACL_OTHER, kRead, kNobody},
      }};
      std::array<std::byte, sizeof(posix_acl_xattr_header) + sizeof(entries)> acl{};
      acl[0] = std::byte{POSIX_ACL_XATTR_VERSION};
      std::memcpy(acl.data() + sizeof(posix_acl_xattr_header), entries.data(), sizeof(entries));
      const fs::path at = directory / "out" / path;
      ASSERT_EQ(::setxattr(at.c_str(), "system.posix_acl_access", acl.data(), acl.size(), 0), 0)
          << std::strerror(errno);
      EXPECT_EQ(out.distrust(path),
                one.trusted ? std::nullopt : std::optional<std::string>("others may write to it"))
          << path << " " << one.named.e_tag << " " << one.named.e_perm << " " << one.mask;
      ASSERT_EQ(::removexattr(at.c_str(), "system.posix_acl_access"), 0);
    }
  }
}

TEST(OutFile, LeavesNothingInThePageCacheOnceItIsSynced) {
  const TemporaryDirectory directory;
  const Result<OutDirectory> out = OutDirectory::open(directory / "out");
  ASSERT_TRUE(out.has_value()) << out.error().message();
  Result<OutFile> file = out->create("file");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const std::vector<std::byte> bytes(3'000'000, std::byte{7});
  ASSERT_TRUE(file->write(0, bytes).has_value());
  ASSERT_TRUE(file->write(bytes.size(), bytes).has_value());
  ASSERT_TRUE(file->sync().has_value());
  const UniqueFd again(::open((directory / "out/file").c_str(), O_RDONLY | O_CLOEXEC));
  struct statfs on{};
  ASSERT_EQ(::fstatfs(again.get(), &on), 0);
  // There the cache is the file; and before 6.5 the kernel does not say.
  const bool in_memory = on.f_type == TMPFS_MAGIC;
  const auto cached = page_cache::cached_pages(again.get(), {0, 2 * bytes.size()});
  EXPECT_EQ(cached.value_or(0) > 0, in_memory && cached.has_value());
}

TEST(OutDirectory, DoesWithoutSyncedDirectoriesWhereThereAreNone) {
  const TemporaryDirectory directory;
  for (const int error : {EINVAL, ENOTSUP}) {
    const Result<OutDirectory> out =
        OutDirectory::open(directory / "out", {.sync_directory = [&](int) {
                             errno = error;
                             return -1;
                           }});
    ASSERT_TRUE(out.has_value()) << out.error().message();
    testing::internal::CaptureStdout();  // where the default logger writes
    EXPECT_TRUE(out->sync_directory("").has_value());
    EXPECT_TRUE(out->replace_text("record", "text").has_value());
    const std::string logged = testing::internal::GetCapturedStdout();
    const std::size_t first = logged.find("cannot sync a directory");
    EXPECT_NE(first, logged.npos);
    EXPECT_EQ(logged.find("cannot sync a directory", first + 1), logged.npos);
  }
}

TEST(OutDirectory, ReportsADirectoryThatFailsToSync) {
  const TemporaryDirectory directory;
  const Result<OutDirectory> out =
      OutDirectory::open(directory / "out", {.sync_directory = [](int) {
                           errno = EIO;
                           return -1;
                         }});
  ASSERT_TRUE(out.has_value()) << out.error().message();
  const Result<void> synced = out->sync_directory("");
  ASSERT_FALSE(synced.has_value());
  EXPECT_EQ(synced.error().system_error(), EIO);
}

}  // namespace
}  // namespace ckfs
