// Low-level FUSE, because the tree already speaks in inode numbers: the high-level API would turn
// them into paths and back with a table and a lock of its own.
//
// Every operation is trace, call, reply; its error is one entry of the table in to_errno.cc. Data
// are answered from the engine's own memory (fuse_reply_buf): splicing them through a pipe copies
// as often and costs twice the CPU (docs/PERFORMANCE.md).

#include "fuse/operations.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <vector>

#include "base/units.h"
#include "fuse/to_errno.h"

namespace ckfs {
namespace {

/// Names, sizes and times never change while the mount lives; 31 years are for ever.
constexpr double kForever = 1e9;

/// cp, cat and Python then ask for 1 MiB at a time, the largest request that FUSE has.
constexpr blksize_t kBlockSize = 1_MiB;

const Served& served(fuse_req_t request) {
  return *static_cast<const Served*>(::fuse_req_userdata(request));
}

/// Runs one operation. It replies itself where it succeeds; where it gives an error, or throws
/// before its reply, this function replies. No exception may reach libfuse, which is C.
template <typename Operation>
void answer(fuse_req_t request, const char* name, fuse_ino_t inode, Operation&& operation) {
  SPDLOG_DEBUG("{} inode {}", name, inode);
  int error = EIO;
  try {
    const Result<void> done = operation(served(request));
    if (done) return;
    error = to_errno(done.error().code());
    spdlog::debug("{} inode {}: {}", name, inode, done.error().message());
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
    spdlog::error("{} inode {}: out of memory", name, inode);
  } catch (const std::exception& exception) {
    spdlog::error("{} inode {}: {}", name, inode, exception.what());
  }
  ::fuse_reply_err(request, error);
}

struct stat to_stat(const Attributes& attributes, const Served& mount) {
  struct stat status{};
  status.st_ino = attributes.inode;
  status.st_mode = attributes.directory ? S_IFDIR | 0555 : S_IFREG | 0444;
  status.st_nlink = attributes.links;
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
  entry.attr_timeout = kForever;
  entry.entry_timeout = kForever;
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
}

void on_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  answer(request, "lookup", parent, [&](const Served& mount) -> Result<void> {
    const auto attributes = mount.filesystem.lookup(parent, name);
    if (!attributes && attributes.error().code() == ErrorCode::NotFound) {
      // A name that is not there never will be: the kernel may remember that, too.
      fuse_entry_param nothing{};
      nothing.entry_timeout = kForever;
      ::fuse_reply_entry(request, &nothing);
      return {};
    }
    if (!attributes) return Failure(attributes.error());
    const fuse_entry_param entry = to_entry(*attributes, mount);
    if (::fuse_reply_entry(request, &entry) == -ENOENT) {
      mount.filesystem.forget(attributes->inode, 1);  // whoever asked was killed
    }
    if (parent == kRootInode) {
      for (std::string& crowded : mount.filesystem.take_crowded()) {
        mount.forget_name(std::move(crowded));
      }
    }
    return {};
  });
}

void on_forget(fuse_req_t request, fuse_ino_t inode, std::uint64_t lookups) {
  served(request).filesystem.forget(inode, lookups);
  ::fuse_reply_none(request);
}

void on_forget_multi(fuse_req_t request, std::size_t count, fuse_forget_data* forgets) {
  for (std::size_t i = 0; i < count; ++i) {
    served(request).filesystem.forget(forgets[i].ino, forgets[i].nlookup);
  }
  ::fuse_reply_none(request);
}

void on_getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  answer(request, "getattr", inode, [&](const Served& mount) -> Result<void> {
    CKFS_TRY(const Attributes attributes, mount.filesystem.attributes(inode));
    const struct stat status = to_stat(attributes, mount);
    ::fuse_reply_attr(request, &status, kForever);
    return {};
  });
}

void on_open(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  answer(request, "open", inode, [&](const Served& mount) -> Result<void> {
    if ((info->flags & O_ACCMODE) != O_RDONLY || (info->flags & O_TRUNC) != 0) {
      return fail(ErrorCode::ReadOnly, "inode {}: opened for writing", inode);
    }
    CKFS_TRY(const Attributes attributes, mount.filesystem.attributes(inode));
    CKFS_TRY(info->fh, mount.filesystem.open(inode));
    info->direct_io = mount.direct || attributes.volatile_content;
    // Without it the kernel drops the file's pages at every open.
    info->keep_cache = !info->direct_io;
    if (::fuse_reply_open(request, info) == -ENOENT) mount.filesystem.close(info->fh);
    return {};
  });
}

void on_read(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
             fuse_file_info* info) {
  answer(request, "read", inode, [&](const Served& mount) -> Result<void> {
    if (offset < 0) return fail(ErrorCode::InvalidArgument, "inode {}: offset {}", inode, offset);
    const auto bytes = mount.filesystem.read(info->fh, static_cast<std::uint64_t>(offset), size);
    if (!bytes && bytes.error().code() == ErrorCode::NotFound) {
      // The source's file is gone. ENOENT would be said of a name, and this is an open file.
      return Failure(Error(ErrorCode::Io, bytes.error().message()));
    }
    if (!bytes) return Failure(bytes.error());
    ::fuse_reply_buf(request, reinterpret_cast<const char*>(bytes->data()), bytes->size());
    return {};
  });
}

