// `ckfs completion SHELL`: completions made from CLI11's table of verbs and options, so that they
// never lag behind the program. Files kept by hand beside it were the alternative; they always do.
//
// A value's type name lists the words that it may be in small letters, and other kinds of values in
// capitals: "auto|uring|pread", "SIZE|auto", "DIR|FILE". A name in capitals says what completes it:
// a VIEW is one of the table of views, the MNT of a verb that ends or reads a mount is one that
// `ckfs list -q` prints, and a TAG is a directory in SRC.
#include <algorithm>
#include <cctype>
#include <utility>

#include "cli/cli.h"
#include "view/view.h"

namespace ckfs::cli {

namespace {

struct OptionRow {
  std::vector<std::string> spellings;  // "-l", "--json"
  std::string text;
  std::vector<std::string> values;  // words that it may be; empty: none is known
  bool takes_value = false;
  bool is_tag = false;
};

/// What an argument of a verb is.
enum class Argument : std::uint8_t { File, View, Mount, Word };

struct VerbRow {
  std::string name;
  std::string text;
  std::vector<OptionRow> options;
  std::vector<Argument> arguments;
  std::vector<std::string> words;  // what an Argument::Word may be
};

std::vector<std::string> names_of_all_views() {
  std::vector<std::string> names;
  for (const ViewHelp& view : help_on_views()) names.emplace_back(view.name);
  return names;
}

/// What the argument `name` of `verb` is; `mount` makes its MNT.
Argument argument_of(const CLI::App& verb, const std::string& name) {
  if (name == "VIEW") return Argument::View;
  if (name == "MNT" && verb.get_name() != "mount") return Argument::Mount;
  return Argument::File;
}

std::vector<std::string> split_values(const std::string& type) {
  std::vector<std::string> values;
  if (type.find('|') == std::string::npos) return values;
  for (std::size_t begin = 0; begin <= type.size();) {
    const std::size_t bar = std::min(type.find('|', begin), type.size());
    const std::string word = type.substr(begin, bar - begin);
    const bool stands_for_others =
        std::ranges::all_of(word, [](unsigned char c) { return std::isupper(c) != 0; });
    if (!stands_for_others) values.push_back(word);
    begin = bar + 1;
  }
  return values;
}

VerbRow row_of(const CLI::App& verb) {
  VerbRow row{.name = verb.get_name(),
              .text = verb.get_description(),
              .options = {},
              .arguments = {},
              .words = {}};
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) continue;
    if (option->get_positional()) {
      if (row.words.empty()) row.words = split_values(option->get_type_name());
      row.arguments.push_back(row.words.empty() ? argument_of(verb, option->get_name(true))
                                                : Argument::Word);
      continue;
    }
    OptionRow entry;
    for (const std::string& name : option->get_snames()) entry.spellings.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) entry.spellings.push_back("--" + name);
    entry.text = option->get_description();
    entry.takes_value = option->get_items_expected() > 0;
    if (entry.takes_value) entry.values = split_values(option->get_type_name());
    if (option->get_type_name() == "VIEW") entry.values = names_of_all_views();
    entry.is_tag = option->get_type_name() == "TAG";
    row.options.push_back(std::move(entry));
  }
  return row;
}

std::vector<VerbRow> rows_of(const CLI::App& app) {
  std::vector<VerbRow> rows;
  for (const CLI::App* verb : app.get_subcommands({})) rows.push_back(row_of(*verb));
  // What help is asked about is the verbs themselves.
  const auto help = std::ranges::find(rows, "help", &VerbRow::name);
  if (help == rows.end()) return rows;
  for (const VerbRow& row : rows) help->words.push_back(row.name);
  help->words.emplace_back("views");
  help->arguments = {Argument::Word};
  return rows;
}

/// `text` within single quotes of a shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string spellings_of(const VerbRow& row) {
  std::string all;
  for (const OptionRow& option : row.options) {
    for (const std::string& spelling : option.spellings) {
      if (!all.empty()) all += ' ';
      all += spelling;
    }
  }
  return all;
}

