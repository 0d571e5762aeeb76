#include <unordered_map>
#include <unordered_set>

#include <ckfs/report.h>

#include "api/checkpoint_impl.h"
#include "chunks/chunk_source.h"

namespace ckfs {
namespace {

/// Counts each stored array, and each compressed chunk, once.
class Needs {
 public:
  explicit Needs(const Checkpoint::Impl& checkpoint) : files_(*checkpoint.files) {}

  void add(const Catalog& catalog, const TensorExpr& expr) {
    if (const auto whole = expr.whole()) return add_storage(catalog, whole->storage);
    for (const Box& box : expr.box_list()) {
      if (!box.is_constant()) add_storage(catalog, box.source);
    }
  }

  std::uint64_t bytes() const { return bytes_; }

 private:
  bool is_elsewhere(const Catalog& catalog, const Extent& extent) const {
    return !files_.is_here(catalog.place(extent).file);
  }

  void add_storage(const Catalog& catalog, StorageId id) {
    if (!storages_[&catalog].insert(id).second) return;
    const Storage& storage = catalog.storage(id);
    for (const Extent& extent : storage.extents) {
      if (is_chunk(extent.file)) {
        const SourceChunk chunk = catalog.chunks().chunk(extent.file);
        const bool is_new = chunks_[&catalog].insert(extent.file).second;
        if (is_new && chunk.stored.size > 0 && !files_.is_here(chunk.stored.file)) {
          bytes_ += chunk.stored.size;
        }
      } else if (is_elsewhere(catalog, extent)) {
        bytes_ += extent.nbytes;
      }
    }
    for (const StorageId companion : storage.companions()) add_storage(catalog, companion);
  }

  const SourceFiles& files_;
  std::uint64_t bytes_ = 0;
  std::unordered_map<const Catalog*, std::unordered_set<StorageId>> storages_;
  std::unordered_map<const Catalog*, std::unordered_set<FileId>> chunks_;
};

}  // namespace

std::uint64_t bytes_elsewhere(const View& view) {
  const View::Impl& impl = impl_of(view);
  if (!impl.checkpoint->check_process()) return 0;
  const SourceFiles& sources = *impl.checkpoint->files;
  bool is_far = false;
  for (std::size_t i = 0; i < sources.count() && !is_far; ++i) {
    is_far = !sources.is_here(static_cast<FileId>(i));
  }
  if (!is_far) return 0;
  Needs needs(*impl.checkpoint);
  std::uint64_t bytes = 0;
  for (std::size_t file = 0; file < impl.files->size(); ++file) {
    // A file without tensors is a copy, or a small text that is made of one.
    const FileFacts facts = impl.files->facts(file);
    if (facts.tensors == 0) {
      bytes += facts.size;
      continue;
    }
    const Definition& definition = *impl.files->definition(file);
    for (const std::uint32_t id : impl.files->tensors(file)) {
      needs.add(*definition.catalog, definition.tensors[id].expr);
    }
  }
  return bytes + needs.bytes();
}

}  // namespace ckfs
