// How source files are read. A batch is sorted into accesses (coalesce.h), and these are carried
// out in passes over a few files each: every file of a pass is pinned open, compared with its
// fingerprint, read, and compared again (file_registry.h).
#include "io/source_files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <spdlog/spdlog.h>
#include <thread>
#include <unordered_map>

#include "base/mutex.h"
#include "base/rounding.h"
#include "base/units.h"
#include "io/coalesce.h"
#include "io/file_mappings.h"
#include "io/file_registry.h"
#include "io/file_system.h"
#include "io/ordered_file.h"
#include "io/page_cache.h"
#include "io/read_once.h"
#include "io/reader.h"

namespace ckfs {
namespace {

/// Files pinned at once by one batch: as many as accesses are in flight is enough, and many threads
/// together must not exhaust the process's descriptors.
constexpr std::size_t kFilesPerPass = 16;

/// Bytes of a range for which a file is mapped that is not yet: where 100,000 small files are read
/// once each, none is.
constexpr std::uint64_t kWorthMapping = std::uint64_t{64} << 10;
constexpr std::uint64_t kLine = 64;

/// The descriptor of a local file that reads past the page cache.
constexpr unsigned kPastCache = 1;

/// The blocks that hold what a request wants.
ByteRange blocks_of(const ReadRequest& request) {
  return {request.offset / kDiskBlock * kDiskBlock,
          round_up<std::uint64_t>(request.offset + request.out.size(), kDiskBlock)};
}

/// The state of a file that needs it: most never do.
struct FileState {
  OrderedFile ordered;
  page_cache::HintedRanges hinted;
};

/// One call to a file system that may be a remote one that is asked at once (pace.h).
class Watched {
 public:
  explicit Watched(FileSystem& on) : pace_(on.traits.remote ? &on.pace : nullptr) {
    if (pace_ != nullptr) pace_->began(std::chrono::steady_clock::now());
  }
  ~Watched() {
    if (pace_ != nullptr) pace_->ended(requests_, bytes_, std::chrono::steady_clock::now());
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  void came(std::span<const Access> accesses) {
    requests_ = accesses.size();
    for (const Access& each : accesses) bytes_ += each.size;
  }

 private:
  Pace* const pace_;
  std::uint64_t requests_ = 0, bytes_ = 0;
};

}  // namespace

class LocalFiles::Impl {
 public:
  Impl(const IoOptions& options, std::unique_ptr<Reader> reader, IoEngine used,
       std::unique_ptr<OpenStore> store)
      : engine(used),
        table(options, std::move(store)),
        coalesce_options_{.gap = options.coalesce_gap,
                          .max_access = std::max<std::uint64_t>(options.max_access, 1)},
        maps_(options.map_cached && options.engine == IoEngine::Auto),
        reader_(std::move(reader)),
        files_per_pass_(std::clamp<std::size_t>(options.max_open_files / 2, 1, kFilesPerPass)) {}

  /// Whether what is read stays in the page cache.
  enum class Keep : std::uint8_t { Yes, No };
  Result<void> read(std::span<const ReadRequest> batch, Keep keep);
  void will_need(std::span<const FileRange> ranges);
  bool prefers_order(FileId id) { return asks_in_order(table.file(id)); }
  Result<void> verify(std::span<const FileId> ids);
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used);
  bool was_hinted(const FileRange& range);
  bool knows_page_cache(FileId id);
  Result<void> check_mapped(std::span<const MappedBytes> mapped);
  void rest() {
    mappings_.let_go();
    for (FileId id = 0; id < table.count(); ++id) {
      if (prefers_order(id)) table.drop(id);
    }
  }

  static bool may_bypass(const FileSystem& on) {
    return on.on_disk && !on.traits.without_device &&
           on.reads_direct.load(std::memory_order_relaxed) != FileSystem::Answer::No;
  }

  const IoEngine engine;
  FileRegistry table;

