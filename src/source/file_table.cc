// Every file is registered, also those without a tensor in any view: the view `source` has them,
// and another size or time of any of them makes another fingerprint. A map from path to number
// would hold every path a second time; the tree is sorted, so its position is enough.
#include "source/file_table.h"

#include <utility>
#include <vector>

#include "base/checked.h"

namespace ckfs {

std::string seen_name(std::string_view name, const Fingerprint& fingerprint) {
  if (fingerprint.version == 0) return std::string(name);
  return fmt::format("{}\n{:x}", name, fingerprint.version);
}

Result<FileTable> FileTable::create(const SourceTree& tree, SourceFiles& files,
                                    CatalogBuilder& builder) {
  FileTable table(tree);
  std::vector<NewFile> added;
  added.reserve(tree.files.size());
  for (const TreeFile& file : tree.files) {
    added.push_back({file.path, tree.location(file), !file.is_link});
  }
  CKFS_TRY(table.first_, files.add(std::move(added)));
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < tree.files.size(); ++i) {
    const TreeFile& file = tree.files[i];
    const FileId id = table.first_ + static_cast<FileId>(i);
    builder.add_file({file.path, id});
    const Fingerprint& fingerprint = files.fingerprint(id);
    const auto sum = checked_add(total, fingerprint.size);
    if (!sum || *sum > kMaxSourceBytes) {
      return fail(ErrorCode::Unsupported, "{}: {} bytes, and {} in those before it (limit {})",
                  file.path, fingerprint.size, total, kMaxSourceBytes);
    }
    total = *sum;
    builder.saw_file(seen_name(file.path, fingerprint), fingerprint.size, fingerprint.mtime_ns);
  }
  for (const Note& note : tree.notes) builder.add_note(note.subject, note.text);
  return table;
}

std::optional<FileId> FileTable::find(std::string_view path) const {
  const TreeFile* file = tree_->find(folder_ + std::string(path));
  if (file == nullptr) return std::nullopt;
  return first_ + static_cast<FileId>(file - tree_->files.data());
}

}  // namespace ckfs
