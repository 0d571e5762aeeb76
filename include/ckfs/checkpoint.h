// The public API of ckfs: open a checkpoint, list its views, read their files.
//
//   auto checkpoint = ckfs::Checkpoint::open("DeepSeek-V3");
//   auto view = checkpoint->view("bf16-safetensors");
//   auto file = view->open("model-00001-of-000163.safetensors");
//   file->read(0, buffer);
//
//   auto norm = view->tensor("model.norm.weight");
//   norm->read(buffer);
//
// Beside it: export.h (a view as files), check.h (digests, comparisons), report.h (what the program
// prints), budget.h (memory for several checkpoints), log.h, open_option.h.
//
// All classes are safe for concurrent use by several threads. Nothing here needs a mount. When the
// system is out of memory, every function but ViewFile::read() may throw std::bad_alloc.
//
// Processes. A checkpoint belongs to the process that opened it, because its threads are there. In
// a child after fork(), functions that give a Result give InvalidArgument, the others give empty
// answers, and destructors leave the memory as it is. The child opens the source again.
//
// Signals. Reading from mapped files installs a SIGBUS handler, which passes on what is not its
// own. With Resources::io Uring or Pread no file is mapped, and there is no such handler. Threads
// of ckfs block no signals: a program that handles signals in one thread blocks them before open().
//
// Aborts. No input ends the process. An invariant of ckfs itself that is broken does (a bug), after
// a line on stderr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/budget.h>
#include <ckfs/error.h>
#include <ckfs/types.h>

