// Low-level FUSE, because the tree already speaks in inode numbers: the high-level API would turn
// them into paths and back with a table and a lock of its own.
//
// Every operation is trace, call, reply; its error is one entry of the table in to_errno.cc. Steps
// that can fail, by a result or by an exception, come before the reply: a request must be answered
// once, and no exception may reach libfuse, which is C. Data are answered from the engine's own
// memory (fuse_reply_buf): splicing them through a pipe copies as often and costs twice the CPU
// (docs/NOTES.md).

#include "fuse/operations.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <optional>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/stop.h"
#include "base/units.h"
#include "fuse/to_errno.h"

namespace ckfs {
namespace {

/// Names, sizes and times never change while the mount lives; 31 years are long enough.
constexpr double kForeverSeconds = 1e9;

/// cp, cat and Python then ask for 1 MiB at a time, the largest request that FUSE has.
constexpr blksize_t kBlockSize = 1_MiB;
constexpr std::size_t kMaxName = 255;  // bytes, as of other file systems

const Served& served(fuse_req_t request) {
  return *static_cast<const Served*>(::fuse_req_userdata(request));
}

void count_error(fuse_req_t request, const char* operation, int number,
                 const std::optional<Error>& error) noexcept {
  try {
    served(request).filesystem.count_error(
        operation, number,
        error.value_or(Error(number == ENOMEM ? ErrorCode::OutOfMemory : ErrorCode::Internal,
                             std::strerror(number))));
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // An error that is not counted is still answered.
  }
}

/// Runs one operation in two steps. `prepare` finds the answer: all that can fail or throw happens
/// there, and becomes an errno here. `reply` gives the answer to the kernel and does the rest; it
/// is noexcept, so that it cannot cause a second answer.
template <typename Prepare, typename Reply>
void answer(fuse_req_t request, const char* name, fuse_ino_t inode, Prepare&& prepare,
            Reply&& reply) noexcept {
  using Prepared = std::invoke_result_t<Prepare, const Served&>;
  static_assert(std::is_nothrow_invocable_v<Reply, typename Prepared::value_type&&>);
  int error = EIO;
  std::optional<Error> why;
  std::optional<Prepared> prepared;
  try {
    prepared.emplace(prepare(served(request)));
    if (!*prepared) {
      error = to_errno(prepared->error().code());
      spdlog::debug("{} inode {}: {}", name, inode, prepared->error().message());
      why = std::move(*prepared).error();
      prepared.reset();
    }
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
    spdlog::error("{} inode {}: out of memory", name, inode);
  } catch (const std::exception& exception) {
    spdlog::error("{} inode {}: {}", name, inode, exception.what());
  } catch (...) {
    spdlog::error("{} inode {}: an unknown exception", name, inode);
  }
  if (prepared) {
    reply(std::move(**prepared));
  } else {
    // A name or an attribute that is not there is an answer.
    if (error != ENOENT && error != ENODATA) count_error(request, name, error, why);
    ::fuse_reply_err(request, error);
  }
}

/// Lookups that were counted for a reply; forgotten again where it does not arrive.
class CountedLookups {
 public:
  explicit CountedLookups(Filesystem& filesystem) : filesystem_(&filesystem) {}
  CountedLookups(CountedLookups&&) = default;
  CountedLookups& operator=(CountedLookups&&) = delete;
  ~CountedLookups() {
    for (const InodeNumber inode : inodes_) filesystem_->forget(inode, 1);
  }

  Result<Attributes> lookup(InodeNumber parent, std::string_view name) {
    // Makes room before the lookup is counted. A listing of 1 MiB has thousands.
    if (inodes_.size() == inodes_.capacity()) inodes_.reserve(2 * inodes_.size() + 1);
    CKFS_TRY(const Attributes attributes, filesystem_->lookup(parent, name));
    inodes_.push_back(attributes.inode);
    return attributes;
  }

  /// `result` is the reply's: -ENOENT means that the reader was killed.
  void replied(int result) noexcept {
    if (result != -ENOENT) inodes_.clear();
  }