 private:
  Result<void> read_alone(const ReadRequest& request);
  Result<std::vector<ReadRequest>> read_past_cache(std::span<const ReadRequest> batch);
  Result<Pin> pin_past_cache(const ReadRequest& request);
  Result<void> read_pass(const AccessPlan& plan, std::size_t& next, Keep keep);
  Result<void> read_ordered(const AccessPlan& plan, std::size_t& next);
  static void count_access(RegisteredFile& file, const Access& access) {
    file.bytes.fetch_add(access.size, std::memory_order_relaxed);
    file.requests.fetch_add(1, std::memory_order_relaxed);
  }
  Result<Pin> pin_patiently(FileId id, RegisteredFile& of, unsigned number = 0);
  /// Whether the file is still the one that was added.
  Result<void> verify_one(FileId id, RegisteredFile& of) {
    CKFS_TRY(const Pin pinned, pin_patiently(id, of));
    return table.check(of, pinned->fd.get());
  }
  FileState& state(FileId id);
  page_cache::HintedRanges* hinted(FileId id);
  static bool asks_in_order(const RegisteredFile& file) {
    return file.file_system->traits.remote && !file.file_system->pace.at_once();
  }

  const CoalesceOptions coalesce_options_;
  const bool maps_;
  const std::unique_ptr<Reader> reader_;
  FileMappings mappings_;
  const std::size_t files_per_pass_;
  Mutex states_mutex_;
  std::unordered_map<FileId, FileState> states_ CKFS_GUARDED_BY(states_mutex_);
};

/// Waits for descriptors of other reads where the process has none left, as long as one read may
/// take. A caller that holds many lets them go instead; hints and mappings do without.
Result<Pin> LocalFiles::Impl::pin_patiently(FileId id, RegisteredFile& of, unsigned number) {
  constexpr std::chrono::milliseconds kLongest(512);
  auto pinned = table.pin(id, of, number);
  for (std::chrono::milliseconds pause(1); pause <= kLongest; pause *= 2) {
    if (pinned || !out_of_descriptors(pinned.error().system_error())) break;
    std::this_thread::sleep_for(pause);
    pinned = table.pin(id, of, number);
  }
  return pinned;
}

Result<void> LocalFiles::Impl::read_alone(const ReadRequest& request) {
  RegisteredFile& of = table.file(request.file);
  CKFS_TRY(const Pin pinned, pin_patiently(request.file, of));
  const iovec part{request.out.data(), request.out.size()};
  const Access access{pinned->fd.get(),   pinned->serial,      request.offset,
                      request.out.size(), std::span(&part, 1), false};
  {
    Watched watched(*of.file_system);
    if (auto done = reader_->read(std::span(&access, 1)); !done) {
      return table.failed(of, pinned->fd.get(), done.error());
    }
    watched.came(std::span(&access, 1));
  }
  CKFS_TRY_VOID(table.check(of, pinned->fd.get()));
  count_access(of, access);
  return {};
}

FileState& LocalFiles::Impl::state(FileId id) {
  const MutexLock lock(states_mutex_);
  return states_[id];
}

/// nullptr: none of it ever was. Of most files that are read once nothing is kept.
page_cache::HintedRanges* LocalFiles::Impl::hinted(FileId id) {
  const MutexLock lock(states_mutex_);
  const auto found = states_.find(id);
  return found == states_.end() ? nullptr : &found->second.hinted;  // stays where it is
}

Result<void> LocalFiles::Impl::read_ordered(const AccessPlan& plan, std::size_t& next) {
  const FileId id = plan.accesses[next].file;
  RegisteredFile& of = table.file(id);
  std::array<Pin, OpenFiles::kMostDescriptors> pins;  // each is checked afterwards
  const std::span<const PlannedAccess> rest = std::span(plan.accesses).subspan(next);
  const auto other = std::ranges::find_if(rest, [&](const auto& each) { return each.file != id; });
  const std::span mine(rest.begin(), other);

  bool in_vain = false;  // it has waited for one: accesses of others wait no more behind this
  const auto descriptor_of = [&](unsigned number) -> Result<int> {
    if (!pins[number]) {
      auto pinned = in_vain ? table.pin(id, of, number) : pin_patiently(id, of, number);
      in_vain = !pinned && out_of_descriptors(pinned.error().system_error());
      CKFS_TRY(pins[number], std::move(pinned));
    }
    return pins[number]->fd.get();
  };
  const auto read = [&](unsigned number, std::span<const FileAccess> wanted) -> Result<void> {
    CKFS_TRY(const int fd, descriptor_of(number));
    std::vector<Access> accesses;
    for (const FileAccess& each : wanted) {
      // A server reads ahead of each file that is open: rest() closes them.
      accesses.push_back({fd, pins[number]->serial, each.offset, each.size, each.parts,
                          /*uncached=*/false, /*passing=*/true});
    }
    if (auto done = reader_->read(accesses); !done) return table.failed(of, fd, done.error());
    for (const Access& access : accesses) count_access(of, access);
    return {};
  };
  std::vector<FileAccess> accesses;
  for (const PlannedAccess& planned : mine) {
    accesses.push_back({planned.offset, planned.size, plan.parts_of(planned)});
  }
  const std::uint64_t longest =
      OrderedFile::longest_access(*of.file_system, coalesce_options_.max_access);
  const auto passed = [&](std::uint64_t bytes) {
    of.bytes.fetch_add(bytes, std::memory_order_relaxed);
  };
  CKFS_TRY_VOID(
      state(id).ordered.read(accesses, longest, *of.file_system, {descriptor_of, read, passed}));
  // Another thread may have read for this one.
  CKFS_TRY_VOID(descriptor_of(0));
  for (const Pin& pinned : pins) {
    if (pinned) CKFS_TRY_VOID(table.check(of, pinned->fd.get()));
  }
  next += mine.size();
  return {};
}

void LocalFiles::Impl::will_need(std::span<const FileRange> ranges) {
  for (std::size_t i = 0; i < ranges.size();) {
    const FileId id = ranges[i].file;
    RegisteredFile& of = table.file(id);
    FileSystem& file_system = *of.file_system;
    // A server that streams gets no hint of later bytes: reading them would be out of order.
    const bool hints =
        !file_system.traits.remote ||
        (file_system.pace.at_once() &&
         file_system.keeps_pages.load(std::memory_order_relaxed) == FileSystem::Answer::Yes);
    std::optional<Pin> pinned;  // as long as ranges are of this file
    for (; i < ranges.size() && ranges[i].file == id;) {
      const std::uint64_t size = of.fingerprint.size;
      CKFS_CHECK(ranges[i].size <= size && ranges[i].offset <= size - ranges[i].size);
      ByteRange whole =
          page_cache::whole_pages({ranges[i].offset, ranges[i].offset + ranges[i].size}, size);
      for (++i; i < ranges.size() && ranges[i].file == id; ++i) {
        const ByteRange after =
            page_cache::whole_pages({ranges[i].offset, ranges[i].offset + ranges[i].size}, size);
        if (after.begin < whole.begin || after.begin > whole.end) break;
        whole.end = std::max(whole.end, after.end);
      }
      if (whole.empty() || !hints) continue;
      if (!pinned) {
        auto opened = table.pin(id, of);
        pinned = opened ? *std::move(opened) : nullptr;  // its reader will say why
      }
      if (!*pinned) continue;
      const auto asked = page_cache::will_need((*pinned)->fd.get(), whole, file_system.hint_bytes);
      if (!asked.empty()) state(id).hinted.add(asked);
    }
  }
}

/// The descriptor that reads a request past the page cache; nullptr: that is not for this one.
Result<Pin> LocalFiles::Impl::pin_past_cache(const ReadRequest& request) {
  RegisteredFile& of = table.file(request.file);
  if (!request.padded || request.out.empty() || !may_bypass(*of.file_system)) return nullptr;
  const ByteRange blocks = blocks_of(request);
  if (blocks.end > of.fingerprint.size) return nullptr;
  auto cached = table.pin(request.file, of);
  if (!cached) {
    // The others' pins go first; then it is read as any other.
    if (out_of_descriptors(cached.error().system_error())) return nullptr;
    return Failure(std::move(cached).error());
  }
  // Reads past the cache only where it is known that none of the bytes are in memory. The first
  // block and the last may be there, because of their other bytes: the disk has the same.
  const ByteRange inner{blocks.begin + kDiskBlock, blocks.end - kDiskBlock};
  if (inner.begin >= inner.end) return nullptr;
  const auto pages = page_cache::cached_pages((*cached)->fd.get(), inner);
  if (!pages || *pages > 0) return nullptr;
  auto direct = table.pin_unchecked(request.file, of.path, kPastCache, page_cache::bypass);
  if (!direct || !page_cache::bypasses((*direct)->fd.get())) {
    if (direct) of.file_system->reads_direct.store(FileSystem::Answer::No);
    return nullptr;
  }
  // It may have been opened later than the other one.
  CKFS_TRY_VOID(table.check(of, (*direct)->fd.get()));
  return *std::move(direct);
}

/// Gives the requests that are still to be read.
Result<std::vector<ReadRequest>> LocalFiles::Impl::read_past_cache(
    std::span<const ReadRequest> batch) {
  const std::uint64_t step =
      std::max(kDiskBlock, coalesce_options_.max_access / kDiskBlock * kDiskBlock);
  std::vector<ReadRequest> rest;
  std::vector<Pin> pins;
  std::vector<RegisteredFile*> files;  // of each pin
  std::vector<iovec> parts;            // by access
  std::vector<std::size_t> pinned_by;  // the pin of each access
  std::vector<Access> accesses;
  for (const ReadRequest& request : batch) {
    CKFS_TRY(Pin direct, pin_past_cache(request));
    if (direct == nullptr) {
      rest.push_back(request);
      continue;
    }
    const ByteRange blocks = blocks_of(request);
    std::byte* const begin = request.out.data() - (request.offset - blocks.begin);
    for (std::uint64_t at = blocks.begin; at < blocks.end; at += step) {
      const std::uint64_t size = std::min(step, blocks.end - at);
      parts.push_back({begin + (at - blocks.begin), size});
      accesses.push_back({direct->fd.get(), direct->serial, at, size, {}, false});
      pinned_by.push_back(pins.size());
    }
    pins.push_back(std::move(direct));
    files.push_back(&table.file(request.file));
  }
  if (accesses.empty()) return rest;
  for (std::size_t i = 0; i < accesses.size(); ++i) accesses[i].parts = std::span(&parts[i], 1);
  const auto done = reader_->read(accesses);
  if (!done) {
    const std::size_t at = pinned_by[done.error().access];
    if (done.error().error != EINVAL && done.error().error != EOPNOTSUPP) {
      return table.failed(*files[at], pins[at]->fd.get(), done.error());
    }
    // A disk of larger blocks, or one that cannot do it after all.
    files[at]->file_system->reads_direct.store(FileSystem::Answer::No);
    return std::vector<ReadRequest>(batch.begin(), batch.end());
  }
  for (std::size_t i = 0; i < pins.size(); ++i) {
    CKFS_TRY_VOID(table.check(*files[i], pins[i]->fd.get()));
    FileSystem& on = *files[i]->file_system;
    if (on.reads_direct.load(std::memory_order_relaxed) != FileSystem::Answer::Unknown) continue;
    // Some files are read through the cache all the same (fs-verity, data=journal).
    const Access& first =
        accesses[static_cast<std::size_t>(std::ranges::find(pinned_by, i) - pinned_by.begin())];
    const auto left =
        page_cache::cached_pages(pins[i]->fd.get(), {first.offset, first.offset + first.size});
    auto unknown = FileSystem::Answer::Unknown;
    on.reads_direct.compare_exchange_strong(
        unknown, left.value_or(0) <= 2 ? FileSystem::Answer::Yes : FileSystem::Answer::No);
  }
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    count_access(*files[pinned_by[i]], accesses[i]);
  }
  return rest;
}

