// The public API of ckfs: open a checkpoint, list its views, read their files.
//
//   auto checkpoint = ckfs::Checkpoint::open("DeepSeek-V3");
//   auto view = checkpoint->view("bf16-safetensors");
//   auto file = view->open("model-00001-of-000163.safetensors");
//   file->read(0, buffer);
//
// All classes are safe for concurrent use by several threads. Nothing here needs a mount. Where the
// system has no memory, all but ViewFile::read() may throw std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/error.h>
#include <ckfs/types.h>

namespace ckfs {

class ViewFiles;

/// The text of a file that makes views of a source's tensors, or lays out a model's experts
/// (docs/RECIPES.md); `file` is its name in messages.
struct RecipeText {
  std::string file;
  std::string text;
};

struct OpenOptions {
  // Which of what the source holds; empty, and the source's own choice is taken.

  /// DeepSpeed and universal checkpoints: the tag. Else the source itself where it is one, else the
  /// one that `latest` (`latest_universal`) names; without such a file, the only one.
  std::string tag = {};
  /// torch files, DCP and Orbax trees: the key (or keys, joined by '.') below which the tensors
  /// are. Else the top level, or, of torch files and DCP, the one of the usual keys that is there.
  std::string key = {};
  /// Orbax: the name of an item. Else the step itself where it is one, else the only one, else the
  /// first of the usual names that is there.
  std::string item = {};
  /// Orbax: a step of a directory of steps. Else the newest that was finished.
  std::optional<std::uint64_t> step = {};
  /// For sources without config.json, tokenizer and the like: a directory of them, or that file.
  std::optional<std::filesystem::path> config = {};
  /// More views, and layouts of experts.
  std::vector<RecipeText> recipes = {};
  /// What kind of model it is: a model_type, or a model_name of MaxText. Empty: what config.json
  /// says.
  std::string family = {};

  /// A source file of which nothing but the ctime changed is Stale, too (chmod and new hard links
  /// change it, and so does a write that hides itself). Else it is one warning in the log. On
  /// network and FUSE file systems and FAT the ctime is not looked at.
  bool strict = false;

  // How fast, and with what. None of these changes a byte.

  /// Bytes of memory for everything beside the catalog: tiles, buffers, rendered text. At least
  /// 64 MiB.
  std::uint64_t memory = std::uint64_t{1} << 30;
  /// A directory for a file without a name that takes decoded chunks, and tiles that were dear to
  /// compute, for which `memory` has no room; none: they are made again.
  std::optional<std::filesystem::path> spill = {};
  /// Bytes of it at most; 0: as many as the disk takes.
  std::uint64_t spill_size = 0;
  IoEngine io = IoEngine::Auto;
  /// Threads that compute ahead of readers and help with tiles; 0: one for each CPU. Where the
  /// source answers late there are more, which do nothing but wait for it.
  unsigned threads = 0;
  /// Bytes of a tile; 0: chosen from the budget. For tests.
  std::uint64_t tile_bytes = 0;
};

/// One file of a view. Sizes and everything else here are fixed when the checkpoint is opened.
struct FileInfo {
  std::string_view path;  // within the view, with '/'; valid as long as the View
  std::uint64_t size = 0;
  Exactness exactness = Exactness::BitExact;  // the least exact of its tensors
  std::size_t tensors = 0;                    // target tensors in it; 0 for a side file
  std::uint64_t inode = 0;  // stable hash of view, parameters and path; never 0 or 1
  /// Who may read the source file that it is a copy of, as bits of 0444; of other files, who may
  /// read config.json and all that have tensors.
  std::uint32_t readers = 0444;
};

/// One tensor of a view.
struct TensorInfo {
  std::string_view name;   // in its file: two folders may have one; valid as long as the View
  std::string_view dtype;  // safetensors' name: "BF16"
  std::span<const std::int64_t> shape;
  std::size_t file = 0;  // index in View::files(); the first of several that have parts of it
  Exactness exactness = Exactness::BitExact;
};

/// Why something of a checkpoint cannot be shown: `subject` names a tensor or file.
struct Reason {
  std::string subject;
  std::string text;
  std::size_t more = 0;  // further subjects of the same text, which are not listed
};

/// A view's name, and, where the source cannot give it, the reasons. What its files cannot hold (a
/// name that is not UTF-8, say) is found by Checkpoint::view() alone, of an available one, too.
struct ViewInfo {
  std::string name;
  std::string description;  // one line
  bool available = false;
  std::vector<Reason> reasons;  // why it is not available
  std::vector<Reason> remarks;  // what passes unchanged, is left out or has other names
};

/// Counters since the checkpoint was opened; all in bytes or in events.
struct Statistics {
  struct File {
    std::string path;
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;
  };
  /// What readers of a view's file were given: what they asked for, and what was put where they
  /// find it (ReadOptions::deliver).
  struct Given {
    std::string view;  // canonical
    std::string path;
    std::uint64_t bytes = 0;
  };
  std::vector<Given> given;        // by view and path, of views that somebody holds
  std::vector<File> source;        // only files that were read
  std::uint64_t source_bytes = 0;  // the sum of source[].bytes
  std::uint64_t requests = 0;      // reads by users of the views
  std::uint64_t bytes_to_readers = 0;
  std::uint64_t tiles = 0;         // tiles, pieces, texts and kept companions computed
  std::uint64_t tiles_unread = 0;  // of these, let go before anybody was given bytes of them
  std::uint64_t hits = 0;          // looks for one that found it computed
  std::uint64_t memory = 0;        // budgeted memory in use now, or kept to be used again
  std::uint64_t memory_peak = 0;
  std::uint64_t memory_budget = 0;
  std::string io;                   // "uring" or "pread"
  std::uint64_t decoded_bytes = 0;  // made of compressed chunks, but to look at checksums
  std::uint64_t spilled_bytes = 0;  // written to OpenOptions::spill, or an export's own
};

/// The files of a view, by path in byte order. A view may have 100,000: each FileInfo is made when
/// it is asked for.
class FileList {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = FileInfo;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = FileInfo;