 private:
  Filesystem* filesystem_;
  std::vector<InodeNumber> inodes_;
};

/// Asks the kernel to forget names. If it fails, memory is lost, not a lookup.
void forget_crowded(const Served& mount) noexcept {
  try {
    for (std::string& name : mount.filesystem.take_crowded()) mount.forget_name(std::move(name));
  } catch (const std::exception& exception) {
    spdlog::warn("unused names are not forgotten: {}", exception.what());
  }
}

struct stat to_stat(const Attributes& attributes, const Served& mount) {
  struct stat status{};
  status.st_ino = attributes.inode;
  status.st_mode = (attributes.directory ? S_IFDIR : S_IFREG) | attributes.permissions;
  // The daemon reads with its user's rights; other users get no bytes through it that they could
  // not read themselves.
  if (mount.others && !attributes.directory) {
    const std::uint32_t readers = attributes.readers;
    status.st_mode &= ~0777U | readers | readers >> 1 | readers >> 2;
  }
  status.st_nlink = 1;
  status.st_uid = mount.user;
  status.st_gid = mount.group;
  status.st_size = static_cast<off_t>(attributes.size);
  status.st_blksize = kBlockSize;
  // A file of zero blocks would look like one hole, and cp would search it for data.
  status.st_blocks = static_cast<blkcnt_t>((attributes.size + 511) / 512);
  status.st_mtim.tv_sec = attributes.mtime;
  status.st_ctim = status.st_atim = status.st_mtim;
  return status;
}

fuse_entry_param to_entry(const Attributes& attributes, const Served& mount) {
  fuse_entry_param entry{};
  entry.ino = attributes.inode;
  entry.attr = to_stat(attributes, mount);
  entry.attr_timeout = kForeverSeconds;
  entry.entry_timeout = kForeverSeconds;
  return entry;
}

void on_init(void*, fuse_conn_info* connection) {
  const auto want = [&](unsigned capability) {
    if (connection->capable & capability) connection->want |= capability;
  };
  const auto refuse = [&](unsigned capability) { connection->want &= ~capability; };
  // Several pages of one file are asked for at once, and a large O_DIRECT read in parallel pieces.
  want(FUSE_CAP_ASYNC_READ);
  want(FUSE_CAP_ASYNC_DIO);
  // Directories never change, so nothing needs the kernel's lock around listing them.
  want(FUSE_CAP_PARALLEL_DIROPS);
  // `ls -l` of a checkpoint is one request for a page of names and attributes.
  want(FUSE_CAP_READDIRPLUS);
  want(FUSE_CAP_READDIRPLUS_AUTO);
  // open() with O_TRUNC is refused whole, instead of after a separate truncation.
  want(FUSE_CAP_ATOMIC_O_TRUNC);
  // Slower than a copy from memory (see above).
  refuse(FUSE_CAP_SPLICE_READ);
  refuse(FUSE_CAP_SPLICE_WRITE);
  refuse(FUSE_CAP_SPLICE_MOVE);
  // There is nothing to write back, and content never changes under its inode.
  refuse(FUSE_CAP_WRITEBACK_CACHE);
  refuse(FUSE_CAP_AUTO_INVAL_DATA);
  // Sets the largest request of either direction: 256 pages.
  connection->max_write = 1_MiB;
  // Requests without a waiting reader (read-ahead); a source that is far away wants many at once.
  connection->max_background = 64;
  connection->congestion_threshold = 48;
  // Less than by default: bytes ahead of a reader are delivered (fuse/session.cc), and bytes that
  // the kernel asks for beyond the end of a tensor would be read in vain.
  connection->max_readahead = 64_KiB;
}

void on_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  spdlog::debug("lookup inode {}: \"{}\"", parent, name);
  if (std::string_view(name).size() > kMaxName) {  // the kernel lets 1024 bytes pass
    ::fuse_reply_err(request, ENAMETOOLONG);
    return;
  }
  struct Found {
    CountedLookups lookups;
    fuse_entry_param entry{};
  };
  answer(
      request, "lookup", parent,
      [&](const Served& mount) -> Result<Found> {
        Found found{.lookups = CountedLookups(mount.filesystem)};
        const auto attributes = found.lookups.lookup(parent, name);
        if (attributes) {
          found.entry = to_entry(*attributes, mount);
        } else if (attributes.error().code() == ErrorCode::NotFound) {
          // A name that is not there never will be: the kernel may remember that, too.
          found.entry.entry_timeout = kForeverSeconds;
        } else {
          return Failure(attributes.error());
        }
        if (parent == kRootInode) forget_crowded(mount);
        return found;
      },
      [&](Found&& found) noexcept {
        found.lookups.replied(::fuse_reply_entry(request, &found.entry));
      });
}

void on_forget(fuse_req_t request, fuse_ino_t inode, std::uint64_t lookups) {
  spdlog::debug("forget inode {}: {} lookups", inode, lookups);
  served(request).filesystem.forget(inode, lookups);
  ::fuse_reply_none(request);
}

void on_forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) {
    spdlog::debug("forget inode {}: {} lookups", forgets[i].ino, forgets[i].nlookup);
    served(request).filesystem.forget(forgets[i].ino, forgets[i].nlookup);
  }
  ::fuse_reply_none(request);
}

