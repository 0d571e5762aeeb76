// argv -> verb -> exit code. Errors leave here as one line, `ckfs: THING: FACT (LIMIT)`, and from
// nowhere else; a verb gives back a Result.
//
// `ckfs SRC MNT -o ...` is `ckfs mount SRC MNT -o ...`: so mount(8) calls a program whose name is
// the type's (`mount -t fuse.ckfs`). A verb's name wins over a path of that name (./ls is a path).
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <malloc.h>
#include <new>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/suggest.h"
#include "base/text.h"
#include "cli/cli.h"

namespace ckfs::cli {

namespace {

int finish(Exit code, std::string_view line = {}) {
  if (!line.empty()) std::fprintf(stderr, "ckfs: %s\n", one_line(line).c_str());
  return static_cast<int>(code);
}

/// A run of 512 ranks has a piece of every tensor in each of 512 files. The usual soft limit, 1024,
/// protects programs that use select(2); this one does not use it.
void use_all_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// A file that is opened would otherwise get the number of a standard descriptor that is closed,
/// and be written to as if it were that. To use these fails as before.
void fill_standard_descriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
  }
}

bool names_path(const std::string& word) {
  struct stat status;
  return word.find('/') != std::string::npos || ::stat(word.c_str(), &status) == 0;
}

std::vector<std::string_view> names_of_verbs(const CLI::App& app) {
  std::vector<std::string_view> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  return names;
}

/// The error that CLI11 found in the words of a verb, with the option that was meant if the word
/// looks like one.
std::string usage_error(const CLI::ParseError& error, const CLI::App* verb,
                        const std::vector<std::string>& words) {
  if (verb == nullptr || dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) {
    return error.what();
  }
  std::vector<std::string> spellings;
  for (const CLI::Option* option : verb->get_options()) {
    if (option->get_group().empty()) continue;  // for tests
    for (const std::string& name : option->get_lnames()) spellings.push_back("--" + name);
  }
  const std::vector<std::string_view> known(spellings.begin(), spellings.end());
  for (const std::string& word : words) {
    const std::string_view option = std::string_view(word).substr(0, word.find('='));
    if (!option.starts_with("--") || option == "--" ||
        std::ranges::find(known, option) != known.end()) {
      continue;
    }
    const std::string_view meant = closest(option, known);
    return fmt::format("{}: no such option{}", option,
                       meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant));
  }
  return error.what();
}

const CLI::App* find_verb(const CLI::App& app, const std::string& name) {
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == name) return verb;
  }
  return nullptr;
}

int run(std::vector<std::string> words) {
  fill_standard_descriptors();
  use_all_descriptors();
  CLI::App app(
      "ckfs shows a model checkpoint in other forms, as files whose bytes are computed "
      "when they are read.",
      "ckfs");
  app.require_subcommand(1);
  app.set_version_flag("-V,--version", fmt::format("ckfs {}", version()), "print the version");
  use_help(app);
  Action action;
  add_mount(app, action);
  add_umount(app, action);
  add_run(app, action);
  add_list(app, action);
  add_inspect(app, action);
  add_ls(app, action);
  add_cat(app, action);
  add_export(app, action);
  add_serve(app, action);
  add_digest(app, action);
  add_verify(app, action);
  add_doctor(app, action);
  add_stats(app, action);
  add_cache(app, action);
  add_completion(app, action);
  add_help(app, action);
  add_version(app, action);

  std::string context;
  if (!words.empty() && !words.front().starts_with("-")) {
    if (find_verb(app, words.front()) == nullptr) {
      if (!names_path(words.front())) {
        return finish(Exit::Usage, fmt::format("{}: neither a verb nor a path{}", words.front(),
                                               did_you_mean(words.front(), names_of_verbs(app))));
      }
      words.insert(words.begin(), "mount");
    }
    context = words.front();
  }
  constexpr std::string_view kTopLevel[] = {"-h", "--help", "--help-all", "-V", "--version"};
  if (context.empty() && !words.empty() &&
      std::ranges::find(kTopLevel, words.front()) == std::end(kTopLevel)) {
    return finish(Exit::Usage, fmt::format("{}: no such option (see ckfs --help)", words.front()));
  }
  if (words.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return finish(Exit::Usage);
  }

  const std::vector<std::string> in_order = words;
  std::ranges::reverse(words);  // as CLI11 takes a vector
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      // Help or version.
      app.exit(error);
      return std::fflush(stdout) == 0 ? finish(Exit::Done)
                                      : finish(Exit::Failed, "stdout: cannot write");
    }
    if (context.empty())
      return finish(Exit::Usage, fmt::format("{} (see ckfs --help)", error.what()));
    return finish(Exit::Usage,
                  fmt::format("{}: {} (see ckfs {} --help)", context,
                              usage_error(error, find_verb(app, context), in_order), context));
  }
  try {
    const Result<Exit> done = action();
    return done ? finish(*done) : finish(action.failed, done.error().message());
  } catch (const std::bad_alloc&) {
    return finish(action.failed, "out of memory");
  } catch (const std::exception& error) {
    return finish(action.failed, one_line(error.what()));
  }
}

}  // namespace

}  // namespace ckfs::cli

int main(int argc, char** argv) {
#ifdef __GLIBC__
  // glibc keeps up to 8 arenas a CPU, each with its own free memory. Large memory comes from
  // budgeted buffers anyway.
  mallopt(M_ARENA_MAX, 2);
#endif
  // A reader that goes away is an EPIPE at the write, not the end of the process.
  ::signal(SIGPIPE, SIG_IGN);
  // So is a limit on the size of files an EFBIG.
  ::signal(SIGXFSZ, SIG_IGN);
  // Where a caller ignores it, the kernel throws away how a child ended.
  ::signal(SIGCHLD, SIG_DFL);
  try {
    return ckfs::cli::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const std::bad_alloc&) {
    std::fputs("ckfs: out of memory\n", stderr);
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ckfs: %s\n", ckfs::one_line(error.what()).c_str());
    return 1;
  }
}
