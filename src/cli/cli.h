// The program: argv to a verb, a verb's Result to an exit code. One file per verb; each adds its
// options to CLI11's table and leaves behind what is to be done. Help, completions and the man page
// test are all taken from that table.
#pragma once

#include <CLI/CLI.hpp>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ckfs/checkpoint.h>

#include "api/open_prepared.h"
#include "base/error.h"
#include "base/size_text.h"
#include "fetch/location.h"

namespace ckfs::cli {

/// Exit codes of the program (docs/CLI_ABI.md).
enum class Exit : int { Done = 0, Failed = 1, Usage = 2, CannotTell = 2 };

/// What the parsed command line asks for. Unset where parsing failed.
class Action {
 public:
  /// `work` gives Result<void>, or Result<Exit> where an exit code is an answer and not an error.
  template <typename Work>
  Action& operator=(Work work) {
    run_ = [work = std::move(work)]() -> Result<Exit> {
      auto done = work();
      if (!done) return Failure(std::move(done).error());
      if constexpr (std::same_as<decltype(done), Result<Exit>>) return *done;
      return Exit::Done;
    };
    return *this;
  }
  Result<Exit> operator()() const { return run_(); }

  Exit failed = Exit::Failed;  // the exit code of an error

 private:
  std::function<Result<Exit>()> run_;
};

// Each adds one verb to `app`, in the order of the help; parsing that verb sets `action`.
void add_mount(CLI::App& app, Action& action);
void add_umount(CLI::App& app, Action& action);
void add_run(CLI::App& app, Action& action);
void add_list(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_ls(CLI::App& app, Action& action);
void add_cat(CLI::App& app, Action& action);
void add_export(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_digest(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_stats(CLI::App& app, Action& action);
void add_cache(CLI::App& app, Action& action);
void add_completion(CLI::App& app, Action& action);
void add_help(CLI::App& app, Action& action);
void add_version(CLI::App& app, Action& action);

/// Gives `app` the flags --help and --help-all, and the texts that they print. Requires: no verb
/// was added yet, because verbs take both from `app`.
void use_help(CLI::App& app);

/// Groups of the options that many verbs share, which only --help-all lists.
inline constexpr std::string_view kSourceOptions = "Source options";
inline constexpr std::string_view kCommonOptions = "Common options";
inline constexpr std::string_view kRemoteOptions = "Options for sources on other machines";

/// Options of every verb that opens a checkpoint; `open` and where the log goes.
struct CommonOptions {
  OpenOptions open;
  TestOptions tests;        // "tile_bytes"
  bool memory_auto = true;  // no --memory was given, or it was "auto"
  std::string log_level = "warn";
  std::string log_file;
  bool default_recipes = false;  // those of `open` are the environment's: one that is named goes
};  // in their place

/// What "--memory auto" is here: a quarter of what the control group gives, if it sets a limit, but
/// 64 MiB at least; else 1 GiB. Says so in the log where there is a limit.
OpenOptions open_options(const CommonOptions& options);

/// Checkpoint::open() with the options. Errors: the same.
Result<Checkpoint> open_source(const std::string& source, const CommonOptions& options);

/// One of the common options by name: those of set_open_option(), "log_level", "log_file",
/// "tile_bytes". The one parser for `--memory 1GiB` and `-o memory=1GiB`. Errors: InvalidArgument,
/// and those of reading a recipe.
Result<void> set_common(CommonOptions& options, const std::string& name, const std::string& value);

/// Those of the common options that take no value on a command line.
std::span<const std::string_view> common_flags();

/// The environment variable that sets the default of a shared option: CKFS_SPILL_SIZE of
/// "spill-size" or "spill_size".
std::string variable_of(std::string_view option);

/// Adds an option with a whole number from `least` to `most`. Requires: `most` is an unsigned's.
template <typename Number>
CLI::Option* add_number(CLI::App& verb, const std::string& name, std::uint64_t least,
                        std::uint64_t most, Number& number, const std::string& text) {
  return verb
      .add_option_function<std::string>(
          name,
          [name, least, most, &number](const std::string& value) {
            const Result<std::uint64_t> parsed = parse_number(name, value);
            // CLI11 takes errors as exceptions only; main() turns them back into lines.
            if (!parsed) throw CLI::ValidationError(parsed.error().message());
            if (*parsed > most) {
              throw CLI::ValidationError(
                  fmt::format("{}: {} are too many (at most {})", name, *parsed, most));
            }
            if (*parsed < least) {
              throw CLI::ValidationError(
                  fmt::format("{}: {} are too few (at least {})", name, *parsed, least));
            }
            number = static_cast<unsigned>(*parsed);
          },
          text)
      ->type_name("N");
}

/// What the arguments SRC and VIEW are.
inline constexpr const char* kSourceText =
    "directory, file, model in the hub's cache (ORG/NAME), or hf://, https://, s3://, gs:// "
    "location";
inline constexpr const char* kViewText = "view, such as bf16-safetensors@max_shard=5GB";

enum class Tuning : bool { No, Yes };

/// Adds the options that say what is opened and where the log goes, and with Tuning::Yes those of
/// memory, the spill, reading and threads. Each has a variable for its default (variable_of()).
void add_common(CLI::App& verb, CommonOptions& options, Tuning tuning);

/// Writes all of `bytes` to stdout. False: the reader has closed the pipe. Errors: Io.
Result<bool> write_stdout(std::span<const std::byte> bytes);
Result<void> print(std::string_view text);

/// The options of `ckfs mount -o`. Each argument may hold several options, with commas between.
struct MountWords {
  CommonOptions common;
  bool allow_other = false;
  bool outside_links = false;  // may be shown to others
  bool direct = false;
  bool stop_now = false;
  bool confined = true;  // sandbox/sandbox.h
  std::string user;      // whom the daemon becomes; empty: it stays who it is
  std::optional<std::int64_t> mtime;
  std::optional<std::uint32_t> umask;  // absent: the process's
};

/// An option of `ckfs mount -o`, for help and completions.
struct MountWord {
  std::string_view name;
  std::string_view value;  // the kind of value behind its '='; empty: it takes no value
  std::string_view text;
};
/// All of them, in the order of the manual.
std::span<const MountWord> mount_words();

/// Adds the options in `words` to `mount`. Errors: InvalidArgument (unknown option, bad value), and
/// those of set_common().
Result<void> parse_mount_words(const std::vector<std::string>& words, MountWords& mount);

/// A script for "bash", "zsh" or "fish", made from the option table of `app`.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace ckfs::cli