void on_getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  spdlog::debug("getattr inode {}", inode);
  answer(
      request, "getattr", inode,
      [&](const Served& mount) -> Result<struct stat> {
        CKFS_TRY(const Attributes attributes, mount.filesystem.attributes(inode));
        return to_stat(attributes, mount);
      },
      [&](struct stat&& status) noexcept { ::fuse_reply_attr(request, &status, kForeverSeconds); });
}

void on_open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  spdlog::debug("open inode {}: flags {:#o}", inode, info->flags);
  answer(
      request, "open", inode,
      [&](const Served& mount) -> Result<Filesystem*> {
        if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) {
          return fail(ErrorCode::ReadOnly, "inode {}: opened for writing", inode);
        }
        CKFS_TRY(const Attributes attributes, mount.filesystem.attributes(inode));
        info->direct_io = mount.direct || attributes.volatile_content;
        StreamOptions options{.once = mount.direct};
        // A reader past the page cache does not look for bytes there.
        if (!info->direct_io && (info->flags & O_DIRECT) == 0 && mount.deliver) {
          options.deliver = [deliver = mount.deliver, inode](std::uint64_t offset,
                                                             std::span<const std::byte> bytes) {
            return deliver(inode, offset, bytes);
          };
        }
        CKFS_TRY(info->fh, mount.filesystem.open(inode, std::move(options)));
        // Without it the kernel drops the file's pages at every open.
        info->keep_cache = !info->direct_io;
        return &mount.filesystem;
      },
      [&](Filesystem*&& filesystem) noexcept {
        const std::uint64_t handle = info->fh;
        if (::fuse_reply_open(request, info) == -ENOENT) filesystem->close(handle);
      });
}

void on_read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
             fuse_file_info* info) {
  spdlog::debug("read inode {}: {} bytes at {}", inode, size, offset);
  answer(
      request, "read", inode,
      [&](const Served& mount) -> Result<Bytes> {
        if (offset < 0) {
          return fail(ErrorCode::InvalidArgument, "inode {}: offset {}", inode, offset);
        }
        const bool direct = mount.direct || (info->flags & O_DIRECT) != 0;
        const ReadsUnderWay::Read read(mount.reads, ::fuse_req_ctx(request)->pid, direct);
        const StopScope scope(read.token());
        auto bytes = mount.filesystem.read(info->fh, static_cast<std::uint64_t>(offset), size);
        if (!bytes && bytes.error().code() == ErrorCode::NotFound) {
          // The source's file is gone. ENOENT would be an answer about a name, and this is an open
          // file.
          return Failure(Error(ErrorCode::Io, bytes.error().message()));
        }
        return bytes;
      },
      [&](Bytes&& bytes) noexcept {
        ::fuse_reply_buf(request, reinterpret_cast<const char*>(bytes.data()), bytes.size());
      });
}

