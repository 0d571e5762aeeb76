// Files of a source that is far away, read by a fetcher (fetch/client.h), as SourceFiles; and files
// of this machine beside them, which are another SourceFiles' and share its numbers: those of
// `--config DIR`, and large ones of the hub that its cache on this machine has already.
//
// What a file is was pinned when its source was listed: a commit, an ETag, a generation. The
// fetcher gives bytes of that version or Stale, which stays so. A disk cache may be in front of it:
// it has bytes of that version, too, or none.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "fetch/client.h"
#include "io/source_files.h"
#include "remote/fetch_plan.h"
#include "remote/keep_queue.h"
#include "remote/remote_cache.h"
#include "remote/remote_names.h"

namespace ckfs {

class RemoteFiles final : public SourceFiles {
 public:
  /// `client`: nullptr: no server is asked, and there is what the cache has. `local`: of this
  /// machine. `hub_cache`: the directory of huggingface_hub's downloads; empty: there is none.
  /// `share`: the client's part of a budget, given back at the end of this object.
  RemoteFiles(std::unique_ptr<FetchClient> client, RemoteOptions options, RemoteCache cache,
              std::unique_ptr<SourceFiles> local, std::filesystem::path hub_cache = {},
              std::shared_ptr<const void> share = {});
  ~RemoteFiles() override;

  /// Lists the source at a location and pins what it has, or takes what the cache has of that
  /// version; a path of this machine stays as it is, and without a client a location whose listing
  /// the cache does not have. Errors: those of parse_location() and FetchClient::open().
  Result<std::filesystem::path> locate(const std::filesystem::path& written) override;
  std::vector<SourceFact> facts() const override;
  std::uint64_t own_memory() const override {
    return client_ == nullptr ? 0 : std::uint64_t{4} * client_->longest_read();
  }
  std::vector<std::filesystem::path> own_directories() const override;

  using SourceFiles::add;
  /// Asks no server: all of a listing was seen. Errors: as of SourceFiles.
  Result<FileId> add(std::vector<NewFile> files) override;
  SourceStore& store() const override;
  const Parallel& parallel() const override { return parallel_; }

  /// What the cache does not have: near ranges become one request, long ones several; all of a
  /// batch are under way at once. While a checkpoint is opened, the ends of files are kept: headers
  /// are read in several steps. Errors: also those of FetchClient::read(); they begin with the
  /// file's name.
  Result<void> read(std::span<const ReadRequest> batch) override;
  Result<void> read_once(std::span<const ReadRequest> batch) override;
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override;
  std::optional<MappedBytes> map_once(const FileRange& range, std::uint64_t used) override;
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override;
  /// The checkpoint is open: ends of files are kept no more.
  void rest(const std::function<bool()>& still) override;
  void will_need(std::span<const FileRange> ranges) override;
  SourceTraits traits(FileId file) const override;
  /// A file that was found changed stays Stale; asks no server.
  Result<void> verify(std::span<const FileId> files) override;
  std::uint64_t size(FileId file) const override;
  const std::string& name(FileId file) const override;

  const Fingerprint& fingerprint(FileId file) const override;
  const std::filesystem::path& path(FileId file) const override;
  bool is_here(FileId file) const override;
  std::size_t count() const override;
  IoEngine engine() const override { return local_->engine(); }
  IoStatistics statistics() const override;

  /// Bytes at each end of a file that are read as a whole while a checkpoint is opened. The headers
  /// of 97 of 100 models are shorter.
  static constexpr std::uint64_t kEnd = std::uint64_t{128} << 10;
  /// Smaller files are not looked for in the hub's cache: they cost a request or two.
  static constexpr std::uint64_t kWorthLooking = std::uint64_t{1} << 20;

 private:
  class Store;
  struct Source {
    std::uint32_t number = 0;  // the client's
    RemoteNames names;
    const BlockCache::Source* place = nullptr;  // in the cache; nullptr: it is not kept
  };
  /// Its place in memory is its own for good.
  struct File {
    std::string name;
    std::optional<FileId> local;     // the number that `local_` has for it
    std::filesystem::path path;      // where it is not local
    const Source* source = nullptr;  // nullptr: it is a file of this machine alone
    std::size_t object = 0;
    Fingerprint fingerprint;
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::uint64_t> requests{0};
    std::atomic<bool> is_stale{false};
    Mutex stale_mutex;
    std::string stale_reason CKFS_GUARDED_BY(stale_mutex);
  };
  struct EndKey {
    const Source* source;
    std::size_t object;
    bool tail;
    auto operator<=>(const EndKey&) const = default;
  };
  using End = std::shared_ptr<const std::vector<std::byte>>;

  File& file(FileId id) const;
  const Source* source_of(const std::filesystem::path& path, std::string_view& name) const;
  /// Where the hub's cache has that object; nullopt: it does not.
  std::optional<std::filesystem::path> find_cached(const Source& source, std::size_t object);
  using ReadLocal = Result<void> (SourceFiles::*)(std::span<const ReadRequest>);
  Result<void> read_by(std::span<const ReadRequest> batch, ReadLocal read_local);
  Result<void> read_remote(std::span<const ReadRequest> batch);
  /// False: not from an end, or not now.
  Result<bool> read_by_end(const ReadRequest& request);
  bool has_end(const EndKey& key);
  Result<End> end_of(const Source& source, std::size_t object, bool tail);
  /// What the number of an object means, of wanted bytes.
  struct Target {
    const Source* source = nullptr;
    std::size_t object = 0;
    File* file = nullptr;  // which its errors name; nullptr: none
  };
  using TargetOf = std::function<Target(std::uint64_t number)>;
  Result<void> fetch(std::vector<WantedRange> wanted, const TargetOf& target_of);
  /// Fills what the cache has; the rest stays in `wanted`.
  void take_cached(std::vector<WantedRange>& wanted, const TargetOf& target_of);
  Result<void> ask(const FetchPlan& plan, const TargetOf& target_of);
  std::filesystem::path add_source(std::uint32_t number, RemoteSource source,
                                   const BlockCache::Source* place) CKFS_EXCLUDES(mutex_);
  Failure failed(File& file, const Error& error);
  static Failure stale(File& file);
  std::vector<std::byte> first_bytes(const std::filesystem::path& path, std::size_t count);

  const std::shared_ptr<const void> share_;  // first: it goes after the client
  const std::unique_ptr<FetchClient> client_;
  const RemoteOptions options_;
  const RemoteCache cache_;
  mutable SharedMutex mutex_;
  // Elements stay where they are, and outlive `keeps_`, whose thread reads them to its end.
  std::deque<Source> sources_ CKFS_GUARDED_BY(mutex_);
  const std::unique_ptr<KeepQueue> keeps_;  // nullptr: there is no cache
  const std::unique_ptr<SourceFiles> local_;
  const std::filesystem::path hub_cache_;
  const std::unique_ptr<Store> store_;
  Parallel parallel_;
  const FetchPlanOptions plan_options_;
  mutable std::deque<File> files_ CKFS_GUARDED_BY(mutex_);  // elements stay where they are
  std::atomic<bool> is_opening_{true};
  Mutex ends_mutex_;
  std::map<EndKey, End> ends_ CKFS_GUARDED_BY(ends_mutex_);
  std::deque<EndKey> end_order_ CKFS_GUARDED_BY(ends_mutex_);  // the oldest first
};

}  // namespace ckfs
