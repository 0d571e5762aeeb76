// The tree is mostly arithmetic on the API's answers: names, sizes and inode numbers are fixed, so
// nothing here needs to be invalidated. The rest is laziness and forgetting. A view costs memory
// and, for a large checkpoint, a tenth of a second. So the root knows only names, and a view is
// built when something in it is looked up. Building all of them at mount would be simpler, but
// every mount would pay for views that are never opened.

#include "fs/filesystem.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <deque>
#include <limits>
#include <map>
#include <spdlog/spdlog.h>
#include <tuple>
#include <utility>
#include <variant>

#include "api/inside.h"
#include "api/report.h"
#include "api/status.h"
#include "base/checked.h"
#include "base/log_limit.h"
#include "base/mutex.h"
#include "base/text.h"
#include "fs/inode_table.h"

namespace ckfs {
namespace {

constexpr std::string_view kControlName = ".ckfs";

// Directory and files of .ckfs. Their paths cannot be a view's: no view's name begins with '.'.
struct ControlFile {
  std::string_view name;
  enum class Text : std::uint8_t { Metrics, Refused, Status, Views } text;
};
constexpr std::array kControlFiles = {ControlFile{"metrics", ControlFile::Text::Metrics},
                                      ControlFile{"refused", ControlFile::Text::Refused},
                                      ControlFile{"status.json", ControlFile::Text::Status},
                                      ControlFile{"views.json", ControlFile::Text::Views}};

constexpr std::size_t kHeldViews = 64;
/// Names that were refused, each with a line of its own in a minute; the others share one.
constexpr std::size_t kRefusedNames = 16;

constexpr std::string_view kExactnessName = "user.ckfs.exactness";
constexpr std::string_view kSourceName = "user.ckfs.source";
constexpr std::string_view kViewName = "user.ckfs.view";

/// The largest value of an attribute. The kernel would pass on more; but ext4 takes 4 KiB for all
/// attributes of a file, and a program that copies them (cp -a, rsync -X) fails there.
constexpr std::size_t kMaxAttributeBytes = 3072;

/// The text of a control file when it was opened; counted in `held` as long as it is there.
class Snapshot {
 public:
  Snapshot(std::string text, std::atomic<std::size_t>& held) : text_(std::move(text)), held_(held) {
    before_ = held_.fetch_add(text_.size());
  }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  ~Snapshot() { held_.fetch_sub(text_.size()); }

  const std::string& text() const { return text_; }
  bool fits(std::size_t most) const { return before_ == 0 || before_ + text_.size() <= most; }

 private:
  const std::string text_;
  std::atomic<std::size_t>& held_;
  std::size_t before_ = 0;
};

struct OpenFile {
  InodeNumber inode = 0;
  std::variant<ViewFile, std::unique_ptr<const Snapshot>> content;
};

/// Handle numbers of open files. Numbers are used again, the one that was freed last first.
class HandleTable {
 public:
  std::uint64_t add(std::shared_ptr<OpenFile> file) {
    const WriterLock lock(mutex_);
    if (free_.empty()) {
      // So that remove() has nothing to allocate.
      if (free_.capacity() <= files_.size()) free_.reserve(2 * files_.size() + 1);
      files_.push_back(std::move(file));
      return files_.size() - 1;
    }
    const std::uint64_t handle = free_.back();
    free_.pop_back();
    files_[handle] = std::move(file);
    return handle;
  }

  std::shared_ptr<OpenFile> find(std::uint64_t handle) const {
    const ReaderLock lock(mutex_);
    return handle < files_.size() ? files_[handle] : nullptr;
  }

  std::shared_ptr<OpenFile> remove(std::uint64_t handle) noexcept {
    const WriterLock lock(mutex_);
    if (handle >= files_.size() || !files_[handle]) return nullptr;
    free_.push_back(handle);
    return std::exchange(files_[handle], nullptr);
  }

  std::size_t size() const {
    const ReaderLock lock(mutex_);
    return files_.size() - free_.size();
  }

 private:
  mutable SharedMutex mutex_;
  std::vector<std::shared_ptr<OpenFile>> files_ CKFS_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> free_ CKFS_GUARDED_BY(mutex_);
};

/// The last names that were looked up in the root and are not views, or cannot be shown, with the
/// reasons.
class RefusedNames {
 public:
  static constexpr std::size_t kMost = 16;