void on_release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  spdlog::debug("release inode {}", inode);
  served(request).filesystem.close(info->fh);
  ::fuse_reply_err(request, 0);
}

void on_opendir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  spdlog::debug("opendir inode {}", inode);
  answer(
      request, "opendir", inode,
      [&](const Served& mount) -> Result<Attributes> {
        CKFS_TRY(const Attributes attributes, mount.filesystem.attributes(inode));
        if (!attributes.directory) return fail(ErrorCode::NotDirectory, "inode {}", inode);
        return attributes;
      },
      [&](Attributes&&) noexcept {
        // Listings never change: the kernel may keep them.
        info->cache_readdir = 1;
        info->keep_cache = 1;
        ::fuse_reply_open(request, info);
      });
}

/// Entries of at most `size` bytes, from `offset`, put into a reply by `add(buffer, entry)`, which
/// gives the bytes that the entry takes, or would take if it does not fit.
template <typename Add>
Result<std::vector<char>> fill_listing(const Served& mount, fuse_ino_t inode, std::size_t size,
                                       off_t offset, Add&& add) {
  constexpr std::size_t kSmallestEntry = 32;  // struct fuse_dirent and a name, 8-aligned
  constexpr std::size_t kLargestReply = 1_MiB;
  size = std::min(size, kLargestReply);
  CKFS_TRY(const auto entries, mount.filesystem.list(inode, static_cast<std::uint64_t>(offset),
                                                     size / kSmallestEntry + 1));
  std::vector<char> buffer(size);
  std::size_t used = 0;
  for (const DirectoryEntry& entry : entries) {
    const std::size_t need = add(std::span(buffer).subspan(used), entry);
    if (need > size - used) break;
    used += need;
  }
  buffer.resize(used);
  return buffer;
}

void on_readdir(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                fuse_file_info*) {
  spdlog::debug("readdir inode {}: {} bytes at {}", inode, size, offset);
  answer(
      request, "readdir", inode,
      [&](const Served& mount) {
        const auto add = [&](std::span<char> room, const DirectoryEntry& entry) {
          const struct stat status = to_stat(entry.attributes, mount);
          return ::fuse_add_direntry(request, room.data(), room.size(), entry.name.c_str(), &status,
                                     static_cast<off_t>(entry.next_offset));
        };
        return fill_listing(mount, inode, size, offset, add);
      },
      [&](std::vector<char>&& listing) noexcept {
        ::fuse_reply_buf(request, listing.data(), listing.size());
      });
}

void on_readdirplus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                    fuse_file_info*) {
  spdlog::debug("readdirplus inode {}: {} bytes at {}", inode, size, offset);
  struct Listing {
    CountedLookups lookups;
    std::vector<char> bytes;
  };
  answer(
      request, "readdirplus", inode,
      [&](const Served& mount) -> Result<Listing> {
        Listing listing{.lookups = CountedLookups(mount.filesystem), .bytes = {}};
        const auto add = [&](std::span<char> room, const DirectoryEntry& entry) {
          fuse_entry_param plus = to_entry(entry.attributes, mount);
          const auto put = [&] {
            return ::fuse_add_direntry_plus(request, room.data(), room.size(), entry.name.c_str(),
                                            &plus, static_cast<off_t>(entry.next_offset));
          };
          const std::size_t need = put();
          // Each entry is a lookup that the kernel will forget one day; "." and ".." are not.
          if (need <= room.size() && entry.name != "." && entry.name != ".." &&
              !listing.lookups.lookup(inode, entry.name)) {
            plus.ino = 0;  // a name alone
            put();
          }
          return need;
        };
        CKFS_TRY(listing.bytes, fill_listing(mount, inode, size, offset, add));
        return listing;
      },
      [&](Listing&& listing) noexcept {
        listing.lookups.replied(
            ::fuse_reply_buf(request, listing.bytes.data(), listing.bytes.size()));
      });
}

void on_releasedir(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  spdlog::debug("releasedir inode {}", inode);
  ::fuse_reply_err(request, 0);
}