    Iterator() = default;
    Iterator(const FileList* list, std::size_t index) : list_(list), index_(index) {}
    FileInfo operator*() const { return (*list_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const = default;

   private:
    const FileList* list_ = nullptr;
    std::size_t index_ = 0;
  };

  std::size_t size() const;
  bool empty() const { return size() == 0; }
  /// Requires: index < size().
  FileInfo operator[](std::size_t index) const;
  /// The index of the file of that path.
  std::optional<std::size_t> find(std::string_view path) const;
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  friend class View;
  explicit FileList(std::shared_ptr<const ViewFiles> files) : files_(std::move(files)) {}

  std::shared_ptr<const ViewFiles> files_;
};

/// A file of a view, open for one reader: it remembers where that reader is and computes ahead.
class ViewFile {
 public:
  FileInfo info() const;
  /// Fills `out` from `offset`; gives the number of bytes, which is out.size() except at the end of
  /// the file. Errors: Io, Stale, Corrupt, Unsupported (a chunk in a form that ckfs does not know),
  /// OutOfMemory (the budget can never hold it, the system lacks it), Internal; then `out` is void.
  Result<std::size_t> read(std::uint64_t offset, std::span<std::byte> out);
  /// The same, without a copy where it can. Results hold memory of the budget: who keeps some while
  /// he asks for more keeps at most a quarter of OpenOptions::memory, the next one's size included;
  /// each counts as its size, rounded up to whole MiB.
  Result<Bytes> read(std::uint64_t offset, std::size_t size);

  class Impl;
  explicit ViewFile(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

/// A directory of files in one form. Immutable.
class View {
 public:
  /// Canonical: keys sorted, defaults left out: "bf16-safetensors@max_shard=5GB".
  const std::string& name() const;

  FileList files() const;

  /// The target tensors in the order of their files' layout; empty for `source`.
  std::vector<TensorInfo> tensors() const;
  /// Errors: NotFound.
  Result<ViewFile> open(std::string_view path, ReadOptions options = {}) const;

  class Impl;
  explicit View(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

/// A checkpoint whose headers have been read. Sizes, names, times and inodes of all views are fixed
/// from here on; of tensor data no more has been read than what says how the rest is encoded.
class Checkpoint {
 public:
  /// `source`: a directory, a file, or a hub cache entry. Errors: NotFound, Corrupt, Unsupported,
  /// Io, Stale, each with one line that names the file and the fact (also of a recipe that is
  /// wrong, or does not fit the source); InvalidArgument (an option), OutOfMemory.
  static Result<Checkpoint> open(const std::filesystem::path& source,
                                 const OpenOptions& options = {});

  /// All views that ckfs knows, also those this checkpoint cannot give; in the order of the docs.
  std::vector<ViewInfo> views() const;

  /// `spelling` is a view's name, perhaps with parameters: "bf16-safetensors@max_shard=5GB". Every
  /// spelling of one view gives the same files and inodes. Errors: NotFound (no such view),
  /// InvalidArgument (no such parameter, bad value, more than 100,000 shards by it or of the
  /// source), Unsupported (the source cannot give it: the message has the first reasons, views()
  /// more of them; or its files cannot hold it), Corrupt (a config.json that the view's rules
  /// cannot use).
  Result<View> view(std::string_view spelling) const;

  /// Newest mtime of the source in whole seconds since 1970; never 0.
  std::int64_t mtime() const;
  /// A hash over the names, sizes and mtimes of the source's files, the step that was taken of
  /// several, and over what OpenOptions choose of it or add to it: tag, key, item, recipes and
  /// family.
  std::uint64_t fingerprint() const;

  Statistics statistics() const;

  class Impl;
  explicit Checkpoint(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

/// "0.1.0"
std::string_view version();

/// Grows when the bytes of some view change for the same source and parameters (see CHANGELOG).
inline constexpr int kLayoutVersion = 1;

}  // namespace ckfs
