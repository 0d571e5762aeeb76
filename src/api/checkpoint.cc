// The public API over the layers below. Checkpoint::open and Checkpoint::Impl::view are the table
// of contents of the whole program: open -> view -> lay out -> sizes are final -> serve.
//
// A view is built when it is first asked for, and lives while it is in use. To build all of them at
// open would cost memory for unused views; to keep each one would let a user of parameters fill the
// memory one directory name at a time.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>

#include <ckfs/checkpoint.h>

#include "api/checkpoint_impl.h"
#include "api/inside.h"
#include "api/kept_results.h"
#include "api/open_prepared.h"
#include "api/own_process.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/size_text.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/units.h"
#include "chunks/decoded_chunks.h"
#include "chunks/spilled_tiles.h"
#include "container/shards.h"
#include "fetch/location.h"
#include "fetch/program.h"
#include "remote/remote_files.h"
#include "source/open_checkpoint.h"
#include "source/source_name.h"
#include "view/maxtext_tree.h"
#include "view/program_names.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kMinMemory = 64_MiB;
/// What a fetcher may have on its way: 64 requests of a few MiB and no more.
constexpr std::uint64_t kLeastFetching = 16_MiB;
constexpr std::uint64_t kMostFetching = 256_MiB;

std::uint64_t fetching_memory(std::uint64_t budget) {
  return std::clamp<std::uint64_t>(budget / 4, kLeastFetching, kMostFetching);
}

/// As huggingface_hub reads the variable.
bool hub_is_offline() {
  const char* const value = std::getenv("HF_HUB_OFFLINE");
  if (value == nullptr) return false;
  std::string upper(value);
  std::ranges::transform(upper, upper.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return upper == "1" || upper == "ON" || upper == "YES" || upper == "TRUE";
}

FileInfo info_of(const ViewFiles& files, std::size_t file) {
  const FileFacts facts = files.facts(file);
  return {files.path(file), facts.size, facts.exactness, facts.tensors, files.readers(facts)};
}

Result<std::shared_ptr<const View::Impl>> build_view(std::shared_ptr<Checkpoint::Impl> checkpoint,
                                                     std::shared_ptr<const Definition> definition) {
  CKFS_TRY(std::shared_ptr<const ViewFiles> files,
           ViewFiles::create(definition, *checkpoint->files, checkpoint->readers));
  // Sizes, names and inodes are final from here.
  auto view = make_owned_here<View::Impl>();
  view->checkpoint = std::move(checkpoint);
  view->name = definition->spec.canonical();
  view->definition = std::move(definition);
  view->files = std::move(files);
  view->given = std::make_shared<GivenBytes>(view->files->size());
  return view;
}

/// The same files with another key are another checkpoint: an export of the one must not go on with
/// files of the other.
std::uint64_t with_choice(std::uint64_t fingerprint, const SourceChoice& options) {
  if (!options.tag.empty()) fingerprint = stable_hash("tag=" + options.tag, fingerprint);
  if (!options.key.empty()) fingerprint = stable_hash("key=" + options.key, fingerprint);
  if (!options.item.empty()) fingerprint = stable_hash("item=" + options.item, fingerprint);
  for (const RecipeText& recipe : options.recipes) {
    fingerprint = stable_hash(recipe.text, stable_hash("recipe=", fingerprint));
  }
  if (!options.family.empty()) fingerprint = stable_hash("family=" + options.family, fingerprint);
  return fingerprint;
}

/// Below this a size of a shard is a mistake, mostly a unit that was forgotten: "2" for "2GB".
constexpr std::uint64_t kLeastShard = 1'000'000;
/// But a small model may be split into a few files of any size.
constexpr std::size_t kManyShards = 1000;

/// The size of a shard that `spec` asks for, where it is less than kLeastShard.
std::optional<std::uint64_t> small_shard(const ViewSpec& spec) {
  const auto found = spec.parameters.find("max_shard");
  if (found == spec.parameters.end()) return std::nullopt;
  const Result<std::uint64_t> size = parse_size(found->second);
  return size && *size < kLeastShard ? std::optional(*size) : std::nullopt;
}

/// Errors: InvalidArgument: it is a number of bytes without a unit.
Result<void> check_shard_size(const ViewSpec& spec, std::string_view spelling) {
  const auto size = small_shard(spec);
  if (!size || !is_digit(spec.parameters.at("max_shard").back())) return {};
  return fail(ErrorCode::InvalidArgument,
              "{}: max_shard {} is {} bytes (at least 1MB; write the unit, such as 5GB)",
              one_line(spelling), *size, *size);
}

std::vector<Reason> reasons(const std::vector<Obstacle>& obstacles) {
  std::vector<Reason> result;
  result.reserve(obstacles.size());
  for (const Obstacle& obstacle : obstacles) {
    result.push_back({obstacle.tensor, obstacle.reason, obstacle.more});
  }
  return result;
}

std::vector<Reason> reasons(const std::vector<Note>& notes) {
  std::vector<Reason> result;
  result.reserve(notes.size());
  for (const Note& note : notes) result.push_back({note.subject, note.text});
  return result;
}

}  // namespace

