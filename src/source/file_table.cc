// Every file is registered, also those of which no view shows a tensor: the view `source` has them,
// and another size or time of any of them makes another fingerprint. A map from path to number
// would hold every path a second time; the tree is sorted, so its position is enough.
#include "source/file_table.h"

namespace ckfs {

Result<FileTable> FileTable::create(const SourceTree& tree, SourceFiles& files,
                                    CatalogBuilder& builder) {
  FileTable table(tree);
  table.ids_.reserve(tree.files.size());
  for (const TreeFile& file : tree.files) {
    CKFS_TRY(const FileId id, files.add(file.path, file.location));
    table.ids_.push_back(id);
    builder.add_file({file.path, id});
    const Fingerprint& fingerprint = files.fingerprint(id);
    builder.saw_file(file.path, fingerprint.size, fingerprint.mtime_ns);
  }
  for (const Note& note : tree.notes) builder.add_note(note.subject, note.text);
  for (const std::string& path : tree.dangling) {
    builder.add_note(path, "a link to a file that is absent; not shown");
  }
  return table;
}

std::optional<FileId> FileTable::find(std::string_view path) const {
  const TreeFile* file = tree_->find(path);
  if (file == nullptr) return std::nullopt;
  return ids_[static_cast<std::size_t>(file - tree_->files.data())];
}

}  // namespace ckfs