void on_release(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  answer(request, "release", inode, [&](const Served& mount) -> Result<void> {
    mount.filesystem.close(info->fh);
    ::fuse_reply_err(request, 0);
    return {};
  });
}

void on_opendir(fuse_req_t request, fuse_ino_t inode, fuse_file_info* info) {
  answer(request, "opendir", inode, [&](const Served& mount) -> Result<void> {
    CKFS_TRY(const Attributes attributes, mount.filesystem.attributes(inode));
    if (!attributes.directory) return fail(ErrorCode::NotDirectory, "inode {}", inode);
    // Listings never change: the kernel may keep them.
    info->cache_readdir = 1;
    info->keep_cache = 1;
    ::fuse_reply_open(request, info);
    return {};
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
  answer(request, "readdir", inode, [&](const Served& mount) -> Result<void> {
    const auto add = [&](std::span<char> room, const DirectoryEntry& entry) {
      const struct stat status = to_stat(entry.attributes, mount);
      return ::fuse_add_direntry(request, room.data(), room.size(), entry.name.c_str(), &status,
                                 static_cast<off_t>(entry.next_offset));
    };
    CKFS_TRY(const auto listing, fill_listing(mount, inode, size, offset, add));
    ::fuse_reply_buf(request, listing.data(), listing.size());
    return {};
  });
}

void on_readdirplus(fuse_req_t request, fuse_ino_t inode, std::size_t size, off_t offset,
                    fuse_file_info*) {
  answer(request, "readdirplus", inode, [&](const Served& mount) -> Result<void> {
    std::vector<fuse_ino_t> counted;
    const auto add = [&](std::span<char> room, const DirectoryEntry& entry) {
      const fuse_entry_param plus = to_entry(entry.attributes, mount);
      const std::size_t need =
          ::fuse_add_direntry_plus(request, room.data(), room.size(), entry.name.c_str(), &plus,
                                   static_cast<off_t>(entry.next_offset));
      // Each entry is a lookup that the kernel will forget one day; "." and ".." are not.
      if (need <= room.size() && entry.name != "." && entry.name != ".." &&
          mount.filesystem.lookup(inode, entry.name)) {
        counted.push_back(plus.ino);
      }
      return need;
    };
    CKFS_TRY(const auto listing, fill_listing(mount, inode, size, offset, add));
    if (::fuse_reply_buf(request, listing.data(), listing.size()) == -ENOENT) {
      for (const fuse_ino_t child : counted) mount.filesystem.forget(child, 1);
    }
    return {};
  });
}

void on_releasedir(fuse_req_t request, fuse_ino_t, fuse_file_info*) {
  ::fuse_reply_err(request, 0);
}

void on_statfs(fuse_req_t request, fuse_ino_t inode) {
  answer(request, "statfs", inode, [&](const Served& mount) -> Result<void> {
    const FilesystemStatistics sum = mount.filesystem.statistics(inode);
    struct statvfs status{};
    status.f_bsize = kBlockSize;
    status.f_frsize = 512;
    status.f_blocks = (sum.bytes + 511) / 512;
    status.f_files = sum.files;
    status.f_namemax = 255;
    ::fuse_reply_statfs(request, &status);
    return {};
  });
}

/// The reply of getxattr and listxattr: a size where the caller asks for one, else the value.
Result<void> reply_attribute(fuse_req_t request, const std::string& value, std::size_t size) {
  if (size == 0) {
    ::fuse_reply_xattr(request, value.size());
  } else if (value.size() > size) {
    ::fuse_reply_err(request, ERANGE);
  } else {
    ::fuse_reply_buf(request, value.data(), value.size());
  }
  return {};
}

void on_getxattr(fuse_req_t request, fuse_ino_t inode, const char* name, std::size_t size) {
  answer(request, "getxattr", inode, [&](const Served& mount) -> Result<void> {
    CKFS_TRY(const std::string value, mount.filesystem.attribute(inode, name));
    return reply_attribute(request, value, size);
  });
}

void on_listxattr(fuse_req_t request, fuse_ino_t inode, std::size_t size) {
  answer(request, "listxattr", inode, [&](const Served& mount) -> Result<void> {
    CKFS_TRY(const auto names, mount.filesystem.attribute_names(inode));
    std::string list;
    for (const std::string& name : names) list.append(name).push_back('\0');
    return reply_attribute(request, list, size);
  });
}

// The mount is read-only, so the kernel refuses whatever changes something before it asks. After a
// `mount -o remount,rw` it does ask.
void refuse_change(fuse_req_t request) {
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

  operations.setattr = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.mknod = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.mkdir = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.unlink = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.rmdir = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.symlink = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.rename = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.link = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.write = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.setxattr = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.removexattr = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.create = [](fuse_req_t request, auto...) { refuse_change(request); };
  operations.fallocate = [](fuse_req_t request, auto...) { refuse_change(request); };
  // Not implemented, on purpose: flush, fsync and access (the kernel then answers them itself and
  // stops asking), lseek (the kernel's own knows that there are no holes), copy_file_range (only
  // between two files of this mount, of which none can be written).
  return operations;
}

}  // namespace ckfs
