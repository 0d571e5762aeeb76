// What of this machine keeps ckfs from mounting fast, or at all: looked at, not changed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckfs::cli {

struct Finding {
  enum class Level : std::uint8_t {
    Ok,
    Slow,    // ckfs works, but could do more
    Broken,  // ckfs cannot mount, or will be killed
  };

  std::string name;  // "device", "io_uring"
  Level level = Level::Ok;
  std::string fact{};    // one line
  std::string remedy{};  // what mends it, mostly a command; empty: nothing has to be done
};

struct MachineOptions {
  std::string root;          // in the place of "/", for tests
  std::string source;        // a checkpoint whose filesystem is looked at; empty: none
  std::uint64_t memory = 0;  // what --memory would be
  bool memory_was_given = false;
  bool is_root = false;  // the caller mounts without fusermount3
};

/// In the order in which a person would look.
std::vector<Finding> examine_machine(const MachineOptions& options);

}  // namespace ckfs::cli
