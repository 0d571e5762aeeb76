// How much memory this process may have, as its control group says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ckfs {

/// The least limit of the control groups that this process is in, of version 1 or 2; nullopt: they
/// set none below the machine's memory. `root` is in the place of "/", for tests.
std::optional<std::uint64_t> group_memory_limit(const std::string& root = "");

/// Bytes of the machine's memory, as /proc/meminfo says; 0: not known.
std::uint64_t machine_memory(const std::string& root = "");

}  // namespace ckfs