// Not for each file of a view by itself: that would be a walk over all its sources, for the rare
// source with both secret files and others.
std::shared_ptr<const SourceReaders> readers_of(const SourceFiles& files, const Catalog& catalog) {
  auto readers = std::make_shared<SourceReaders>();
  for (std::size_t i = 0; i < files.count(); ++i) {
    const auto id = static_cast<FileId>(i);
    if (const std::uint32_t own = files.fingerprint(id).readers; own != 0444) {
      readers->of_file.emplace(id, own);
    }
  }
  if (readers->of_file.empty()) return readers;
  if (!catalog.chunks().empty()) {
    // Only reading shows which files a chunk is in, so all files that are not shown as they are
    // count.
    auto holding = readers->of_file;
    for (const SourceFile& side : catalog.model().side_files) holding.erase(side.file);
    for (const auto& [file, own] : holding) readers->tensors &= own;
  }
  const auto take = [&](FileId file) {
    const auto found = readers->of_file.find(file);
    if (found != readers->of_file.end()) readers->tensors &= found->second;
  };
  const auto take_all = [&](const Catalog& part) {
    if (part.model().config) take(part.model().config_file);
    for (const Storage& storage : part.storages()) {
      for (const Extent& extent : storage.extents) take(part.place(extent).file);
    }
  };
  take_all(catalog);
  for (const CatalogPart& part : catalog.parts()) take_all(*part.catalog);
  return readers;
}

std::string_view name(Exactness exactness) {
  switch (exactness) {
    case Exactness::BitExact:
      return "bit-exact";
    case Exactness::Exact:
      return "exact";
    case Exactness::Lossy:
      return "lossy";
    case Exactness::Quantized:
      return "quantized";
  }
  return "";
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& source,
                                    const OpenOptions& options) {
  return open_for_tests(source, options, {});
}

Result<Checkpoint> open_for_tests(const std::filesystem::path& source, const OpenOptions& options,
                                  const TestOptions& tests) {
  std::optional<StopScope> scope;
  if (options.stop.stop_possible()) scope.emplace(options.stop);
  if (options.use.budget) CKFS_TRY_VOID(Inside::of(*options.use.budget).check_process());
  CKFS_TRY(std::unique_ptr<SourceFiles> files, prepare_source(source, options, 1));
  return open_prepared(source, options, std::move(files), tests);
}

namespace {

bool is_offline(const std::filesystem::path& source, const ServerChoice& choice) {
  return choice.offline || (source.native().starts_with("hf://") && hub_is_offline());
}

/// Whether a fetcher is to be asked for it.
bool is_fetched(const std::filesystem::path& source, const ServerChoice& choice) {
  return is_location(source.native()) && !is_offline(source, choice) && find_fetcher().has_value();
}

RemoteCacheOptions cache_options(const OpenOptions& options) {
  return {.directory = options.use.cache_dir,
          .size = options.use.cache_size,
          .endpoint_url = options.choose.server.endpoint_url,
          .fills = options.use.fill_cache};
}

/// Whether it is opened from what the disk cache has alone.
bool is_kept(const std::filesystem::path& source, const OpenOptions& options) {
  if (!is_location(source.native()) || !is_offline(source, options.choose.server)) return false;
  const auto location = parse_location(source.native());
  return location && has_listing(*location, cache_options(options));
}

}  // namespace

