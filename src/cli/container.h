// Which kind of container this process is in, by the signs that systemd-detect-virt looks for.
#pragma once

#include <string>

namespace ckfs::cli {

/// "docker", "podman", "kubernetes", "lxc", "apptainer"; "container": one of another kind; empty: a
/// host. Files are looked for below `root`.
std::string container_kind(const std::string& root);

/// What lets a program mount a FUSE file system in such a container. Requires: `kind` is not empty.
std::string container_remedy(const std::string& kind);

}  // namespace ckfs::cli
