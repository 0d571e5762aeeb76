// `ckfs cat`: bytes of one file of a view, to stdout.
#include <algorithm>

#include "base/units.h"
#include "cli/cli.h"
#include "cli/log.h"

namespace ckfs::cli {

namespace {

constexpr std::uint64_t kAll = ~std::uint64_t{0};

struct CatCommand {
  CommonOptions common;
  std::string source;
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = kAll;
};

Result<void> cat(const CatCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  const std::size_t slash = command.file.find('/');
  CKFS_TRY(const Checkpoint checkpoint, open_source(command.source, command.common));
  CKFS_TRY(const View view, checkpoint.view(command.file.substr(0, slash)));
  CKFS_TRY(ViewFile file, view.open(command.file.substr(slash + 1),
                                    {.whole = command.length == kAll, .once = true}));

  const std::uint64_t size = file.info().size;
  const std::uint64_t begin = std::min(command.offset, size);
  const std::uint64_t end = begin + std::min(command.length, size - begin);
  for (std::uint64_t at = begin; at < end;) {
    CKFS_TRY(const Bytes bytes, file.read(at, std::min(1_MiB, end - at)));
    CKFS_TRY(const bool more, write_stdout(bytes.span()));
    if (!more) break;
    at += bytes.size();
  }
  return {};
}

void add_number(CLI::App& verb, const std::string& flag, std::uint64_t& number,
                const std::string& text) {
  verb.add_option_function<std::string>(
          flag,
          [&number, flag](const std::string& value) {
            const Result<std::uint64_t> parsed = parse_number(flag, value);
            if (!parsed) throw CLI::ValidationError(parsed.error().message());
            number = *parsed;
          },
          text)
      ->type_name("N");
}

}  // namespace

void add_cat(CLI::App& app, Action& action) {
  auto command = std::make_shared<CatCommand>();
  CLI::App* verb = app.add_subcommand("cat", "print bytes of a view's file");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option("FILE", command->file, "file of a view, as VIEW/PATH")
      ->required()
      ->check(
          [](const std::string& file) {
            return file.find('/') == std::string::npos ? file + ": not of the form VIEW/PATH" : "";
          },
          "");
  add_number(*verb, "--offset", command->offset, "first byte to print (default 0)");
  add_number(*verb, "--length", command->length,
             "number of bytes to print (default: up to the end)");
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] { action = [command] { return cat(*command); }; });
}

}  // namespace ckfs::cli
