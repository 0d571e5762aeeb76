// A request costs a round trip and a connection's attention, whatever its size, and thousands of
// them may be under way at once: so a batch is planned with wider gaps and longer requests than for
// a disk, and all of its requests are asked at once. How many go to the server at a time is the
// fetcher's business, which sees all batches.
//
// The cache is asked first, by the reader's thread, and gets what was fetched by a thread of its
// own (keep_queue.h). It keeps whole cells, so requests for it begin and end where cells do: a
// small read costs up to 128 KiB more, once.
//
// Opening reads small things at both ends of files, several times each (the length of a header, the
// header; the end of a zip file, its directory). One request for a whole end takes no longer than
// one for its first 8 bytes.
#include "remote/remote_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <spdlog/spdlog.h>

#include "base/checked.h"
#include "base/stop.h"
#include "base/text.h"
#include "cache/cached_listing.h"
#include "fetch/location.h"

namespace ckfs {
namespace {

/// Bytes between two ranges that are read with them: so many take a small part of the time of a
/// round trip.
constexpr std::uint64_t kRemoteGap = std::uint64_t{64} << 10;
/// A longer request is hardly faster, and a shorter one wastes the round trip.
constexpr std::uint64_t kLongestRequest = std::uint64_t{16} << 20;
/// Ends that are kept: more than threads that open files ever need at once.
constexpr std::size_t kMostEnds = 256;

/// Waits for requests that were asked.
class Answers {
 public:
  explicit Answers(std::size_t count) : left_(count) {}

  void done(Result<void> result, std::size_t request) {
    const MutexLock lock(mutex_);
    if (!result && (!error_ || request < failed_)) {
      error_ = std::move(result).error();
      failed_ = request;
    }
    --left_;
    changed_.notify_all();
  }

  /// Returns when all are answered: nothing is written after that. After an error, or when this
  /// thread is to stop, the others are cancelled by `cancel`.
  template <typename Cancel>
  void wait(const Cancel& cancel) {
    const WakeOnStop wake_on_stop(mutex_, changed_);
    MutexLock lock(mutex_);
    while (left_ > 0 && !error_ && !stop_asked()) changed_.wait(lock);
    if (left_ == 0) return;
    lock.unlock();
    cancel();
    lock.lock();
    while (left_ > 0) changed_.wait(lock);
  }

  std::optional<Error> error() {
    const MutexLock lock(mutex_);
    return error_;
  }
  std::size_t failed() {
    const MutexLock lock(mutex_);
    return failed_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::size_t left_ CKFS_GUARDED_BY(mutex_);
  std::optional<Error> error_ CKFS_GUARDED_BY(mutex_);
  std::size_t failed_ CKFS_GUARDED_BY(mutex_) = 0;  // of the error
};

}  // namespace

/// Names of all sources that were listed, and of this machine.
class RemoteFiles::Store final : public SourceStore {
 public:
  explicit Store(RemoteFiles& files) : files_(files) {}

  Tried<std::vector<StoreEntry>> list(const std::filesystem::path& directory) override {
    std::string_view name;
    if (!is_location(directory.native())) return local().list(directory);
    const Source* const source = files_.source_of(directory, name);
    if (source == nullptr) return tl::unexpected(ENOENT);
    return source->names.list(name);
  }

  Tried<FileStatus> look(const std::filesystem::path& path) override {
    std::string_view name;
    if (!is_location(path.native())) return local().look(path);
    const Source* const source = files_.source_of(path, name);
    if (source == nullptr) return tl::unexpected(ENOENT);
    return source->names.look(name);
  }

  Tried<std::filesystem::path> resolve(const std::filesystem::path& path) override {
    std::string_view name;
    if (!is_location(path.native())) return local().resolve(path);
    const Source* const source = files_.source_of(path, name);
    if (source == nullptr) return tl::unexpected(ENOENT);
    if (const auto status = source->names.look(name); !status) {
      return tl::unexpected(status.error());
    }
    if (name.empty()) return std::filesystem::path(source->names.root());
    return std::filesystem::path(source->names.root() + "/" + std::string(name));
  }

  Tried<std::filesystem::path> link_target(const std::filesystem::path& path) override {
    if (!is_location(path.native())) return local().link_target(path);
    return tl::unexpected(EINVAL);
  }

