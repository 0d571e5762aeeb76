// Options that several verbs share, and the way out: stdout.
//
// `--memory 1GiB` and `-o memory=1GiB` are one parser, so the two spellings never differ. CLI11's
// own converters are not used for values: their messages span lines and name C++ types.
#include <cerrno>
#include <cstdlib>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <ckfs/open_option.h>

#include "base/memory_limit.h"
#include "base/size_text.h"
#include "cli/cli.h"

namespace ckfs::cli {

namespace {

constexpr std::uint64_t kMinTile = std::uint64_t{4} << 10;

void add_value(CLI::App& verb, CommonOptions& options, const std::string& name,
               const std::string& type, const std::string& text, const std::string& group) {
  std::string flag = "--" + name;
  std::ranges::replace(flag, '_', '-');
  verb.add_option_function<std::string>(
          flag,
          [&options, name, flag](const std::string& value) {
            const Result<void> set = set_common(options, name, value);
            // CLI11 takes errors as exceptions only; main() turns it back into a line.
            if (!set) throw CLI::ValidationError(set.error().message());
          },
          text)
      ->type_name(type)
      ->group(group);
}

void add_switch(CLI::App& verb, CommonOptions& options, const std::string& name,
                const std::string& text) {
  std::string flag = "--" + name;
  std::ranges::replace(flag, '_', '-');
  verb.add_flag_callback(
          flag, [&options, name] { (void)set_common(options, name, "1"); }, text)
      ->group(std::string(kRemoteOptions));
}

/// Sets what the environment says of the shared options that `verb` has. An empty variable says
/// nothing.
void take_variables(const CLI::App& verb, CommonOptions& options) {
  for (const CLI::Option* option : verb.get_options()) {
    const std::string& group = option->get_group();
    if (group != kSourceOptions && group != kCommonOptions && group != kRemoteOptions) continue;
    std::string name = option->get_lnames().front();
    const std::string variable = variable_of(name);
    const char* const value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    std::ranges::replace(name, '-', '_');
    const Result<void> set = set_common(options, name, value);
    if (!set) throw CLI::ValidationError(set.error().within(variable).message());
  }
  options.default_recipes = !options.open.choose.recipes.empty();
}

}  // namespace

Result<Checkpoint> open_source(const std::string& source, const CommonOptions& options) {
  return open_for_tests(source, open_options(options), options.tests);
}

OpenOptions open_options(const CommonOptions& options) {
  OpenOptions open = options.open;
  if (!options.memory_auto) return open;
  open.use.memory = automatic_memory();
  if (const std::optional<std::uint64_t> limit = group_memory_limit()) {
    spdlog::info("memory: {}, a quarter of this control group's limit of {} (--memory changes it)",
                 human_size(open.use.memory), human_size(*limit));
  }
  return open;
}

Result<void> set_common(CommonOptions& options, const std::string& name, const std::string& value) {
  if (name == "memory") options.memory_auto = value == "auto";
  if (name == "recipe" && options.default_recipes) {
    // In the place of the environment's, once it is known to be one.
    OpenOptions own;
    CKFS_TRY_VOID(set_open_option(own, name, value));
    options.default_recipes = false;
    options.open.choose.recipes = std::move(own.choose.recipes);
    return {};
  }
  if (name == "log_level") {
    constexpr std::string_view kLevels[] = {"debug", "info", "warn", "error", "off"};
    if (std::ranges::find(kLevels, value) == std::end(kLevels)) {
      return fail(ErrorCode::InvalidArgument,
                  "log_level: \"{}\" is not one of debug, info, warn, error, off", value);
    }
    options.log_level = value;
  } else if (name == "log_file") {
    options.log_file = value;
  } else if (name == "tile_bytes") {
    CKFS_TRY(options.tests.tile_bytes, parse_bytes(name, value, kMinTile));
  } else {
    CKFS_TRY(const bool known, set_open_option(options.open, name, value));
    if (!known) return fail(ErrorCode::InvalidArgument, "{}: no such option", name);
  }
  return {};
}

std::span<const std::string_view> common_flags() {
  static constexpr std::string_view kNames[] = {"anonymous", "requester_pays", "offline"};
  return kNames;
}

std::string variable_of(std::string_view option) {
  std::string name = "CKFS_";
  for (const char c : option) {
    name += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

void add_common(CLI::App& verb, CommonOptions& options, Tuning tuning) {
  // Before the verb's words are looked at, so that these win, those of -o too.
  verb.preparse_callback([&verb, &options](std::size_t) { take_variables(verb, options); });
  const std::string choice(kSourceOptions);
  add_value(verb, options, "tag", "TAG",
            "tag of a DeepSpeed checkpoint (default: the one that the file latest names)", choice);
  add_value(
      verb, options, "key", "KEY",
      "key of the tensors in a torch file, DCP checkpoint or Orbax tree (default: the usual key, "
      "else the top level)",
      choice);
  add_value(verb, options, "item", "NAME",
            "item of an Orbax checkpoint (default: the only one, else the usual one)", choice);
  add_value(
      verb, options, "step", "N",
      "step of a directory of Orbax checkpoints (default: the newest), of FSDP runs (the last), or "
      "iteration of Megatron's (default: the one that its tracker file names)",
      choice);
  add_value(
      verb, options, "config", "DIR|FILE",
      "directory, config.json or model of the hub to take the configuration and the tokenizer "
      "from, for a source that has none",
      choice);
  verb.add_option_function<std::vector<std::string>>(
          "--recipe",
          [&options](const std::vector<std::string>& files) {
            for (const std::string& file : files) {
              const Result<void> set = set_common(options, "recipe", file);
              if (!set) throw CLI::ValidationError(set.error().message());
            }
          },
          "JSON file that defines a custom view or expert layout (ckfs-recipe(5)); repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->group(choice);
  add_value(
      verb, options, "family", "NAME",
      "model family: a model_type, or a model_name of MaxText (default: what config.json says)",
      choice);
  const std::string far(kRemoteOptions);
  add_value(verb, options, "endpoint_url", "URL",
            "address of the service (default: that of HF_ENDPOINT, AWS_ENDPOINT_URL_S3, "
            "STORAGE_EMULATOR_HOST, else the service's own)",
            far);
  add_switch(verb, options, "anonymous", "send no credentials");
  add_switch(verb, options, "requester_pays", "s3://, gs://: pay for the requests");
  add_value(verb, options, "header_file", "FILE",
            "https://: file with headers for the server, one a line", far);
  add_value(verb, options, "connections", "N", "most connections to servers (default 64)", far);
  add_value(verb, options, "timeout", "SECONDS",
            "how long a read waits for an answer before it is an error (default 300)", far);
  add_switch(verb, options, "offline",
             "ask no server: take what the disk cache has, and of hf:// the hub's cache");
  add_value(verb, options, "cache_dir", "DIR",
            "directory of the disk cache (default: $XDG_CACHE_HOME/ckfs, else ~/.cache/ckfs)", far);
  add_value(verb, options, "cache_size", "SIZE",
            "size limit of the disk cache (default 10GiB; 0: keep nothing)", far);
  const std::string group(kCommonOptions);
  if (tuning == Tuning::Yes) {
    add_value(verb, options, "memory", "SIZE|auto",
              "memory limit for buffers and caches, at least 64MiB (default auto: a quarter of the "
              "control group's limit, or 1GiB)",
              group);
    add_value(
        verb, options, "spill", "DIR",
        "directory for a temporary cache of decoded data (default: none, data is decoded again)",
        group);
    add_value(verb, options, "spill_size", "SIZE",
              "size limit of the --spill cache (default: no limit)", group);
    add_value(verb, options, "io", "auto|uring|pread",
              "how to read source files (default auto: io_uring where the kernel allows it)",
              group);
    add_value(verb, options, "threads", "N",
              "threads that compute ahead of readers (default: one for each CPU)", group);
    add_value(verb, options, "tile_bytes", "SIZE", "bytes of a tile; for tests", "");
  }
  add_value(verb, options, "log_level", "debug|info|warn|error|off",
            "log messages of this level and above (default warn; mount: info)", group);
  add_value(verb, options, "log_file", "FILE",
            "file for the log (default: stderr; mount: the system log)", group);
}

Result<bool> write_stdout(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      if (errno == EPIPE) return false;
      return system_failure(errno, "stdout", "write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

Result<void> print(std::string_view text) {
  CKFS_TRY_VOID(write_stdout(std::as_bytes(std::span(text))));
  return {};
}

}  // namespace ckfs::cli