bool is_far(const std::filesystem::path& source, const OpenOptions& options) {
  return is_fetched(source, options.choose.server) || is_kept(source, options);
}

Result<std::unique_ptr<SourceFiles>> prepare_source(const std::filesystem::path& source,
                                                    const OpenOptions& options, unsigned rings,
                                                    bool relays_log) {
  CKFS_TRY(std::unique_ptr<SourceFiles> local,
           LocalFiles::create(
               {.engine = options.use.io, .rings = rings, .strict = options.choose.strict}));
  const ServerChoice& choice = options.choose.server;
  std::vector<SourceLocation> far;
  bool is_asked = false;
  for (const auto& each : {std::optional(source), options.choose.config}) {
    if (!each || !is_far(*each, options)) continue;
    is_asked = is_asked || is_fetched(*each, choice);
    // A location that is wrong is refused by locate().
    if (const auto location = parse_location(each->native())) far.push_back(*location);
  }
  if (choice.offline && is_location(source.native()) && !source.native().starts_with("hf://") &&
      far.empty()) {
    return fail(ErrorCode::InvalidArgument,
                "offline: the source is on another machine, and the disk cache does not have its "
                "listing");
  }
  if (far.empty() && !is_asked) return local;
  CKFS_TRY(RemoteCache cache, open_remote_cache(far, cache_options(options)));
  std::unique_ptr<FetchClient> client;
  std::shared_ptr<const std::uint64_t> share;
  if (is_asked) {
    std::uint64_t memory = fetching_memory(options.use.memory);
    if (options.use.budget) {
      CKFS_TRY(share, Inside::of(*options.use.budget).take_for_server());
      memory = *share;
    }
    CKFS_TRY(client, FetchClient::start({.program = find_fetcher().value_or(""),
                                         .memory = memory,
                                         .connections = options.use.connections,
                                         .timeout = std::chrono::seconds(options.use.timeout),
                                         .relays_log = relays_log}));
  }
  return std::make_unique<RemoteFiles>(std::move(client),
                                       RemoteOptions{.endpoint_url = choice.endpoint_url,
                                                     .anonymous = choice.anonymous,
                                                     .requester_pays = choice.requester_pays,
                                                     .header_file = choice.header_file},
                                       std::move(cache), std::move(local), hub_cache_directory(),
                                       std::move(share));
}

void finish_cache(const Checkpoint& checkpoint) {
  impl_of(checkpoint).files->rest([] { return true; });
}

