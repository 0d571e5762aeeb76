// The served files as one sorted list of keys, VIEW/PATH, a page at a time: what listings of S3 and
// Google Cloud Storage ask for, and directories of HTTP are made of. A page costs what it shows:
// keys are found by binary search.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "serve/served_views.h"

namespace ckfs {

/// One object, or the common beginning of several.
struct ListedKey {
  std::string key;
  bool is_prefix = false;
  std::uint64_t size = 0;
  std::string tag;
};

struct ListQuery {
  std::string prefix = {};
  std::string delimiter = {};  // empty: every key by itself
  std::string after = {};      // keys and prefixes behind this one; empty: from the first on
  std::string from = {};       // keys from this one on
  std::optional<std::string> before = {};  // keys before this one
  std::size_t most = 1000;
};

struct ObjectPage {
  std::vector<ListedKey> objects;  // in byte order
  bool is_cut = false;             // there are more: `after` is the last of these
};

/// A prefix that begins with the spelling of a view with parameters lists that view, and so do
/// `from` and `before` that leave no others; otherwise there are only those without. Errors: those
/// of ServedViews::find, except that a prefix of no view gives an empty page.
Result<ObjectPage> list_objects(ServedViews& views, const ListQuery& query);

}  // namespace ckfs
