// The views that are served, and what names their bytes on every host: an ETag for each file, and a
// commit for each view.
//
// Views without parameters are made when they are first asked for, and stay. Of those with
// parameters at most 64 are held, within a bound in bytes: the one that was used longest ago makes
// room, and comes back with the same names. Safe for concurrent use by several threads; no lock is
// held while a view is made.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/checkpoint.h>

#include "base/mutex.h"

namespace ckfs {

/// Immutable.
class ServedView {
 public:
  /// `fingerprint`: the checkpoint's.
  ServedView(View view, std::uint64_t fingerprint);

  const View& view() const { return view_; }
  const FileList& files() const { return files_; }
  /// The view's bytes, as the hub names them: 40 hexadecimal digits.
  const std::string& commit() const { return commit_; }
  /// 40 hexadecimal digits of the source (its files' names, sizes and times), the view, the layout
  /// version, the path and the size. Not 32: clients of S3 take those for an MD5 of the bytes.
  std::string tag(const FileInfo& file) const;

 private:
  View view_;
  FileList files_;
  std::string identity_;
  std::string commit_;
};

class ServedViews {
 public:
  static constexpr std::size_t kMostHeld = 64;

  /// `most_bytes`: of the views with parameters that are held (about). One is always held.
  ServedViews(Checkpoint checkpoint, std::uint64_t most_bytes);

  /// The names of the views without parameters that the source can give, in byte order.
  const std::vector<std::string>& names() const { return names_; }
  bool is_plain(std::string_view name) const;

  /// The view of that spelling. Errors: those of Checkpoint::view.
  Result<std::shared_ptr<const ServedView>> find(std::string_view spelling);
  /// The view `name`, or one of it with parameters that is held, of that commit; nullptr: there is
  /// none.
  std::shared_ptr<const ServedView> find_commit(std::string_view name, std::string_view commit);

  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  struct Held {
    std::string spelling;
    std::shared_ptr<const ServedView> view;
    std::uint64_t bytes = 0;
    bool plain = false;
  };

  const Checkpoint checkpoint_;
  const std::uint64_t most_bytes_;
  std::vector<std::string> names_;
  Mutex mutex_;
  std::list<Held> held_ CKFS_GUARDED_BY(mutex_);  // most recently used first
};

}  // namespace ckfs
