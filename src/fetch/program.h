// Where the program ckfs-fetcher is.
#pragma once

#include <optional>
#include <string>

namespace ckfs {

/// The path of ckfs-fetcher: the one that the variable CKFS_FETCHER names; else the one beside the
/// running program, or where an installation beside it, or of this build, keeps it. nullopt: there
/// is none (the package ckfs-remote is not installed).
std::optional<std::string> find_fetcher();

/// Takes the credentials that variables have out of this process's environment, and overwrites
/// them: for a daemon whose fetcher was started with them. Requires: there is one thread.
void forget_credentials();

}  // namespace ckfs