namespace ckfs {

class Checkpoint;
class Inside;  // ckfs itself
class TensorTable;
class ViewFiles;

/// The text of a recipe file: it defines views, or layouts of a model's experts (docs/RECIPES.md).
/// `file` is its name in messages.
struct RecipeText {
  std::string file;
  std::string text;
};

/// How a source on another machine (hf://, https://, s3://, gs://) is asked. None of it changes a
/// byte.
struct ServerChoice {
  /// The service's address, for a mirror or a server that is compatible. Empty: the environment's
  /// (HF_ENDPOINT, AWS_ENDPOINT_URL_S3, STORAGE_EMULATOR_HOST), else the service's own.
  std::string endpoint_url = {};
  /// Sends no credentials, and looks for none.
  bool anonymous = false;
  /// s3:// and gs://: the requests are paid by the one that asks.
  bool requester_pays = false;
  /// https://: a file with headers for the server, one a line.
  std::string header_file = {};
  /// Asks no server: takes what the disk cache has of a source, and of hf:// what is in the hub's
  /// cache on this machine.
  bool offline = false;
};

/// Chooses the source. Where a member is empty, the rule in its comment decides.
struct SourceChoice {
  /// DeepSpeed and universal checkpoints: the tag to open. Empty: the source itself if it is a tag,
  /// else the tag that the file `latest` (`latest_universal`) names, else the only tag.
  std::string tag = {};
  /// torch files, DCP and Orbax trees: the key (or keys, joined by '.') that holds the tensors.
  /// Empty: the top level. For torch files and DCP, a usual key ("model", "state_dict") comes
  /// first.
  std::string key = {};
  /// Orbax: the name of an item. Empty: the step itself if it is an item, else its only item, else
  /// the first item with a usual name.
  std::string item = {};
  /// Orbax: a step of a directory of steps. Empty: the newest finished step. Megatron: an
  /// iteration. Empty: the one that the run's tracker file names, else the only one.
  std::optional<std::uint64_t> step = {};
  /// The directory that holds config.json and the tokenizer, or the config.json itself, for sources
  /// that have none.
  std::optional<std::filesystem::path> config = {};
  /// More views, and more layouts of experts.
  std::vector<RecipeText> recipes = {};
  /// The model's family: a model_type, or a model_name of MaxText. Empty: config.json says it.
  std::string family = {};
  /// Whether a change of a source file's ctime alone makes it Stale. (chmod and new hard links
  /// change it, and so does a write whose mtime was reset.) Otherwise it is one warning in the log.
  /// On network file systems, FUSE and FAT the ctime is ignored.
  bool strict = false;
  ServerChoice server = {};
};

/// What a checkpoint may use: speed and resources. None of it changes a byte.
struct Resources {
  /// Bytes of memory for everything except the catalog: tiles, buffers, rendered text. At least
  /// 64 MiB.
  std::uint64_t memory = std::uint64_t{1} << 30;
  /// Takes the place of `memory`, and is shared with other checkpoints.
  std::optional<Budget> budget = {};
  /// The directory of a temporary file for decoded chunks, and for tiles that are expensive to
  /// recompute, when the memory is full. Empty: they are computed again.
  std::optional<std::filesystem::path> spill = {};
  /// The most bytes of that file. 0: as many as the disk takes.
  std::uint64_t spill_size = 0;
  IoEngine io = IoEngine::Auto;
  /// Threads that compute ahead of readers and help with tiles. 0: one for each CPU. A slow source
  /// gets more threads, which only wait for it.
  unsigned threads = 0;
  /// Connections to servers, at most.
  unsigned connections = 64;
  /// Seconds after which a read that gets no answer of a server is an error.
  unsigned timeout = 300;
  /// The directory of the disk cache of sources on other machines. Empty: $XDG_CACHE_HOME/ckfs,
  /// else ~/.cache/ckfs; where that one cannot be used, a warning in the log says so, and nothing
  /// is kept.
  std::optional<std::filesystem::path> cache_dir = {};
  /// The most bytes of disk that it takes. 0: nothing is kept.
  std::uint64_t cache_size = std::uint64_t{10} << 30;
  /// Reads wait for the cache's disk, so that all they fetch is kept as far as there is room.
  bool fill_cache = false;
};

struct OpenOptions {
  SourceChoice choose = {};
  Resources use = {};
  /// Ends open() early, with an error Stopped.
  std::stop_token stop = {};
};

/// One file of a view. All of it is fixed when the checkpoint is opened.
struct FileInfo {
  std::string_view path;  // relative to the view, with '/'; valid as long as the View
  std::uint64_t size = 0;
  Exactness exactness = Exactness::BitExact;  // the least exact of its tensors
  std::size_t tensors = 0;                    // target tensors in it; 0 for a side file
  /// Permission bits, a part of 0444. A copy of a source file has that file's. Another file has the
  /// bits that config.json and all files with tensors share.
  std::uint32_t readers = 0444;
};

/// One tensor of a view. `folder` and `name` together are unique in the view.
struct TensorInfo {
  std::string_view name;   // as in its file; valid as long as the View
  std::string_view dtype;  // safetensors' name: "BF16"
  std::span<const std::int64_t> shape;
  std::size_t file = 0;  // index in View::files(); the first file if several have parts of it
  Exactness exactness = Exactness::BitExact;
  /// The folder of the view that the tensor's model lies in, with a '/' behind it; empty: the view
  /// is one model.
  std::string_view folder = {};
  std::uint64_t size = 0;  // bytes of all elements
};

/// Why something of a checkpoint cannot be shown: `subject` names a tensor or file.
struct Reason {
  std::string subject;
  std::string text;
  std::size_t more = 0;  // number of further subjects with the same text, which are not listed
};

/// A view's name, and the reasons where the source cannot give it. An available view may still fail
/// in Checkpoint::view(), where its files cannot hold a tensor (a name that is not UTF-8, say).
struct ViewInfo {
  std::string name;
  std::string description;  // one line
  bool available = false;
  std::vector<Reason> reasons;  // why it is not available
  std::vector<Reason> remarks;  // tensors that pass unchanged, are left out or are renamed
};

/// Counters since the checkpoint was opened; all in bytes or in events.
struct Statistics {
  struct File {
    std::string path;
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;
    std::uint64_t size = 0;  // of the file: more bytes than that were read more than once
  };
  /// Bytes that readers of a view's file got: by asking, or ahead of that by a mount.
  struct Given {
    std::string view;  // canonical
    std::string path;
    std::uint64_t bytes = 0;
  };
  std::vector<Given> given;        // by view and path; only views that are in use
  std::vector<File> source;        // only files that were read
  std::uint64_t source_bytes = 0;  // the sum of source[].bytes
  std::uint64_t requests = 0;      // calls of ViewFile::read()
  /// Bytes that readers got: the answers of ViewFile::read(), and what a mount put into the
  /// kernel's page cache ahead of readers.
  std::uint64_t bytes_to_readers = 0;
  std::uint64_t bytes_delivered = 0;  // among them, those ahead of readers
  std::uint64_t tiles = 0;            // tiles, pieces, texts and kept companions computed
  std::uint64_t tiles_unread = 0;     // among them, evicted unread
  std::uint64_t hits = 0;             // tile cache hits
  /// Budgeted memory in use now, or kept for reuse; with Resources::budget, of all that share it.
  std::uint64_t memory = 0;
  std::uint64_t memory_peak = 0;
  std::uint64_t memory_budget = 0;
  std::string io;                   // "uring" or "pread"
  std::uint64_t decoded_bytes = 0;  // decompressed, without passes that only verify checksums
  std::uint64_t spilled_bytes = 0;  // written to Resources::spill, or to an export's own spill
  std::optional<RemoteStatistics> remote;  // absent: nothing is on another machine
};

/// Walks over a list whose entries are made on access.
template <typename List, typename Entry>
class EntryIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Entry;
  using difference_type = std::ptrdiff_t;
  using pointer = void;
  using reference = Entry;

