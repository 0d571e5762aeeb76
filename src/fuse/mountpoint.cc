// Which directories ckfs mounts on, and how it unmounts again.
//
// A mount that covers its own source would make the daemon wait for itself as soon as it opens a
// shard; a mount within the source would become part of the source for the next `ckfs inspect`.
// Opening every source file before mounting would allow the former, at the price of thousands of
// descriptors, for no known use: both are refused.

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <sys/stat.h>

#include "base/paths.h"
#include "fuse/kernel_mount.h"
#include "fuse/mount.h"
#include "fuse/mount_table.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;

std::string_view how(Answers answers) {
  switch (answers) {
    case Answers::Yes:
      return "";
    case Answers::Never:
      return ", whose daemon is dead";
    case Answers::Late:
      return ", whose daemon does not answer";
  }
  return "";
}

}  // namespace

Result<stdfs::path> check_mountpoint(const stdfs::path& mountpoint, const stdfs::path& source) {
  auto resolved = resolve_mountpoint(mountpoint);
  if (!resolved) {
    return Failure(Error(ErrorCode::InvalidArgument, resolved.error().message(),
                         resolved.error().system_error()));
  }
  const stdfs::path target = *std::move(resolved);
  CKFS_TRY(const auto mounted, find_mount(target));
  // Asks only where something is mounted: otherwise a late answer, from a process that gets no CPU
  // on a busy machine, would be taken for that of a mount that is not there.
  const Answers answers = mounted ? ask_mount(target) : Answers::Yes;
  // If an unmount was under way when the table was read, the answer comes as late as its end.
  std::optional<MountEntry> still;
  if (mounted) {
    CKFS_TRY(still, find_mount(target));
  }
  if (still && still->type == kFilesystemType) {
    return fail(ErrorCode::InvalidArgument,
                "{}: a ckfs mount of {} is in place{} (`ckfs umount {}`)", target.native(),
                still->source, how(answers), target.native());
  }
  if (still && answers != Answers::Yes) {
    return fail(ErrorCode::InvalidArgument,
                "{}: a mount of {} ({}) is in place{} (`fusermount3 -u {}`)", target.native(),
                still->source, still->type, how(answers), target.native());
  }
  std::error_code error;
  const stdfs::path origin = stdfs::canonical(source, error);
  if (!error && lies_within(origin, target)) {
    return fail(ErrorCode::InvalidArgument, "{}: the mount would hide its own source {}",
                target.native(), origin.native());
  }
  if (!error && lies_within(target, origin)) {
    return fail(ErrorCode::InvalidArgument, "{}: lies within the source {}", target.native(),
                origin.native());
  }
  struct stat status{};
  if (::stat(target.c_str(), &status) != 0) {
    if (errno == ENOENT && ::lstat(target.c_str(), &status) == 0) {
      return fail(ErrorCode::InvalidArgument, "{}: a link that leads nowhere", target.native());
    }
    if (errno == ENOENT) {
      return fail(ErrorCode::InvalidArgument, "{}: no such directory (`mkdir -p {}`)",
                  target.native(), target.native());
    }
    return system_failure(errno, target.native(), "cannot be mounted on");
  }
  if (!S_ISDIR(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, "{}: not a directory", target.native());
  }

  return target;
}

Result<void> check_hides_none(const stdfs::path& target, std::span<const stdfs::path> files) {
  const auto hidden = std::ranges::find_if(
      files, [&](const stdfs::path& file) { return lies_within(file, target); });
  if (hidden == files.end()) return {};
  return fail(ErrorCode::InvalidArgument,
              "{}: the mount would hide {}, to which the source's links lead", target.native(),
              hidden->native());
}

Result<Unmounted> unmount(const stdfs::path& mountpoint, FilesInUse files) {
  CKFS_TRY(const stdfs::path target, resolve_mountpoint(mountpoint));
  CKFS_TRY(const auto mounted, find_mount(target));
  if (!mounted || mounted->type != kFilesystemType) {
    return fail(ErrorCode::InvalidArgument, "{}: not a ckfs mount", target.native());
  }
  UniqueFd abort;
  if (files == FilesInUse::Fail) {
    if (const auto device = device_at(target)) abort = open_abort(*device);
    if (!abort) {
      return fail(ErrorCode::Io,
                  "{}: its connection cannot be aborted (`sudo mount -t fusectl none "
                  "/sys/fs/fuse/connections`)",
                  target.native());
    }
  }
  // Whether the daemon is alive is not asked: one that waits for a dead server does not answer.
  const Result<void> idle = unmount_target(target, Detach::WhenIdle);
  if (idle) return Unmounted::Ended;
  if (idle.error().system_error() != EBUSY) return Failure(idle.error());
  CKFS_TRY_VOID(unmount_target(target, Detach::Now));
  // Out of sight first: those that fail find nothing to try again.
  if (abort && ::write(abort.get(), "1", 1) == 1) return Unmounted::Ended;
  return Unmounted::Detached;
}

}  // namespace ckfs