Result<Checkpoint> open_prepared(const std::filesystem::path& source, const OpenOptions& options,
                                 std::unique_ptr<SourceFiles> files, const TestOptions& tests) {
  const SourceChoice& choose = options.choose;
  const Resources& use = options.use;
  if (!use.budget && use.memory < kMinMemory) {
    return fail(ErrorCode::InvalidArgument, "memory: {} < {}", size_text(use.memory),
                size_text(kMinMemory));
  }
  Recipes recipes = built_in_recipes();
  for (const RecipeText& recipe : choose.recipes) {
    CKFS_TRY(recipes, add_recipe(std::move(recipes), recipe.text, recipe.file));
  }
  recipes.family = choose.family;
  if (!choose.family.empty() && !recipes.knows_family()) {
    return fail(ErrorCode::InvalidArgument,
                "family: {} is neither a model_type nor a model_name of the "
                "recipes (ckfs-recipe(5))",
                quote(choose.family));
  }
  // Made before the source, whose own buffers come out of it, too.
  std::shared_ptr<BufferPool> budget;
  std::shared_ptr<KeptResults> kept;
  if (use.budget) {
    Budget::Impl& shared = Inside::of(*use.budget);
    CKFS_TRY_VOID(shared.check_process());
    budget = shared.pool;
    kept = shared.kept;
  } else {
    budget = BufferPool::create(
        std::max(kMinMemory, use.memory - std::min(use.memory, files->own_memory())));
    kept = std::make_shared<KeptResults>(budget->limit());
  }
  std::shared_ptr<Spill> spill;
  if (use.spill) {
    CKFS_TRY(std::unique_ptr<SpillFile> file, SpillFile::create(*use.spill));
    spill = std::make_shared<Spill>(std::move(file), DecodedChunks::kBlock, use.spill_size);
  }
  CKFS_TRY(const std::filesystem::path located, files->locate(source));
  std::optional<std::filesystem::path> config;
  if (choose.config) {
    CKFS_TRY(config, files->locate(*choose.config));
  }
  CKFS_TRY(std::shared_ptr<const Catalog> catalog, open_checkpoint(located, *files,
                                                                   {.tag = choose.tag,
                                                                    .key = choose.key,
                                                                    .item = choose.item,
                                                                    .step = choose.step,
                                                                    .config = config}));
  if (catalog->obstacles().empty() && is_maxtext_tree(*catalog)) {
    recipes.tree = find_tree(*catalog, recipes);
  }
  if (catalog->obstacles().empty() && !program_of(*catalog).empty()) {
    recipes.named = find_names(*catalog, recipes);
  }
  files->rest([] { return true; });  // of most files no more than the header was wanted, for now
  // A recipe that the source does not fit is an error now, not a view that is missing later.
  for (const RecipeView& recipe : recipes.views) {
    CKFS_TRY_VOID(define_view(catalog, {recipe.name, {}}, recipes));
  }
  const std::uint64_t fingerprint = with_choice(catalog->fingerprint(), choose);
  return checkpoint_of(make_owned_here<Checkpoint::Impl>(
      source, std::move(files), std::move(catalog), std::move(budget), std::move(kept),
      EngineOptions{
          .threads = use.threads,
          .tile_bytes = tests.tile_bytes,
          .tile_store = spill == nullptr ? nullptr : std::make_shared<SpilledTiles>(spill)},
      fingerprint, std::move(recipes), std::move(spill)));
}

const std::vector<ViewInfo>& Checkpoint::Impl::summaries() {
  std::call_once(summarized_, [this] {
    std::vector<ViewInfo> infos;
    for (ViewSummary& summary : list_views(catalog, recipes)) {
      if (summary.definition) {
        const MutexLock lock(mutex_);
        made_.emplace(summary.name, std::move(summary.definition));
      }
      ViewInfo& info =
          infos.emplace_back(summary.name, summary.description, summary.obstacles.empty(),
                             reasons(summary.obstacles), reasons(summary.remarks));
      // Nothing passes unchanged, or is left out, where nothing is shown.
      if (!info.available) {
        info.remarks.clear();
        continue;
      }
      for (Reason& remark : reasons(placement_remarks(*catalog, summary.name))) {
        info.remarks.push_back(std::move(remark));
      }
    }
    summaries_ = std::move(infos);
  });
  return summaries_;
}

std::vector<ViewInfo> Checkpoint::views() const {
  if (!impl_->owner.is_here()) return {};
  return impl_->summaries();
}

