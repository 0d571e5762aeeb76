// `ckfs ls`: the tree of a mount, without a mount.
#include <ckfs/report.h>

#include "cli/cli.h"
#include "cli/log.h"

namespace ckfs::cli {

namespace {

struct LsCommand {
  CommonOptions common;
  std::string source;
  std::string where;
  bool detail = false;
  bool json = false;
};

Result<void> ls(const LsCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  CKFS_TRY(const Checkpoint checkpoint, open_source(command.source, command.common));
  CKFS_TRY(
      const std::string text,
      list_report(checkpoint, command.where, command.detail ? ListDetail::Long : ListDetail::Names,
                  command.json ? ReportFormat::Json : ReportFormat::Text));
  return print(text);
}

}  // namespace

void add_ls(CLI::App& app, Action& action) {
  auto command = std::make_shared<LsCommand>();
  CLI::App* verb = app.add_subcommand("ls", "list views, or the files of a view");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option("VIEW", command->where,
                   "view, or path in a view as VIEW/PATH (default: all views)");
  verb->add_flag("-l", command->detail, "show sizes and exactness, too");
  verb->add_flag("--json", command->json, "print JSON");
  add_common(*verb, command->common, Tuning::No);
  verb->callback([command, &action] { action = [command] { return ls(*command); }; });
}

}  // namespace ckfs::cli