Result<void> LocalFiles::Impl::read_pass(const AccessPlan& plan, std::size_t& next, Keep keep) {
  struct Opened {
    RegisteredFile* file;
    Pin pin;
    page_cache::HintedRanges* hinted;
  };
  std::vector<Opened> opened;
  std::vector<Access> accesses;
  std::vector<RegisteredFile*> files;  // by access
  std::vector<std::size_t> opened_of;  // by access
  std::vector<OnceFile> once;          // by access; empty where what is read is kept
  const std::size_t first = next;
  for (; next < plan.accesses.size(); ++next) {
    const PlannedAccess& planned = plan.accesses[next];
    if (next == first || planned.file != plan.accesses[next - 1].file) {
      if (opened.size() == files_per_pass_) break;
      RegisteredFile& of = table.file(planned.file);
      if (asks_in_order(of)) {
        if (next != first) break;
        return read_ordered(plan, next);
      }
      auto pinned = opened.empty() ? pin_patiently(planned.file, of) : table.pin(planned.file, of);
      if (!pinned) {
        // Let go of what this pass holds before giving up.
        if (next != first && out_of_descriptors(pinned.error().system_error())) break;
        return Failure(std::move(pinned).error());
      }
      opened.push_back(
          {&of, *std::move(pinned), keep == Keep::No ? hinted(planned.file) : nullptr});
    }
    const Descriptor& open = *opened.back().pin;
    accesses.push_back(
        {open.fd.get(), open.serial, planned.offset, planned.size, plan.parts_of(planned), false});
    opened_of.push_back(opened.size() - 1);
    const RegisteredFile& of = *opened.back().file;
    if (keep == Keep::No) {
      once.push_back({of.file_system, opened.back().hinted, of.fingerprint.size});
    }
  }

  {
    // Of files that lie on several file systems the first one's: that is rare.
    Watched watched(*opened.front().file->file_system);
    auto done =
        once.empty() ? reader_->read(accesses) : read_accesses_once(*reader_, accesses, once);
    if (!done) {
      const Opened& at = opened[opened_of[done.error().access]];
      return table.failed(*at.file, at.pin->fd.get(), done.error());
    }
    watched.came(accesses);
  }
  for (const Opened& each : opened) CKFS_TRY_VOID(table.check(*each.file, each.pin->fd.get()));
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    count_access(*opened[opened_of[i]].file, accesses[i]);
  }
  return {};
}

