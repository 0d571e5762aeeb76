// `ckfs doctor`: what keeps this machine from mounting fast, or at all, and the command that mends
// it. Exit code 1 when something keeps ckfs, or a mount, from working.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/machine.h"

namespace ckfs::cli {

namespace {

constexpr int kVersion = 1;

struct DoctorCommand {
  CommonOptions common;
  std::string source;
  std::string root;
  bool json = false;
};

std::string_view word(Finding::Level level) {
  switch (level) {
    case Finding::Level::Ok:
      return "OK";
    case Finding::Level::Slow:
      return "SLOW";
    case Finding::Level::Warn:
      return "WARN";
    case Finding::Level::Broken:
      break;
  }
  return "BROKEN";
}

/// What follows from the lines: the last line.
std::string conclusion(const std::vector<Finding>& findings) {
  const auto count = [&](Finding::Level level) {
    return std::ranges::count(findings, level, &Finding::level);
  };
  // These keep every mount from working; other lines are about one mount, source or option.
  constexpr std::array<std::string_view, 4> kMounting{"device", "fusermount3", "privileges",
                                                      "mount"};
  const bool mounts = std::ranges::none_of(findings, [&](const Finding& finding) {
    return finding.level == Finding::Level::Broken &&
           std::ranges::find(kMounting, finding.name) != kMounting.end();
  });
  if (!mounts) {
    return "ckfs cannot mount here: do what the BROKEN lines say (inspect, ls, cat, export, digest "
           "and verify work without a mount)\n";
  }
  if (count(Finding::Level::Broken) > 0) return "do what the BROKEN lines say\n";
  if (count(Finding::Level::Slow) + count(Finding::Level::Warn) == 0) {
    return "ckfs can mount here: there is nothing to do\n";
  }
  return "ckfs can mount here; what the SLOW and WARN lines say would help\n";
}

std::string as_text(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    text += one_line(fmt::format("{:<6} {}: {}{}", word(finding.level), finding.name, finding.fact,
                                 finding.remedy.empty() ? "" : "; do: " + finding.remedy)) +
            "\n";
  }
  return text + conclusion(findings);
}

std::string as_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"name", finding.name},
                                {"level", word(finding.level)},
                                {"fact", finding.fact},
                                {"remedy", finding.remedy}});
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<Exit> doctor(const DoctorCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  std::vector<Finding> findings =
      examine_machine({.root = command.root,
                       .source = command.source,
                       .memory = open_options(command.common).use.memory,
                       .memory_was_given = !command.common.memory_auto,
                       .is_root = ::geteuid() == 0});
  if (!command.source.empty()) {
    const Result<Checkpoint> opened = open_source(command.source, command.common);
    findings.push_back({.name = "checkpoint",
                        .level = opened ? Finding::Level::Ok : Finding::Level::Broken,
                        .fact = opened ? "can be opened" : opened.error().message(),
                        .remedy = opened ? "" : "ckfs inspect " + shown_source(command.source)});
  }
  CKFS_TRY_VOID(print(command.json ? as_json(findings) : as_text(findings)));
  const bool broken = std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.level == Finding::Level::Broken; });
  return broken ? Exit::Failed : Exit::Done;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto command = std::make_shared<DoctorCommand>();
  CLI::App* verb = app.add_subcommand("doctor", "check this machine for problems");
  verb->add_option("SRC", command->source, "also check that this checkpoint can be opened");
  verb->add_flag("--json", command->json, "print JSON");
  verb->add_option("--root", command->root, "in the place of /; for tests")->group("");
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] { action = [command] { return doctor(*command); }; });
}

}  // namespace ckfs::cli
