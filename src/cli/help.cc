// `--help`, `ckfs help` and `ckfs version`. All texts come from CLI11's table of options, from the
// table of views and from the examples here, so that they never differ from what the program takes.
//
// CLI11's own formatter breaks no lines, knows no examples, and prints the options that every verb
// shares as prominently as those of the verb. So this is one of our own: shared options are named
// by one line, and listed by --help-all.
#include <algorithm>
#include <optional>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/suggest.h"
#include "base/text.h"
#include "cli/cli.h"
#include "view/view.h"

namespace ckfs::cli {

namespace {

constexpr std::size_t kColumn = 24;  // where texts begin

/// Two examples a verb, and of ckfs itself ("").
struct Example {
  std::string_view verb;
  std::string_view line;
};

constexpr Example kExamples[] = {
    {"", "ckfs inspect DeepSeek-V3"},
    {"", "ckfs mount DeepSeek-V3 view"},
    {"", "ckfs export DeepSeek-V3 bf16-safetensors DeepSeek-V3-BF16"},
    {"mount", "ckfs mount DeepSeek-V3 view"},
    {"mount", "ckfs mount --memory 4GiB -o allow_other deepseek-ai/DeepSeek-V3 /mnt/deepseek"},
    {"umount", "ckfs umount view"},
    {"umount", "ckfs umount --all"},
    {"run", "ckfs run DeepSeek-V3 -- python load.py {}/bf16-safetensors"},
    {"run", "ckfs run --memory 4GiB DeepSeek-V3 -- cp -r {}/bf16-safetensors /scratch"},
    {"list", "ckfs list"},
    {"list", "ckfs list --json"},
    {"inspect", "ckfs inspect DeepSeek-V3"},
    {"inspect", "ckfs inspect DeepSeek-V3 --view bf16-safetensors"},
    {"ls", "ckfs ls DeepSeek-V3"},
    {"ls", "ckfs ls -l DeepSeek-V3 bf16-safetensors@max_shard=5GB"},
    {"cat", "ckfs cat DeepSeek-V3 bf16-safetensors/config.json"},
    {"cat", "ckfs cat DeepSeek-V3 bf16-safetensors/model.safetensors --length 8 | od -t u8"},
    {"export", "ckfs export DeepSeek-V3 bf16-safetensors DeepSeek-V3-BF16"},
    {"export", "srun ckfs export checkpoint-1000 fp32-safetensors /shared/model"},
    {"serve", "ckfs serve DeepSeek-V3 --listen 127.0.0.1:9000"},
    {"serve", "ckfs serve DeepSeek-V3 --listen 0.0.0.0:9000 --key-file key"},
    {"digest", "ckfs digest DeepSeek-V3 bf16-safetensors > SHA256SUMS"},
    {"digest", "ckfs digest DeepSeek-V3 source --algorithm xxh128 --json"},
    {"verify", "ckfs verify DeepSeek-V3 bf16-safetensors DeepSeek-V3-BF16"},
    {"verify", "ckfs verify DeepSeek-V3 bf16-safetensors s3-copy --sample 0.01"},
    {"doctor", "ckfs doctor"},
    {"doctor", "ckfs doctor DeepSeek-V3"},
    {"stats", "ckfs stats view"},
    {"stats", "ckfs stats view --watch"},
    {"cache", "ckfs cache ls"},
    {"cache", "ckfs cache warm hf://Qwen/Qwen3-8B bf16-safetensors"},
    {"completion", "ckfs completion bash > ~/.local/share/bash-completion/completions/ckfs"},
    {"completion", "ckfs completion zsh > ~/.zfunc/_ckfs"},
    {"help", "ckfs help mount"},
    {"help", "ckfs help views"},
    {"version", "ckfs version"},
    {"version", "ckfs --version"},
};

/// Columns of the terminal that stdout is, else 80.
std::size_t text_width() {
  constexpr std::size_t kLeast = 50, kMost = 120, kUsual = 80;
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return std::clamp<std::size_t>(size.ws_col, kLeast, kMost);
}

/// Appends `text`, which begins at the column `at`, in lines of `width`; those behind the first
/// begin at the column `indent`. A word that is too long has a line of its own.
void append_wrapped(std::string& out, std::string_view text, std::size_t at, std::size_t indent,
                    std::size_t width) {
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (!first && at + 1 + end > width) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!first) {
      out += ' ';
      ++at;
    }
    out += text.substr(0, end);
    at += end;
    text.remove_prefix(std::min(end + 1, text.size()));
    first = false;
  }
  out += '\n';
}