  EntryIterator() = default;
  EntryIterator(const List* list, std::size_t index) : list_(list), index_(index) {}
  Entry operator*() const { return (*list_)[index_]; }
  EntryIterator& operator++() {
    ++index_;
    return *this;
  }
  EntryIterator operator++(int) {
    const EntryIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const EntryIterator& other) const = default;

 private:
  const List* list_ = nullptr;
  std::size_t index_ = 0;
};

/// The files of a view, sorted by the bytes of their paths. A view may have 100,000 files: each
/// FileInfo is made on access.
class FileList {
 public:
  using Iterator = EntryIterator<FileList, FileInfo>;

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

/// The tensors of a view, in the order of their files' layout. A view may have 100,000 tensors,
/// too.
class ViewTensors {
 public:
  using Iterator = EntryIterator<ViewTensors, TensorInfo>;

  std::size_t size() const;
  bool empty() const { return size() == 0; }
  /// Requires: index < size().
  TensorInfo operator[](std::size_t index) const;
  /// The index of a tensor by its name, with its folder before it where it has one.
  std::optional<std::size_t> find(std::string_view name) const;
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  friend class View;
  explicit ViewTensors(std::shared_ptr<const TensorTable> table) : table_(std::move(table)) {}

  std::shared_ptr<const TensorTable> table_;  // nullptr: there are none
};

/// A file of a view, open for one reader. It follows that reader's position and computes ahead of
/// it; copies share the position.
class ViewFile {
 public:
  FileInfo info() const;
  /// Fills `out` from `offset`. Gives the number of bytes: out.size(), or less at the end of the
  /// file. Errors: Io, Stale, Corrupt, Unsupported (a chunk in a form that ckfs does not know),
  /// OutOfMemory (the budget can never hold it, or the system has no more), Internal. After an
  /// error the content of `out` is undefined.
  Result<std::size_t> read(std::uint64_t offset, std::span<std::byte> out);
  /// The same, without a copy where possible. The results that a program keeps hold memory of the
  /// budget, up to a quarter of it for all of its checkpoints (each counts as its size, rounded up
  /// to whole MiB). Results beyond that are copies in the program's own heap, so reading never
  /// waits for results that are kept. OutOfMemory, with the number of bytes, where the heap has no
  /// room.
  Result<Bytes> read(std::uint64_t offset, std::size_t size);

  class Impl;

 private:
  friend class View;
  friend class Tensor;
  explicit ViewFile(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  friend class Inside;

  std::shared_ptr<Impl> impl_;
};

/// A tensor of a view, by itself: row-major and little-endian, whatever files the view packs it in.
/// Copies share the position of one reader, as those of a ViewFile do.
class Tensor {
 public:
  TensorInfo info() const;
  /// Bytes of `rows` indices of the first dimension. A scalar has one row. Errors: InvalidArgument
  /// (beyond the shape; or rows that end within a byte).
  Result<std::uint64_t> size_of_rows(std::int64_t first, std::int64_t rows) const;

  /// Reads all of it. Errors: InvalidArgument (`out` has another size), and those of
  /// ViewFile::read().
  Result<void> read(std::span<std::byte> out) const;
  /// Reads `rows` indices of the first dimension from `first`, and no byte of the others. Errors:
  /// those of size_of_rows() and read().
  Result<void> read_rows(std::int64_t first, std::int64_t rows, std::span<std::byte> out) const;

