// No single sign is in every container: managers that follow systemd's rules write a file or a
// variable of process 1, Docker and podman leave an empty file, and older ones are seen in the name
// of a control group alone.
#include "cli/container.h"

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace ckfs::cli {

namespace {

std::string whole_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

/// A manager's name as container_kind() gives it.
std::string known(std::string_view name) {
  for (const std::string_view kind : {"docker", "podman", "lxc"}) {
    if (name.starts_with(kind)) return std::string(kind);
  }
  return "container";
}

}  // namespace

std::string container_kind(const std::string& root) {
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr) return "kubernetes";
  if (std::getenv("APPTAINER_CONTAINER") != nullptr ||
      std::getenv("SINGULARITY_CONTAINER") != nullptr || is_there(root + "/.singularity.d")) {
    return "apptainer";
  }
  for (const char* path : {"/run/host/container-manager", "/run/systemd/container"}) {
    const std::string text = whole_text(root + path);
    if (const std::string_view name = trim(text); !name.empty()) return known(name);
  }
  // Variables of process 1, which only its user may read.
  const std::string variables = std::string(1, '\0') + whole_text(root + "/proc/1/environ");
  constexpr std::string_view kVariable("\0container=", 11);
  if (const std::size_t at = variables.find(kVariable); at != std::string::npos) {
    return known(variables.c_str() + at + kVariable.size());
  }
  if (is_there(root + "/run/.containerenv")) return "podman";
  if (is_there(root + "/.dockerenv")) return "docker";
  constexpr std::array kGroups{
      std::pair{"kubepods", "kubernetes"},  std::pair{"docker", "docker"},
      std::pair{"libpod", "podman"},        std::pair{"lxc", "lxc"},
      std::pair{"containerd", "container"}, std::pair{"crio", "container"}};
  const std::string groups = whole_text(root + "/proc/1/cgroup");
  for (const auto& [sign, kind] : kGroups) {
    if (groups.find(sign) != std::string::npos) return kind;
  }
  return {};
}

std::string container_remedy(const std::string& kind) {
  if (kind == "docker") {
    return "start the container with --device /dev/fuse --cap-add SYS_ADMIN "
           "--security-opt apparmor=unconfined";
  }
  if (kind == "kubernetes") {
    return "give the container `securityContext: {privileged: true}`, as "
           "share/ckfs/kubernetes/loader-pod.yaml does";
  }
  if (kind == "lxc") {
    return "add to the container's configuration: lxc.mount.entry = /dev/fuse dev/fuse none "
           "bind,create=file 0 0";
  }
  if (kind == "apptainer") {
    return "mount on the host, and start the container with --bind MNT";
  }
  return "start the container with --device /dev/fuse --cap-add SYS_ADMIN";
}

}  // namespace ckfs::cli