/// "  LEFT      TEXT", the text from `column` on, below where LEFT is too long.
void append_row(std::string& out, std::string_view left, std::string_view text, std::size_t width) {
  out += "  " + std::string(left);
  if (text.empty()) {
    out += '\n';
    return;
  }
  const std::size_t used = 2 + left.size();
  out += used + 1 < kColumn ? std::string(kColumn - used, ' ') : "\n" + std::string(kColumn, ' ');
  append_wrapped(out, text, kColumn, kColumn, width);
}

std::string left_of(const CLI::Option& option) {
  std::string left;
  for (const std::string& name : option.get_snames()) left += (left.empty() ? "-" : ",-") + name;
  for (const std::string& name : option.get_lnames()) left += (left.empty() ? "--" : ",--") + name;
  const std::string type = option.get_type_name();
  if (option.get_items_expected() > 0 && !type.empty() && type != "TEXT") left += " " + type;
  return left;
}

bool is_shared(const std::string& group) {
  return group == kSourceOptions || group == kCommonOptions || group == kRemoteOptions;
}

void append_examples(std::string& out, std::string_view verb) {
  out += "\nExamples:\n";
  for (const Example& example : kExamples) {
    if (example.verb == verb) out += "  " + std::string(example.line) + "\n";
  }
}

std::string help_of_ckfs(const CLI::App& app, std::size_t width) {
  std::string out;
  append_wrapped(out, app.get_description(), 0, 0, width);
  out += "\nUsage: ckfs VERB [OPTIONS] ...\n\nVerbs:\n";
  for (const CLI::App* verb : app.get_subcommands({})) {
    append_row(out, verb->get_name(), verb->get_description(), width);
  }
  out += "\nOptions:\n";
  for (const CLI::Option* option : app.get_options()) {
    append_row(out, left_of(*option), option->get_description(), width);
  }
  append_examples(out, "");
  out += '\n';
  append_wrapped(out,
                 "`ckfs help VERB` shows more about a verb, `ckfs help views` the views and their "
                 "parameters. The manual is ckfs(1).",
                 0, 0, width);
  return out;
}

std::string help_of_verb(const CLI::App& verb, bool all, std::size_t width) {
  std::string out = "ckfs " + verb.get_name() + ": ";
  append_wrapped(out, verb.get_description(), out.size(), 2, width);
  std::string usage = "[OPTIONS]";
  std::vector<std::string> groups;
  bool has_shared = false, takes_view = false;
  for (const CLI::Option* option : verb.get_options()) {
    const std::string group = option->get_group();
    if (group.empty()) continue;
    if (option->get_positional()) {
      const std::string name = option->get_name(true);
      usage += option->get_required() ? " " + name : " [" + name + "]";
      takes_view = takes_view || name == "VIEW" || name == "FILE";
      continue;
    }
    has_shared = has_shared || is_shared(group);
    if ((all || !is_shared(group)) && std::ranges::find(groups, group) == groups.end()) {
      groups.push_back(group);
    }
  }
  out += "\nUsage: ckfs " + verb.get_name() + " ";
  append_wrapped(out, usage, 13 + verb.get_name().size(), 9, width);
  bool first = true;
  for (const CLI::Option* option : verb.get_options()) {
    if (!option->get_positional() || option->get_group().empty()) continue;
    if (std::exchange(first, false)) out += "\nArguments:\n";
    append_row(out, option->get_name(true), option->get_description(), width);
  }
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const CLI::Option* option : verb.get_options()) {
      if (option->get_positional() || option->get_group() != group) continue;
      std::string text = option->get_description();
      if (is_shared(group)) text += fmt::format(" [{}]", variable_of(option->get_lnames().front()));
      append_row(out, left_of(*option), text, width);
    }
  }
  if (all && verb.get_name() == "mount") {
    out += "\nMount options (-o):\n";
    for (const MountWord& word : mount_words()) {
      append_row(
          out,
          word.value.empty() ? std::string(word.name) : fmt::format("{}={}", word.name, word.value),
          word.text, width);
    }
  }
  append_examples(out, verb.get_name());
  std::string more;
  if (has_shared && !all) {
    more += fmt::format("Options for the source, memory and the log: ckfs {} --help-all. ",
                        verb.get_name());
  }
  if (has_shared && all) {
    more += "A variable in [brackets] sets an option's default. ";
  }
  if (takes_view) more += "Views and their parameters: ckfs help views.";
  if (!more.empty()) {
    out += '\n';
    append_wrapped(out, more.ends_with(' ') ? more.substr(0, more.size() - 1) : more, 0, 0, width);
  }
  return out;
}

