#include "fetcher/surroundings.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/text.h"
#include "base/unique_fd.h"

namespace ckfs {
namespace {

Result<std::string> read_small_file(const std::string& path) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  // A FIFO is not waited for.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) return system_failure(errno, path, "open");
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return system_failure(errno, path, "fstat");
  if (!S_ISREG(status.st_mode)) return fail(ErrorCode::Io, "{}: no regular file", path);
  std::string text(kMost + 1, '\0');
  std::size_t size = 0;
  for (;;) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(errno, path, "read");
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
    if (size > kMost) return fail(ErrorCode::Io, "{}: larger than 1 MiB", path);
  }
  text.resize(size);
  return text;
}

}  // namespace

Surroundings Surroundings::of_process() {
  return {.variable =
              [](const char* name) {
                const char* const value = std::getenv(name);
                return std::string(value == nullptr ? "" : value);
              },
          .read_file = read_small_file,
          .now = [] { return std::int64_t{std::time(nullptr)}; }};
}

std::string Surroundings::at_home(std::string_view path) const {
  const std::string home = variable("HOME");
  return home.empty() ? "" : fmt::format("{}/{}", home, path);
}

bool Surroundings::is_set(const char* name) const {
  std::string value = variable(name);
  std::ranges::transform(value, value.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

IniFile parse_ini(std::string_view text) {
  IniFile file;
  std::map<std::string, std::string>* section = nullptr;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || is_space(line.front()) || line.front() == '#' || line.front() == ';') {
      continue;
    }
    if (line.front() == '[') {
      const std::size_t close = line.find(']');
      section = close == std::string_view::npos
                    ? nullptr
                    : &file[std::string(trim(line.substr(1, close - 1)))];
      continue;
    }
    const std::size_t equals = line.find('=');
    if (section == nullptr || equals == std::string_view::npos) continue;
    std::string_view value = line.substr(equals + 1);
    for (const std::string_view mark : {" #", " ;"}) value = value.substr(0, value.find(mark));
    (*section)[std::string(trim(line.substr(0, equals)))] = trim(value);
  }
  return file;
}

}  // namespace ckfs