Result<std::shared_ptr<const View::Impl>> Checkpoint::Impl::view(std::string_view spelling) {
  CKFS_TRY_VOID(check_process());
  CKFS_TRY(const ViewSpec spec, parse_view_spec(spelling, recipes));
  CKFS_TRY_VOID(check_shard_size(spec, spelling));
  {
    const MutexLock lock(mutex_);
    const auto found = views_.find(spec.canonical());
    if (found != views_.end()) {
      if (auto view = found->second.lock()) return view;
    }
  }
  // Without the lock: a large view takes a tenth of a second. Two threads may build the same view;
  // the first to arrive below wins, so that all users share one.
  CKFS_TRY(std::shared_ptr<const Definition> definition, define(spec));
  CKFS_TRY(std::shared_ptr<const View::Impl> built,
           build_view(shared_from_this(), std::move(definition)));
  if (const auto size = small_shard(spec); size && built->files->size() > kManyShards) {
    return fail(ErrorCode::InvalidArgument,
                "{}: max_shard {} would make {} files (at least 1MB for a model of this size)",
                one_line(spelling), size_text(*size), grouped(built->files->size()));
  }
  const MutexLock lock(mutex_);
  std::erase_if(views_, [](const auto& entry) { return entry.second.expired(); });
  // The catalog may have shortened the name further (a default that depends on the source).
  std::weak_ptr<const View::Impl>& canonical = views_[built->name];
  if (auto view = canonical.lock()) {
    built = std::move(view);
  } else {
    canonical = built;
  }
  views_[spec.canonical()] = built;
  return built;
}

Result<std::shared_ptr<const Definition>> Checkpoint::Impl::define(const ViewSpec& spec) {
  {
    const MutexLock lock(mutex_);
    if (auto made = made_.extract(spec.canonical())) return std::move(made.mapped());
  }
  return define_view(catalog, spec, recipes);
}

EngineOptions Checkpoint::Impl::with_rest(EngineOptions options) {
  options.rest = [this] {
    const MutexLock lock(mutex_);
    made_.clear();
  };
  return options;
}

std::vector<Statistics::Given> Checkpoint::Impl::given() {
  std::vector<std::shared_ptr<const View::Impl>> views;
  {
    const MutexLock lock(mutex_);
    for (const auto& [name, weak] : views_) {
      auto view = weak.lock();
      // Under another spelling it is the same view.
      if (view && view->name == name) views.push_back(std::move(view));
    }
  }
  std::vector<Statistics::Given> given;
  for (const auto& view : views) {
    for (std::size_t i = 0; i < view->files->size(); ++i) {
      const std::uint64_t bytes = (*view->given)[i].load(std::memory_order_relaxed);
      if (bytes > 0) given.push_back({view->name, std::string(view->files->path(i)), bytes});
    }
  }
  return given;
}

Result<View> Checkpoint::view(std::string_view spelling) const {
  CKFS_TRY(auto view, impl_->view(spelling));
  return View(std::move(view));
}

std::int64_t Checkpoint::mtime() const {
  return impl_->catalog->mtime();
}

std::uint64_t Checkpoint::fingerprint() const {
  return impl_->fingerprint;
}

Statistics Checkpoint::statistics() const {
  Statistics result;
  if (!impl_->owner.is_here()) return result;
  const IoStatistics io = impl_->files->statistics();
  for (std::size_t i = 0; i < io.files.size(); ++i) {
    if (io.files[i].requests == 0) continue;
    const auto file = static_cast<FileId>(i);
    result.source.push_back({impl_->files->name(file), io.files[i].bytes, io.files[i].requests,
                             impl_->files->size(file)});
    result.source_bytes += io.files[i].bytes;
  }
  const EngineStatistics engine = impl_->engine->statistics();
  result.requests = engine.requests;
  result.bytes_delivered = impl_->delivered->load(std::memory_order_relaxed);
  result.bytes_to_readers = engine.bytes_to_readers + result.bytes_delivered;
  result.given = impl_->given();
  result.tiles = engine.tiles;
  result.tiles_unread = engine.tiles_unread;
  result.hits = engine.hits;
  result.memory = engine.memory;
  result.memory_peak = engine.memory_peak;
  result.memory_budget = engine.memory_budget;
  if (impl_->spill != nullptr) result.spilled_bytes = impl_->spill->statistics().written;
  if (impl_->chunks != nullptr) {
    const ChunkStatistics chunks = impl_->chunks->statistics();
    result.decoded_bytes = chunks.decoded;
    result.spilled_bytes = chunks.spill.written;
  }
  result.remote = io.remote;
  result.io = impl_->files->engine() == IoEngine::Uring ? "uring" : "pread";
  return result;
}