  class Impl;

 private:
  friend class View;
  explicit Tensor(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

/// A tensor to read, or rows of it, and where to.
struct TensorRead {
  std::size_t tensor = 0;    // index in View::tensors()
  std::span<std::byte> out;  // as long as the tensor, or as its rows
  std::int64_t first_row = 0;
  std::int64_t rows = kAllRows;

  static constexpr std::int64_t kAllRows = -1;
};

struct ReadManyOptions {
  /// Threads that read; 0: one for each CPU.
  unsigned jobs = 0;
  /// Ends the work early, with an error Stopped.
  std::stop_token stop = {};
  /// Called from several threads, one at a time, with bytes done so far and the total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

/// A directory that shows the checkpoint in one form. Immutable.
class View {
 public:
  /// The canonical name, with keys sorted and defaults left out: "bf16-safetensors@max_shard=5GB".
  const std::string& name() const;

  /// The checkpoint that it is a view of.
  Checkpoint checkpoint() const;

  /// Whose bytes the quantized tensors are equal to: "slime 624b824 on CPU"; empty: there are none.
  const std::string& tool() const;

  FileList files() const;

  /// The target tensors. Empty for `source`.
  ViewTensors tensors() const;
  /// Errors: NotFound.
  Result<ViewFile> open(std::string_view path, ReadOptions options = {}) const;

  /// The tensor that ViewTensors::find() finds. Errors: NotFound (with the name that is most like
  /// it).
  Result<Tensor> tensor(std::string_view name, ReadOptions options = {}) const;
  /// The same by the index in tensors(). Errors: NotFound.
  Result<Tensor> tensor(std::size_t index, ReadOptions options = {}) const;

  /// Reads many tensors, by several threads, in the order in which their files have them, whatever
  /// the order of `reads`. The fast way to load a model. Errors: those of Tensor::read_rows() (with
  /// the tensor's name); then some of the places are filled and others are not. Stopped.
  Result<void> read(std::span<const TensorRead> reads, const ReadManyOptions& options = {}) const;

  class Impl;

 private:
  friend class Checkpoint;
  friend class Inside;
  explicit View(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<const Impl> impl_;
};

/// A checkpoint whose headers have been read. Sizes, names, times and inodes of all views are fixed
/// from here on. No tensor data has been read, except tensors that say how others are encoded.
class Checkpoint {
 public:
  /// `source`: a directory, a file, a hub cache entry, or a location (hf://ORG/NAME[@REVISION],
  /// https://HOST/PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX), for which the program ckfs-fetcher
  /// must be installed. Errors: NotFound, Corrupt, Unsupported, Io, Stale: one line that names the
  /// file and the fact, also for a recipe that is wrong or does not fit the source. InvalidArgument
  /// (an option; the budget of a process that forked this one), OutOfMemory, Stopped.
  static Result<Checkpoint> open(const std::filesystem::path& source,
                                 const OpenOptions& options = {});

  /// All views that ckfs knows, those that this checkpoint cannot give included, in the order of
  /// docs/FORMATS.md.
  std::vector<ViewInfo> views() const;

  /// `spelling` is a view's name, with or without parameters: "bf16-safetensors@max_shard=5GB". All
  /// spellings of one view give the same files and inodes. Errors: NotFound (no such view),
  /// InvalidArgument (no such parameter, a bad value, more than 100,000 shards), Unsupported (the
  /// source cannot give the view: the message has the first reasons, views() has more; or its files
  /// cannot hold a tensor), Corrupt (a config.json that the view's rules cannot use).
  Result<View> view(std::string_view spelling) const;

  /// Newest mtime of the source in whole seconds since 1970; never 0.
  std::int64_t mtime() const;
  /// A hash over the names, sizes and mtimes of the source's files (the file of
  /// SourceChoice::config included), the step that was opened, and the tag, key, item, recipes and
  /// family of the choice.
  std::uint64_t fingerprint() const;

  Statistics statistics() const;

  class Impl;

 private:
  friend class Inside;
  explicit Checkpoint(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<Impl> impl_;
};

/// "0.2.0"
std::string_view version();

/// Grows when the bytes of some view change for the same source and parameters (see CHANGELOG).
inline constexpr int kLayoutVersion = 2;

}  // namespace ckfs
