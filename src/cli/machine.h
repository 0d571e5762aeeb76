// What of this machine keeps ckfs from mounting fast, or at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckfs::cli {

struct Finding {
  enum class Level : std::uint8_t {
    Ok,
    Slow,    // ckfs works, but could do more
    Warn,    // ckfs works, and something went wrong
    Broken,  // ckfs cannot mount, a mount cannot be read, or ckfs will be killed
  };

  std::string name;  // "device", "io_uring"
  Level level = Level::Ok;
  std::string fact{};    // one line
  std::string remedy{};  // what mends it, mostly a command; empty: nothing has to be done
};

struct MachineOptions {
  std::string root;          // in the place of "/", for tests: nothing is mounted then
  std::string source;        // a checkpoint whose filesystem is looked at; empty: none
  std::uint64_t memory = 0;  // what --memory would be
  bool memory_was_given = false;
  bool is_root = false;  // the caller mounts without fusermount3
};

/// In the order in which a person would look. Mounts a small checkpoint, and unmounts it.
std::vector<Finding> examine_machine(const MachineOptions& options);

}  // namespace ckfs::cli
