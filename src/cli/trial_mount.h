// A mount in earnest: whether this user can mount here is known when it has been done.
#pragma once

#include <chrono>
#include <string>

namespace ckfs::cli {

struct Trial {
  bool works = false;
  std::string fact;  // how long it took, or why it failed; one line
};

/// Mounts a checkpoint of one tensor in a private directory below $TMPDIR (else /tmp), reads a
/// converted view of it, compares the bytes, and unmounts. Leaves nothing behind. Ends within twice
/// `patience`, whatever hangs.
Trial try_mount(std::chrono::milliseconds patience = std::chrono::seconds(20));

}  // namespace ckfs::cli
