// The inode numbers that the mount knows, their files and directories, and the views that are held
// for them.
//
// A view is held with all of its inodes or not at all; so the kernel's references are counted per
// view. The views without parameters stay for good. Of the others at most `limit` are held: the
// one used longest ago without lookups or open files makes room. Where all are in use, the table
// names some that the kernel should let go of, and holds more than `limit` until it has. Where
// other users can look views up, those in use have a bound in bytes, too, and more are refused.
//
// Safe for concurrent use by several threads: one mutex, never held while a view is built or bytes
// are read.
#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "fs/view_tree.h"

namespace ckfs {

/// The file or directory of an inode within a view.
struct Location {
  std::shared_ptr<const ViewTree> tree;
  bool directory = false;
  std::uint32_t index = 0;  // in tree->directories or tree->view.files()
};

class InodeTable {
 public:
  /// `taken`: numbers that are not of files within views, each with the view whose top it is, or ""
  /// if it is not a view's.
  explicit InodeTable(std::size_t limit = 64,
                      std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max(),
                      std::map<std::uint64_t, std::string> taken = {})
      : limit_(limit), most_bytes_(most_bytes), taken_(std::move(taken)) {}

  /// Makes the view's inodes known, or finds that they are. Gives the tree that is held: another
  /// thread may have been first. A `spelling` is the name by which the kernel looked the view up,
  /// and counts as one reference; without one the view must be free of parameters. Errors: Internal
  /// (an inode number is used twice), OutOfMemory (the parameterised views in use take more than
  /// `most_bytes` with this one, which is not the only one).
  Result<std::shared_ptr<const ViewTree>> hold(std::shared_ptr<const ViewTree> tree,
                                               std::optional<std::string_view> spelling);

  /// The tree of the view of that canonical name, which counts as used now; nullptr: none is held.
  std::shared_ptr<const ViewTree> find_view(std::string_view name);

  /// Errors: NotFound.
  Result<Location> find(std::uint64_t inode);

  /// The same, and one lookup (or open file) more for its view, which counts as used now.
  Result<Location> find_and_count(std::uint64_t inode);
  /// The kernel, or an open file, gives references back. Unknown inodes are ignored.
  void release(std::uint64_t inode, std::uint64_t references) noexcept;

  /// Names (as the kernel spells them) of parameterised views that it should forget, because more
  /// than the limit are in use, or because they take more than half of `most_bytes`; each is given
  /// once after each time the kernel looked it up.
  std::vector<std::string> take_crowded();

  std::vector<std::shared_ptr<const ViewTree>> views() const;

 private:
  struct Held {
    std::shared_ptr<const ViewTree> tree;
    bool parameterised = false;
    bool named = false;    // by take_crowded(), since the kernel's last lookup
    std::string spelling;  // of the kernel's last lookup: it keeps one name for a directory
    std::uint64_t references = 0;
  };
  using Position = std::list<Held>::iterator;
  struct Node {
    Position held;
    bool directory = false;
    std::uint32_t index = 0;
  };

  void touch(Position held) CKFS_REQUIRES(mutex_);
  void drop(Position held) noexcept CKFS_REQUIRES(mutex_);
  void make_room() noexcept CKFS_REQUIRES(mutex_);

  const std::size_t limit_;
  const std::uint64_t most_bytes_;
  const std::map<std::uint64_t, std::string> taken_;
  mutable Mutex mutex_;
  std::list<Held> held_ CKFS_GUARDED_BY(mutex_);  // most recently used first
  std::unordered_map<std::uint64_t, Node> nodes_ CKFS_GUARDED_BY(mutex_);
  std::size_t parameterised_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_ CKFS_GUARDED_BY(mutex_) = 0;  // of these
};

}  // namespace ckfs