Result<void> LocalFiles::Impl::read(std::span<const ReadRequest> batch, Keep keep) {
  std::vector<ReadRequest> rest;
  if (keep == Keep::No && std::ranges::any_of(batch, &ReadRequest::padded)) {
    CKFS_TRY(rest, read_past_cache(batch));
    batch = rest;
  }
  if (batch.empty()) return {};
  const RegisteredFile* of = &table.file(batch[0].file);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    // Gathers ask for thousands of pieces of one file: it is looked up once.
    if (i > 0 && batch[i].file != batch[i - 1].file) of = &table.file(batch[i].file);
    const std::uint64_t size = of->fingerprint.size;
    CKFS_CHECK(batch[i].out.size() <= size && batch[i].offset <= size - batch[i].out.size());
  }
  if (batch.size() == 1 && !batch[0].out.empty() && keep == Keep::Yes && !asks_in_order(*of) &&
      batch[0].out.size() <= coalesce_options_.max_access) {
    return read_alone(batch[0]);
  }
  CoalesceOptions options = coalesce_options_;
  if (asks_in_order(table.file(batch[0].file))) {
    options.max_access =
        OrderedFile::longest_access(*table.file(batch[0].file).file_system, options.max_access);
  }
  const AccessPlan plan = coalesce(batch, options);
  for (std::size_t next = 0; next < plan.accesses.size();) {
    CKFS_TRY_VOID(read_pass(plan, next, keep));
  }
  return {};
}

