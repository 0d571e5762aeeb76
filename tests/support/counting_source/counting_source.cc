// A directory shown through FUSE, every read of which is counted, and may be delayed or made to
// fail. It lies below a checkpoint in tests: what ckfs reads is then known from outside ckfs.
//
//   ckfs_counting_source DIR MNT [--allow-other] [--cached] [--read-ahead=BYTES]
//                        [--subtype=NAME]
//                                                    serves until unmounted or SIGTERM
//
// The mirror is read-only, with the modes, sizes, mtimes, inode numbers and symbolic links of DIR.
// All reads are direct (no page cache, no readahead) and no attribute is cached, so the counts are
// those of the reader's own calls (the kernel splits a call of more than 1 MiB), and a change in
// DIR shows at once. With --cached the page cache is used as on other mounts, the counts are those
// of the kernel's requests, and --read-ahead is how far it reads ahead at most (more than 128 KiB
// takes effect when read_ahead_kb of the mount is raised too). Three files in the root of the mount
// are not DIR's and not listed:
//
//   .counts   JSON: {"files": {NAME: {"bytes", "requests", "opens", "unique_bytes",
//             "ranges": [[begin, end], ...]}}, "bytes", "requests", "poisoned_reads",
//             "poisoned": [[NAME, begin, end], ...], "failed_reads"}; a snapshot at open
//   .log      one line for each read, in order: OFFSET BYTES NAME; BYTES is -errno where it failed
//   .control  write commands to it, one in a line; EINVAL if one of them makes no sense:
//               poison FILE BEGIN END        reads that touch these bytes: EIO, and counted apart
//               fail FILE BEGIN END ERRNO    the same with another errno, not counted apart
//               late FILE BEGIN END MS       so many milliseconds before reads that touch these
//               delay MILLISECONDS           before each read (0: none)
//               jump MILLISECONDS            more, where an open file is not read on in order
//               bandwidth BYTES              a second, of one read (0 or end: no limit)
//               total-bandwidth BYTES        a second, of all reads together
//               in-flight N                  reads that are worked on at a time
//               cloud-disk                   1 ms, 200 MB/s, 2 GB/s together, ten in flight
//               short BYTES                  no read gives more than this many bytes
//               clear                        the end of all these
//               reset                        all counts and the log back to nothing
//             FILE is a path below DIR, or * for all; END may be `end`.
//
// tests/support/counting_source.py starts it and talks to it.
#define FUSE_USE_VERSION 312

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fuse.h>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/unique_fd.h"
#include "support/counting_source/read_record.h"

