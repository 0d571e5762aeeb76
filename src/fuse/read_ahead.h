// How far the kernel reads ahead in this mount.
#pragma once

#include <filesystem>
#include <sys/types.h>

namespace ckfs {

/// Raises read_ahead_kb of the mount with that st_dev to 1024, where permitted; one line in the log
/// names the command to run where it is not. Never lowers it.
void raise_read_ahead(dev_t device, const std::filesystem::path& target);

}  // namespace ckfs