void on_statfs(fuse_req_t request, fuse_ino_t inode) {
  spdlog::debug("statfs inode {}", inode);
  answer(
      request, "statfs", inode,
      [&](const Served& mount) -> Result<struct statvfs> {
        CKFS_TRY(const FilesystemStatistics sum, mount.filesystem.statistics(inode));
        struct statvfs status{};
        status.f_bsize = kBlockSize;
        status.f_frsize = 512;
        status.f_blocks = (sum.bytes + 511) / 512;
        status.f_files = sum.files;
        status.f_namemax = kMaxName;
        return status;
      },
      [&](struct statvfs&& status) noexcept { ::fuse_reply_statfs(request, &status); });
}

/// The reply of getxattr and listxattr: a size where the caller asks for one, else the value.
void reply_attribute(fuse_req_t request, const std::string& value, std::size_t size) noexcept {
  if (size == 0) {
    ::fuse_reply_xattr(request, value.size());
  } else if (value.size() > size) {
    ::fuse_reply_err(request, ERANGE);
  } else {
    ::fuse_reply_buf(request, value.data(), value.size());
  }
}

void on_getxattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t size) {
  spdlog::debug("getxattr inode {}: {}", inode, name);
  answer(
      request, "getxattr", inode,
      [&](const Served& mount) { return mount.filesystem.attribute(inode, name); },
      [&](std::string&& value) noexcept { reply_attribute(request, value, size); });
}

void on_listxattr(fuse_req_t request, fuse_ino_t inode, std::size_t size) {
  spdlog::debug("listxattr inode {}", inode);
  answer(
      request, "listxattr", inode,
      [&](const Served& mount) -> Result<std::string> {
        CKFS_TRY(const auto names, mount.filesystem.attribute_names(inode));
        std::string list;
        for (const std::string& name : names) list.append(name).push_back('\0');
        return list;
      },
      [&](std::string&& list) noexcept { reply_attribute(request, list, size); });
}

/// A name as a template's argument.
template <std::size_t kSize>
struct Name {
  char text[kSize];
  constexpr Name(const char (&name)[kSize]) { std::copy_n(name, kSize, text); }
};

// The mount is read-only, so the kernel refuses all changes without asking. After a `mount -o
// remount,rw` it does ask.
template <Name kName, typename... Rest>
void refuse_change(fuse_req_t request, Rest...) {
  spdlog::debug("{}: refused", kName.text);
  ::fuse_reply_err(request, to_errno(ErrorCode::ReadOnly));
}

}  // namespace

fuse_lowlevel_ops make_operations() {
  fuse_lowlevel_ops operations{};
  operations.init = on_init;
  operations.lookup = on_lookup;
  operations.forget = on_forget;
  operations.forget_multi = on_forget_multi;
  operations.getattr = on_getattr;
  operations.open = on_open;
  operations.read = on_read;
  operations.release = on_release;
  operations.opendir = on_opendir;
  operations.readdir = on_readdir;
  operations.readdirplus = on_readdirplus;
  operations.releasedir = on_releasedir;
  operations.statfs = on_statfs;
  operations.getxattr = on_getxattr;
  operations.listxattr = on_listxattr;

  operations.setattr = refuse_change<"setattr">;
  operations.mknod = refuse_change<"mknod">;
  operations.mkdir = refuse_change<"mkdir">;
  operations.unlink = refuse_change<"unlink">;
  operations.rmdir = refuse_change<"rmdir">;
  operations.symlink = refuse_change<"symlink">;
  operations.rename = refuse_change<"rename">;
  operations.link = refuse_change<"link">;
  operations.write = refuse_change<"write">;
  operations.setxattr = refuse_change<"setxattr">;
  operations.removexattr = refuse_change<"removexattr">;
  operations.create = refuse_change<"create">;
  operations.fallocate = refuse_change<"fallocate">;
  // Not implemented, on purpose: flush, fsync and access (the kernel then answers them itself and
  // stops asking), lseek (the kernel's own knows that there are no holes), copy_file_range (only
  // between two files of this mount, and none can be written).
  return operations;
}

}  // namespace ckfs