std::size_t FileList::size() const {
  return files_->size();
}

FileInfo FileList::operator[](std::size_t index) const {
  return info_of(*files_, index);
}

std::optional<std::size_t> FileList::find(std::string_view path) const {
  return files_->find(path);
}

const std::string& View::name() const {
  return impl_->name;
}

Checkpoint View::checkpoint() const {
  return checkpoint_of(impl_->checkpoint);
}

const std::string& View::tool() const {
  return impl_->definition->tool;
}

FileList View::files() const {
  return FileList(impl_->files);
}

Result<ViewFile> View::open(std::string_view path, ReadOptions options) const {
  CKFS_TRY_VOID(impl_->checkpoint->check_process());
  const std::optional<std::size_t> file = impl_->files->find(path);
  if (!file) return fail(ErrorCode::NotFound, "{}/{}: no such file", impl_->name, path);
  return open_stream(*this, *file, stream_options(options));
}

Result<ViewFile> open_stream(const View& view, std::size_t file, StreamOptions options) {
  const std::shared_ptr<const View::Impl>& impl = Inside::of(view);
  CKFS_TRY_VOID(impl->checkpoint->check_process());
  if (options.deliver) {
    options.deliver = [deliver = std::move(options.deliver), given = impl->given, file,
                       all = impl->checkpoint->delivered](std::uint64_t offset,
                                                          std::span<const std::byte> bytes) {
      const bool taken = deliver(offset, bytes);
      if (taken) {
        (*given)[file].fetch_add(bytes.size(), std::memory_order_relaxed);
        all->fetch_add(bytes.size(), std::memory_order_relaxed);
      }
      return taken;
    };
  }
  const std::stop_token stop = options.stop;
  return Inside::file(make_owned_here<ViewFile::Impl>(
      impl, file,
      impl->checkpoint->engine->open_stream(impl->files->layout(file), std::move(options)), stop));
}

FileInfo ViewFile::info() const {
  return info_of(*impl_->view->files, impl_->file);
}

namespace {

/// The part of [offset, offset + size) within the file. Needs no memory, unlike info().
ByteRange within(const ReadStream& stream, std::uint64_t offset, std::uint64_t size) {
  const std::uint64_t end = stream.file().size;
  const std::uint64_t begin = std::min(offset, end);
  return {begin, begin + std::min(size, end - begin)};
}

void count(const ViewFile::Impl& file, std::uint64_t bytes) {
  (*file.view->given)[file.file].fetch_add(bytes, std::memory_order_relaxed);
}

/// Runs one read, and notes how long it took where it gives bytes.
template <typename Read>
std::invoke_result_t<Read> timed(const ViewFile::Impl& file, ByteRange range, Read&& read) {
  CKFS_TRY_VOID(file.view->checkpoint->check_process());
  // Without a token of its own it is the caller's.
  std::optional<StopScope> scope;
  if (file.stop.stop_possible()) scope.emplace(file.stop);
  if (file.stop.stop_requested()) return stopped(file.stream->file().path);
  const auto begin = std::chrono::steady_clock::now();
  auto result = read();
  if (result) {
    file.view->checkpoint->read_times.add(kind_of_read(file.stream->file(), range.begin),
                                          std::chrono::steady_clock::now() - begin, range.size());
  }
  return result;
}

}  // namespace

Result<std::size_t> ViewFile::read(std::uint64_t offset, std::span<std::byte> out) {
  const ByteRange range = within(*impl_->stream, offset, out.size());
  const auto size = static_cast<std::size_t>(range.size());
  if (size > 0) {
    CKFS_TRY_VOID(timed(*impl_, range, [&] {
      return impl_->view->checkpoint->engine->read(*impl_->stream, range, out.first(size));
    }));
    count(*impl_, size);
  }
  return size;
}

Result<Bytes> lend(const ViewFile& file, std::uint64_t offset, std::size_t size) {
  const ViewFile::Impl& impl = Inside::of(file);
  const ByteRange range = within(*impl.stream, offset, size);
  if (range.empty()) return Bytes();
  CKFS_TRY(Bytes bytes, timed(impl, range, [&] {
             return impl.view->checkpoint->engine->read(*impl.stream, range);
           }));
  count(impl, bytes.size());
  return bytes;
}