/// "file", "view", "mount", "word": of the arguments in their order.
std::string kinds_of(const VerbRow& row) {
  std::string kinds;
  for (const Argument argument : row.arguments) {
    constexpr const char* kNames[] = {"file", "view", "mount", "word"};
    kinds += std::string(kinds.empty() ? "" : " ") + kNames[static_cast<std::size_t>(argument)];
  }
  return kinds;
}

std::string bash_script(const CLI::App& app) {
  std::string verbs;
  std::string cases;
  std::string values;
  std::string valued;  // spellings that take a value
  std::string tags;
  for (const VerbRow& row : rows_of(app)) {
    verbs += (verbs.empty() ? "" : " ") + row.name;
    cases += fmt::format("    {}) options={} kinds={} words={} ;;\n", row.name,
                         shell_quoted(spellings_of(row)), shell_quoted(kinds_of(row)),
                         shell_quoted(fmt::format("{}", fmt::join(row.words, " "))));
    for (const OptionRow& option : row.options) {
      for (const std::string& spelling : option.spellings) {
        const std::string word = " " + spelling + " ";
        if (option.takes_value && valued.find(word) == std::string::npos) valued += word;
        if (option.is_tag) tags = spelling;
      }
      if (option.values.empty()) continue;
      const std::string line =
          fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$current\")); return ;;\n",
                      fmt::join(option.spellings, "|"),
                      shell_quoted(fmt::format("{}", fmt::join(option.values, " "))));
      if (values.find(line) == std::string::npos) values += line;
    }
  }
  return fmt::format(R"bash(# bash completion for ckfs, printed by `ckfs completion bash`.
_ckfs() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local options='' kinds='' words='' source='' index word kind place=0
  local valued={3}
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {0} -- "$current"))
    return
  fi
  # Counts the arguments before this one, without options and their values.
  for ((index = 2; index < COMP_CWORD; ++index)); do
    word=${{COMP_WORDS[index]}}
    case $word in
      -*) case "$valued" in *" $word "*) index=$((index + 1)) ;; esac ;;
      *) place=$((place + 1)); if [ -z "$source" ]; then source=$word; fi ;;
    esac
  done
  case $previous in
{1}    {4}) COMPREPLY=($(cd "${{source:-.}}" 2>/dev/null && compgen -d -- "$current")); return ;;
  esac
  case ${{COMP_WORDS[1]}} in
{2}  esac
  kind=file
  for word in $kinds; do
    if [ "$place" -eq 0 ]; then kind=$word; fi
    place=$((place - 1))
  done
  if [ "${{current#-}}" != "$current" ]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [ "$kind" = word ]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  elif [ "$kind" = view ]; then
    COMPREPLY=($(compgen -W {5} -- "$current"))
  elif [ "$kind" = mount ]; then
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -W "$(ckfs list -q 2>/dev/null)" -- "$current")
               $(compgen -d -- "$current"))
  else
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -F _ckfs ckfs
)bash",
                     shell_quoted(verbs + " --help --help-all --version"), values, cases,
                     shell_quoted(valued), tags,
                     shell_quoted(fmt::format("{}", fmt::join(names_of_all_views(), " "))));
}

/// For zsh's _arguments: brackets and colons of a text are its syntax.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

/// "view:(bf16-safetensors ...)": an argument's name and what completes it.
std::string zsh_action(const VerbRow& row, Argument argument) {
  switch (argument) {
    case Argument::View:
      return fmt::format("view:({})", fmt::join(names_of_all_views(), " "));
    case Argument::Mount:
      return "mount:($(ckfs list -q 2>/dev/null))";
    case Argument::Word:
      return fmt::format("word:({})", fmt::join(row.words, " "));
    case Argument::File:
      break;
  }
  return "file:_files";
}

