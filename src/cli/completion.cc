// `ckfs completion SHELL`: completions made from CLI11's table of verbs and options, so that they
// never lag behind the program. Files kept by hand beside it were the alternative; they always do.
//
// A value that may be some words has them in its type's name, beside what stands for others in
// capitals: "auto|uring|pread", "SIZE|auto", "DIR|FILE".
#include <algorithm>
#include <cctype>

#include "cli/cli.h"

namespace ckfs::cli {

namespace {

struct OptionRow {
  std::vector<std::string> spellings;  // "-l", "--json"
  std::string text;
  std::vector<std::string> values;  // words that it may be; empty: none is known
  bool takes_value = false;
};

struct VerbRow {
  std::string name;
  std::string text;
  std::vector<OptionRow> options;
  std::vector<std::string> words;  // closed set of its first argument, or empty
};

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
  VerbRow row{.name = verb.get_name(), .text = verb.get_description(), .options = {}, .words = {}};
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) continue;
    if (option->get_positional()) {
      if (row.words.empty()) row.words = split_values(option->get_type_name());
      continue;
    }
    OptionRow entry;
    for (const std::string& name : option->get_snames()) entry.spellings.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) entry.spellings.push_back("--" + name);
    entry.text = option->get_description();
    entry.takes_value = option->get_items_expected() > 0;
    if (entry.takes_value) entry.values = split_values(option->get_type_name());
    row.options.push_back(std::move(entry));
  }
  return row;
}

std::vector<VerbRow> rows_of(const CLI::App& app) {
  std::vector<VerbRow> rows;
  for (const CLI::App* verb : app.get_subcommands({})) rows.push_back(row_of(*verb));
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

std::string bash_script(const CLI::App& app) {
  std::string verbs;
  std::string cases;
  std::string values;
  for (const VerbRow& row : rows_of(app)) {
    verbs += (verbs.empty() ? "" : " ") + row.name;
    cases +=
        fmt::format("    {}) options={} words={} ;;\n", row.name, shell_quoted(spellings_of(row)),
                    shell_quoted(fmt::format("{}", fmt::join(row.words, " "))));
    for (const OptionRow& option : row.options) {
      if (option.values.empty()) continue;
      const std::string line =
          fmt::format("    {}) COMPREPLY=($(compgen -W {} -- \"$current\")); return ;;\n",
                      fmt::join(option.spellings, "|"),
                      shell_quoted(fmt::format("{}", fmt::join(option.values, " "))));
      if (values.find(line) == std::string::npos) values += line;
    }
  }
  return fmt::format(R"(# bash completion for ckfs, printed by `ckfs completion bash`.
_ckfs() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local options='' words=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {0} -- "$current"))
    return
  fi
  case $previous in
{1}  esac
  case ${{COMP_WORDS[1]}} in
{2}  esac
  if [ "${{current#-}}" != "$current" ]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}}
complete -F _ckfs ckfs
)",
                     shell_quoted(verbs + " --help --version"), values, cases);
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

std::string zsh_script(const CLI::App& app) {
  std::string verbs;
  std::string cases;
  for (const VerbRow& row : rows_of(app)) {
    verbs += fmt::format("    {}\n", shell_quoted(row.name + ":" + zsh_text(row.text)));
    cases += fmt::format("    {}) _arguments", row.name);
    for (const OptionRow& option : row.options) {
      for (const std::string& spelling : option.spellings) {
        std::string spec = fmt::format("{}[{}]", spelling, zsh_text(option.text));
        if (!option.values.empty()) {
          spec += fmt::format(":value:({})", fmt::join(option.values, " "));
        } else if (option.takes_value) {
          spec += ":value:_files";
        }
        cases += " " + shell_quoted(spec);
      }
    }
    cases += row.words.empty() ? " '*:file:_files' ;;\n"
                               : fmt::format(" '1:word:({})' ;;\n", fmt::join(row.words, " "));
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
                  fmt::format("SHELL: \"{}\" is none of bash, zsh, fish", value));
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
