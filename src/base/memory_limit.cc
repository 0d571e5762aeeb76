// A group's limit holds for the groups within it, so all of them up to the root count. Within a
// container the mounted root is the container's own group, whatever /proc/self/cgroup calls it: so
// the path is tried, and its parents, down to the mounted root itself.
#include "base/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <string_view>

namespace ckfs {

namespace {

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc()) return std::nullopt;  // "max", or there is no such file
  return value;
}

/// The least of `name` in directory `group` of `top` and in those above it.
std::uint64_t least(const std::string& top, std::string group, const std::string& name) {
  std::uint64_t limit = ~std::uint64_t{0};
  for (;;) {
    limit = std::min(limit, number(read(fmt::format("{}{}/{}", top, group, name))).value_or(limit));
    const std::size_t slash = group.rfind('/');
    if (slash == std::string::npos) return limit;
    group.resize(slash);
  }
}

}  // namespace

std::uint64_t machine_memory(const std::string& root) {
  const std::string text = read(root + "/proc/meminfo");
  const std::string_view name = "MemTotal:";
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return 0;
  const std::size_t digit = text.find_first_not_of(' ', at + name.size());
  return digit == std::string::npos
             ? 0
             : number(std::string_view(text).substr(digit)).value_or(0) * 1024;
}

std::optional<std::uint64_t> group_memory_limit(const std::string& root) {
  const std::string groups = read(root + "/proc/self/cgroup");
  std::uint64_t limit = ~std::uint64_t{0};
  // Lines are NUMBER:CONTROLLERS:PATH; version 2 has number 0 and no controllers.
  for (std::size_t begin = 0; begin < groups.size();) {
    const std::size_t end = std::min(groups.find('\n', begin), groups.size());
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (controllers == ",,") {
      limit = std::min(limit, least(root + "/sys/fs/cgroup", path, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      limit = std::min(limit, least(root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"));
    }
  }
  const std::uint64_t machine = machine_memory(root);
  if (limit == ~std::uint64_t{0} || (machine > 0 && limit >= machine)) return std::nullopt;
  return limit;
}

}  // namespace ckfs