  void add(std::string_view name, const std::string& reason) {
    // Names that shells and desktops look for everywhere would push out a user's own.
    if (name.starts_with('.')) return;
    const MutexLock lock(mutex_);
    std::erase_if(names_, [&](const auto& each) { return each.first == name; });
    names_.emplace_back(name, one_line(reason));
    if (names_.size() > kMost) names_.pop_front();
  }

  /// A line each, the newest last.
  std::string text() const {
    const MutexLock lock(mutex_);
    std::string text;
    for (const auto& [name, reason] : names_) text += reason + "\n";
    return text;
  }

 private:
  mutable Mutex mutex_;
  std::deque<std::pair<std::string, std::string>> names_ CKFS_GUARDED_BY(mutex_);
};

std::int64_t seconds_since_1970() {
  return static_cast<std::int64_t>(std::time(nullptr));
}

/// The caller asked for what cannot be, or went away: nothing that an operator has to mend.
bool is_callers_mistake(ErrorCode code) {
  switch (code) {
    case ErrorCode::Corrupt:
    case ErrorCode::Unsupported:
    case ErrorCode::Io:
    case ErrorCode::Stale:
    case ErrorCode::OutOfMemory:
    case ErrorCode::Internal:
      return false;
    default:
      return true;
  }
}

Bytes slice(std::shared_ptr<const OpenFile> file, const std::string& text, std::uint64_t offset,
            std::size_t size) {
  if (offset >= text.size()) return {};
  const auto all = std::as_bytes(std::span(text));
  const auto begin = static_cast<std::size_t>(offset);
  return {all.subspan(begin, std::min(size, all.size() - begin)), std::move(file)};
}

}  // namespace

class Filesystem::Impl {
 public:
  Impl(Checkpoint checkpoint, const FilesystemOptions& options)
      : checkpoint_(std::move(checkpoint)),
        mtime_(options.mtime.value_or(checkpoint_.mtime())),
        held_snapshots_(options.held_snapshots),
        umask_(options.umask),
        mount_(options.mount),
        names_(names_of(checkpoint_)),
        table_(kHeldViews, options.held_bytes, taken_numbers(names_)) {
    for (const auto& [inode, name] : names_) root_.push_back({name, inode});
    root_.push_back({std::string(kControlName), control_inode()});
    std::sort(root_.begin(), root_.end(), [](auto& a, auto& b) { return a.name < b.name; });
  }

  Result<Attributes> lookup(InodeNumber parent, std::string_view name) {
    if (parent == kRootInode) return lookup_in_root(name);
    if (parent == control_inode()) {
      for (const ControlFile& file : kControlFiles) {
        if (file.name == name) return control_attributes(file);
      }
      return fail(ErrorCode::NotFound, "{}/{}: no such file", kControlName, name);
    }
    CKFS_TRY(const Location at, locate(parent));
    if (!at.directory) return fail(ErrorCode::NotDirectory, "{}: not a directory", path_of(at));
    const auto* entry = at.tree->find(at.index, name);
    if (!entry) return fail(ErrorCode::NotFound, "{}/{}: no such file", path_of(at), name);
    const Location child{at.tree, entry->directory, entry->index};
    const Attributes attributes = attributes_of(child);
    CKFS_TRY_VOID(table_.find_and_count(attributes.inode));
    return attributes;
  }

  void forget(InodeNumber inode, std::uint64_t lookups) { table_.release(inode, lookups); }

  Result<Attributes> attributes(InodeNumber inode) {
    if (inode == kRootInode || inode == control_inode() || names_.contains(inode)) {
      return directory_attributes(inode);
    }
    if (const auto* file = control_file(inode)) return control_attributes(*file);
    CKFS_TRY(const Location at, table_.find(inode));
    return attributes_of(at);
  }