  std::vector<std::byte> first_bytes(const std::filesystem::path& path,
                                     std::size_t count) override {
    if (!is_location(path.native())) return local().first_bytes(path, count);
    return files_.first_bytes(path, count);
  }

 private:
  SourceStore& local() { return files_.local_->store(); }
  RemoteFiles& files_;
};

RemoteFiles::RemoteFiles(std::unique_ptr<FetchClient> client, RemoteOptions options,
                         RemoteCache cache, std::unique_ptr<SourceFiles> local,
                         std::filesystem::path hub_cache, std::shared_ptr<const void> share)
    : share_(std::move(share)),
      client_(std::move(client)),
      options_(std::move(options)),
      cache_(std::move(cache)),
      // What waits to be written is missing for requests.
      keeps_(cache_.blocks == nullptr || client_ == nullptr
                 ? nullptr
                 : std::make_unique<KeepQueue>(
                       *cache_.blocks,
                       cache_.fills ? std::nullopt : std::optional(client_->longest_read()))),
      local_(std::move(local)),
      hub_cache_(std::move(hub_cache)),
      store_(std::make_unique<Store>(*this)),
      parallel_(local_->parallel()),
      plan_options_{.gap = kRemoteGap,
                    .longest = client_ == nullptr ? kLongestRequest
                                                  : std::min<std::uint64_t>(
                                                        kLongestRequest, client_->longest_read())} {
  // Its threads wait for servers from the first on.
  constexpr std::size_t kAtOnce = 32;
  parallel_.few = std::max(parallel_.few, std::min(parallel_.most, kAtOnce));
}

RemoteFiles::~RemoteFiles() = default;

Result<std::filesystem::path> RemoteFiles::locate(const std::filesystem::path& written) {
  if (!is_location(written.native())) return local_->locate(written);
  CKFS_TRY(const SourceLocation location, parse_location(written.native()));
  const BlockCache::Source* const place = cache_.place_of(location);
  std::optional<RemoteSource> known;
  if (place != nullptr) known = get_listing(*cache_.blocks, *place, location);
  if (client_ == nullptr) {
    if (!known) return local_->locate(written);
    return add_source(0, *std::move(known), place);
  }
  // A commit is what it was.
  if (known && location.service == RemoteService::Hub && known->pinned == location) {
    CKFS_TRY(const std::uint32_t number, client_->attach(*known, options_));
    return add_source(number, *std::move(known), place);
  }
  CKFS_TRY(FetchClient::Opened opened,
           client_->open(location, options_, known ? &*known : nullptr));
  // The client numbers objects as it gave them, and they come sorted.
  if (!std::ranges::is_sorted(opened.source.objects, {}, &RemoteObject::name)) {
    return fail(ErrorCode::Corrupt, "{}: a listing that is not in order", location.masked());
  }
  const bool is_kept = place != nullptr && opened.source.is_pinned;
  if (is_kept && !(known && known->pinned == opened.source.pinned &&
                   known->objects == opened.source.objects)) {
    put_listing(*cache_.blocks, *place, location, opened.source);
  }
  return add_source(opened.number, std::move(opened.source), is_kept ? place : nullptr);
}

std::filesystem::path RemoteFiles::add_source(std::uint32_t number, RemoteSource source,
                                              const BlockCache::Source* place) {
  const WriterLock lock(mutex_);
  return sources_.emplace_back(number, RemoteNames(std::move(source)), place).names.path();
}

std::vector<std::filesystem::path> RemoteFiles::own_directories() const {
  auto directories = local_->own_directories();
  if (cache_.blocks != nullptr) directories.push_back(cache_.directory);
  return directories;
}

std::vector<SourceFact> RemoteFiles::facts() const {
  std::vector<SourceFact> facts;
  const ReaderLock lock(mutex_);
  for (const Source& source : sources_) {
    const RemoteSource& its = source.names.source();
    if (its.pinned.service == RemoteService::Hub) {
      facts.push_back({kVersionTaken, its.pinned.masked()});
    } else if (!its.is_pinned) {
      facts.push_back(
          {kVersionTaken,
           fmt::format("{}: told by size and time alone, since the server sends no ETag",
                       its.pinned.masked())});
    } else {
      facts.push_back(
          {kVersionTaken,
           fmt::format("{}: as listed, each object by its {}", its.pinned.masked(),
                       its.pinned.service == RemoteService::Gcs ? "generation" : "ETag")});
    }
    for (const std::string& refused : its.refused) facts.push_back({"not shown", refused});
  }
  return facts;
}

SourceStore& RemoteFiles::store() const {
  return *store_;
}

RemoteFiles::File& RemoteFiles::file(FileId id) const {
  const ReaderLock lock(mutex_);
  CKFS_CHECK(id < files_.size());
  return files_[id];
}

const RemoteFiles::Source* RemoteFiles::source_of(const std::filesystem::path& path,
                                                  std::string_view& name) const {
  const ReaderLock lock(mutex_);
  for (const Source& source : sources_) {
    if (const auto found = source.names.name_of(path)) {
      name = *found;
      return &source;
    }
  }
  return nullptr;
}

// huggingface_hub keeps an object by the id that the hub's listing gives it, the hash of its
// content: of whatever commit it was downloaded, it is the same.
std::optional<std::filesystem::path> RemoteFiles::find_cached(const Source& source,
                                                              std::size_t object) {
  const SourceLocation& location = source.names.source().pinned;
  const RemoteObject& its = source.names.source().objects[object];
  if (hub_cache_.empty() || location.service != RemoteService::Hub || its.size < kWorthLooking) {
    return std::nullopt;
  }
  const bool is_id = std::ranges::all_of(
      its.version, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
  if (!is_id) return std::nullopt;  // a server's text must not lead to other files
  std::string folder = "models--" + location.container;
  folder.replace(folder.find('/'), 1, "--");
  const std::filesystem::path path = hub_cache_ / folder / "blobs" / its.version;
  const auto found = local_->store().look(path);
  const bool is_it = found && found->kind == FileKind::File && found->fingerprint.size == its.size;
  return is_it ? std::optional(path) : std::nullopt;
}

Result<FileId> RemoteFiles::add(std::vector<NewFile> added) {
  const auto first = static_cast<FileId>(count());
  if (!checked_cast<FileId>(first + added.size())) {
    return fail(ErrorCode::Unsupported, "{}: more than {} files", added.back().name, ~FileId{0});
  }
  struct Found {
    const Source* source = nullptr;
    std::size_t object = 0;
    std::optional<FileId> local = {};
    bool is_local = false;
  };
  std::vector<Found> found(added.size());
  std::vector<NewFile> of_this_machine;
  for (std::size_t i = 0; i < added.size(); ++i) {
    NewFile& file = added[i];
    if (!is_location(file.path.native())) {
      of_this_machine.push_back(file);
      found[i].is_local = true;
      continue;
    }
    std::string_view name;
    const Source* const source = source_of(file.path, name);
    const auto object = source == nullptr ? std::nullopt : source->names.find(name);
    if (!object && source != nullptr && source->names.look(name)) {
      return fail(ErrorCode::InvalidArgument, "{}: not a regular file", file.name);
    }
    if (!object) return system_failure(ENOENT, file.name, "open");
    found[i] = {source, *object};
    if (auto cached = find_cached(*source, *object)) {
      of_this_machine.push_back({file.name, *std::move(cached)});
      found[i].is_local = true;
    }
  }
  if (!of_this_machine.empty()) {
    CKFS_TRY(FileId local, local_->add(std::move(of_this_machine)));
    for (Found& each : found) {
      if (each.is_local) each.local = local++;
    }
  }
  const WriterLock lock(mutex_);
  for (std::size_t i = 0; i < added.size(); ++i) {
    File& file = files_.emplace_back();
    file.name = std::move(added[i].name);
    file.local = found[i].local;
    file.source = found[i].source;
    if (file.source == nullptr) continue;
    file.object = found[i].object;
    file.path =
        file.source->names.root() + "/" + file.source->names.source().objects[file.object].name;
    file.fingerprint = file.source->names.fingerprint(file.object);
  }
  return first;
}

Failure RemoteFiles::stale(File& file) {
  const MutexLock lock(file.stale_mutex);
  return fail(ErrorCode::Stale, "{}", file.stale_reason);
}

Failure RemoteFiles::failed(File& file, const Error& error) {
  if (error.code() == ErrorCode::Stopped) return stopped(file.name);
  if (error.code() != ErrorCode::Stale) {
    return Failure(Error(
        error.code(), fmt::format("{}: {}", file.name, error.message()),
        error.code() == ErrorCode::Io && error.system_error() == 0 ? EIO : error.system_error()));
  }
  {
    const MutexLock lock(file.stale_mutex);
    if (!file.is_stale.load(std::memory_order_relaxed)) {
      file.stale_reason = fmt::format("{}: {}", file.name, error.message());
      spdlog::error("{}", file.stale_reason);
      file.is_stale.store(true, std::memory_order_release);
    }
  }
  return stale(file);
}

Result<RemoteFiles::End> RemoteFiles::end_of(const Source& source, std::size_t object, bool tail) {
  const EndKey key{&source, object, tail};
  {
    const MutexLock lock(ends_mutex_);
    if (const auto found = ends_.find(key); found != ends_.end()) return found->second;
  }
  const std::uint64_t size = source.names.source().objects[object].size;
  const std::uint64_t length = std::min(size, kEnd);
  auto bytes = std::make_shared<std::vector<std::byte>>(length);
  if (length > 0) {
    CKFS_TRY_VOID(fetch({{.object_size = size, .offset = tail ? size - length : 0, .out = *bytes}},
                        [&](std::uint64_t) { return Target{&source, object}; }));
  }
  const MutexLock lock(ends_mutex_);
  if (!is_opening_.load(std::memory_order_relaxed)) return bytes;
  if (ends_.emplace(key, bytes).second) end_order_.push_back(key);
  if (end_order_.size() > kMostEnds) {
    ends_.erase(end_order_.front());
    end_order_.pop_front();
  }
  return bytes;
}

std::vector<std::byte> RemoteFiles::first_bytes(const std::filesystem::path& path,
                                                std::size_t count) {
  std::string_view name;
  const Source* const source = source_of(path, name);
  const auto object = source == nullptr ? std::nullopt : source->names.find(name);
  if (!object) return {};
  const auto end = end_of(*source, *object, /*tail=*/false);
  if (!end) return {};
  const std::size_t have = std::min((*end)->size(), count);
  return {(*end)->begin(), (*end)->begin() + static_cast<std::ptrdiff_t>(have)};
}

bool RemoteFiles::has_end(const EndKey& key) {
  const MutexLock lock(ends_mutex_);
  return ends_.contains(key);
}

Result<bool> RemoteFiles::read_by_end(const ReadRequest& request) {
  File& of = file(request.file);
  const std::uint64_t size = of.fingerprint.size;
  const std::uint64_t begin = request.offset;
  const std::uint64_t end = begin + request.out.size();
  const auto from = [&](bool tail) -> Result<void> {
    const auto bytes = end_of(*of.source, of.object, tail);
    if (!bytes) return failed(of, bytes.error());
    const std::uint64_t at = tail ? size - (*bytes)->size() : 0;
    const std::uint64_t count = std::min(end, at + (*bytes)->size()) - begin;
    std::memcpy(request.out.data(), (*bytes)->data() + (begin - at), count);
    return {};
  };
  if (begin < kEnd) {
    if (end > kEnd && !has_end({of.source, of.object, false})) return false;
    CKFS_TRY_VOID(from(false));
    if (end <= kEnd) return true;
    // A long header whose length was read: the rest of it.
    CKFS_TRY_VOID(
        fetch({{.object_size = size, .offset = kEnd, .out = request.out.subspan(kEnd - begin)}},
              [&](std::uint64_t) { return Target{of.source, of.object, &of}; }));
    return true;
  }
  if (size - begin <= kEnd && request.out.size() <= kEnd) {
    CKFS_TRY_VOID(from(true));
    return true;
  }
  return false;
}

void RemoteFiles::take_cached(std::vector<WantedRange>& wanted, const TargetOf& target_of) {
  std::vector<WantedRange> rest;
  for (const WantedRange& each : wanted) {
    const Target of = target_of(each.object);
    if (of.source->place == nullptr || each.out.empty()) {
      rest.push_back(each);
      continue;
    }
    const RemoteObject& object = of.source->names.source().objects[of.object];
    for (const ByteRange missing :
         cache_.blocks->get(*of.source->place, cache_object(object), each.offset, each.out)) {
      rest.push_back({.object = each.object,
                      .object_size = each.object_size,
                      .offset = missing.begin,
                      .out = each.out.subspan(missing.begin - each.offset, missing.size()),
                      .unit = kCacheCell});
    }
  }
  wanted = std::move(rest);
}

Result<void> RemoteFiles::fetch(std::vector<WantedRange> wanted, const TargetOf& target_of) {
  if (cache_.blocks != nullptr) take_cached(wanted, target_of);
  const FetchPlan plan = plan_fetches(std::move(wanted), plan_options_);
  if (plan.fetches.empty()) return {};
  return ask(plan, target_of);
}

Result<void> RemoteFiles::ask(const FetchPlan& plan, const TargetOf& target_of) {
  const auto failed_at = [&](std::size_t fetch, Error error) -> Failure {
    const Target of = target_of(plan.fetches[fetch].object);
    return of.file == nullptr ? Failure(std::move(error)) : failed(*of.file, error);
  };
  if (client_ == nullptr) {
    const ByteRange range = plan.fetches.front().range;
    return failed_at(
        0, Error(ErrorCode::Io, fmt::format("offline: the cache does not have its bytes {} to {} "
                                            "(ckfs cache warm fetches what is missing)",
                                            range.begin, range.end)));
  }
  Answers answers(plan.fetches.size());
  std::vector<std::uint64_t> asked;
  asked.reserve(plan.fetches.size());
  for (std::size_t i = 0; i < plan.fetches.size(); ++i) {
    const PlannedFetch& fetch = plan.fetches[i];
    const Target of = target_of(fetch.object);
    if (of.file != nullptr) {
      of.file->bytes.fetch_add(fetch.range.size(), std::memory_order_relaxed);
      of.file->requests.fetch_add(1, std::memory_order_relaxed);
    }
    try {
      asked.push_back(client_->read(
          of.source->number, of.object, fetch.range, [&, of, i](Result<FetchedBytes> bytes) {
            if (!bytes) return answers.done(Failure(std::move(bytes).error()), i);
            const PlannedFetch& its = plan.fetches[i];
            for (const FetchPart& part : plan.parts_of(its)) {
              std::memcpy(part.out.data(), bytes->span().data() + (part.offset - its.range.begin),
                          part.out.size());
            }
            if (of.source->place != nullptr) {
              keeps_->add(*of.source->place, of.source->names.source().objects[of.object],
                          its.range.begin, *std::move(bytes));
            }
            answers.done({}, i);
          }));
    } catch (const std::bad_alloc&) {
      // Those that were asked write into the caller's buffers until they are answered.
      for (std::size_t rest = i; rest < plan.fetches.size(); ++rest) {
        answers.done(Failure(Error(ErrorCode::OutOfMemory, "out of memory")), rest);
      }
      break;
    }
  }
  answers.wait([&] {
    for (const std::uint64_t read : asked) client_->cancel(read);
  });
  auto error = answers.error();
  if (!error) return {};
  return failed_at(answers.failed(), *std::move(error));
}

Result<void> RemoteFiles::read_remote(std::span<const ReadRequest> batch) {
  for (const ReadRequest& request : batch) {
    File& of = file(request.file);
    CKFS_CHECK(request.out.size() <= of.fingerprint.size &&
               request.offset <= of.fingerprint.size - request.out.size());
    if (of.is_stale.load(std::memory_order_acquire)) return stale(of);
  }
  if (batch.size() == 1 && is_opening_.load(std::memory_order_relaxed) && !batch[0].out.empty()) {
    CKFS_TRY(const bool is_read, read_by_end(batch[0]));
    if (is_read) return {};
  }
  std::vector<WantedRange> wanted;
  wanted.reserve(batch.size());
  for (const ReadRequest& request : batch) {
    wanted.push_back({.object = request.file,
                      .object_size = file(request.file).fingerprint.size,
                      .offset = request.offset,
                      .out = request.out});
  }
  return fetch(std::move(wanted), [this](std::uint64_t number) {
    File& of = file(static_cast<FileId>(number));
    return Target{of.source, of.object, &of};
  });
}

Result<void> RemoteFiles::read(std::span<const ReadRequest> batch) {
  return read_by(batch, &SourceFiles::read);
}

Result<void> RemoteFiles::read_once(std::span<const ReadRequest> batch) {
  return read_by(batch, &SourceFiles::read_once);
}

Result<void> RemoteFiles::read_by(std::span<const ReadRequest> batch, ReadLocal read_local) {
  const auto is_local = [&](const ReadRequest& request) {
    return file(request.file).local.has_value();
  };
  if (std::ranges::none_of(batch, is_local)) return read_remote(batch);
  std::vector<ReadRequest> far, near;
  for (const ReadRequest& request : batch) {
    if (const auto local = file(request.file).local) {
      near.push_back(request);
      near.back().file = *local;
    } else {
      far.push_back(request);
    }
  }
  CKFS_TRY_VOID((*local_.*read_local)(near));
  return read_remote(far);
}

std::optional<MappedBytes> RemoteFiles::map(const FileRange& range, std::uint64_t used) {
  const auto local = file(range.file).local;
  if (!local) return std::nullopt;
  auto mapped = local_->map({*local, range.offset, range.size}, used);
  if (mapped) mapped->file = range.file;
  return mapped;
}

std::optional<MappedBytes> RemoteFiles::map_once(const FileRange& range, std::uint64_t used) {
  const auto local = file(range.file).local;
  if (!local) return std::nullopt;
  auto mapped = local_->map_once({*local, range.offset, range.size}, used);
  if (mapped) mapped->file = range.file;
  return mapped;
}

Result<void> RemoteFiles::check_mapped(std::span<const MappedBytes> mapped) {
  std::vector<MappedBytes> local(mapped.begin(), mapped.end());
  for (MappedBytes& each : local) each.file = file(each.file).local.value();
  return local_->check_mapped(local);
}

void RemoteFiles::rest(const std::function<bool()>& still) {
  is_opening_.store(false, std::memory_order_relaxed);
  {
    const MutexLock lock(ends_mutex_);
    ends_.clear();
    end_order_.clear();
  }
  if (keeps_ != nullptr && cache_.fills) keeps_->drain(still);
  local_->rest(still);
}

// Servers take no hints: threads that wait for them ask for the next bytes (engine/workers.h).
void RemoteFiles::will_need(std::span<const FileRange> ranges) {
  std::vector<FileRange> local;
  for (const FileRange& range : ranges) {
    if (const auto id = file(range.file).local) local.push_back({*id, range.offset, range.size});
  }
  if (!local.empty()) local_->will_need(local);
}

SourceTraits RemoteFiles::traits(FileId id) const {
  const auto local = file(id).local;
  return local ? local_->traits(*local) : SourceTraits{.is_far = true};
}

Result<void> RemoteFiles::verify(std::span<const FileId> files) {
  std::vector<FileId> local;
  for (const FileId id : files) {
    File& of = file(id);
    if (of.local) {
      local.push_back(*of.local);
    } else if (of.is_stale.load(std::memory_order_acquire)) {
      return stale(of);
    }
  }
  return local_->verify(local);
}

std::uint64_t RemoteFiles::size(FileId id) const {
  return fingerprint(id).size;
}

const std::string& RemoteFiles::name(FileId id) const {
  return file(id).name;
}

const Fingerprint& RemoteFiles::fingerprint(FileId id) const {
  const File& of = file(id);
  return of.source == nullptr ? local_->fingerprint(*of.local) : of.fingerprint;
}

const std::filesystem::path& RemoteFiles::path(FileId id) const {
  const File& of = file(id);
  return of.local ? local_->path(*of.local) : of.path;
}

bool RemoteFiles::is_here(FileId id) const {
  return file(id).local.has_value();
}

std::size_t RemoteFiles::count() const {
  const ReaderLock lock(mutex_);
  return files_.size();
}

IoStatistics RemoteFiles::statistics() const {
  const IoStatistics local = local_->statistics();
  IoStatistics statistics;
  {
    const ReaderLock lock(mutex_);
    for (const File& file : files_) {
      statistics.files.push_back(
          file.local ? local.files[*file.local]
                     : IoStatistics::File{file.bytes.load(std::memory_order_relaxed),
                                          file.requests.load(std::memory_order_relaxed)});
    }
  }
  RemoteStatistics& remote = statistics.remote.emplace();
  if (client_ != nullptr) {
    // A status is read also while a fetcher does not answer.
    const FetchStats fetched = client_->stats(std::chrono::milliseconds(200));
    remote.requests = fetched.requests;
    remote.bytes = fetched.bytes;
    remote.retries = fetched.retries;
    remote.faults = fetched.faults;
    remote.window = fetched.window;
  }
  if (cache_.blocks != nullptr) {
    const CacheStatistics cached = cache_.blocks->statistics();
    remote.cache_found = cached.found;
    remote.cache_missed = cached.missed;
    remote.cache_kept = cached.kept;
    remote.cache_left_out = cached.refused + (keeps_ == nullptr ? 0 : keeps_->dropped());
    remote.cache_evicted = cached.evicted;
  }
  return statistics;
}

}  // namespace ckfs
