#include "engine/source_bytes.h"

#include "engine/source_ranges.h"

namespace ckfs {

const std::byte* SourceBytes::map(const FileRange& range, std::uint64_t used) {
  auto mapped = source_.map(range, used);
  if (!mapped) return nullptr;
  const std::byte* const data = mapped->data;
  // Thousands of pieces of one file have one owner.
  const bool known = !mapped_.empty() && mapped_.back().owner == mapped->owner;
  if (!known) mapped_.push_back(*std::move(mapped));
  return data;
}

const std::byte* SourceBytes::keep(const FileRange& range) {
  auto kept = source_.keep(range);
  if (!kept) return nullptr;
  return kept_.emplace_back(*std::move(kept)).data;
}

Result<void> SourceBytes::fetch() {
  if (reads_.empty()) return {};
  return source_.read(reads_);
}

Result<void> SourceBytes::check() const {
  if (!kept_.empty()) {
    std::vector<FileId> files;
    for (const MappedBytes& kept : kept_) files.push_back(kept.file);
    CKFS_TRY_VOID(source_.verify(files));
  }
  if (mapped_.empty()) return {};
  return source_.check_mapped(mapped_);
}

std::vector<FileId> SourceBytes::files() const {
  std::vector<FileId> files;
  const auto add = [&](FileId file) {
    if (files.empty() || files.back() != file) files.push_back(file);
  };
  for (const MappedBytes& mapped : mapped_) add(mapped.file);
  for (const MappedBytes& kept : kept_) add(kept.file);
  for (const ReadRequest& read : reads_) add(read.file);
  return sorted_once(std::move(files));
}

}  // namespace ckfs