  Result<std::vector<DirectoryEntry>> list(InodeNumber directory, std::uint64_t offset,
                                           std::size_t limit) {
    // Offsets are positions: 0 is ".", 1 is "..", 2 + n is the n-th entry.
    std::vector<DirectoryEntry> listing;
    const auto emit = [&](std::string_view name, Attributes attributes) {
      listing.push_back({std::string(name), attributes, offset + 1});
      ++offset;
    };
    const auto emit_all = [&](InodeNumber parent, std::size_t count, auto&& entry) {
      if (offset == 0 && limit > 0) emit(".", directory_attributes(directory));
      if (offset == 1 && listing.size() < limit) emit("..", directory_attributes(parent));
      while (listing.size() < limit && offset - 2 < count) {
        const auto [name, attributes] = entry(static_cast<std::size_t>(offset - 2));
        emit(name, attributes);
      }
    };
    using Named = std::pair<std::string_view, Attributes>;

    if (directory == kRootInode) {
      emit_all(kRootInode, root_.size(), [&](std::size_t n) -> Named {
        return {root_[n].name, directory_attributes(root_[n].inode)};
      });
      return listing;
    }
    if (directory == control_inode()) {
      emit_all(kRootInode, kControlFiles.size(), [&](std::size_t n) -> Named {
        return {kControlFiles[n].name, control_attributes(kControlFiles[n])};
      });
      return listing;
    }
    CKFS_TRY(const Location at, locate(directory));
    if (!at.directory) return fail(ErrorCode::NotDirectory, "{}: not a directory", path_of(at));
    const auto& here = at.tree->directories[at.index];
    const InodeNumber parent = at.index == 0 ? kRootInode : at.tree->directories[here.parent].inode;
    emit_all(parent, here.entries.size(), [&](std::size_t n) -> Named {
      const auto& entry = here.entries[n];
      return {entry.name, attributes_of({at.tree, entry.directory, entry.index})};
    });
    return listing;
  }

  Result<std::uint64_t> open(InodeNumber inode, StreamOptions options) {
    if (const auto* file = control_file(inode)) {
      return open_snapshot(inode, *file);
    }
    if (inode == kRootInode || inode == control_inode() || names_.contains(inode)) {
      return fail(ErrorCode::IsDirectory, "inode {}: a directory", inode);
    }
    CKFS_TRY(const Location at, table_.find_and_count(inode));
    try {
      auto opened = open_file(inode, at, std::move(options));
      if (!opened) table_.release(inode, 1);
      return opened;
    } catch (...) {  // no memory for it
      table_.release(inode, 1);
      throw;
    }
  }

  Result<Bytes> read(std::uint64_t handle, std::uint64_t offset, std::size_t size) {
    const auto file = handles_.find(handle);
    if (!file) return fail(ErrorCode::BadHandle, "handle {}: not open", handle);
    if (const auto* snapshot = std::get_if<std::unique_ptr<const Snapshot>>(&file->content)) {
      return slice(file, (*snapshot)->text(), offset, size);
    }
    auto& content = std::get<ViewFile>(file->content);
    // Errors here are logged where they are found, with file, offset and tensor.
    return lend(content, offset, size);
  }

  void close(std::uint64_t handle) noexcept {
    if (const auto file = handles_.remove(handle)) table_.release(file->inode, 1);
  }

  Result<std::string> attribute(InodeNumber inode, std::string_view name) {
    CKFS_TRY(const auto known, attribute_names(inode));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return fail(ErrorCode::NoAttribute, "inode {}: no attribute {}", inode, name);
    }
    if (const auto at = names_.find(inode); at != names_.end()) return at->second;
    CKFS_TRY(const Location at, table_.find(inode));
    if (name == kViewName) return at.tree->view.name();
    if (name == kExactnessName) {
      return label_text(at.tree->view, at.tree->view.files()[at.index].exactness);
    }
    std::string paths = sources_of(at.tree->view, at.index);
    if (paths.size() > kMaxAttributeBytes) {
      // A file made of thousands of shards: whole paths, as many as fit.
      const std::size_t end = paths.rfind('\n', kMaxAttributeBytes);
      paths.resize(end == std::string::npos ? 0 : end);
    }
    return paths;
  }

  Result<std::vector<std::string>> attribute_names(InodeNumber inode) {
    if (inode == kRootInode || inode == control_inode() || control_file(inode)) {
      return std::vector<std::string>();
    }
    if (names_.contains(inode)) return std::vector{std::string(kViewName)};
    CKFS_TRY(const Location at, table_.find(inode));
    if (at.directory) return std::vector{std::string(kViewName)};
    return std::vector{std::string(kExactnessName), std::string(kSourceName),
                       std::string(kViewName)};
  }