Result<Bytes> ViewFile::read(std::uint64_t offset, std::size_t size) {
  const std::shared_ptr<KeptResults> kept = impl_->view->checkpoint->kept;
  const std::uint64_t length = within(*impl_->stream, offset, size).size();
  if (length == 0) return Bytes();
  if (const std::uint64_t counted = KeptResults::counted(length); kept->take(counted)) {
    auto bytes = lend(*this, offset, size);
    if (!bytes) {
      kept->give(counted);
      return bytes;
    }
    // The owner of the bytes goes with the last copy of the result, in this process.
    const std::span<const std::byte> span = bytes->span();
    const OwnProcess owner;
    auto result = std::make_unique<Bytes>(*std::move(bytes));
    return Bytes(span, std::shared_ptr<const void>(static_cast<const void*>(result.release()),
                                                   [kept, counted, owner](const void* held) {
                                                     if (!owner.is_here()) return;
                                                     delete static_cast<const Bytes*>(held);
                                                     kept->give(counted);
                                                   }));
  }
  const auto bytes = static_cast<std::size_t>(length);
  const std::shared_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy == nullptr) {
    return fail(ErrorCode::OutOfMemory,
                "{}: a result of {} bytes: the heap has no room (results that are kept have {} of "
                "the {} bytes that they may have of the budget)",
                impl_->stream->file().path, bytes, kept->now(), kept->most());
  }
  CKFS_TRY(const std::size_t got, read(offset, std::span(copy.get(), bytes)));
  return Bytes(std::span<const std::byte>(copy.get(), got), copy);
}

Budget::Impl::Impl(std::uint64_t all, std::uint64_t for_servers)
    : memory(all),
      pool(BufferPool::create(all - for_servers)),
      kept(std::make_shared<KeptResults>(pool->limit())),
      for_servers_(std::make_shared<std::atomic<std::uint64_t>>(for_servers)) {}

Result<std::shared_ptr<const std::uint64_t>> Budget::Impl::take_for_server() {
  CKFS_TRY_VOID(check_process());
  std::uint64_t left = for_servers_->load();
  std::uint64_t taken = 0;
  do {
    taken = std::min(left, fetching_memory(memory));
    if (taken < kLeastFetching) {
      return fail(ErrorCode::OutOfMemory,
                  "budget: {} are left for servers, and a source on another machine takes at least "
                  "{} (for_servers sets more apart)",
                  size_text(left), size_text(kLeastFetching));
    }
  } while (!for_servers_->compare_exchange_weak(left, left - taken));
  return std::shared_ptr<const std::uint64_t>(new std::uint64_t(taken),
                                              [all = for_servers_](const std::uint64_t* part) {
                                                *all += *part;
                                                delete part;
                                              });
}

Result<Budget> Budget::create(std::uint64_t memory, std::uint64_t for_servers) {
  if (for_servers > 0 && for_servers < kLeastFetching) {
    return fail(ErrorCode::InvalidArgument,
                "budget: {} for servers, and a source on another machine takes at least {}",
                size_text(for_servers), size_text(kLeastFetching));
  }
  if (memory < kMinMemory || memory - kMinMemory < for_servers) {
    return fail(ErrorCode::InvalidArgument, "budget: {} of {} for servers leave less than {}",
                size_text(for_servers), size_text(memory), size_text(kMinMemory));
  }
  return Budget(make_owned_here<Impl>(memory, for_servers));
}

std::uint64_t Budget::memory() const {
  return impl_->memory;
}

std::uint64_t Budget::held() const {
  return impl_->check_process() ? impl_->pool->held() : 0;
}

std::uint64_t Budget::peak() const {
  return impl_->check_process() ? impl_->pool->peak() : 0;
}

std::string_view version() {
  return CKFS_VERSION;
}

}  // namespace ckfs
