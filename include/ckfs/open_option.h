// OpenOptions by name and text, as users write them: on the command line (`--memory 1GiB`,
// `-o memory=1GiB`), in variables, and through the C library. One parser, so the spellings never
// differ.
#pragma once

#include <cstdint>
#include <string>

#include <ckfs/checkpoint.h>
#include <ckfs/error.h>

namespace ckfs {

/// What "memory=auto" is here: a quarter of what the control group gives, if it sets a limit, but
/// 64 MiB at least; else 1 GiB.
std::uint64_t automatic_memory();

/// Sets one of "tag", "key", "item", "step", "config", "recipe" (a file, one more), "family",
/// "strict", "memory", "spill", "spill_size", "io", "threads", "endpoint_url", "header_file",
/// "connections", "timeout", "cache_dir", "cache_size"; of "anonymous", "requester_pays", "offline"
/// the value is "1" or "0". False: there is no such option. Errors: InvalidArgument (the value),
/// those of reading a recipe.
Result<bool> set_open_option(OpenOptions& options, const std::string& name,
                             const std::string& value);

}  // namespace ckfs