  Result<FilesystemStatistics> statistics(InodeNumber inode) {
    auto trees = table_.views();
    if (inode != kRootInode && inode != control_inode() && !control_file(inode)) {
      if (auto at = locate(inode)) trees = {std::move(at->tree)};
    }
    FilesystemStatistics sum;
    for (const auto& tree : trees) {
      const auto bytes = checked_add(sum.bytes, tree->bytes);
      if (!bytes || !std::in_range<std::int64_t>(*bytes)) {
        return fail(ErrorCode::Unsupported, "{}: {} bytes, and {} in other views (limit {})",
                    tree->view.name(), tree->bytes, sum.bytes,
                    std::numeric_limits<std::int64_t>::max());
      }
      sum.bytes = *bytes;
      sum.files += tree->view.files().size();
    }
    return sum;
  }

  std::vector<std::string> take_crowded() { return table_.take_crowded(); }
  void count_error(const char* operation, int number, const Error& error) {
    const char* const errno_name = ::strerrorname_np(number);
    MountError what{operation, errno_name ? errno_name : fmt::format("{}", number),
                    std::string(ckfs::name(error.code()))};
    const MutexLock lock(errors_mutex_);
    ++errors_.counts[what];
    if (!is_callers_mistake(error.code())) {
      errors_.last = {std::move(what), seconds_since_1970(), one_line(error.message())};
    }
  }

  std::size_t open_files() const { return handles_.size(); }

 private:
  struct RootEntry {
    std::string name;
    InodeNumber inode = 0;
  };

  using Names = std::map<InodeNumber, std::string>;

  /// Of the views that can be shown, by the numbers of their directories.
  static Names names_of(const Checkpoint& checkpoint) {
    Names names;
    for (const ViewInfo& view : checkpoint.views()) {
      if (view.available) names.emplace(directory_inode(view.name), view.name);
    }
    return names;
  }

  /// What no view's files may have: a source may give them names of any hash.
  static Names taken_numbers(Names names) {
    names[control_inode()] = "";
    for (const ControlFile& file : kControlFiles) names[inode_of(file)] = "";
    return names;
  }

  static InodeNumber control_inode() {
    static const InodeNumber inode = directory_inode(kControlName);
    return inode;
  }

  static InodeNumber inode_of(const ControlFile& file) {
    return directory_inode(fmt::format("{}/{}", kControlName, file.name));
  }

  static const ControlFile* control_file(InodeNumber inode) {
    static const std::array inodes = {inode_of(kControlFiles[0]), inode_of(kControlFiles[1]),
                                      inode_of(kControlFiles[2]), inode_of(kControlFiles[3])};
    static_assert(inodes.size() == kControlFiles.size());
    for (std::size_t i = 0; i < inodes.size(); ++i) {
      if (inodes[i] == inode) return &kControlFiles[i];
    }
    return nullptr;
  }

  /// All permissions that the mount shows come from here. Nothing can be written whatever they say.
  /// But `cp -r`, `rsync -a` and `tar` give them to their copies, which the user must be able to
  /// change and delete.
  std::uint32_t permissions(bool directory) const { return (directory ? 0755 : 0644) & ~umask_; }

  Attributes directory_attributes(InodeNumber inode) const {
    Attributes attributes;
    attributes.inode = inode;
    attributes.directory = true;
    attributes.permissions = permissions(true);
    attributes.mtime = mtime_;
    return attributes;
  }

  Attributes control_attributes(const ControlFile& file) const {
    Attributes attributes;
    attributes.inode = inode_of(file);
    attributes.permissions = permissions(false);
    attributes.mtime = mtime_;
    attributes.volatile_content = true;
    return attributes;
  }

  Attributes attributes_of(const Location& at) const {
    if (at.directory) return directory_attributes(at.tree->directories[at.index].inode);
    const FileInfo file = at.tree->view.files()[at.index];
    Attributes attributes;
    attributes.inode = file_inode(at.tree->view, at.index);
    attributes.permissions = permissions(false);
    attributes.size = file.size;
    attributes.readers = file.readers;
    attributes.mtime = mtime_;
    return attributes;
  }

