// The table of source files: which they are, and whether they still are those.
//
// add() is for the opening phase, by one thread, and uses several of its own. Other calls may run
// at the same time: they are safe for concurrent use by several threads.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/byte_source.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "io/file_system.h"
#include "io/fingerprint.h"
#include "io/io_options.h"
#include "io/open_files.h"
#include "io/reader.h"
#include "io/source_store.h"

namespace ckfs {

/// Its place in memory is its own for good.
struct RegisteredFile {
  std::string name;
  std::filesystem::path path;  // canonical: symbolic links were followed when it was added
  Fingerprint fingerprint;
  CompareInodes inodes = CompareInodes::On;
  FileSystem* file_system = nullptr;

  std::atomic<std::int64_t> path_checked{0};  // Clock's time, ns
  std::atomic<bool> ctime_reported{false};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> requests{0};

  std::atomic<FileSystem::Answer> tells_cached{FileSystem::Answer::Unknown};
  std::atomic<bool> stale{false};  // set once, after the reason
  Mutex stale_mutex;
  std::string stale_reason CKFS_GUARDED_BY(stale_mutex);
};

/// Errors that others' pins may be the reason of.
bool out_of_descriptors(int error);

class FileRegistry {
 public:
  FileRegistry(const IoOptions& options, std::unique_ptr<OpenStore> store);

  /// As SourceFiles::add().
  Result<FileId> add(std::vector<NewFile> files);

  /// Requires: there is such a file.
  RegisteredFile& file(FileId id);
  std::size_t count() const;
  OpenStore& store() { return *store_; }
  const Parallel& parallel() const { return parallel_; }

  /// Gives descriptor `number` of the file. Compares it with the file that was added when it has
  /// just been opened, and the path if that was not done lately. Later changes are found by
  /// check(). Errors: Stale, Io.
  Result<Pin> pin(FileId id, RegisteredFile& file, unsigned number = 0);
  /// Gives it without that comparison; the error is an errno. Where the process has no descriptors
  /// left it waits a little for those of other threads.
  Tried<Pin> pin_unchecked(FileId id, const std::filesystem::path& path, unsigned number = 0,
                           OpenFiles::Prepare prepare = nullptr);
  /// Forgets the descriptors of a file.
  void drop(FileId id) { open_files_.drop(id); }

  /// To be called once bytes have come from a descriptor: they are only then the file's. Errors:
  /// Stale, Io.
  Result<void> check(RegisteredFile& file, int fd);
  /// What an access that failed is reported as: Stale where the file has changed, else Io.
  Failure failed(RegisteredFile& file, int fd, const AccessFailure& failure);

 private:
  struct Registered {
    Fingerprint fingerprint;
    FileSystem* file_system = nullptr;
  };

  Result<Registered> register_one(FileId id, NewFile& file);
  Result<void> check_path(RegisteredFile& file);
  Result<void> compare(RegisteredFile& file, const FileStatus& now);
  Failure stale(RegisteredFile& file, const std::string& what);

  const Parallel parallel_;
  const std::chrono::nanoseconds path_check_interval_;
  const bool strict_;
  const std::unique_ptr<OpenStore> store_;
  OpenFiles open_files_;
  FileSystems file_systems_;
  mutable SharedMutex mutex_;
  std::deque<RegisteredFile> files_ CKFS_GUARDED_BY(mutex_);  // the elements stay where they are
};

}  // namespace ckfs
