// The words of `-o`. mount(8) hands on all options of an fstab line, so the generic words that mean
// nothing to a read-only mount are accepted and dropped (`rw` too: mount(8) adds it wherever
// nothing else is given). An unknown word is an error, because a misspelt `allow_othr` that is
// dropped costs more time than one that is reported.
#include <algorithm>
#include <charconv>

#include "base/suggest.h"
#include "base/text.h"
#include "cli/cli.h"

namespace ckfs::cli {

namespace {

constexpr std::string_view kIgnored[] = {
    "ro",          "rw",       "dev",        "nodev",    "suid",       "nosuid",   "exec",
    "noexec",      "atime",    "noatime",    "diratime", "nodiratime", "relatime", "norelatime",
    "strictatime", "lazytime", "nolazytime", "async",    "sync",       "dirsync",  "auto",
    "noauto",      "nofail",   "user",       "nouser",   "users",      "owner",    "group",
    "_netdev",     "defaults", "silent",     "loud"};

/// In the order of the manual.
constexpr MountWord kWords[] = {
    {"allow_other", "", "let other users read the mount, too"},
    {"outside_links", "", "with allow_other: also show files that are links out of the source"},
    {"direct", "", "bypass the page cache: fast for reading all once, but no shared mmap"},
    {"strict", "", "report a source as changed when only its ctime changes"},
    {"no_sandbox", "", "as --no-sandbox"},
    {"setuid", "USER", "run the daemon as this user (root only)"},
    {"stop", "unused|now",
     "end on SIGTERM at once (now), or when no file is open (unused, default)"},
    {"mtime", "EPOCH", "modification time of all files (default: that of the source)"},
    {"umask", "OCTAL", "permission bits to clear on files and directories (default: your umask)"},
    {"tag", "TAG", "as --tag"},
    {"key", "KEY", "as --key"},
    {"item", "NAME", "as --item"},
    {"step", "N", "as --step"},
    {"config", "DIR", "as --config"},
    {"recipe", "FILE", "as --recipe"},
    {"family", "NAME", "as --family"},
    {"memory", "SIZE|auto", "as --memory"},
    {"spill", "DIR", "as --spill"},
    {"spill_size", "SIZE", "as --spill-size"},
    {"io", "auto|uring|pread", "as --io"},
    {"threads", "N", "as --threads"},
    {"endpoint_url", "URL", "as --endpoint-url"},
    {"anonymous", "", "as --anonymous"},
    {"requester_pays", "", "as --requester-pays"},
    {"header_file", "FILE", "as --header-file"},
    {"connections", "N", "as --connections"},
    {"timeout", "SECONDS", "as --timeout"},
    {"offline", "", "as --offline"},
    {"cache_dir", "DIR", "as --cache-dir"},
    {"cache_size", "SIZE", "as --cache-size"},
    {"log_level", "LEVEL", "as --log-level"},
    {"log_file", "FILE", "as --log-file"},
    {"ro", "", "accepted; a mount is read-only anyway"},
};
constexpr std::string_view kForTests = "tile_bytes";

/// Those without a value but ro, which is accepted like other words of fstab.
constexpr std::string_view kFlags[] = {"allow_other", "outside_links", "direct", "strict",
                                       "no_sandbox"};

bool is_one_of(std::string_view word, std::span<const std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

bool is_ignored(const std::string& key, bool has_value) {
  if (key.starts_with("x-") || key.starts_with("X-")) return true;
  if (has_value) return key == "user" || key == "comment";
  return is_one_of(key, kIgnored);
}

Result<void> add_word(const std::string& word, MountWords& mount) {
  const std::size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  const bool has_value = equals != std::string::npos;
  const std::string value = has_value ? word.substr(equals + 1) : std::string();

  const bool is_common_flag = is_one_of(key, common_flags());
  const bool is_flag = is_common_flag || is_one_of(key, kFlags);
  const auto* const known = std::ranges::find(kWords, key, &MountWord::name);
  const bool needs_value = key == kForTests || (known != std::end(kWords) && !known->value.empty());
  if (is_flag && has_value) {
    return fail(ErrorCode::InvalidArgument, "-o {}: takes no value", key);
  }
  if (needs_value && !has_value) {
    return fail(ErrorCode::InvalidArgument, "-o {}: needs a value ({}=...)", key, key);
  }
  if (key == "allow_other") {
    mount.allow_other = true;
  } else if (key == "outside_links") {
    mount.outside_links = true;
  } else if (key == "direct") {
    mount.direct = true;
  } else if (key == "no_sandbox") {
    mount.confined = false;
  } else if (key == "strict") {
    mount.common.open.choose.strict = true;
  } else if (key == "setuid") {
    // It must not mean root: a variable of a script that is not set.
    if (value.empty()) return fail(ErrorCode::InvalidArgument, "-o setuid: names no user");
    mount.user = value;
  } else if (key == "mtime") {
    CKFS_TRY(const std::uint64_t seconds, parse_number("-o mtime", value));
    // 0 is what tools write for "unknown"; the upper limit is that of a 34-bit ext4 time.
    constexpr std::uint64_t kMax = (std::uint64_t{1} << 34) - 1;
    if (seconds == 0 || seconds > kMax) {
      return fail(ErrorCode::InvalidArgument, "-o mtime: {} is out of range (1 to {})", seconds,
                  kMax);
    }
    mount.mtime = static_cast<std::int64_t>(seconds);
  } else if (key == "umask") {
    const char* const end = value.data() + value.size();
    std::uint32_t bits = 0;
    const auto parsed = std::from_chars(value.data(), end, bits, 8);
    if (parsed.ec != std::errc() || parsed.ptr != end || bits > 0777) {
      return fail(ErrorCode::InvalidArgument, "-o umask: {} is not an octal number (000 to 777)",
                  quote(value));
    }
    mount.umask = bits;
  } else if (key == "stop") {
    if (value != "now" && value != "unused") {
      return fail(ErrorCode::InvalidArgument, "-o stop: {} is not one of now, unused",
                  quote(value));
    }
    mount.stop_now = value == "now";
  } else if (is_common_flag) {
    CKFS_TRY_VOID(set_common(mount.common, key, "1"));
  } else if (needs_value) {
    const Result<void> set = set_common(mount.common, key, value);
    if (!set) return Failure(set.error().within("-o"));
  } else if (!is_ignored(key, has_value)) {
    std::vector<std::string_view> names;
    for (const MountWord& each : kWords) names.push_back(each.name);
    return fail(ErrorCode::InvalidArgument, "-o {}: no such option{}", word,
                did_you_mean(key, names));
  }
  return {};
}

}  // namespace

std::span<const MountWord> mount_words() {
  return kWords;
}

Result<void> parse_mount_words(const std::vector<std::string>& words, MountWords& mount) {
  for (const std::string& list : words) {
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t comma = std::min(list.find(',', begin), list.size());
      if (comma > begin) CKFS_TRY_VOID(add_word(list.substr(begin, comma - begin), mount));
      begin = comma + 1;
    }
  }
  return {};
}

}  // namespace ckfs::cli
