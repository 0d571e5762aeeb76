// Inodes come from names and not from a counter: they must be the same after a remount, on another
// host, and whichever view was looked up first.
//
// A layout costs time (a sort or a measure of thousands of names) and memory (24 bytes a tensor and
// more), and programs open one file many times, a tensor at a time. So the last ones are kept
// although they are not in use; all of them, for a view of 100,000 files, would be too many.
#include "container/view_files.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "container/nested_names.h"

namespace ckfs {
namespace {

std::uint64_t inode_of(std::string_view view, std::string_view path) {
  return inode_of_hash(stable_hash(path, stable_hash("/", stable_hash(view))));
}

}  // namespace

Result<std::unique_ptr<const ViewFiles>> ViewFiles::create(
    const std::shared_ptr<const Definition>& definition, const ByteSource& source,
    std::shared_ptr<const SourceReaders> readers) {
  auto files = std::unique_ptr<ViewFiles>(new ViewFiles());
  files->readers_ = std::move(readers);
  CKFS_TRY_VOID(files->pack(definition, "", source));
  for (const DefinitionPart& part : definition->parts) {
    CKFS_TRY_VOID(files->pack(part.definition, part.directory, source));
  }

  struct Found {
    std::string path;
    std::uint32_t number;
    std::uint32_t container;
  };
  std::vector<Found> found;
  for (std::uint32_t c = 0; c < files->packed_.size(); ++c) {
    const auto& [container, of, directory] = files->packed_[c];
    CKFS_CHECK(container->size() <= std::numeric_limits<std::uint32_t>::max());
    for (std::uint32_t i = 0; i < container->size(); ++i) {
      found.push_back({directory + container->path(i), i, c});
    }
  }
  std::ranges::sort(found, {}, &Found::path);

  const std::string view = definition->spec.canonical();
  // A folder of the source may have the name of a file that a container makes.
  std::vector<std::string_view> paths;
  paths.reserve(found.size());
  for (const Found& file : found) paths.push_back(file.path);
  if (const auto nested = find_nested(std::exchange(paths, {}), '/')) {
    return fail(ErrorCode::Unsupported, "{}: \"{}\": a file and a folder of this name", view,
                nested->first);
  }
  files->rows_.reserve(found.size());
  files->paths_.reserve(std::transform_reduce(found.begin(), found.end(), std::size_t{0},
                                              std::plus<>(),
                                              [](const Found& file) { return file.path.size(); }));
  std::unordered_set<std::uint64_t> inodes;
  for (const Found& file : found) {
    if (!files->rows_.empty() && files->path(files->rows_.size() - 1) == file.path) {
      return fail(ErrorCode::Unsupported, "{}: \"{}\": two files of this name", view, file.path);
    }
    // Two paths of one inode would be one file to the kernel. At 100,000 files this happens once in
    // 3.7 billion views; another inode would not be stable, so the view is refused.
    const std::uint64_t inode = inode_of(view, file.path);
    if (!inodes.insert(inode).second) {
      return fail(ErrorCode::Unsupported, "{}: \"{}\": inode {:016x} belongs to another file", view,
                  file.path, inode);
    }
    files->paths_ += file.path;
    files->rows_.push_back({inode, files->paths_.size(), file.number, file.container});
  }
  files->first_serial_ = new_serials(files->rows_.size());
  return files;
}

Result<void> ViewFiles::pack(const std::shared_ptr<const Definition>& definition,
                             const std::string& directory, const ByteSource& source) {
  auto made = make_containers(definition, source);
  if (!made) return Failure(directory.empty() ? made.error() : made.error().within(directory));
  for (std::shared_ptr<const Container>& container : *made) {
    packed_.push_back({std::move(container), definition, directory});
  }
  return {};
}

std::string_view ViewFiles::path(std::size_t file) const {
  const std::uint64_t begin = file == 0 ? 0 : rows_[file - 1].path_end;
  return std::string_view(paths_).substr(begin, rows_[file].path_end - begin);
}

FileFacts ViewFiles::facts(std::size_t file) const {
  return packed_[rows_[file].container].container->facts(rows_[file].number);
}

std::uint32_t ViewFiles::readers(const FileFacts& facts) const {
  if (!facts.copy_of) return readers_->tensors;
  const auto found = readers_->of_file.find(*facts.copy_of);
  return found == readers_->of_file.end() ? 0444 : found->second;
}

std::vector<std::uint32_t> ViewFiles::tensors(std::size_t file) const {
  return packed_[rows_[file].container].container->tensors(rows_[file].number);
}

std::optional<std::size_t> ViewFiles::find(std::string_view path) const {
  std::size_t low = 0;
  for (std::size_t high = size(); low < high;) {
    const std::size_t middle = low + (high - low) / 2;
    if (this->path(middle) < path) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == size() || this->path(low) != path) return std::nullopt;
  return low;
}

std::vector<std::size_t> ViewFiles::tensor_files() const {
  std::vector<std::size_t> files;
  for (std::size_t i = 0; i < size(); ++i) {
    if (facts(i).tensors > 0) files.push_back(i);
  }
  std::ranges::sort(files, {},
                    [&](std::size_t i) { return std::pair(rows_[i].container, rows_[i].number); });
  return files;
}

FileLayout ViewFiles::lay_out(std::size_t file) const {
  made_.fetch_add(1, std::memory_order_relaxed);
  const Row& row = rows_[file];
  FileLayout layout = packed_[row.container].container->lay_out(row.number);
  layout.path = path(file);
  layout.size = facts(file).size;
  layout.serial = first_serial_ + file;
  layout.definition = definition(file);
  layout.finish();
  return layout;
}

std::shared_ptr<const FileLayout> ViewFiles::layout(std::size_t file) const {
  {
    const MutexLock lock(mutex_);
    const auto known = known_.find(file);
    if (known != known_.end()) {
      if (auto layout = known->second.lock()) return layout;
    }
  }
  // Without the lock: a large file takes milliseconds. Two threads may lay out one file; the first
  // to arrive below wins. Not make_shared: a weak pointer would then keep the object's memory.
  std::shared_ptr<const FileLayout> made(new FileLayout(lay_out(file)));
  const MutexLock lock(mutex_);
  std::weak_ptr<const FileLayout>& slot = known_[file];
  if (auto layout = slot.lock()) return layout;
  slot = made;
  recent_.push_back(made);
  recent_bytes_ += made->bytes();
  while (recent_bytes_ > kKeptLayouts && recent_.size() > 1) {
    recent_bytes_ -= recent_.front()->bytes();
    recent_.pop_front();
  }
  if (known_.size() > known_limit_) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
    known_limit_ = 2 * known_.size() + 64;
  }
  return made;
}

}  // namespace ckfs