Result<void> LocalFiles::Impl::verify(std::span<const FileId> ids) {
  for (const FileId id : ids) CKFS_TRY_VOID(verify_one(id, table.file(id)));
  return {};
}

std::optional<MappedBytes> LocalFiles::Impl::map(const FileRange& range, std::uint64_t used) {
  RegisteredFile& of = table.file(range.file);
  const std::uint64_t size = of.fingerprint.size;
  CKFS_CHECK(range.size <= size && range.offset <= size - range.size);
  if (!maps_ || of.file_system->traits.remote || range.size == 0) return std::nullopt;
  // Its reader will say what is wrong with it.
  if (of.stale.load(std::memory_order_acquire)) return std::nullopt;
  const auto pinned = table.pin_unchecked(range.file, of.path, 0, page_cache::expect_exact_reads);
  if (!pinned) return std::nullopt;
  const int fd = (*pinned)->fd.get();
  // A new mapping costs as much as copying some tens of pages, once for each file.
  auto mapping = mappings_.find(range.file);
  if (!mapping && range.size >= kWorthMapping) {
    // Of the file that was opened: check_mapped() looks at the one that is open then, which may be
    // the right one again.
    if (!table.check(of, fd)) return std::nullopt;
    mapping = mappings_.of(range.file, fd, size);
  }
  if (!mapping || !mapping->is_cached(fd, {range.offset, range.offset + range.size})) {
    return std::nullopt;
  }
  const bool sparse = used <= range.size / kPage * kLine;
  mappings_.bound(sparse ? FileMappings::kMostSparse : FileMappings::kMostResident);
  of.bytes.fetch_add(used, std::memory_order_relaxed);
  of.requests.fetch_add(1, std::memory_order_relaxed);
  return MappedBytes{range.file, mapping->bytes().data() + range.offset, mapping};
}

