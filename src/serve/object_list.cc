// A position is a view and a file's index in it. Views are made when the list reaches their files:
// with the delimiter '/' the list of views makes none.

#include "serve/object_list.h"

#include <algorithm>

namespace ckfs {
namespace {

/// The first text that is behind all which begin with `prefix`; empty: there is none.
std::string behind(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (!prefix.empty()) ++prefix.back();
  return prefix;
}

/// The index of the first file whose path is not before `path`.
std::size_t first_file(const FileList& files, std::string_view path) {
  std::size_t low = 0, high = files.size();
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (files[middle].path < path) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

class Lister {
 public:
  Lister(ServedViews& views, const ListQuery& query) : views_(views), query_(query) {
    const std::string root = only_root(query);
    if (!root.empty() && !views.is_plain(std::string_view(root).substr(0, root.size() - 1))) {
      roots_ = {root};
    } else {
      for (const std::string& name : views.names()) roots_.push_back(name + '/');
    }
  }

  Result<ObjectPage> page() {
    std::string at = std::max(
        {query_.prefix, query_.from, query_.after.empty() ? query_.after : query_.after + '\0'});
    for (const std::string& root : roots_) {
      // Whether a key of this view can be listed at all.
      if (!root.starts_with(query_.prefix) && !query_.prefix.starts_with(root)) continue;
      if (const std::string end = behind(root); !end.empty() && at >= end) continue;
      CKFS_TRY(const bool more, take_view(root, at));
      if (!more) break;
    }
    return std::move(page_);
  }

 private:
  /// What all keys of the list begin with, up to their first '/'; empty: no such thing is known.
  static std::string only_root(const ListQuery& query) {
    if (const std::size_t slash = query.prefix.find('/'); slash != std::string::npos) {
      return query.prefix.substr(0, slash + 1);
    }
    // TensorStore names a prefix by the first key and the first behind the last.
    std::string root = query.from.substr(0, query.from.find('/') + 1);  // npos + 1 is 0
    return query.before && !root.empty() && *query.before <= behind(root) ? root : std::string();
  }

  /// Adds the view's keys from `at` on. False: the page is done.
  Result<bool> take_view(const std::string& root, const std::string& at) {
    if (root.size() > query_.prefix.size()) {
      // All of the view may be one common prefix.
      if (const auto prefix = common_prefix(root)) return take_prefix(*prefix);
    }
    auto found = views_.find(std::string_view(root).substr(0, root.size() - 1));
    if (!found) {
      const ErrorCode code = found.error().code();
      const bool is_no_view = code == ErrorCode::NotFound || code == ErrorCode::InvalidArgument ||
                              code == ErrorCode::Unsupported;
      if (is_no_view && roots_.size() == 1) return false;
      return Failure(std::move(found).error());
    }
    const ServedView& view = **found;
    const FileList& files = view.files();
    std::size_t index = at.size() > root.size() && at.starts_with(root)
                            ? first_file(files, std::string_view(at).substr(root.size()))
                            : 0;
    while (index < files.size()) {
      const FileInfo file = files[index];
      const std::string key = root + std::string(file.path);
      if (!key.starts_with(query_.prefix)) return false;
      if (query_.before && key >= *query_.before) return false;
      if (const auto prefix = common_prefix(key)) {
        CKFS_TRY(const bool more, take_prefix(*prefix));
        if (!more) return false;
        const std::string next = behind(*prefix);
        if (!next.starts_with(root)) return true;  // it was all of the view
        index = first_file(files, std::string_view(next).substr(root.size()));
        continue;
      }
      if (is_full()) return false;
      page_.objects.push_back({key, false, file.size, view.tag(file)});
      ++index;
    }
    return true;
  }

  std::optional<std::string> common_prefix(const std::string& key) const {
    if (query_.delimiter.empty()) return std::nullopt;
    const std::size_t at = key.find(query_.delimiter, query_.prefix.size());
    if (at == std::string::npos) return std::nullopt;
    return key.substr(0, at + query_.delimiter.size());
  }

  Result<bool> take_prefix(const std::string& prefix) {
    if (query_.before && prefix >= *query_.before) return false;
    const bool is_listed = !query_.after.empty() && prefix <= query_.after;
    if (is_listed) return true;
    // Several views may begin alike, up to a delimiter that is not '/'.
    if (!page_.objects.empty() && page_.objects.back().key == prefix) return true;
    if (is_full()) return false;
    page_.objects.push_back({prefix, true, 0, {}});
    return true;
  }

  /// Notes that there is more where the page is full.
  bool is_full() {
    if (page_.objects.size() < query_.most) return false;
    page_.is_cut = query_.most > 0;
    return true;
  }

  ServedViews& views_;
  const ListQuery& query_;
  std::vector<std::string> roots_;
  ObjectPage page_;
};

}  // namespace

Result<ObjectPage> list_objects(ServedViews& views, const ListQuery& query) {
  return Lister(views, query).page();
}

}  // namespace ckfs