std::string zsh_script(const CLI::App& app) {
  std::string verbs;
  std::string cases;
  for (const VerbRow& row : rows_of(app)) {
    verbs += fmt::format("    {}\n", shell_quoted(row.name + ":" + zsh_text(row.text)));
    cases += fmt::format("    {}) _arguments", row.name);
    for (const OptionRow& option : row.options) {
      for (const std::string& spelling : option.spellings) {
        std::string spec = fmt::format("{}[{}]", spelling, zsh_text(option.text));
        if (option.is_tag) {
          spec += ":tag:{_files -W ${words[2]} -/}";
        } else if (!option.values.empty()) {
          spec += fmt::format(":value:({})", fmt::join(option.values, " "));
        } else if (option.takes_value) {
          spec += ":value:_files";
        }
        cases += " " + shell_quoted(spec);
      }
    }
    for (std::size_t i = 0; i < row.arguments.size(); ++i) {
      cases += fmt::format(" '{}:{}'", i + 1, zsh_action(row, row.arguments[i]));
    }
    cases += row.arguments.empty() ? " '*:file:_files' ;;\n" : " ;;\n";
  }
  return fmt::format(R"(#compdef ckfs
# zsh completion for ckfs, printed by `ckfs completion zsh`.
_ckfs() {{
  local -a verbs
  verbs=(
{}  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{}  esac
}}
if [ "$funcstack[1]" = _ckfs ]; then
  _ckfs "$@"
else
  compdef _ckfs ckfs
fi
)",
                     verbs, cases);
}

std::string fish_script(const CLI::App& app) {
  std::string script = "# fish completion for ckfs, printed by `ckfs completion fish`.\n";
  for (const VerbRow& row : rows_of(app)) {
    script += fmt::format("complete -c ckfs -n __fish_use_subcommand -f -a {} -d {}\n", row.name,
                          shell_quoted(row.text));
    for (const OptionRow& option : row.options) {
      script += fmt::format("complete -c ckfs -n '__fish_seen_subcommand_from {}'", row.name);
      for (const std::string& spelling : option.spellings) {
        script +=
            spelling.starts_with("--") ? " -l " + spelling.substr(2) : " -s " + spelling.substr(1);
      }
      if (!option.values.empty()) {
        script += " -x -a " + shell_quoted(fmt::format("{}", fmt::join(option.values, " ")));
      } else if (option.takes_value) {
        script += " -r";
      }
      script += fmt::format(" -d {}\n", shell_quoted(option.text));
    }
    const std::string here =
        fmt::format("complete -c ckfs -n '__fish_seen_subcommand_from {}'", row.name);
    if (std::ranges::find(row.arguments, Argument::View) != row.arguments.end()) {
      script += fmt::format("{} -a {}\n", here,
                            shell_quoted(fmt::format("{}", fmt::join(names_of_all_views(), " "))));
    }
    if (std::ranges::find(row.arguments, Argument::Mount) != row.arguments.end()) {
      script += here + " -a '(ckfs list -q 2>/dev/null)'\n";
    }
    if (!row.words.empty()) {
      script += fmt::format("complete -c ckfs -n '__fish_seen_subcommand_from {}' -f -a {}\n",
                            row.name, shell_quoted(fmt::format("{}", fmt::join(row.words, " "))));
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_script(app);
  if (shell == "zsh") return zsh_script(app);
  return fish_script(app);
}

void add_completion(CLI::App& app, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("completion", "print completions for a shell");
  verb->add_option_function<std::string>(
          "SHELL",
          [shell](const std::string& value) {
            if (value != "bash" && value != "zsh" && value != "fish") {
              throw CLI::ValidationError(
                  fmt::format("SHELL: \"{}\" is not one of bash, zsh, fish", value));
            }
            *shell = value;
          },
          "bash, zsh or fish")
      ->type_name("bash|zsh|fish")
      ->required();
  verb->callback([shell, &app, &action] {
    action = [shell, &app] { return print(completion_script(app, *shell)); };
  });
}

}  // namespace ckfs::cli