bool LocalFiles::Impl::knows_page_cache(FileId id) {
  using Answer = FileSystem::Answer;
  RegisteredFile& of = table.file(id);
  if (!of.file_system->on_disk) return false;
  // Asked once: as the rights are when it is read, which may be less than those that opened it.
  if (of.tells_cached.load(std::memory_order_relaxed) == Answer::Unknown) {
    const auto pinned = table.pin_unchecked(id, of.path, 0, page_cache::expect_exact_reads);
    if (!pinned) return false;
    const bool tells = page_cache::cached_pages((*pinned)->fd.get(), {0, 1}).has_value();
    of.tells_cached.store(tells ? Answer::Yes : Answer::No, std::memory_order_relaxed);
  }
  return of.tells_cached.load(std::memory_order_relaxed) == Answer::Yes;
}

bool LocalFiles::Impl::was_hinted(const FileRange& range) {
  const page_cache::HintedRanges* const ranges = hinted(range.file);
  return ranges != nullptr && ranges->has({range.offset, range.offset + range.size});
}

Result<void> LocalFiles::Impl::check_mapped(std::span<const MappedBytes> mapped) {
  for (const MappedBytes& each : mapped) {
    RegisteredFile& of = table.file(each.file);
    CKFS_TRY_VOID(verify_one(each.file, of));
    if (!static_cast<const FileMapping*>(each.owner.get())->broken()) continue;
    mappings_.drop(each.file);
    return Failure(
        Error(ErrorCode::Io, fmt::format("{}: a page of it cannot be read", of.name), EIO));
  }
  return {};
}

Result<FileId> SourceFiles::add(std::string name, const std::filesystem::path& path) {
  std::vector<NewFile> one;
  one.push_back({std::move(name), path});
  return add(std::move(one));
}

