// `ckfs cache`: lists, clears or fills the disk cache of sources on other machines. Bytes that are
// removed are fetched again when they are read, so no question is asked before.
#include <algorithm>
#include <nlohmann/json.hpp>

#include <ckfs/check.h>

#include "api/open_prepared.h"
#include "base/size_text.h"
#include "base/text.h"
#include "cache/cached_listing.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/progress.h"
#include "cli/running.h"

namespace ckfs::cli {

namespace {

constexpr int kCacheVersion = 1;

struct CacheCommand {
  CommonOptions common;
  std::string what;    // "ls", "clear" or "warm"
  std::string source;  // empty: all
  std::string view;    // of "warm"; empty: the source's files as they are
  bool json = false;
  ProgressOptions progress;
};

/// The sources of the cache that `wanted` names: by the name that `ckfs cache ls` prints, or by a
/// location, whatever the address of its service. All of them where it is empty.
Result<std::vector<CachedSource>> sources_named(const std::string& wanted,
                                                std::vector<CachedSource> sources) {
  if (wanted.empty()) return sources;
  const bool is_name = std::ranges::find(sources, wanted, &CachedSource::name) != sources.end();
  std::string name = wanted;
  if (!is_name) {
    CKFS_TRY(const SourceLocation location, parse_location(wanted));
    const auto kept_as = cache_name(location, "");
    if (!kept_as) {
      return fail(ErrorCode::InvalidArgument, "{}: a location with secrets is not kept",
                  location.masked());
    }
    name = *kept_as;
    if (location.service == RemoteService::Hub && wanted.find('@') != std::string::npos) {
      return fail(ErrorCode::InvalidArgument,
                  "{}: all revisions of a model are kept together (name it {})", wanted, name);
    }
  }
  std::erase_if(sources, [&](const CachedSource& source) {
    return source.name != name && (is_name || !source.name.starts_with(name + " at "));
  });
  if (sources.empty()) {
    return fail(ErrorCode::NotFound, "{}: the cache has nothing of it (see ckfs cache ls)", name);
  }
  return sources;
}

Result<void> list_sources(const CacheCommand& command, const std::filesystem::path& directory,
                          const std::vector<CachedSource>& sources) {
  if (command.json) {
    nlohmann::ordered_json json;
    json["version"] = kCacheVersion;
    json["directory"] = directory.native();
    json["sources"] = nlohmann::ordered_json::array();
    for (const CachedSource& source : sources) {
      json["sources"].push_back(
          {{"source", source.name}, {"bytes", source.bytes}, {"used", source.used}});
    }
    return print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  }
  std::string text;
  for (const CachedSource& source : sources) {
    text += fmt::format("{:>10}  {}\n", human_size(source.bytes), one_line(source.name));
  }
  return print(text);
}

Result<void> clear_sources(BlockCache& cache, const std::vector<CachedSource>& sources) {
  std::uint64_t freed = 0;
  for (const CachedSource& source : sources) {
    const Result<std::uint64_t> cleared = cache.clear(source.name);
    // Another process may have cleared it since it was listed.
    if (!cleared && cleared.error().code() == ErrorCode::NotFound) continue;
    if (!cleared) return Failure(cleared.error());
    freed += *cleared;
  }
  return print(fmt::format("removed {}\n", human_size(freed)));
}

Result<void> list_or_clear(const CacheCommand& command) {
  std::filesystem::path directory;
  if (const auto& named = command.common.open.use.cache_dir) {
    directory = *named;
  } else {
    CKFS_TRY(directory, default_cache_directory());
  }
  auto opened = BlockCache::open(directory, {.missing = CacheOptions::Missing::Fail});
  // One that does not exist is one with nothing in it.
  const bool is_missing = !opened && opened.error().code() == ErrorCode::NotFound;
  if (!opened && !is_missing) return Failure(std::move(opened).error());
  CKFS_TRY(
      const std::vector<CachedSource> sources,
      sources_named(command.source, is_missing ? std::vector<CachedSource>() : (*opened)->list()));
  if (command.what == "ls") return list_sources(command, directory, sources);
  if (is_missing) return print("removed 0 B\n");
  return clear_sources(**opened, sources);
}

/// Reads a view as a whole, so that the cache has all source bytes that it is made of.
Result<void> warm(CacheCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  const SignalWatch signals;
  const std::string shown = shown_source(command.source);
  OpenOptions options = open_options(command.common);
  if (options.use.cache_size == 0) {
    return fail(ErrorCode::InvalidArgument, "cache_size: 0 keeps nothing");
  }
  CKFS_TRY(const SourceLocation location, parse_location(command.source));
  if (!cache_name(location, "")) {
    return fail(ErrorCode::InvalidArgument, "{}: a location with secrets is not kept", shown);
  }
  // A directory that cannot be used is an error here, whether it was named or not.
  if (!options.use.cache_dir) {
    CKFS_TRY(options.use.cache_dir, default_cache_directory());
  }
  options.use.fill_cache = true;
  CKFS_TRY(const Checkpoint checkpoint, Checkpoint::open(command.source, options));
  CKFS_TRY(const View view, checkpoint.view(command.view.empty() ? "source" : command.view));
  std::uint64_t bytes = 0;
  for (const FileInfo& file : view.files()) bytes += file.size;
  if (command.view.empty() && bytes > options.use.cache_size) {
    return fail(ErrorCode::InvalidArgument,
                "{}: {} do not fit into a cache of {} (--cache-size; or name a VIEW that needs "
                "less)",
                shown, human_size(bytes), size_text(options.use.cache_size));
  }
  say_what_is_fetched(command.progress, view, command.source);
  Progress progress(command.progress, "cache warm");
  const DigestOptions check{
      .algorithms = {Algorithm::Crc32c},
      .jobs = options.use.threads,
      .stop = signals.token(),
      .progress = [&](std::uint64_t done, std::uint64_t total) { progress.show(done, total); }};
  const Result<DigestResult> read = digest_view(view, check);
  progress.end();
  if (!read && read.error().code() == ErrorCode::Stopped) {
    return interrupted(shown, progress, "the same command continues from there");
  }
  if (!read) return Failure(read.error());
  finish_cache(checkpoint);
  const RemoteStatistics done = checkpoint.statistics().remote.value_or(RemoteStatistics{});
  if (done.cache_left_out > 0 || done.cache_evicted > 0) {
    return fail(ErrorCode::Io,
                "{}: {} could not be kept, and {} made room for others: the cache, or its disk, is "
                "full (--cache-size, --cache-dir)",
                shown, human_size(done.cache_left_out), human_size(done.cache_evicted));
  }
  return print(one_line(fmt::format("{}: {} fetched, {} were there", shown,
                                    human_size(done.cache_kept), human_size(done.cache_found))) +
               "\n");
}

}  // namespace

void add_cache(CLI::App& app, Action& action) {
  auto command = std::make_shared<CacheCommand>();
  CLI::App* verb =
      app.add_subcommand("cache", "list, clear or fill the disk cache of sources elsewhere");
  verb->add_option_function<std::string>(
          "WHAT",
          [command](const std::string& value) {
            if (value != "ls" && value != "clear" && value != "warm") {
              throw CLI::ValidationError(
                  fmt::format("WHAT: \"{}\" is not one of ls, clear, warm", one_line(value)));
            }
            command->what = value;
          },
          "ls: what is kept of each source; clear: remove it, also while a mount uses it; warm: "
          "fetch what is missing")
      ->type_name("ls|clear|warm")
      ->required();
  verb->add_option("SOURCE", command->source, "only of this source, such as hf://ORG/NAME");
  verb->add_option("VIEW", command->view,
                   "warm: what this view is made of (default: all of the source)");
  verb->add_flag("--json", command->json, "ls: print JSON");
  add_progress(*verb, command->progress);
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] {
    if (command->json && command->what != "ls") throw CLI::ValidationError("--json is for ls");
    if (command->what == "warm" && command->source.empty()) {
      throw CLI::ValidationError("warm: SOURCE is missing");
    }
    if (command->what != "warm" && !command->view.empty()) {
      throw CLI::ValidationError("VIEW is for warm");
    }
    action = [command] {
      return command->what == "warm" ? warm(*command) : list_or_clear(*command);
    };
  });
}

}  // namespace ckfs::cli