namespace ckfs {
namespace {

struct Server {
  UniqueFd root;
  ReadRecord record;
  bool cached = false;
  unsigned read_ahead = 0;  // 0: what the kernel likes
};

/// What a file handle stands for: a file of DIR, or the text of a virtual one.
struct Handle {
  UniqueFd fd;
  std::string text;
};

Server& server() {
  return *static_cast<Server*>(::fuse_get_context()->private_data);
}

Handle& handle(const fuse_file_info* info) {
  return *reinterpret_cast<Handle*>(info->fh);
}

bool is_control(std::string_view path) {
  return path == "/.control";
}

bool is_virtual(std::string_view path) {
  return is_control(path) || path == "/.counts" || path == "/.log";
}

/// `path` as FUSE gives it, relative to DIR.
const char* relative(const char* path) {
  return path[1] == '\0' ? "." : path + 1;
}

int to_result(int status) {
  return status < 0 ? -errno : 0;
}

/// Reads that may be in flight: a slow source is fast only by many.
constexpr unsigned kThreads = 128;

void* do_init(fuse_conn_info* connection, fuse_config* config) {
  connection->max_background = kThreads;
  connection->congestion_threshold = kThreads;
  if (server().read_ahead != 0) connection->max_readahead = server().read_ahead;
  config->use_ino = 1;
  config->direct_io = server().cached ? 0 : 1;
  config->kernel_cache = 0;
  config->entry_timeout = 0;
  config->attr_timeout = 0;
  config->negative_timeout = 0;
  return &server();
}

int do_getattr(const char* path, struct stat* status, fuse_file_info*) {
  if (is_virtual(path)) {
    *status = {};
    status->st_mode = S_IFREG | (is_control(path) ? 0622 : 0444);
    status->st_nlink = 1;
    return 0;
  }
  return to_result(::fstatat(server().root.get(), relative(path), status, AT_SYMLINK_NOFOLLOW));
}

int do_readlink(const char* path, char* buffer, std::size_t size) {
  const ssize_t length = ::readlinkat(server().root.get(), relative(path), buffer, size - 1);
  if (length < 0) return -errno;
  buffer[length] = '\0';
  return 0;
}

int do_readdir(const char* path, void* buffer, fuse_fill_dir_t fill, off_t, fuse_file_info*,
               fuse_readdir_flags) {
  UniqueFd fd(::openat(server().root.get(), relative(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return -errno;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), ::closedir);
  if (!directory) return -errno;
  (void)fd.release();  // the DIR closes it
  while (const dirent* entry = ::readdir(directory.get())) {
    fill(buffer, entry->d_name, nullptr, 0, fuse_fill_dir_flags(0));
  }
  return 0;
}

int do_open(const char* path, fuse_file_info* info) {
  const bool writes = (info->flags & O_ACCMODE) != O_RDONLY;
  if (writes && !is_control(path)) return -EROFS;
  auto opened = std::make_unique<Handle>();
  if (std::string_view(path) == "/.counts") {
    opened->text = server().record.counts_json();
  } else if (std::string_view(path) == "/.log") {
    opened->text = server().record.log_text();
  } else if (!is_control(path)) {
    opened->fd = UniqueFd(::openat(server().root.get(), relative(path), O_RDONLY | O_CLOEXEC));
    if (!opened->fd) return -errno;
    server().record.count_open(relative(path));
  }
  if (!opened->fd) info->direct_io = 1;
  info->fh = reinterpret_cast<std::uint64_t>(opened.release());
  return 0;
}

int do_release(const char*, fuse_file_info* info) {
  server().record.slow().forget(info->fh);
  const std::unique_ptr<Handle> closing(&handle(info));
  return 0;
}

int do_read(const char* path, char* buffer, std::size_t size, off_t offset, fuse_file_info* info) {
  const Handle& open = handle(info);
  const auto begin = static_cast<std::uint64_t>(offset);
  if (!open.fd) {
    if (begin >= open.text.size()) return 0;
    const std::size_t length = std::min<std::size_t>(size, open.text.size() - begin);
    std::memcpy(buffer, open.text.data() + begin, length);
    return static_cast<int>(length);
  }
  const Verdict verdict = server().record.judge(relative(path), begin, size);
  std::this_thread::sleep_until(server().record.slow().answered(
      SlowSource::Clock::now() + verdict.late, info->fh, begin, size));
  if (verdict.error != 0) return -verdict.error;
  size = std::min<std::size_t>(size, verdict.limit);
  const ssize_t length = ::pread(open.fd.get(), buffer, size, offset);
  if (length < 0) return -errno;
  server().record.count(relative(path), begin, static_cast<std::uint64_t>(length));
  return static_cast<int>(length);
}

int do_write(const char* path, const char* bytes, std::size_t size, off_t, fuse_file_info*) {
  if (!is_control(path)) return -EROFS;
  std::string_view text(bytes, size);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0 && !server().record.command(text.substr(0, end))) return -EINVAL;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return static_cast<int>(size);
}

/// Only so that O_TRUNC does not fail.
int do_truncate(const char* path, off_t, fuse_file_info*) {
  return is_control(path) ? 0 : -EROFS;
}

int do_create(const char*, mode_t, fuse_file_info*) {
  return -EROFS;
}

int do_statfs(const char*, struct statvfs* status) {
  return to_result(::fstatvfs(server().root.get(), status));
}

struct Options {
  const char* directory = nullptr;
  const char* mountpoint = nullptr;
  bool allow_other = false;
  bool cached = false;
  unsigned read_ahead = 0;
  std::string_view subtype;
};

std::optional<Options> parse(std::span<char* const> words) {
  Options options;
  for (const std::string_view word : words) {
    if (word == "--allow-other") {
      options.allow_other = true;
    } else if (word == "--cached") {
      options.cached = true;
    } else if (word.starts_with("--read-ahead=")) {
      const std::string_view number = word.substr(word.find('=') + 1);
      const char* const end = number.data() + number.size();
      if (std::from_chars(number.data(), end, options.read_ahead).ptr != end) return std::nullopt;
    } else if (word.starts_with("--subtype=")) {
      options.subtype = word.substr(word.find('=') + 1);
    } else if (word.starts_with("-") || options.mountpoint != nullptr) {
      return std::nullopt;
    } else {
      (options.directory == nullptr ? options.directory : options.mountpoint) = word.data();
    }
  }
  return options.mountpoint == nullptr ? std::nullopt : std::optional(options);
}

int serve(const Options& options) {
  const auto [directory, mountpoint, allow_other, cached, read_ahead, subtype] = options;
  Server served;
  served.cached = cached;
  served.read_ahead = read_ahead;
  served.root = UniqueFd(::open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!served.root) {
    fmt::print(stderr, "ckfs_counting_source: {}: {}\n", directory, std::strerror(errno));
    return 1;
  }
  fuse_operations operations{};
  operations.init = do_init;
  operations.getattr = do_getattr;
  operations.readlink = do_readlink;
  operations.readdir = do_readdir;
  operations.open = do_open;
  operations.release = do_release;
  operations.read = do_read;
  operations.write = do_write;
  operations.truncate = do_truncate;
  operations.create = do_create;
  operations.statfs = do_statfs;
  // Delayed reads each occupy a thread, and must not delay the ones that ask for the counts.
  std::vector<std::string> words = {"ckfs_counting_source", mountpoint, "-f", "-o",
                                    "fsname=ckfs-counting-source,default_permissions"};
  words.insert(words.end(), {"-o", fmt::format("max_threads={0},max_idle_threads={0}", kThreads)});
  if (allow_other) words.insert(words.end(), {"-o", "allow_other"});
  if (!subtype.empty()) words.insert(words.end(), {"-o", fmt::format("subtype={}", subtype)});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  return ::fuse_main(static_cast<int>(arguments.size()), arguments.data(), &operations, &served);
}

}  // namespace
}  // namespace ckfs

int main(int argc, char** argv) {
  const auto options = ckfs::parse(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  if (!options) {
    fmt::print(stderr,
               "usage: ckfs_counting_source DIR MNT [--allow-other] [--cached] "
               "[--read-ahead=BYTES] [--subtype=NAME]\n");
    return 2;
  }
  return ckfs::serve(*options);
}
