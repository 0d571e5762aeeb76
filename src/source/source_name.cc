// People know a model by its name on the hub, and the directory that a download made of it by
// nothing: its name is `models--org--name/snapshots/COMMIT`, below a directory that four variables
// may move. So a name is looked up there.
//
// A path wins over a name of the same spelling, because the user sees the files of the working
// directory. Only a path that is absent is taken for a name, so a path that cannot be looked at
// keeps its error.
#include "source/source_name.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHub = "hf://";

/// A model of the hub, and the revision that is asked for; empty: the current one.
struct HubName {
  std::string repository;  // "org/name"
  std::string revision;
};

bool is_name(std::string_view text) {
  return !text.empty() && !text.starts_with('.') && !text.starts_with('-') &&
         text.find("--") == std::string_view::npos && std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '.' ||
                  c == '_' || c == '-';
         });
}

/// Of names and of revisions, which may have a '/' ("refs/pr/1"): nothing that leads out of the
/// cache.
bool is_revision(std::string_view text) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (part.empty() || part.starts_with('.') || one_line(part) != part) return false;
    begin = end + 1;
  }
  return true;
}

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  const std::size_t at = text.find('@');
  if (at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_name(text.substr(0, slash)) ||
      !is_name(text.substr(slash + 1))) {
    return std::nullopt;
  }
  name.repository = text;
  return name;
}

/// "s3" of "s3://bucket/model"; empty: `text` is not a URL.
std::string_view scheme_of(std::string_view text) {
  const std::size_t end = text.find("://");
  if (end == std::string_view::npos || end == 0) return {};
  const std::string_view scheme = text.substr(0, end);
  const bool is_scheme = std::ranges::all_of(scheme, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '+' ||
           c == '-' || c == '.';
  });
  return is_scheme ? scheme : std::string_view();
}

std::string download_of(const HubName& name) {
  return name.revision.empty()
             ? fmt::format("hf download {}", name.repository)
             : fmt::format("hf download {} --revision {}", name.repository, name.revision);
}

/// What to do with a URL that no fetcher is asked for (api/open_prepared.h).
Failure refuse_url(std::string_view url) {
  constexpr std::string_view kHubSite = "https://huggingface.co/";
  const std::string shown = one_line(url);
  const std::string_view scheme = scheme_of(url);
  std::string remedy;
  if (scheme == "hf") {
    remedy = "download it with: hf download ORG/NAME; then name it so: ckfs inspect ORG/NAME";
  } else if (url.starts_with(kHubSite)) {
    std::string_view rest = url.substr(kHubSite.size());
    const std::size_t second = rest.find('/', std::min(rest.find('/'), rest.size() - 1) + 1);
    const auto name = parse_hub_name(rest.substr(0, second));
    const std::string repository = name ? name->repository : "ORG/NAME";
    remedy = fmt::format("download it with: hf download {0}; then name it so: ckfs inspect {0}",
                         repository);
  } else if (scheme == "s3") {
    remedy = fmt::format("copy it with: aws s3 sync {} DIR", shown);
  } else if (scheme == "gs") {
    remedy = fmt::format("copy it with: gcloud storage rsync -r {} DIR", shown);
  } else {
    remedy = "download it first";
  }
  const bool is_store = scheme != "hf" && !url.starts_with(kHubSite);
  constexpr std::array<std::string_view, 5> kRead = {"hf", "s3", "gs", "http", "https"};
  const bool is_read = std::ranges::find(kRead, scheme) != kRead.end();
  return fail(
      ErrorCode::InvalidArgument, "{}: {}{}{}", shown,
      is_read ? "on another machine, and ckfs-fetcher is not installed (package ckfs-remote); "
                "install it, or "
              : "not a location that ckfs reads (hf://, https://, s3://, gs://); ",
      remedy,
      is_store ? ", or mount its store with rclone mount and give ckfs that directory" : "");
}

/// `value` with "~" for the user's home, as huggingface_hub expands it.
fs::path expanded(std::string_view value, const Variable& variable) {
  if (value != "~" && !value.starts_with("~/")) return value;
  const char* const home = variable("HOME");
  return home == nullptr ? fs::path(value)
                         : fs::path(std::string(home) + std::string(value.substr(1)));
}

