// The routes of the hub that huggingface_hub asks to download a model: the files of a revision,
// their tree, and the bytes of one. A model is a view, its revision the parameters; "main" has
// none.

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "fetch/url.h"
#include "serve/object_list.h"
#include "serve/site.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::string_view kJson = "application/json";
constexpr std::size_t kFilesOfAPart = 1000;

/// Errors as huggingface_hub reads them: it looks at the header to tell a file that is missing from
/// a model that is.
Reply hub_error(int status, std::string_view code, std::string_view text) {
  const std::string line = header_text(text);
  Reply reply{.status = status,
              .headers = {{"Content-Type", std::string(kJson)}, {"X-Error-Message", line}}};
  if (!code.empty()) reply.headers.emplace_back("X-Error-Code", code);
  reply.text = fmt::format("{{\"error\":{}}}", json_name(line).value_or("\"\""));
  return reply;
}

Reply hub_error_of(const Error& error, std::string_view code) {
  const int status = status_of(error);
  return hub_error(status, status == 404 ? code : "", error.message());
}

/// The view of a model's name and a revision. Errors: those of ServedViews::find.
Result<std::shared_ptr<const ServedView>> find_revision(Site& site, std::string_view name,
                                                        std::string_view revision) {
  if (revision.empty() || revision == "main") return site.views.find(name);
  if (revision.find('=') == std::string_view::npos) {
    if (auto view = site.views.find_commit(name, revision)) return view;
    return fail(ErrorCode::NotFound,
                "{}: no revision {} (main, parameters such as max_shard=5GB, or a commit)",
                one_line(name), quote(revision));
  }
  return site.views.find(fmt::format("{}@{}", name, revision));
}

/// Takes the part of a path up to the next '/'.
std::string_view take_part(std::string_view& path) {
  const std::size_t end = std::min(path.find('/'), path.size());
  const std::string_view part = path.substr(0, end);
  path.remove_prefix(std::min(end + 1, path.size()));
  return part;
}

Reply answer_model(const Site& site, std::shared_ptr<const ServedView> view,
                   std::string_view name) {
  Reply reply{.headers = {{"Content-Type", std::string(kJson)}}};
  const std::string id = json_name(fmt::format("{}/{}", kHubOrganization, name)).value_or("\"\"");
  std::string head = fmt::format(
      R"({{"_id":"{}","id":{},"modelId":{},"sha":"{}","lastModified":"{}","private":false,)"
      R"("gated":false,"disabled":false,"downloads":0,"likes":0,"tags":[],"siblings":[)",
      view->commit().substr(0, 24), id, id, view->commit(), iso_time(site.mtime));
  reply.parts = [view = std::move(view), head = std::move(head), next = std::size_t{0},
                 done = false]() mutable -> Result<std::string> {
    if (done) return std::string();
    std::string part = std::exchange(head, {});
    const std::size_t end = std::min(next + kFilesOfAPart, view->files().size());
    for (; next < end; ++next) {
      CKFS_TRY(const std::string path, json_name(view->files()[next].path));
      part += fmt::format("{}{{\"rfilename\":{}}}", next == 0 ? "" : ",", path);
    }
    if (end == view->files().size()) {
      done = true;
      part += "]}";
    }
    return part;
  };
  return reply;
}

/// Files from a directory on, a page of them; the next page's address is in the header Link.
Reply answer_tree(Site& site, const ServeRequest& request, std::string_view name,
                  const std::shared_ptr<const ServedView>& view, std::string_view directory) {
  const std::string root = view->view().name() + '/';
  ListQuery query{.prefix = root + std::string(directory)};
  if (!directory.empty() && !directory.ends_with('/')) query.prefix += '/';
  const bool recursive = request.parameter("recursive").value_or("") == "true" ||
                         request.parameter("recursive").value_or("") == "True" ||
                         request.parameter("recursive").value_or("") == "1";
  if (!recursive) query.delimiter = "/";
  if (const auto cursor = request.parameter("cursor"); cursor && !cursor->empty()) {
    query.after = root + std::string(*cursor);
  }
  const Result<ObjectPage> page = list_objects(site.views, query);
  if (!page) return hub_error_of(page.error(), "EntryNotFound");
  if (page->objects.empty() && !directory.empty()) {
    return hub_error(404, "EntryNotFound",
                     fmt::format("{}: no such directory", one_line(directory)));
  }
  Reply reply{.headers = {{"Content-Type", std::string(kJson)}}};
  reply.text = "[";
  for (const ListedKey& each : page->objects) {
    std::string_view path = std::string_view(each.key).substr(root.size());
    if (each.is_prefix) path.remove_suffix(1);
    const auto quoted = json_name(path);
    if (!quoted) return hub_error(500, "", quoted.error().message());
    reply.text +=
        fmt::format(R"({}{{"type":"{}","oid":"{}","size":{},"path":{}}})",
                    reply.text.size() > 1 ? "," : "", each.is_prefix ? "directory" : "file",
                    each.is_prefix ? view->commit() : each.tag, each.size, *quoted);
  }
  reply.text += "]";
  if (page->is_cut) {
    const std::string_view last = std::string_view(page->objects.back().key).substr(root.size());
    reply.headers.emplace_back(
        "Link", fmt::format("<http://{}/api/models/{}/{}/tree/{}{}{}?recursive={}&cursor={}>; "
                            "rel=\"next\"",
                            header_text(request.authority), kHubOrganization, percent_encode(name),
                            view->commit(), directory.empty() ? "" : "/",
                            percent_encode(directory, "/"), recursive, percent_encode(last)));
  }
  return reply;
}

}  // namespace

Reply answer_hub_api(Site& site, const ServeRequest& request, std::string_view rest) {
  if (take_part(rest) != "models" || take_part(rest) != kHubOrganization) {
    return hub_error(
        404, "RepoNotFound",
        fmt::format("{}: not here (models are {}/VIEW)", request.path, kHubOrganization));
  }
  const std::string_view name = take_part(rest);
  const std::string_view what = take_part(rest);
  const std::string_view revision = take_part(rest);
  const auto view = find_revision(site, name, revision);
  if (!view) {
    return hub_error_of(view.error(),
                        site.views.is_plain(name) ? "RevisionNotFound" : "RepoNotFound");
  }
  if (what.empty() || what == "revision") return answer_model(site, *view, name);
  if (what == "tree") return answer_tree(site, request, name, *view, rest);
  return hub_error(404, "", fmt::format("{}: not a route that is served", request.path));
}

Reply answer_hub_file(Site& site, const ServeRequest& request, std::string_view rest) {
  const std::string_view name = take_part(rest);
  if (take_part(rest) != "resolve") {
    return hub_error(404, "RepoNotFound",
                     fmt::format("{}: not here (files are {}/VIEW/resolve/REVISION/PATH)",
                                 request.path, kHubOrganization));
  }
  const std::string_view revision = take_part(rest);
  auto view = find_revision(site, name, revision);
  if (!view) {
    return hub_error_of(view.error(),
                        site.views.is_plain(name) ? "RevisionNotFound" : "RepoNotFound");
  }
  const auto index = (*view)->files().find(rest);
  const std::string commit = (*view)->commit();
  Reply reply = index ? file_reply(site, request, {*std::move(view), *index})
                      : hub_error(404, "EntryNotFound",
                                  fmt::format("{}: no such file in {}", one_line(rest), name));
  reply.headers.emplace_back("X-Repo-Commit", commit);
  return reply;
}

}  // namespace ckfs
