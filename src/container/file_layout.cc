// A view as files with known sizes.
//
// Segments are stored by where they begin alone, each ending where the next begins, so that there
// is nothing that could leave a gap or overlap. Inodes come from names and not from a counter: they
// must be the same after a remount, on another host, and whichever view was looked up first.
#include "container/file_layout.h"

#include <algorithm>
#include <atomic>
#include <unordered_set>

#include "base/hash.h"
#include "container/safetensors_layout.h"
#include "container/torch_zip_layout.h"

namespace ckfs {
namespace {

/// 0 means "no inode" and 1 is the root of a mount.
std::uint64_t inode_of(std::string_view view, std::string_view path) {
  const std::uint64_t hash = stable_hash(path, stable_hash("/", stable_hash(view)));
  return hash > 1 ? hash : hash + 2;
}

FileLayout lay_out_text(const std::shared_ptr<const Definition>& definition, std::size_t text) {
  FileLayout layout;
  layout.path = definition->texts[text].path;
  layout.size = definition->texts[text].text.size();
  layout.literals.push_back(
      {layout.size, [definition, text] { return definition->texts[text].text; }});
  if (layout.size > 0) layout.segments.push_back({0, 0, 0, Segment::Kind::Literal});
  return layout;
}

FileLayout lay_out_side_file(const SourceFile& file, const ByteSource& source) {
  FileLayout layout;
  layout.path = file.path;
  layout.size = source.size(file.file);
  if (layout.size > 0) layout.segments.push_back({0, 0, file.file, Segment::Kind::File});
  return layout;
}

}  // namespace

std::uint64_t new_serials(std::size_t count) {
  // Of the process and not of an engine: a cache may outlive a view, and tests have several.
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(count, std::memory_order_relaxed);
}

void FileLayout::finish() {
  cuts.clear();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const ByteRange place = range(i);
    if (segments[i].kind != Segment::Kind::Tensor || place.size() < kLargeTensor) continue;
    if (cuts.empty() || cuts.back() != place.begin) cuts.push_back(place.begin);
    cuts.push_back(place.end);
  }
  cuts.shrink_to_fit();
}

ByteRange FileLayout::tensor_at(std::uint64_t offset) const {
  CKFS_CHECK(offset < size);
  const auto after = std::ranges::upper_bound(cuts, offset);
  return {after == cuts.begin() ? 0 : *(after - 1), after == cuts.end() ? size : *after};
}

ByteRange FileLayout::piece_at(std::uint64_t offset) const {
  const std::uint64_t begin = offset / kPieceBytes * kPieceBytes;
  return tensor_at(offset).intersect({begin, begin + kPieceBytes});
}

ByteRange FileLayout::range(std::size_t index) const {
  CKFS_CHECK(index < segments.size());
  const std::uint64_t end = index + 1 < segments.size() ? segments[index + 1].begin : size;
  return {segments[index].begin, end};
}

std::size_t FileLayout::find(std::uint64_t offset) const {
  CKFS_CHECK(offset < size);
  const auto after = std::ranges::upper_bound(segments, offset, {}, &Segment::begin);
  return static_cast<std::size_t>(after - segments.begin()) - 1;
}

std::vector<std::uint32_t> layout_order(const Definition& definition, std::size_t file) {
  return definition.container == Container::Safetensors ? canonical_order(definition, file)
                                                        : definition.files[file].tensors;
}

Result<std::vector<FileLayout>> lay_out(const std::shared_ptr<const Definition>& definition,
                                        const ByteSource& source) {
  std::vector<FileLayout> layouts;
  layouts.reserve(definition->files.size() + definition->texts.size() +
                  definition->side_files.size() + 1);
  for (std::size_t i = 0; i < definition->files.size(); ++i) {
    CKFS_TRY(FileLayout shard, definition->container == Container::TorchZip
                                   ? lay_out_torch_file(definition, i)
                                   : lay_out_shard(definition, i));
    layouts.push_back(std::move(shard));
  }
  if (!definition->index.empty()) layouts.push_back(lay_out_index(definition));
  for (std::size_t i = 0; i < definition->texts.size(); ++i) {
    layouts.push_back(lay_out_text(definition, i));
  }
  for (const SourceFile& file : definition->side_files) {
    layouts.push_back(lay_out_side_file(file, source));
  }

  const std::string view = definition->spec.canonical();
  std::ranges::sort(layouts, {}, &FileLayout::path);
  std::unordered_set<std::uint64_t> inodes;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    FileLayout& layout = layouts[i];
    layout.definition = definition;
    layout.inode = inode_of(view, layout.path);
    layout.finish();
    if (i > 0 && layouts[i - 1].path == layout.path) {
      return fail(ErrorCode::Unsupported, "{}: \"{}\": two files of this name", view, layout.path);
    }
    // Two paths of one inode would be one file to the kernel. At 100,000 files this happens once in
    // 3.7 billion views; another inode would not be stable, so the view is refused.
    if (!inodes.insert(layout.inode).second) {
      return fail(ErrorCode::Unsupported, "{}: \"{}\": inode {:016x} belongs to another file", view,
                  layout.path, layout.inode);
    }
  }
  return layouts;
}

}  // namespace ckfs