LocalFiles::LocalFiles(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalFiles::~LocalFiles() = default;

Result<std::unique_ptr<SourceFiles>> LocalFiles::create(const IoOptions& options) {
  IoEngine used = IoEngine::Pread;
  std::unique_ptr<Reader> reader;
  if (options.engine != IoEngine::Pread) {
    auto uring = make_uring_reader(options.queue_depth, {}, options.rings);
    if (uring) {
      used = IoEngine::Uring;
      reader = *std::move(uring);
    } else if (options.engine == IoEngine::Uring) {
      return Failure(std::move(uring).error());
    } else {
      spdlog::info("{}; using pread", uring.error().message());
    }
  }
  if (!reader) reader = make_pread_reader();
  return std::unique_ptr<SourceFiles>(
      new LocalFiles(std::make_unique<Impl>(options, std::move(reader), used, make_local_store())));
}

std::unique_ptr<SourceFiles> LocalFiles::with_reader(const IoOptions& options,
                                                     std::unique_ptr<Reader> reader,
                                                     std::unique_ptr<OpenStore> store) {
  IoOptions read_by_it = options;
  read_by_it.map_cached = false;
  return std::unique_ptr<SourceFiles>(new LocalFiles(
      std::make_unique<Impl>(read_by_it, std::move(reader), options.engine, std::move(store))));
}

Result<FileId> LocalFiles::add(std::vector<NewFile> files) {
  return impl_->table.add(std::move(files));
}

SourceStore& LocalFiles::store() const {
  return impl_->table.store();
}

const Parallel& LocalFiles::parallel() const {
  return impl_->table.parallel();
}

Result<void> LocalFiles::read(std::span<const ReadRequest> batch) {
  return impl_->read(batch, Impl::Keep::Yes);
}

Result<void> LocalFiles::read_once(std::span<const ReadRequest> batch) {
  return impl_->read(batch, Impl::Keep::No);
}

std::optional<MappedBytes> LocalFiles::map(const FileRange& range, std::uint64_t used) {
  return impl_->map(range, used);
}

std::optional<MappedBytes> LocalFiles::map_once(const FileRange& range, std::uint64_t used) {
  if (impl_->was_hinted(range)) return std::nullopt;
  return impl_->map(range, used);
}

Result<void> LocalFiles::check_mapped(std::span<const MappedBytes> mapped) {
  return impl_->check_mapped(mapped);
}

void LocalFiles::rest(const std::function<bool()>& /*still*/) {
  impl_->rest();
}

void LocalFiles::will_need(std::span<const FileRange> ranges) {
  impl_->will_need(ranges);
}

SourceTraits LocalFiles::traits(FileId file) const {
  const FileSystem& on = *impl_->table.file(file).file_system;
  const bool knows = impl_->knows_page_cache(file);
  return {.heeds_hints = on.on_disk,
          .knows_page_cache = knows,
          .reads_past_cache = knows && Impl::may_bypass(on),
          .streams = impl_->prefers_order(file)};
}

Result<void> LocalFiles::verify(std::span<const FileId> files) {
  return impl_->verify(files);
}

std::uint64_t LocalFiles::size(FileId file) const {
  return impl_->table.file(file).fingerprint.size;
}

const std::string& LocalFiles::name(FileId file) const {
  return impl_->table.file(file).name;
}

const std::filesystem::path& LocalFiles::path(FileId file) const {
  return impl_->table.file(file).path;
}

const Fingerprint& LocalFiles::fingerprint(FileId file) const {
  return impl_->table.file(file).fingerprint;
}

std::size_t LocalFiles::count() const {
  return impl_->table.count();
}

IoEngine LocalFiles::engine() const {
  return impl_->engine;
}

IoStatistics LocalFiles::statistics() const {
  IoStatistics statistics;
  const std::size_t count = impl_->table.count();
  statistics.files.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const RegisteredFile& file = impl_->table.file(static_cast<FileId>(i));
    statistics.files.push_back({file.bytes.load(std::memory_order_relaxed),
                                file.requests.load(std::memory_order_relaxed)});
  }
  return statistics;
}

}  // namespace ckfs
