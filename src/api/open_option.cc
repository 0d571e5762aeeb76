#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

#include <ckfs/open_option.h>

#include "base/memory_limit.h"
#include "base/read_text.h"
#include "base/size_text.h"
#include "base/units.h"
#include "view/recipes/recipe.h"

namespace ckfs {

namespace {

constexpr std::uint64_t kLeastMemory = 64_MiB;
constexpr std::uint64_t kMaxThreads = 1024;
constexpr std::uint64_t kMinSpill = 4_KiB;
constexpr std::uint64_t kMinCache = 64_MiB;
constexpr std::uint64_t kMaxConnections = 1024;
constexpr std::uint64_t kMaxTimeout = 86'400;  // a day

Result<unsigned> parse_within(const std::string& name, const std::string& value,
                              std::uint64_t most) {
  CKFS_TRY(const std::uint64_t number, parse_number(name, value));
  if (number == 0 || number > most) {
    return fail(ErrorCode::InvalidArgument, "{}: {} is out of range (1 to {})", name, number, most);
  }
  return static_cast<unsigned>(number);
}

Result<bool> parse_flag(const std::string& name, const std::string& value) {
  if (value == "1" || value == "0") return value == "1";
  return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is neither 1 nor 0", name, value);
}

Result<IoEngine> parse_io(const std::string& name, const std::string& value) {
  if (value == "auto") return IoEngine::Auto;
  if (value == "uring") return IoEngine::Uring;
  if (value == "pread") return IoEngine::Pread;
  return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is not one of auto, uring, pread", name,
              value);
}

}  // namespace

std::uint64_t automatic_memory() {
  const std::optional<std::uint64_t> limit = group_memory_limit();
  return limit ? std::max(kLeastMemory, *limit / 4) : Resources().memory;
}

Result<bool> set_open_option(OpenOptions& options, const std::string& name,
                             const std::string& value) {
  constexpr std::string_view kTexts[] = {"tag",         "key",      "item",  "config",
                                         "recipe",      "family",   "spill", "endpoint_url",
                                         "header_file", "cache_dir"};
  if (value.empty() && std::ranges::find(kTexts, name) != std::end(kTexts)) {
    return fail(ErrorCode::InvalidArgument, "{}: is empty", name);
  }
  if (name == "tag") {
    options.choose.tag = value;
  } else if (name == "key") {
    options.choose.key = value;
  } else if (name == "item") {
    options.choose.item = value;
  } else if (name == "step") {
    CKFS_TRY(options.choose.step, parse_number(name, value));
  } else if (name == "config") {
    options.choose.config = value;
  } else if (name == "recipe") {
    // Read here and not where the checkpoint is opened: a daemon's directory is another.
    CKFS_TRY(std::string text, read_text_file(value, kMaxRecipe));
    options.choose.recipes.push_back({value, std::move(text)});
  } else if (name == "family") {
    options.choose.family = value;
  } else if (name == "strict") {
    CKFS_TRY(options.choose.strict, parse_flag(name, value));
  } else if (name == "memory") {
    if (value == "auto") {
      options.use.memory = automatic_memory();
    } else {
      CKFS_TRY(options.use.memory, parse_bytes(name, value, kLeastMemory));
    }
  } else if (name == "spill") {
    options.use.spill = value;
  } else if (name == "spill_size") {
    CKFS_TRY(options.use.spill_size, parse_bytes(name, value, kMinSpill));
  } else if (name == "threads") {
    CKFS_TRY(const std::uint64_t threads, parse_number(name, value));
    if (threads > kMaxThreads) {
      return fail(ErrorCode::InvalidArgument, "threads: {} are too many (at most {})", threads,
                  kMaxThreads);
    }
    options.use.threads = static_cast<unsigned>(threads);
  } else if (name == "io") {
    CKFS_TRY(options.use.io, parse_io(name, value));
  } else if (name == "endpoint_url") {
    options.choose.server.endpoint_url = value;
  } else if (name == "header_file") {
    options.choose.server.header_file = value;
  } else if (name == "cache_dir") {
    options.use.cache_dir = value;
  } else if (name == "cache_size") {
    options.use.cache_size = 0;
    if (value != "0") {
      CKFS_TRY(options.use.cache_size, parse_bytes(name, value, kMinCache));
    }
  } else if (name == "connections") {
    CKFS_TRY(options.use.connections, parse_within(name, value, kMaxConnections));
  } else if (name == "timeout") {
    CKFS_TRY(options.use.timeout, parse_within(name, value, kMaxTimeout));
  } else if (name == "anonymous") {
    CKFS_TRY(options.choose.server.anonymous, parse_flag(name, value));
  } else if (name == "requester_pays") {
    CKFS_TRY(options.choose.server.requester_pays, parse_flag(name, value));
  } else if (name == "offline") {
    CKFS_TRY(options.choose.server.offline, parse_flag(name, value));
  } else {
    return false;
  }
  return true;
}

}  // namespace ckfs
