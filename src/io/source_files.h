// Real files as a ByteSource: registered while a checkpoint is opened, and from then on the content
// that they had, or an error.
//
// LocalFiles are opened when they are registered, and again when they are read after others took
// their descriptors (IoOptions::max_open_files); they are checked before and after every read
// against the fingerprint that was recorded then. Files of other machines: remote/remote_files.h.
//
// add() is for the opening phase, by one thread (reading while adding is allowed); it uses several
// of its own. read() is safe for concurrent use by several threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/types.h>

#include "base/byte_source.h"
#include "io/fingerprint.h"
#include "io/io_options.h"
#include "io/source_store.h"

namespace ckfs {

class Reader;

/// Counts of the real reads. The bytes between coalesced requests count, and so do those that are
/// read through in a file that streams. Each access is one request. Of mapped bytes, those that
/// were to be looked at count; so does each map() that was granted.
struct IoStatistics {
  struct File {
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;
  };
  std::vector<File> files;                      // by FileId
  std::optional<RemoteStatistics> remote = {};  // absent: there are no files of other machines
};

/// A line of a report on where files are.
inline constexpr const char* kVersionTaken = "version";  // a fact's subject

struct SourceFact {
  std::string subject;
  std::string text;
};

class SourceFiles : public ByteSource {
 public:
  /// The path by which store() knows the source that a user wrote; a source of this machine keeps
  /// its path. Errors: those of finding a source on another machine.
  virtual Result<std::filesystem::path> locate(const std::filesystem::path& written) {
    return written;
  }
  /// Facts about the sources of other machines: the version that was taken.
  virtual std::vector<SourceFact> facts() const { return {}; }
  /// Bytes of memory that it may take for bytes on their way, in addition to the pool.
  virtual std::uint64_t own_memory() const { return 0; }
  /// Directories in which it makes, reads and removes files of its own while it is used: a process
  /// that confines itself must leave it these rights.
  virtual std::vector<std::filesystem::path> own_directories() const { return {}; }

  /// Registers regular files (symbolic links are followed now, once), several at a time, and
  /// records their fingerprints. The number of the first is given, the others follow in order.
  /// After an error, that of the first file at fault, none is registered. Errors: NotFound, Io,
  /// InvalidArgument (not a regular file), Unsupported (more than 2^32 - 1 files), OutOfMemory. May
  /// throw std::bad_alloc: then some may be registered, and nothing more is to be done with them.
  virtual Result<FileId> add(std::vector<NewFile> files) = 0;
  Result<FileId> add(std::string name, const std::filesystem::path& path);

  /// Where the files are, for the caller that looks for more.
  virtual SourceStore& store() const = 0;
  /// How many threads may open and read at once while a checkpoint is opened.
  virtual const Parallel& parallel() const = 0;

  virtual const Fingerprint& fingerprint(FileId file) const = 0;
  /// Where it is, as the store names it: canonical.
  virtual const std::filesystem::path& path(FileId file) const = 0;
  /// Whether path() is a path of this machine.
  virtual bool is_here(FileId file) const = 0;
  virtual std::size_t count() const = 0;
  virtual IoEngine engine() const = 0;
  virtual IoStatistics statistics() const = 0;
};

/// The files of this machine.
class LocalFiles final : public SourceFiles {
 public:
  /// Errors: Unsupported for IoEngine::Uring where it cannot be had (make_uring_reader()). With
  /// Auto that is said once in the log (info) and pread is used.
  static Result<std::unique_ptr<SourceFiles>> create(const IoOptions& options);
  /// The same with a reader of the caller's, whatever options.engine says, and with another store:
  /// for tests.
  static std::unique_ptr<SourceFiles> with_reader(
      const IoOptions& options, std::unique_ptr<Reader> reader,
      std::unique_ptr<OpenStore> store = make_local_store());
  ~LocalFiles() override;

  using SourceFiles::add;
  Result<FileId> add(std::vector<NewFile> files) override;
  SourceStore& store() const override;
  /// As IoOptions has it, but no more than the process's descriptors allow.
  const Parallel& parallel() const override;

  /// Once a file is found changed it stays Stale, with the same message, logged once. Not to be
  /// used on both sides of a fork(): rings belong to the process that made them.
  Result<void> read(std::span<const ReadRequest> batch) override;
  /// Reads a request past the page cache (O_DIRECT) if it is padded, has three blocks and more, all
  /// before the file's end, none but the first and the last is in the page cache, and
  /// SourceTraits::reads_past_cache is true of the file. Other requests: bytes that this brings
  /// into the page cache leave it again, and so do those that will_need() brought in, except in
  /// accesses that want part of their pages. Bytes that were there before stay, unless kernel and
  /// file system do not say so (read_once.h). Reads files of remote file systems as read() does.
  Result<void> read_once(std::span<const ReadRequest> batch) override;
  /// Maps bytes of a local file where all of them are in the page cache; a short range only where a
  /// longer one of the file was mapped before.
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override;
  /// Maps as map() does, but not where will_need() brought any of the bytes in.
  std::optional<MappedBytes> map_once(const FileRange& range, std::uint64_t used) override;
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override;
  /// Lets go of the pages of mappings, and closes files that stream: their servers read ahead of
  /// each open file, some 16 MiB, wanted or not. (A ring may still have some of these files, from
  /// before they were known to stream.)
  void rest(const std::function<bool()>& still) override;
  /// Files that stream are not hinted at (SourceTraits::streams), nor those of remote file systems
  /// that were seen to keep no pages, or were not read in order yet, nor Stale ones. Cost:
  /// page_cache.h. Requires: each range lies within size(file).
  void will_need(std::span<const FileRange> ranges) override;
  /// Of reads past the cache: until O_DIRECT was seen to fail on that file system.
  SourceTraits traits(FileId file) const override;
  Result<void> verify(std::span<const FileId> files) override;
  std::uint64_t size(FileId file) const override;
  const std::string& name(FileId file) const override;

  const Fingerprint& fingerprint(FileId file) const override;
  const std::filesystem::path& path(FileId file) const override;
  bool is_here(FileId) const override { return true; }
  std::size_t count() const override;
  /// The engine in use, never Auto; with with_reader() the engine that its options name.
  IoEngine engine() const override;
  IoStatistics statistics() const override;

 private:
  class Impl;
  explicit LocalFiles(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
