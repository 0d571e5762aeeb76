// Each look is a function of a few files and system calls. Those of /proc, /sys and /dev go through
// MachineOptions::root, so that tests can show a machine that has what this one has not.
#define FUSE_USE_VERSION 312
#include "cli/machine.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <fuse3/fuse_lowlevel.h>
#include <iterator>
#include <linux/capability.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <optional>
#include <span>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <utility>

#include "api/status.h"
#include "base/memory_limit.h"
#include "base/size_text.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cache/block_cache.h"
#include "cli/container.h"
#include "cli/trial_mount.h"
#include "fetch/location.h"
#include "fetch/program.h"
#include "fuse/kernel_mount.h"
#include "fuse/mount_table.h"
#include "io/file_system.h"

namespace ckfs::cli {

namespace {

using Level = Finding::Level;

/// Files that a run of 512 ranks has open, and some.
constexpr std::uint64_t kDescriptors = 65536;
/// What a network file system should read ahead, in KiB.
constexpr std::uint64_t kReadAhead = 1024;

std::optional<std::string> read_whole(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

/// Without white space at its end.
std::optional<std::string> read(const std::string& path) {
  auto text = read_whole(path);
  while (text && !text->empty() && std::isspace(static_cast<unsigned char>(text->back())) != 0) {
    text->pop_back();
  }
  return text;
}

/// The command that installs `package`.
std::string install_command(const std::string& root, std::string_view package) {
  constexpr std::array kManagers{std::pair{"apt-get", "install"}, std::pair{"dnf", "install"},
                                 std::pair{"zypper", "install"}, std::pair{"pacman", "-S"},
                                 std::pair{"apk", "add"}};
  for (const auto& [manager, word] : kManagers) {
    struct stat status{};
    for (const char* directory : {"/usr/bin/", "/sbin/"}) {
      if (::stat(fmt::format("{}{}{}", root, directory, manager).c_str(), &status) == 0) {
        return fmt::format("sudo {} {} {}", manager, word, package);
      }
    }
  }
  return fmt::format("install the package {}", package);
}

Finding device(const MachineOptions& options, const std::string& container) {
  Finding finding{.name = "device", .fact = "/dev/fuse can be opened"};
  const std::string path = options.root + "/dev/fuse";
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  const int error = errno;
  struct stat status{};
  if (fd && ::fstat(fd.get(), &status) == 0 && S_ISCHR(status.st_mode) &&
      status.st_rdev == makedev(10, 229)) {
    return finding;
  }
  finding.level = Level::Broken;
  if (fd) {
    finding.fact = "/dev/fuse is not the FUSE device (10:229)";
    finding.remedy = container.empty() ? "sudo rm /dev/fuse && sudo mknod -m 666 /dev/fuse c 10 229"
                                       : container_remedy(container);
    return finding;
  }
  finding.fact = fmt::format("/dev/fuse: {}", std::strerror(error));
  if (error == EACCES) {  // its mode, which the container's root may change, too
    finding.remedy = "sudo chmod 0666 /dev/fuse";
  } else if (!container.empty()) {
    finding.remedy = container_remedy(container);
  } else if (error == EPERM) {
    finding.remedy = "allow it in the control group (DeviceAllow=/dev/fuse rw in a unit)";
  } else {
    finding.remedy = "sudo modprobe fuse";
  }
  return finding;
}

Finding helper(const MachineOptions& options) {
  Finding finding{.name = "fusermount3"};
  if (options.is_root) {
    finding.fact = "not needed: root mounts by itself";
    return finding;
  }
  for (const std::string& path : fusermount_places()) {
    struct stat status{};
    if (::stat((options.root + path).c_str(), &status) != 0) continue;
    if (status.st_uid == 0 && (status.st_mode & S_ISUID) != 0) {
      finding.fact = path;
      return finding;
    }
    finding.level = Level::Broken;
    finding.fact = fmt::format("{}: is not set-user-ID root", path);
    finding.remedy = fmt::format("sudo chown root {0} && sudo chmod 4755 {0}", path);
    return finding;
  }
  finding.level = Level::Broken;
  finding.fact = "is not installed";
  finding.remedy = install_command(options.root, "fuse3");
  return finding;
}

/// Whether the process's effective capabilities have that one; true where /proc does not say.
bool has_capability(const std::string& status, unsigned number) {
  constexpr std::string_view kLine = "\nCapEff:";
  const std::size_t at = status.find(kLine);
  if (at == std::string::npos) return true;
  const std::uint64_t all = std::strtoull(status.c_str() + at + kLine.size(), nullptr, 16);
  return (all >> number & 1) != 0;
}

Finding privileges(const MachineOptions& options, const std::string& container) {
  const std::string status = read(options.root + "/proc/self/status").value_or("");
  if (options.is_root) {
    if (has_capability(status, CAP_SYS_ADMIN)) {
      return {.name = "privileges", .fact = "CAP_SYS_ADMIN is there"};
    }
    return {.name = "privileges",
            .level = Level::Broken,
            .fact = "CAP_SYS_ADMIN is missing: root cannot mount",
            .remedy = container.empty()
                          ? "run ckfs with CAP_SYS_ADMIN (CapabilityBoundingSet= of a "
                            "unit), or as a user with fusermount3"
                          : container_remedy(container)};
  }
  if (status.find("\nNoNewPrivs:\t1") == std::string::npos) {
    return {.name = "privileges", .fact = "set-user-ID programs work"};
  }
  return {.name = "privileges",
          .level = Level::Broken,
          .fact = "no_new_privs is set: fusermount3 cannot become root",
          .remedy = container.empty()
                        ? "run ckfs without no_new_privs (NoNewPrivileges=no in a unit)"
                        : "start the container without no-new-privileges, as a user or as root"};
}

Finding allow_other(const MachineOptions& options) {
  if (options.is_root) {
    return {.name = "allow_other", .fact = "root may always give -o allow_other"};
  }
  // As libfuse reads it: on a line alone, except for blanks and a comment behind #. The line must
  // have its end.
  const std::string whole = read_whole(options.root + "/etc/fuse.conf").value_or("");
  std::istringstream text(whole);
  bool given = false;
  for (std::string line; std::getline(text, line) && !text.eof();) {
    given = given || trim(std::string_view(line).substr(0, line.find('#'))) == "user_allow_other";
  }
  if (given) {
    return {.name = "allow_other", .fact = "users may give -o allow_other"};
  }
  return {.name = "allow_other",
          .level = Level::Slow,
          .fact = "user_allow_other is not in /etc/fuse.conf: mounts are for their user alone",
          .remedy = fmt::format("{} | sudo tee -a /etc/fuse.conf",
                                whole.empty() || whole.ends_with('\n')
                                    ? "echo user_allow_other"
                                    : "printf '\\nuser_allow_other\\n'")};
}

Finding uring(const MachineOptions& options) {
  Finding finding{.name = "io_uring", .fact = "can be used"};
  // The kernel refuses this with another error once it has agreed to the call as such.
  const int error = ::syscall(SYS_io_uring_setup, 0, nullptr) < 0 ? errno : 0;
  const auto disabled = read(options.root + "/proc/sys/kernel/io_uring_disabled");
  // With 1, members of kernel.io_uring_group and processes with CAP_SYS_ADMIN may use it.
  if (disabled == "2" || (disabled == "1" && error == EPERM)) {
    finding.level = Level::Slow;
    finding.fact = fmt::format(
        "the kernel forbids it (kernel.io_uring_disabled = {}): pread is "
        "used",
        *disabled);
    finding.remedy = "sudo sysctl kernel.io_uring_disabled=0";
  } else if (error == ENOSYS || error == EPERM || error == EACCES) {
    finding.level = Level::Slow;
    finding.fact = error == ENOSYS ? "the kernel has none, or a sandbox hides it: pread is used"
                                   : "a sandbox forbids it: pread is used";
    finding.remedy =
        "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp "
        "profile";
  }
  return finding;
}

Finding memory(const MachineOptions& options) {
  Finding finding{.name = "memory"};
  const auto limit = group_memory_limit(options.root);
  const std::uint64_t machine = machine_memory(options.root);
  const std::uint64_t all = limit.value_or(machine);
  finding.fact = fmt::format("--memory {}{}; the {} {}", options.memory_was_given ? "" : "auto is ",
                             human_size(options.memory),
                             limit ? "control group gives" : "machine has", human_size(all));
  // The catalog, threads and page cache of a mount live beside the budget.
  if (all > 0 && options.memory > all / 2) {
    finding.level = options.memory > all - all / 8 ? Level::Broken : Level::Slow;
    const std::uint64_t less = std::max(64_MiB, all / 4);
    finding.remedy = less < options.memory
                         ? fmt::format("--memory {}", less)
                         : fmt::format("give the {} {} or more",
                                       limit ? "control group" : "machine", human_size(4 * less));
  }
  return finding;
}

Finding descriptors() {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{.name = "open files",
                  .fact = limit.rlim_max == RLIM_INFINITY
                              ? "no limit"
                              : fmt::format("{} at most", limit.rlim_max)};
  if (limit.rlim_max < kDescriptors) {
    finding.level = Level::Slow;
    finding.remedy =
        fmt::format("ulimit -Hn {} (LimitNOFILE={} in a unit)", kDescriptors, kDescriptors);
  }
  return finding;
}

Finding kernel() {
  utsname name{};
  (void)::uname(&name);
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  const UniqueFd opened(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof how)));
  // "6.18.5-x": the distribution chooses the text behind the second number.
  const std::string_view release = name.release;
  const auto number = [&](std::size_t from) {
    int value = 0;
    if (from < release.size()) {
      (void)std::from_chars(release.data() + from, release.data() + release.size(), value);
    }
    return value;
  };
  const int major = number(0);
  const std::size_t dot = release.find('.');
  const int minor = dot == std::string_view::npos ? 0 : number(dot + 1);
  const bool uncached = major > 6 || (major == 6 && minor >= 14);
  Finding finding{
      .name = "kernel",
      .fact = fmt::format("{}: openat2 {}, uncached writes {}; libfuse {}", name.release,
                          opened ? "yes" : "no", uncached ? "yes" : "no", ::fuse_pkgversion())};
  return finding;
}

std::string name_of(std::uint32_t magic) {
  constexpr std::uint32_t kLustre = 0x0bd00bd0, kCephfs = 0x00c36400, kXfs = 0x58465342;
  switch (magic) {
    case EXT4_SUPER_MAGIC:
      return "ext4";
    case kXfs:
      return "xfs";
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case TMPFS_MAGIC:
      return "tmpfs";
    case OVERLAYFS_SUPER_MAGIC:
      return "overlay";
    case NFS_SUPER_MAGIC:
      return "nfs";
    case FUSE_SUPER_MAGIC:
      return "fuse";
    case kLustre:
      return "lustre";
    case kCephfs:
      return "ceph";
    default:
      return fmt::format("type {:x}", magic);
  }
}

/// The source's file system: whether it caches, and how far the kernel reads ahead there.
Finding source(const MachineOptions& options) {
  Finding finding{.name = "source"};
  if (is_location(options.source)) {
    finding.fact = find_fetcher() ? "on another machine: read by ckfs-fetcher"
                                  : "on another machine, and ckfs-fetcher is not installed";
    if (find_fetcher()) return finding;
    finding.level = Level::Broken;
    finding.remedy = "sudo apt-get install ckfs-remote";
    return finding;
  }
  struct statfs system{};
  struct stat status{};
  if (::stat(options.source.c_str(), &status) != 0 ||
      ::statfs(options.source.c_str(), &system) != 0) {
    finding.level = Level::Broken;
    finding.fact = fmt::format("{}: {}", options.source, std::strerror(errno));
    finding.remedy = fmt::format("ls -ld {}", options.source);
    return finding;
  }
  const std::string name = name_of(static_cast<std::uint32_t>(system.f_type));
  if (!traits_of(static_cast<std::int64_t>(system.f_type)).remote) {
    finding.fact = fmt::format("{}, local: what is in the page cache is not read again", name);
    return finding;
  }
  const std::string path =
      fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", major(status.st_dev), minor(status.st_dev));
  const auto ahead = read(options.root + path);
  const std::uint64_t kib = ahead ? std::strtoull(ahead->c_str(), nullptr, 10) : kReadAhead;
  finding.fact = fmt::format("{}, remote: asked in order; the kernel reads {} ahead", name,
                             ahead ? human_size(kib * 1024) : "an unknown amount");
  if (kib < kReadAhead) {
    finding.level = Level::Slow;
    finding.remedy = fmt::format("echo 4096 | sudo tee {}", path);
  }
  return finding;
}

/// A machine without it is in order: most sources are files of this machine.
Finding fetcher() {
  const auto program = find_fetcher();
  return {.name = "fetcher",
          .fact = program
                      ? fmt::format("{}: hf://, https://, s3:// and gs:// can be read", *program)
                      : "not installed (package ckfs-remote): only files of this machine can be "
                        "read",
          .remedy = ""};
}

/// Where sources on other machines are kept by default; makes nothing.
Finding disk_cache() {
  Finding finding{.name = "disk cache"};
  const auto directory = default_cache_directory();
  const auto opened = directory
                          ? BlockCache::open(*directory, {.missing = CacheOptions::Missing::Fail})
                          : Result<std::unique_ptr<BlockCache>>(Failure(directory.error()));
  if (opened) {
    std::uint64_t bytes = 0;
    const std::vector<CachedSource> sources = (*opened)->list();
    for (const CachedSource& source : sources) bytes += source.bytes;
    finding.fact = fmt::format("{}: {} of {} sources on other machines", directory->native(),
                               human_size(bytes), sources.size());
  } else if (opened.error().code() == ErrorCode::NotFound && directory) {
    finding.fact = fmt::format("{}: not made yet", directory->native());
  } else {
    finding.level = Finding::Level::Slow;
    finding.fact = one_line(opened.error().message());
    finding.remedy = "--cache-dir DIR";
  }
  return finding;
}

/// What a mount that answers says of itself; nullopt: all is well with it.
std::optional<Finding> told_by_mount(const std::string& target) {
  const Result<std::string> status = read_of_mount(target, "status.json");
  if (!status) return std::nullopt;  // of an earlier version, or of another user
  const Result<StatusErrors> errors = status_errors(*status);
  if (!errors || errors->count == 0 || errors->last.empty()) return std::nullopt;
  Finding finding{
      .name = "mounts",
      .level = errors->stale ? Level::Broken : Level::Warn,
      .fact = fmt::format("{}: {} errors; the last: {}", target, errors->count, errors->last)};
  finding.remedy = errors->stale ? fmt::format("ckfs umount {0} && ckfs mount {1} {0}", target,
                                               errors->source.empty() ? "SRC" : errors->source)
                   : errors->log == "syslog" ? fmt::format("journalctl -t ckfs | grep {}", target)
                   : errors->log.starts_with('/') ? fmt::format("grep {} {}", target, errors->log)
                                                  : fmt::format("ckfs stats {}", target);
  return finding;
}

std::vector<Finding> mounts(const MachineOptions& options) {
  std::vector<Finding> findings;
  std::size_t alive = 0;
  for (const MountEntry& entry :
       parse_mountinfo(read(options.root + "/proc/self/mountinfo").value_or(""))) {
    if (entry.type != kFilesystemType) continue;
    const Answers answers = ask_mount(options.root + entry.target);
    if (answers == Answers::Yes) {
      ++alive;
      if (auto finding = told_by_mount(options.root + entry.target)) {
        findings.push_back(std::move(*finding));
      }
      continue;
    }
    findings.push_back(
        {.name = "mounts",
         .level = Level::Broken,
         .fact = fmt::format("{}: its daemon {}", entry.target,
                             answers == Answers::Never ? "is dead" : "does not answer"),
         .remedy = fmt::format("ckfs umount {}", entry.target)});
  }
  if (findings.empty()) {
    findings.push_back({.name = "mounts",
                        .fact = fmt::format("{} of ckfs, and all of them answer", alive),
                        .remedy = ""});
  }
  return findings;
}

/// A mount in earnest. Where it fails, the looks before it mostly know why.
Finding trial(std::span<const Finding> before, const std::string& container) {
  const Trial tried = try_mount();
  Finding finding{.name = "mount", .fact = tried.fact};
  if (tried.works) return finding;
  finding.level = Level::Broken;
  const auto cause = std::ranges::find(before, Level::Broken, &Finding::level);
  if (cause != before.end()) {
    finding.remedy = fmt::format("mend \"{}\"", cause->name);
  } else {
    finding.remedy = container.empty() ? "look for its cause in dmesg and the audit log (AppArmor, "
                                         "SELinux, seccomp)"
                                       : container_remedy(container);
  }
  return finding;
}

}  // namespace

std::vector<Finding> examine_machine(const MachineOptions& options) {
  const std::string container = container_kind(options.root);
  std::vector<Finding> findings{device(options, container), helper(options),
                                privileges(options, container)};
  if (options.root.empty()) findings.push_back(trial(findings, container));
  findings.push_back({.name = "place",
                      .fact = container.empty() ? "a host, or a virtual machine"
                                                : fmt::format("a container ({})", container)});
  for (Finding& finding : std::vector<Finding>{allow_other(options), uring(options),
                                               memory(options), descriptors(), kernel()}) {
    findings.push_back(std::move(finding));
  }
  findings.push_back(fetcher());
  if (find_fetcher()) findings.push_back(disk_cache());
  if (!options.source.empty()) findings.push_back(source(options));
  for (Finding& finding : mounts(options)) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace ckfs::cli
