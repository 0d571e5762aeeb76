// The implementation of the public classes; for this folder alone.
#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include <ckfs/checkpoint.h>

#include "api/kept_results.h"
#include "api/metrics.h"
#include "api/own_process.h"
#include "api/tensor_table.h"
#include "base/mutex.h"
#include "catalog/catalog.h"
#include "chunks/chunk_source.h"
#include "chunks/inner_file_source.h"
#include "container/view_files.h"
#include "engine/engine.h"
#include "io/source_files.h"
#include "view/recipes/recipe.h"
#include "view/view.h"

namespace ckfs {

/// Which users may read bytes that are made of these files.
std::shared_ptr<const SourceReaders> readers_of(const SourceFiles& files, const Catalog& catalog);

/// Shared by all views, files and streams that come from it, which keep it alive.
class Checkpoint::Impl : public std::enable_shared_from_this<Checkpoint::Impl> {
 public:
  Impl(std::filesystem::path opened_path, std::unique_ptr<SourceFiles> opened,
       std::shared_ptr<const Catalog> described, std::shared_ptr<BufferPool> budget,
       std::shared_ptr<KeptResults> counted, EngineOptions options,
       std::uint64_t fingerprint_of_choice, Recipes all_recipes, std::shared_ptr<Spill> spilled)
      : path(std::move(opened_path)),
        files(std::move(opened)),
        catalog(std::move(described)),
        fingerprint(fingerprint_of_choice),
        recipes(std::move(all_recipes)),
        readers(readers_of(*files, *catalog)),
        memory(budget->limit()),
        kept(std::move(counted)),
        spill(std::move(spilled)),
        inner_files(catalog->inner_files().empty()
                        ? nullptr
                        : std::make_unique<InnerFileSource>(*files, catalog->inner_files())),
        chunks(catalog->chunks().empty()
                   ? nullptr
                   : std::make_unique<ChunkSource>(stored(), catalog->chunks(), budget, spill)),
        engine(std::make_unique<Engine>(catalog, source(), std::move(budget),
                                        with_rest(std::move(options)))) {}

  /// The source of the catalog's extents: files and, if there are any, decoded chunks.
  ByteSource& source() const {
    return chunks != nullptr ? static_cast<ByteSource&>(*chunks) : stored();
  }

  /// Files, and those inside of them.
  ByteSource& stored() const {
    return inner_files != nullptr ? static_cast<ByteSource&>(*inner_files) : *files;
  }

  /// The view of that spelling: the one that is in use, or a new one.
  Result<std::shared_ptr<const View::Impl>> view(std::string_view spelling);

  /// The result of Checkpoint::views(), computed once, because it tries rules on all tensors. The
  /// views that this builds are kept until view() asks for them, or until a first reader has come
  /// and no reader was active for a while since.
  const std::vector<ViewInfo>& summaries();

  /// Statistics::given.
  std::vector<Statistics::Given> given();

  /// Errors: InvalidArgument: this is a forked child of the process that opened the checkpoint.
  Result<void> check_process() const { return owner.check(path.native()); }

 private:
  EngineOptions with_rest(EngineOptions options);
  /// The view's definition: one that is kept, or a new one.
  Result<std::shared_ptr<const Definition>> define(const ViewSpec& spec);

  // Declared before the public members: threads of the engine, which is destroyed first, use them.
  std::once_flag summarized_;
  std::vector<ViewInfo> summaries_;  // once summarized_
  Mutex mutex_;
  // By canonical name. Views belong to their users: a caller that wants to keep one holds a pointer
  // to it.
  std::map<std::string, std::weak_ptr<const View::Impl>, std::less<>> views_
      CKFS_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<const Definition>, std::less<>> made_
      CKFS_GUARDED_BY(mutex_);  // by summaries(), by canonical name