  static std::string path_of(const Location& at) {
    const std::string_view path = at.directory
                                      ? std::string_view(at.tree->directories[at.index].path)
                                      : at.tree->view.files()[at.index].path;
    return path.empty() ? at.tree->view.name() : fmt::format("{}/{}", at.tree->view.name(), path);
  }

  MountErrors errors() const {
    const MutexLock lock(errors_mutex_);
    return errors_;
  }

  std::string control_text(const ControlFile& file) const {
    if (file.text == ControlFile::Text::Status) {
      return status_json(checkpoint_, mount_, errors(), seconds_since_1970());
    }
    if (file.text == ControlFile::Text::Refused) return refused_names_.text();
    if (file.text == ControlFile::Text::Metrics) {
      return metrics_text(checkpoint_, mount_, errors());
    }
    std::vector<View> more;
    for (const auto& tree : table_.views()) {
      if (!names_.contains(tree->directories.front().inode)) more.push_back(tree->view);
    }
    std::sort(more.begin(), more.end(),
              [](const View& a, const View& b) { return a.name() < b.name(); });
    return views_json(checkpoint_, more);
  }

  /// An inode within a view; builds the view now if only its name was known.
  Result<Location> locate(InodeNumber inode) {
    if (auto at = table_.find(inode)) return at;
    const auto name = names_.find(inode);
    if (name == names_.end()) {
      return fail(ErrorCode::NotFound, "inode {}: not a file of a view", inode);
    }
    auto tree = make_plain(name->second);
    if (!tree) {
      // Its files were not looked at before: the root lists it all the same.
      explain(name->second, "a listed view that cannot be shown", tree.error());
      return Failure(std::move(tree).error());
    }
    return Location{*std::move(tree), true, 0};
  }

  /// The tree of a view without parameters.
  Result<std::shared_ptr<const ViewTree>> make_plain(const std::string& name) {
    CKFS_TRY(View view, checkpoint_.view(name));
    CKFS_TRY(auto built, build_tree(std::move(view)));
    return table_.hold(std::move(built), std::nullopt);
  }

  Result<Attributes> lookup_in_root(std::string_view name) {
    if (name == kControlName) return directory_attributes(control_inode());
    const InodeNumber inode = directory_inode(name);
    if (const auto at = names_.find(inode); at != names_.end() && at->second == name) {
      return directory_attributes(inode);
    }
    auto tree = table_.find_view(name);
    if (!tree) {
      auto view = checkpoint_.view(name);
      if (!view) return refuse(name, std::move(view).error());
      // All parameters at their defaults: another spelling of a view in the root.
      const InodeNumber plain = directory_inode(view->name());
      if (names_.contains(plain)) return directory_attributes(plain);
      tree = table_.find_view(view->name());
      if (!tree) {
        CKFS_TRY(tree, build_tree(*std::move(view)));
      }
    }
    auto held = table_.hold(std::move(tree), name);
    if (!held) return refuse("", std::move(held).error());
    tree = *std::move(held);
    return directory_attributes(tree->directories.front().inode);
  }

  /// Puts the reason where it is looked for, because an errno is the same for a misspelt parameter
  /// and for a view that the source cannot give: into .ckfs/refused and the log. Names that do not
  /// look like a view (a shell's .git, a desktop's .hidden) are not reported.
  void explain(std::string_view name, std::string_view fact, const Error& error) {
    // Loaders look for many names that no view has: their lines are short, without the list of
    // views.
    refused_names_.add(name, error.code() == ErrorCode::NotFound && !name.empty()
                                 ? fmt::format("{}: no such view", one_line(name))
                                 : error.message());
    const bool meant =
        error.code() != ErrorCode::NotFound || name.find('@') != std::string_view::npos;
    if (!meant) return;
    if (const auto suppressed = refused_.admit(name)) {
      spdlog::warn("{}: {}{}", fact, error.message(), suppressed_note(*suppressed));
    }
  }

