// `ckfs inspect`: what a checkpoint is, which views it can give, which not and why; and what a view
// is made of.
#include <ckfs/report.h>

#include "cli/cli.h"
#include "cli/log.h"

namespace ckfs::cli {

namespace {

struct InspectCommand {
  CommonOptions common;
  std::string source;
  std::string view;
  bool json = false;
  bool all = false;
};

Result<void> inspect(const InspectCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  CKFS_TRY(const Checkpoint checkpoint, open_source(command.source, command.common));
  const ReportFormat format = command.json ? ReportFormat::Json : ReportFormat::Text;
  if (command.view.empty()) {
    return print(inspect_report(checkpoint, shown_source(command.source), format,
                                command.all ? InspectDetail::All : InspectDetail::Brief));
  }
  CKFS_TRY(const std::string report, view_report(checkpoint, command.view, format));
  return print(report);
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto command = std::make_shared<InspectCommand>();
  CLI::App* verb =
      app.add_subcommand("inspect", "show what a checkpoint is and which views it has");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option("--view", command->view,
                   "show every tensor of this view, with the source's tensors that it is made of")
      ->type_name("VIEW");
  verb->add_flag("-a,--all", command->all, "say why views are not available");
  verb->add_flag("--json", command->json, "print JSON");
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] { action = [command] { return inspect(*command); }; });
}

}  // namespace ckfs::cli
