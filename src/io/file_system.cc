// The kernel says only the type of a file system about where its bytes are. Measuring instead (the
// cost of a jump) would read bytes that are not asked for.
#include "io/file_system.h"

#include <algorithm>
#include <array>
#include <linux/magic.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "io/page_cache.h"

namespace ckfs {
namespace {

struct Row {
  std::int64_t type;  // not all of these are in <linux/magic.h> of Debian 12
  FileSystemTraits traits;
};

constexpr FileSystemTraits kRemote{.stable_inodes = false, .remote = true};
constexpr FileSystemTraits kFat{.stable_inodes = false, .remote = false};

constexpr FileSystemTraits kPooled{.without_device = true};

constexpr std::array<Row, 18> kTable = {{
    {NFS_SUPER_MAGIC, kRemote},    // nfs
    {SMB_SUPER_MAGIC, kRemote},    // smb
    {0xFF534D42, kRemote},         // cifs
    {0xFE534D42, kRemote},         // smb2 and smb3
    {0x65735546, kRemote},         // fuse, and virtiofs
    {V9FS_MAGIC, kRemote},         // 9p
    {0x00C36400, kRemote},         // ceph
    {AFS_SUPER_MAGIC, kRemote},    // openafs
    {AFS_FS_MAGIC, kRemote},       // afs, the kernel's own
    {0x0BD00BD0, kRemote},         // lustre
    {0x47504653, kRemote},         // gpfs
    {CODA_SUPER_MAGIC, kRemote},   // coda
    {MSDOS_SUPER_MAGIC, kFat},     // vfat
    {0x2011BAB0, kFat},            // exfat
    {TMPFS_MAGIC, kPooled},        // not overlayfs, whose layers may lie on a server
    {BTRFS_SUPER_MAGIC, kPooled},  // btrfs
    {0x2FC12FC1, kPooled},         // zfs
    {0xCA451A4E, kPooled},         // bcachefs
}};

}  // namespace

FileSystemTraits traits_of(std::int64_t file_system_type) {
  // f_type is signed on some machines: compare the 32 bits that the kernel defines.
  const std::int64_t type = file_system_type & 0xFFFFFFFF;
  const auto* row = std::ranges::find(kTable, type, &Row::type);
  return row == kTable.end() ? FileSystemTraits{} : row->traits;
}

FileSystem& FileSystems::of(std::uint64_t device, int fd) {
  const MutexLock lock(mutex_);
  std::unique_ptr<FileSystem>& found = by_device_[device];
  if (!found) {
    found = std::make_unique<FileSystem>();
    struct statfs status{};
    // One that does not answer is treated as the least is known of it.
    found->traits = ::fstatfs(fd, &status) == 0 ? traits_of(std::int64_t{status.f_type}) : kRemote;
    const FileSystemTraits& traits = found->traits;
    found->on_disk = !traits.remote && (traits.without_device || gnu_dev_major(device) != 0);
    found->hint_bytes = page_cache::hint_bytes(device);
  }
  return *found;
}

}  // namespace ckfs
