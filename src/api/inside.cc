#include "api/inside.h"

#include "api/checkpoint_impl.h"

namespace ckfs {

Result<void> check_process(const View& view) {
  return impl_of(view).checkpoint->check_process();
}

const ViewFiles& view_files_of(const View& view) {
  return *impl_of(view).files;
}

const Definition& definition_of(const View& view) {
  return *impl_of(view).definition;
}

Engine& engine_of(const View& view) {
  return *impl_of(view).checkpoint->engine;
}

ChunkSource* chunk_source_of(const View& view) {
  return impl_of(view).checkpoint->chunks.get();
}

std::uint64_t budget_of(const View& view) {
  return impl_of(view).checkpoint->memory;
}

const std::filesystem::path& opened_path(const View& view) {
  return impl_of(view).checkpoint->path;
}

std::vector<std::filesystem::path> source_paths(const Checkpoint& checkpoint) {
  const SourceFiles& files = *impl_of(checkpoint).files;
  std::vector<std::filesystem::path> paths;
  paths.reserve(files.count());
  for (std::size_t i = 0; i < files.count(); ++i) {
    const auto id = static_cast<FileId>(i);
    if (files.is_here(id)) paths.push_back(files.path(id));
  }
  return paths;
}

std::uint64_t file_inode(const View& view, std::size_t file) noexcept {
  return impl_of(view).files->inode(file);
}

}  // namespace ckfs