std::string help_of_views(std::size_t width) {
  std::string out;
  append_wrapped(out,
                 "A view is named VIEW or VIEW@KEY=VALUE,KEY=VALUE, such as "
                 "bf16-safetensors@max_shard=5GB. `ckfs inspect SRC` says which of them a "
                 "checkpoint can give.",
                 0, 0, width);
  const std::vector<ViewHelp> views = help_on_views();
  out += "\nViews:\n";
  for (const ViewHelp& view : views) {
    append_row(out, view.name, view.description, width);
    if (view.parameters.empty()) continue;
    std::string keys;
    for (const ViewParameterHelp& parameter : view.parameters) {
      keys += fmt::format("{}@{}", keys.empty() ? "" : ", ", parameter.key);
    }
    out += std::string(kColumn, ' ');
    append_wrapped(out, keys, kColumn, kColumn, width);
  }
  out += "\nParameters:\n";
  std::vector<std::string_view> seen;
  for (const ViewHelp& view : views) {
    for (const ViewParameterHelp& parameter : view.parameters) {
      if (std::ranges::find(seen, parameter.key) != seen.end()) continue;
      seen.push_back(parameter.key);
      append_row(out, fmt::format("{}={}", parameter.key, parameter.values), parameter.text, width);
    }
  }
  return out;
}

std::vector<std::string_view> topics(const CLI::App& app) {
  std::vector<std::string_view> names;
  for (const CLI::App* verb : app.get_subcommands({})) names.push_back(verb->get_name());
  names.emplace_back("views");
  return names;
}

/// nullopt: no such topic.
std::optional<std::string> help_on(const CLI::App& app, const std::string& topic) {
  if (topic.empty()) return help_of_ckfs(app, text_width());
  if (topic == "views") return help_of_views(text_width());
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == topic) return help_of_verb(*verb, false, text_width());
  }
  return std::nullopt;
}

class Formatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string /*name*/,
                        CLI::AppFormatMode mode) const override {
    const std::size_t width = text_width();
    const bool all = mode == CLI::AppFormatMode::All;
    if (app->get_parent() != nullptr) return help_of_verb(*app, all, width);
    std::string out = help_of_ckfs(*app, width);
    if (!all) return out;
    for (const CLI::App* verb : app->get_subcommands({})) {
      out += "\n\n" + help_of_verb(*verb, true, width);
    }
    return out;
  }
};

}  // namespace

void use_help(CLI::App& app) {
  app.formatter(std::make_shared<Formatter>());
  app.set_help_flag("-h,--help", "print this help");
  app.set_help_all_flag("--help-all", "print this help with all options");
}

void add_help(CLI::App& app, Action& action) {
  auto topic = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("help", "print help on a verb, or on views");
  verb->add_option("VERB|views", *topic, "a verb, or \"views\" (default: ckfs itself)");
  verb->callback([topic, &app, &action] {
    const std::optional<std::string> text = help_on(app, *topic);
    if (!text) {
      throw CLI::ValidationError(
          fmt::format("{}: no such verb{}", one_line(*topic), did_you_mean(*topic, topics(app))));
    }
    action = [text] { return print(*text); };
  });
}

void add_version(CLI::App& app, Action& action) {
  CLI::App* verb = app.add_subcommand("version", "print the version");
  verb->callback([&action] {
    action = []() -> Result<void> { return print(fmt::format("ckfs {}\n", version())); };
  });
}

}  // namespace ckfs::cli
