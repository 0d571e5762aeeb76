// `ckfs list`: which mounts of ckfs there are. The kernel says where they are and of what; whether
// a daemon lives, and which views were read, its mount is asked, with a time limit for each.
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "cli/cli.h"
#include "fuse/mount_table.h"

namespace ckfs::cli {

namespace {

constexpr int kListVersion = 1;

struct ListCommand {
  bool json = false;
  bool names = false;
};

struct ListedMount {
  MountEntry entry;
  std::string_view state;
  std::set<std::string> views;  // that were read
};

std::string_view state_of(Answers answers) {
  switch (answers) {
    case Answers::Yes:
      return "alive";
    case Answers::Never:
      return "dead";
    case Answers::Late:
      return "hangs";
  }
  return "";
}

/// The views of a mount that something was read of; none where it does not say.
std::set<std::string> views_of(const std::string& mountpoint) {
  std::set<std::string> views;
  const Result<std::string> status = read_of_mount(mountpoint, "status.json");
  if (!status) return views;
  const auto json = nlohmann::json::parse(*status, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("given") || !json["given"].is_array()) return views;
  for (const auto& file : json["given"]) {
    if (!file.is_object() || !file.contains("view") || !file["view"].is_string()) continue;
    views.insert(file["view"].get<std::string>());
  }
  return views;
}

Result<void> list(const ListCommand& command) {
  CKFS_TRY(std::vector<MountEntry> entries, ckfs_mounts());
  if (command.names) {
    std::string text;
    for (const MountEntry& entry : entries) text += one_line(entry.target) + "\n";
    return print(text);
  }
  std::vector<ListedMount> mounts;
  for (MountEntry& entry : entries) {
    const Answers answers = ask_mount(entry.target);
    std::set<std::string> views;
    if (answers == Answers::Yes) views = views_of(entry.target);
    mounts.push_back({std::move(entry), state_of(answers), std::move(views)});
  }
  if (command.json) {
    nlohmann::ordered_json json;
    json["version"] = kListVersion;
    json["mounts"] = nlohmann::ordered_json::array();
    for (const ListedMount& mount : mounts) {
      json["mounts"].push_back({{"mountpoint", mount.entry.target},
                                {"source", mount.entry.source},
                                {"state", mount.state},
                                {"views", mount.views}});
    }
    return print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  std::string text;
  for (const ListedMount& mount : mounts) {
    text += one_line(fmt::format(
                "{}  {}  of {}{}", mount.state, mount.entry.target, mount.entry.source,
                mount.views.empty() ? "" : fmt::format("  ({})", fmt::join(mount.views, ", ")))) +
            "\n";
  }
  return print(text);
}

}  // namespace

void add_list(CLI::App& app, Action& action) {
  auto command = std::make_shared<ListCommand>();
  CLI::App* verb = app.add_subcommand("list", "list the mounts of ckfs");
  CLI::Option* const json = verb->add_flag("--json", command->json, "print JSON");
  verb->add_flag("-q,--quiet", command->names, "print only the mountpoints, one a line")
      ->excludes(json);
  verb->callback([command, &action] { action = [command] { return list(*command); }; });
}

}  // namespace ckfs::cli
