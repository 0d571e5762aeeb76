// The kernel names files by inode number and keeps the numbers it was given until it forgets them,
// which may be hours later. Numbers are hashes, so a view that was dropped comes back with the same
// ones, and dropping is safe whenever nothing refers to the view. References are not counted for
// each inode: a view is dropped as a whole, so its sum is all that matters, and a mount of 100,000
// files needs no 100,000 counters.

#include "fs/inode_table.h"

#include <algorithm>
#include <new>

#include "api/inside.h"

namespace ckfs {

Result<std::shared_ptr<const ViewTree>> InodeTable::hold(std::shared_ptr<const ViewTree> tree,
                                                         std::optional<std::string_view> spelling) {
  const MutexLock lock(mutex_);
  const std::uint64_t top = tree->directories.front().inode;
  if (const auto at = nodes_.find(top); at != nodes_.end()) {
    Held& held = *at->second.held;
    if (held.tree->view.name() != tree->view.name()) {
      return fail(ErrorCode::Internal, "{} and {}: the same inode number {}",
                  held.tree->view.name(), tree->view.name(), top);
    }
    if (spelling) {
      held.spelling = *spelling;
      ++held.references;
      held.named = false;  // the kernel has a name for it again, which it may have let go of
    }
    touch(at->second.held);
    return held.tree;
  }

  const bool parameterised = tree->view.name().find('@') != std::string::npos;
  CKFS_CHECK(spelling || !parameterised);
  held_.push_front({.tree = tree,
                    .parameterised = parameterised,
                    .named = false,
                    .spelling = std::string(spelling.value_or("")),
                    .references = spelling ? 1U : 0U});
  parameterised_ += parameterised ? 1 : 0;
  bytes_ += parameterised ? tree->memory : 0;
  const auto held = held_.begin();
  std::uint64_t twin = 0;
  const auto add = [&](std::uint64_t inode, bool directory,
                       std::uint32_t index) CKFS_REQUIRES(mutex_) {
    const auto taken = taken_.find(inode);
    const bool is_top = directory && index == 0;
    const bool is_free =
        inode > 1 && (taken == taken_.end() || (is_top && taken->second == tree->view.name()));
    if (!nodes_.emplace(inode, Node{held, directory, index}).second || !is_free) twin = inode;
  };
  try {
    for (std::uint32_t i = 0; i < tree->directories.size(); ++i) {
      add(tree->directories[i].inode, true, i);
    }
    const std::size_t files = tree->view.files().size();
    for (std::uint32_t i = 0; i < files; ++i) add(file_inode(tree->view, i), false, i);
  } catch (...) {
    drop(held);  // no memory for all of its inodes, and a view is held whole or not at all
    throw;
  }
  if (twin != 0) {
    drop(held);
    return fail(ErrorCode::Internal, "{}: inode number {} is used twice", tree->view.name(), twin);
  }
  make_room();
  if (parameterised && bytes_ > most_bytes_ && parameterised_ > 1) {
    drop(held);
    return fail(ErrorCode::OutOfMemory,
                "{}: the views with parameters that are in use take {} bytes without it (limit {})",
                tree->view.name(), bytes_, most_bytes_);
  }
  return tree;
}

std::shared_ptr<const ViewTree> InodeTable::find_view(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto at = nodes_.find(directory_inode(name));
  if (at == nodes_.end() || at->second.held->tree->view.name() != name) return nullptr;
  touch(at->second.held);
  return at->second.held->tree;
}

Result<Location> InodeTable::find(std::uint64_t inode) {
  const MutexLock lock(mutex_);
  const auto at = nodes_.find(inode);
  if (at == nodes_.end()) return fail(ErrorCode::NotFound, "inode {}: not known", inode);
  return Location{at->second.held->tree, at->second.directory, at->second.index};
}

Result<Location> InodeTable::find_and_count(std::uint64_t inode) {
  const MutexLock lock(mutex_);
  const auto at = nodes_.find(inode);
  if (at == nodes_.end()) return fail(ErrorCode::NotFound, "inode {}: not known", inode);
  ++at->second.held->references;
  touch(at->second.held);
  return Location{at->second.held->tree, at->second.directory, at->second.index};
}

void InodeTable::release(std::uint64_t inode, std::uint64_t references) noexcept {
  const MutexLock lock(mutex_);
  const auto at = nodes_.find(inode);
  if (at == nodes_.end()) return;
  Held& held = *at->second.held;
  held.references -= std::min(held.references, references);
  if (held.references == 0) {
    held.named = false;
    make_room();
  }
}

std::vector<std::string> InodeTable::take_crowded() {
  const MutexLock lock(mutex_);
  std::vector<std::string> names;
  std::vector<Held*> taken;  // marked once all names are there
  std::size_t surplus = parameterised_ > limit_ ? parameterised_ - limit_ : 0;
  // Half of the bytes, so that the next caller need not wait for the kernel.
  std::uint64_t bytes = bytes_ > most_bytes_ / 2 ? bytes_ - most_bytes_ / 2 : 0;
  // The newest is spared: it is the one that a lookup is about to hand out.
  for (auto at = held_.rbegin(); (surplus > 0 || bytes > 0) && std::next(at) != held_.rend();
       ++at) {
    if (!at->parameterised) continue;
    surplus -= std::min<std::size_t>(surplus, 1);
    bytes -= std::min(bytes, at->tree->memory);
    if (at->references == 0) continue;  // the kernel has no name for it any more
    if (at->named) continue;
    names.push_back(at->spelling);
    taken.push_back(&*at);
  }
  for (Held* const held : taken) held->named = true;
  return names;
}

std::vector<std::shared_ptr<const ViewTree>> InodeTable::views() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<const ViewTree>> trees;
  for (const Held& held : held_) trees.push_back(held.tree);
  return trees;
}

void InodeTable::touch(Position held) {
  held_.splice(held_.begin(), held_, held);
}

void InodeTable::drop(Position held) noexcept {
  const auto forget = [&](std::uint64_t inode) CKFS_REQUIRES(mutex_) {
    // A number that was never added for this view belongs to another one (see hold()).
    const auto at = nodes_.find(inode);
    if (at != nodes_.end() && at->second.held == held) nodes_.erase(at);
  };
  try {
    for (const auto& directory : held->tree->directories) forget(directory.inode);
    const View& view = held->tree->view;
    for (std::size_t i = 0; i < view.files().size(); ++i) forget(file_inode(view, i));
  } catch (const std::bad_alloc&) {
    // What else is said of a file takes memory; a look at all inodes takes none.
    std::erase_if(nodes_, [&](const auto& node) { return node.second.held == held; });
  }
  parameterised_ -= held->parameterised ? 1 : 0;
  bytes_ -= held->parameterised ? held->tree->memory : 0;
  held_.erase(held);
}

void InodeTable::make_room() noexcept {
  // The front is what the caller has just asked for: it must survive without references too.
  for (auto at = held_.end();
       (parameterised_ > limit_ || bytes_ > most_bytes_) && at != held_.begin();) {
    --at;
    if (at == held_.begin()) return;
    if (!at->parameterised || at->references > 0) continue;
    const auto victim = at++;
    drop(victim);
  }
}

}  // namespace ckfs
