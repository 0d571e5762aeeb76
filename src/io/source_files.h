// Real files as a ByteSource: opened when first read, at most so many at a time, and checked before
// and after every read against the size and mtime that were recorded when the checkpoint was
// opened.
//
// add() is for the opening phase, by one thread (reading while adding is allowed); it uses several
// of its own. read() is safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/types.h>

#include "base/byte_source.h"
#include "base/parallel.h"
#include "io/fingerprint.h"
#include "io/source_store.h"

namespace ckfs {

class Reader;

struct IoOptions {
  IoEngine engine = IoEngine::Auto;
  /// Requests in flight per thread with io_uring (8 to 16 suit cold files).
  unsigned queue_depth = 16;
  /// Open descriptors kept, within half of what the process may have: a checkpoint may have
  /// thousands of files, of which one MiB of a view needs some bytes of each (512 ranks).
  std::size_t max_open_files = 4096;
  /// Two requests on one file become one access when at most this many bytes lie between them. By
  /// default they have to touch: what lies between two tensors may be anything (Adam moments, a
  /// bad sector), and nothing is read that was not asked for. The engine's gathers join near pieces
  /// of one storage themselves, for they know whose the gaps are.
  std::uint64_t coalesce_gap = 0;
  /// ... and one access is at most this long; longer ones are cut, to have several in flight.
  std::uint64_t max_access = std::uint64_t{1} << 20;
  /// How often the path of a file that is being read is looked at. Not seen in between: that the
  /// path names another file now; a change of the opened file is seen at once.
  std::chrono::nanoseconds path_check_interval = std::chrono::seconds(1);
  /// A change of nothing but the ctime of a file makes it Stale; else it is a warning in the log.
  bool strict = false;
  /// Whether bytes of local files that are in the page cache may be mapped (file_mappings.h). With
  /// a reader of the caller's choice they are read, always.
  bool map_cached = true;
  /// The threads that open a checkpoint.
  Parallel parallel = {};
};

/// A file to register.
struct NewFile {
  std::string name;            // what messages call it
  std::filesystem::path path;  // where it is
  /// `path` is as SourceStore::resolve() gives it, and was listed as a file: it is opened without
  /// another look.
  bool plain = false;
};

/// What was really read: bytes between coalesced requests count, and each access is one request.
struct IoStatistics {
  struct File {
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;
  };
  std::vector<File> files;  // by FileId
};

class SourceFiles final : public ByteSource {
 public:
  /// Errors: Unsupported for IoEngine::Uring where the kernel or a seccomp filter forbids it. With
  /// Auto that is said once in the log (info) and pread is used.
  static Result<std::unique_ptr<SourceFiles>> create(const IoOptions& options);
  /// The same with a reader of the caller's, whatever options.engine says, and with another store:
  /// for tests.
  static std::unique_ptr<SourceFiles> with_reader(
      const IoOptions& options, std::unique_ptr<Reader> reader,
      std::unique_ptr<SourceStore> store = make_local_store());
  ~SourceFiles() override;

  /// Registers regular files (symbolic links are followed now, once), several at a time, and
  /// records their fingerprints. The number of the first is given, the others follow in order.
  /// After an error, that of the first file at fault, none is registered. Errors: NotFound, Io,
  /// InvalidArgument (not a regular file), Unsupported (more than 2^32 - 1 files), OutOfMemory.
  Result<FileId> add(std::vector<NewFile> files);
  Result<FileId> add(std::string name, const std::filesystem::path& path);

  /// Where the files are, for those who look for more.
  SourceStore& store() const;
  /// How many threads may open and read at once while a checkpoint is opened: as IoOptions has it,
  /// but no more than the process's descriptors allow.
  const Parallel& parallel() const;

  /// Once a file is found changed it stays Stale, with the same message, logged once. Not to be
  /// used on both sides of a fork(): rings belong to the process that made them.
  Result<void> read(std::span<const ReadRequest> batch) override;
  /// Padded requests for blocks of which none is in the page cache are read past it, where all of
  /// them lie before the file's end, on a disk of this machine (O_DIRECT). Of the others, what this
  /// brings into the page cache leaves it again, and so does what will_need() brought in;
  /// what was there before stays, unless kernel (before 6.5) and file system can not say. Files of
  /// remote file systems are read as by read().
  Result<void> read_once(std::span<const ReadRequest> batch) override;
  /// Bytes of a local file where all of them are in the page cache; short ranges only of a file of
  /// which a longer one was mapped before.
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override;
  /// Not where will_need() brought any of it in.
  std::optional<MappedBytes> map_once(const FileRange& range, std::uint64_t used) override;
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override;
  /// Lets go of the pages of mappings, and closes files that stream: their servers read ahead of
  /// each that is open, some 16 MiB, whether anybody wants it or not.
  void rest() override;
  /// Files that stream are not hinted at (prefers_order), nor are Stale ones. Cost: page_cache.h.
  /// Requires: each range lies within size(file).
  void will_need(std::span<const FileRange> ranges) override;
  /// Files on disks of this machine.
  bool heeds_hints(FileId file) const override;
  /// Of files on disks of this machine, where the kernel tells what is cached (6.5; of files that
  /// the process owns or may write).
  bool knows_page_cache(FileId file) const override;
  /// Of files on disks of this machine, until O_DIRECT was seen to fail there; not of file systems
  /// that cache elsewhere.
  bool reads_past_cache(FileId file) const override;
  /// Files of network and FUSE file systems; no longer once it was measured that their source
  /// answers several requests at once faster (pace.h). Where reads go through the page cache, that
  /// is measured by a batch of 3 MiB that lie one behind another.
  bool prefers_order(FileId file) const override;
  Result<void> verify(std::span<const FileId> files) override;
  std::uint64_t size(FileId file) const override;
  const std::string& name(FileId file) const override;

  const Fingerprint& fingerprint(FileId file) const;
  /// Where it is: canonical.
  const std::filesystem::path& path(FileId file) const;
  std::size_t count() const;
  /// What is really used, never Auto; of with_reader() what its options say.
  IoEngine engine() const;
  IoStatistics statistics() const;

 private:
  class Impl;
  explicit SourceFiles(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