/// The commit that refs/REVISION names; empty: there is no such file.
std::string commit_of(SourceStore& store, const fs::path& repository, const std::string& revision) {
  constexpr std::size_t kLongest = 256;
  const std::vector<std::byte> bytes = store.first_bytes(repository / "refs" / revision, kLongest);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::string commit(trim(text));
  return is_revision(commit) && commit.find('/') == std::string::npos ? commit : std::string();
}

/// The snapshot of a revision in a repository that is there.
Result<fs::path> find_snapshot(const HubName& name, const fs::path& repository,
                               SourceStore& store) {
  const fs::path snapshots = repository / "snapshots";
  std::string commit = commit_of(store, repository, name.revision);
  if (commit.empty()) commit = name.revision;
  std::vector<std::string> found;
  const auto listed = store.list(snapshots);
  if (!listed && !is_absent(listed.error())) {
    return system_failure(listed.error(), snapshots.string(), "cannot list");
  }
  for (const StoreEntry& entry : listed ? *listed : std::vector<StoreEntry>()) {
    if (entry.name == commit) return snapshots / commit;
    if (entry.name.starts_with(commit)) found.push_back(entry.name);
  }
  if (found.size() == 1) return snapshots / found.front();
  if (found.size() > 1) {
    return fail(ErrorCode::Unsupported, "{}@{}: {} snapshots begin so: {} and others",
                name.repository, name.revision, found.size(), one_line(found.front()));
  }
  return fail(ErrorCode::NotFound,
              "{}@{}: no such revision in the hub's cache ({}); download it with: {}",
              name.repository, name.revision, repository.string(), download_of(name));
}

Result<fs::path> find_in_cache(const HubName& name, std::string_view source, SourceStore& store,
                               const Variable& variable) {
  const fs::path hub = hub_cache_directory(variable);
  std::string folder = "models--" + name.repository;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repository = hub / folder;
  const auto status =
      hub.empty() ? Tried<FileStatus>(tl::make_unexpected(ENOENT)) : store.look(repository);
  if (!status && !is_absent(status.error())) {
    return system_failure(status.error(), repository.string(), "cannot open");
  }
  if (!status) {
    return fail(ErrorCode::NotFound, "{}: {}not in the hub's cache ({}); {}download it with: {}",
                one_line(source), source.starts_with(kHub) ? "" : "no such file or directory, and ",
                hub.empty() ? std::string("neither HF_HOME nor HOME says where that is")
                            : repository.string() + " is absent",
                source.starts_with(kHub)
                    ? "the hub is asked where the package ckfs-remote is installed and neither "
                      "--offline nor HF_HUB_OFFLINE says no; or "
                    : fmt::format("ask the hub with: ckfs inspect hf://{}; or ", source),
                download_of(name));
  }
  if (name.revision.empty()) return repository;
  return find_snapshot(name, repository, store);
}

}  // namespace

fs::path hub_cache_directory(const Variable& variable) {
  const auto value = [&](const char* name) -> std::optional<fs::path> {
    const char* const text = variable(name);
    if (text == nullptr || *text == '\0') return std::nullopt;
    return expanded(text, variable);
  };
  if (const auto hub = value("HF_HUB_CACHE")) return *hub;
  if (const auto hub = value("HUGGINGFACE_HUB_CACHE")) return *hub;
  if (const auto home = value("HF_HOME")) return *home / "hub";
  if (const auto cache = value("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  if (const auto home = value("HOME")) return *home / ".cache" / "huggingface" / "hub";
  return {};
}

Result<fs::path> find_source(const fs::path& source, SourceStore& store, const Variable& variable) {
  const auto status = store.look(source);
  if (status || !is_absent(status.error())) return source;
  std::string_view text = source.native();
  const bool is_hub_url = text.starts_with(kHub);
  if (is_hub_url) text.remove_prefix(kHub.size());
  if (const auto name = parse_hub_name(text)) {
    return find_in_cache(*name, source.native(), store, variable);
  }
  if (!scheme_of(source.native()).empty()) return refuse_url(source.native());
  return fail(ErrorCode::NotFound, "{}: no such file or directory", source.string());
}

}  // namespace ckfs
