// What of a file is compared to tell whether it is still the one that was opened. Pure functions;
// the system calls are source_files.cc's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/stat.h>

#include "io/source_files.h"

namespace ckfs {

Fingerprint fingerprint_of(const struct stat& status);

enum class CompareInodes : std::uint8_t { Off, On };

/// The first difference in words ("size 10, was 20"); nullopt: the same version of the same file.
std::optional<std::string> difference(const Fingerprint& recorded, const Fingerprint& now,
                                      CompareInodes inodes);

}  // namespace ckfs