  /// The answer to a name that is not a view.
  Failure refuse(std::string_view name, Error error) {
    explain(name, "a view that cannot be shown", error);
    switch (error.code()) {
      case ErrorCode::NotFound:
      case ErrorCode::InvalidArgument:
      case ErrorCode::Unsupported:
        return Failure(Error(ErrorCode::NotFound, error.message()));
      default:
        return Failure(std::move(error));
    }
  }

  Result<std::uint64_t> open_file(InodeNumber inode, const Location& at, StreamOptions options) {
    if (at.directory) return fail(ErrorCode::IsDirectory, "{}: a directory", path_of(at));
    CKFS_TRY(ViewFile file, open_stream(at.tree->view, at.index, std::move(options)));
    return handles_.add(std::make_shared<OpenFile>(OpenFile{inode, std::move(file)}));
  }

  Result<std::uint64_t> open_snapshot(InodeNumber inode, const ControlFile& file) {
    // One after the other: for 100,000 files the text is made from a tree of hundreds of MB,
    // outside any budget.
    std::optional<MutexLock> lock;
    if (file.text == ControlFile::Text::Views) lock.emplace(views_text_mutex_);
    auto snapshot = std::make_unique<const Snapshot>(control_text(file), snapshots_);
    if (!snapshot->fits(held_snapshots_)) {
      return fail(ErrorCode::OutOfMemory,
                  "{}/{}: {} bytes, and the files of {} that are open have {} (limit {})",
                  kControlName, file.name, snapshot->text().size(), kControlName,
                  snapshots_ - snapshot->text().size(), held_snapshots_);
    }
    return handles_.add(std::make_shared<OpenFile>(OpenFile{inode, std::move(snapshot)}));
  }

  const Checkpoint checkpoint_;
  const std::int64_t mtime_;
  const std::size_t held_snapshots_;
  const std::uint32_t umask_;
  const MountFacts mount_;
  std::map<InodeNumber, std::string> names_;  // of the views in the root; never changes
  std::vector<RootEntry> root_;               // by name; never changes
  InodeTable table_;
  std::atomic<std::size_t> snapshots_ = 0;  // bytes; before what holds them
  HandleTable handles_;
  LogLimit refused_{LogLimit::Clock::now, kRefusedNames};
  RefusedNames refused_names_;
  Mutex views_text_mutex_;
  mutable Mutex errors_mutex_;
  MountErrors errors_ CKFS_GUARDED_BY(errors_mutex_);
};

Filesystem::Filesystem(Checkpoint checkpoint, const FilesystemOptions& options)
    : impl_(std::make_unique<Impl>(std::move(checkpoint), options)) {}

Filesystem::~Filesystem() = default;

Result<Attributes> Filesystem::lookup(InodeNumber parent, std::string_view name) {
  return impl_->lookup(parent, name);
}

void Filesystem::forget(InodeNumber inode, std::uint64_t lookups) noexcept {
  impl_->forget(inode, lookups);
}

Result<Attributes> Filesystem::attributes(InodeNumber inode) {
  return impl_->attributes(inode);
}

Result<std::vector<DirectoryEntry>> Filesystem::list(InodeNumber directory, std::uint64_t offset,
                                                     std::size_t limit) {
  return impl_->list(directory, offset, limit);
}

Result<std::uint64_t> Filesystem::open(InodeNumber inode, StreamOptions options) {
  return impl_->open(inode, std::move(options));
}

Result<Bytes> Filesystem::read(std::uint64_t handle, std::uint64_t offset, std::size_t size) {
  return impl_->read(handle, offset, size);
}

void Filesystem::close(std::uint64_t handle) noexcept {
  impl_->close(handle);
}

Result<std::string> Filesystem::attribute(InodeNumber inode, std::string_view name) {
  return impl_->attribute(inode, name);
}

Result<std::vector<std::string>> Filesystem::attribute_names(InodeNumber inode) {
  return impl_->attribute_names(inode);
}

Result<FilesystemStatistics> Filesystem::statistics(InodeNumber inode) {
  return impl_->statistics(inode);
}

std::size_t Filesystem::open_files() const {
  return impl_->open_files();
}

void Filesystem::count_error(const char* operation, int number, const Error& error) {
  impl_->count_error(operation, number, error);
}

std::vector<std::string> Filesystem::take_crowded() {
  return impl_->take_crowded();
}

}  // namespace ckfs