 public:
  const OwnProcess owner;
  const std::filesystem::path path;  // that the checkpoint was opened with
  const std::unique_ptr<SourceFiles> files;
  const std::shared_ptr<const Catalog> catalog;
  /// Statistics::bytes_delivered. Shared apart from the checkpoint, like GivenBytes.
  const std::shared_ptr<std::atomic<std::uint64_t>> delivered =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  const std::uint64_t fingerprint;
  const Recipes recipes;
  const std::shared_ptr<const SourceReaders> readers;
  ReadTimes read_times;
  const std::uint64_t memory;  // the budget
  /// Shared apart from the checkpoint: a result may outlive it.
  const std::shared_ptr<KeptResults> kept;
  const std::shared_ptr<Spill> spill;                  // of the user's choice; nullptr: none
  const std::unique_ptr<InnerFileSource> inner_files;  // nullptr: all places are known
  const std::unique_ptr<ChunkSource> chunks;           // nullptr: no chunk is compressed
  const std::unique_ptr<Engine> engine;                // last: its threads read the source
};

/// Bytes that readers of each file of a view got. Shared apart from the view: threads that deliver
/// ahead of readers must not keep a view, and with it the checkpoint that they work for.
using GivenBytes = std::vector<std::atomic<std::uint64_t>>;

class View::Impl {
 public:
  std::shared_ptr<Checkpoint::Impl> checkpoint;
  std::string name;
  std::shared_ptr<const Definition> definition;
  std::shared_ptr<const ViewFiles> files;
  std::shared_ptr<GivenBytes> given;

  /// Made when it is first asked for.
  const TensorTable& tensors() const {
    std::call_once(numbered_, [this] { tensors_.emplace(*files); });
    return *tensors_;
  }

 private:
  mutable std::once_flag numbered_;
  mutable std::optional<TensorTable> tensors_;
};

class ViewFile::Impl {
 public:
  std::shared_ptr<const View::Impl> view;
  std::size_t file = 0;  // index in view->files
  std::shared_ptr<ReadStream> stream;
  std::stop_token stop;  // ReadOptions::stop
};

/// What a Budget is.
class Budget::Impl {
 public:
  Impl(std::uint64_t all, std::uint64_t for_servers);

  /// Takes a part of the bytes set apart for servers; its destructor gives it back. Errors:
  /// OutOfMemory.
  Result<std::shared_ptr<const std::uint64_t>> take_for_server();
  Result<void> check_process() const { return owner_.check("the budget"); }

  const std::uint64_t memory;
  const std::shared_ptr<BufferPool> pool;
  const std::shared_ptr<KeptResults> kept;

 private:
  const OwnProcess owner_;
  /// Shared apart from the budget: a part may be given back after its end.
  const std::shared_ptr<std::atomic<std::uint64_t>> for_servers_;
};

inline StreamOptions stream_options(const ReadOptions& options) {
  return {.whole = options.whole, .once = options.once, .stop = options.stop};
}

/// From public objects to their implementations, and back.
class Inside {
 public:
  static Checkpoint checkpoint(std::shared_ptr<Checkpoint::Impl> impl) {
    return Checkpoint(std::move(impl));
  }
  static ViewFile file(std::shared_ptr<ViewFile::Impl> impl) { return ViewFile(std::move(impl)); }
  static const Checkpoint::Impl& of(const Checkpoint& checkpoint) { return *checkpoint.impl_; }
  static const std::shared_ptr<const View::Impl>& of(const View& view) { return view.impl_; }
  static const ViewFile::Impl& of(const ViewFile& file) { return *file.impl_; }
  static Budget::Impl& of(const Budget& budget) { return *budget.impl_; }
};

inline Checkpoint checkpoint_of(std::shared_ptr<Checkpoint::Impl> impl) {
  return Inside::checkpoint(std::move(impl));
}
inline const Checkpoint::Impl& impl_of(const Checkpoint& checkpoint) {
  return Inside::of(checkpoint);
}
inline const View::Impl& impl_of(const View& view) {
  return *Inside::of(view);
}

}  // namespace ckfs
