#include "api/open_option.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/memory_limit.h"
#include "base/read_text.h"
#include "base/size_text.h"
#include "base/units.h"
#include "view/recipes/recipe.h"

namespace ckfs {

namespace {

constexpr std::uint64_t kLeastMemory = 64_MiB;
constexpr std::uint64_t kMaxThreads = 1024;
constexpr std::uint64_t kMinTile = 4_KiB;
constexpr std::uint64_t kMinCache = 64_MiB;
constexpr std::uint64_t kMaxConnections = 1024;
constexpr std::uint64_t kMaxTimeout = 86'400;  // a day

Result<std::uint64_t> parse_bytes(const std::string& name, const std::string& value,
                                  std::uint64_t least) {
  const Result<std::uint64_t> size = parse_size(value);
  if (!size) {
    return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is not a size (such as 4096, 512MiB, 2GB)",
                name, value);
  }
  if (*size < least) {
    return fail(ErrorCode::InvalidArgument, "{}: {} is too little (at least {})", name,
                size_text(*size), size_text(least));
  }
  return *size;
}

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
  return limit ? std::max(kLeastMemory, *limit / 4) : OpenOptions().memory;
}

Result<std::uint64_t> parse_number(const std::string& thing, const std::string& text) {
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
    return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is not a whole number (0 to 2^64 - 1)",
                thing, text);
  }
  return number;
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
    options.tag = value;
  } else if (name == "key") {
    options.key = value;
  } else if (name == "item") {
    options.item = value;
  } else if (name == "step") {
    CKFS_TRY(options.step, parse_number(name, value));
  } else if (name == "config") {
    options.config = value;
  } else if (name == "recipe") {
    // Read here and not where the checkpoint is opened: a daemon's directory is another.
    CKFS_TRY(std::string text, read_text_file(value, kMaxRecipe));
    options.recipes.push_back({value, std::move(text)});
  } else if (name == "family") {
    options.family = value;
  } else if (name == "strict") {
    CKFS_TRY(options.strict, parse_flag(name, value));
  } else if (name == "memory") {
    if (value == "auto") {
      options.memory = automatic_memory();
    } else {
      CKFS_TRY(options.memory, parse_bytes(name, value, kLeastMemory));
    }
  } else if (name == "spill") {
    options.spill = value;
  } else if (name == "spill_size") {
    CKFS_TRY(options.spill_size, parse_bytes(name, value, kMinTile));
  } else if (name == "tile_bytes") {
    CKFS_TRY(options.tile_bytes, parse_bytes(name, value, kMinTile));
  } else if (name == "threads") {
    CKFS_TRY(const std::uint64_t threads, parse_number(name, value));
    if (threads > kMaxThreads) {
      return fail(ErrorCode::InvalidArgument, "threads: {} are too many (at most {})", threads,
                  kMaxThreads);
    }
    options.threads = static_cast<unsigned>(threads);
  } else if (name == "io") {
    CKFS_TRY(options.io, parse_io(name, value));
  } else if (name == "endpoint_url") {
    options.remote.endpoint_url = value;
  } else if (name == "header_file") {
    options.remote.header_file = value;
  } else if (name == "cache_dir") {
    options.remote.cache_dir = value;
  } else if (name == "cache_size") {
    options.remote.cache_size = 0;
    if (value != "0") {
      CKFS_TRY(options.remote.cache_size, parse_bytes(name, value, kMinCache));
    }
  } else if (name == "connections") {
    CKFS_TRY(options.remote.connections, parse_within(name, value, kMaxConnections));
  } else if (name == "timeout") {
    CKFS_TRY(options.remote.timeout, parse_within(name, value, kMaxTimeout));
  } else if (name == "anonymous") {
    CKFS_TRY(options.remote.anonymous, parse_flag(name, value));
  } else if (name == "requester_pays") {
    CKFS_TRY(options.remote.requester_pays, parse_flag(name, value));
  } else if (name == "offline") {
    CKFS_TRY(options.remote.offline, parse_flag(name, value));
  } else {
    return false;
  }
  return true;
}

}  // namespace ckfs
