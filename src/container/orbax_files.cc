#include "container/orbax_files.h"

namespace ckfs {

OrbaxContainer::OrbaxContainer(ItemArrays arrays, orbax::Storage storage)
    : arrays_(std::move(arrays)),
      storage_(storage),
      directory_(arrays_.definition().packaging.orbax.directory) {
  small_.push_back({Kind::Tree, directory_ + "_METADATA",
                    orbax::measure_metadata(arrays_.leaves(), storage_, tree_metadata())});
  const auto add = [&](Kind kind, std::string_view name) {
    small_.push_back({kind, directory_ + std::string(name), 0});
    small_.back().size = render(small_.back()).size();
  };
  if (!strings().empty()) add(Kind::Strings, "_strings.json");
  if (!key_arrays().empty()) add(Kind::Keys, "array_metadatas/process_0");
  // In the item, and in each directory of the view above it.
  for (std::size_t end = directory_.size();;) {
    small_.push_back({Kind::Commit, directory_.substr(0, end) + "commit_success.txt", 0});
    small_.back().size = render(small_.back()).size();
    if (end == 0) break;
    end = directory_.rfind('/', end - 2);
    if (end == std::string::npos) break;
    ++end;
  }
}

const ItemTree* OrbaxContainer::tree() const {
  const Definition& definition = arrays_.definition();
  return definition.packaging.orbax.whole_tree ? definition.catalog->tree() : nullptr;
}

std::string_view OrbaxContainer::tree_metadata() const {
  return tree() == nullptr ? std::string_view() : tree()->custom_metadata;
}

std::vector<std::pair<std::string, std::string_view>> OrbaxContainer::strings() const {
  std::vector<std::pair<std::string, std::string_view>> found;
  if (tree() == nullptr) return found;
  for (const TreeLeaf& leaf : tree()->leaves) {
    if (leaf.type == "string") found.emplace_back(orbax::joined_keys(leaf.path), leaf.text);
  }
  return found;
}

std::vector<orbax::KeyArray> OrbaxContainer::key_arrays() const {
  std::vector<orbax::KeyArray> found;
  if (tree() == nullptr || tree()->key_kinds.empty()) return found;
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    const TreeLeaf& leaf = arrays_.tree_leaf(arrays_.tensor(i));
    const auto kind =
        tree()->key_kinds.find(static_cast<std::size_t>(&leaf - tree()->leaves.data()));
    if (kind == tree()->key_kinds.end()) continue;
    const ArrayChunks& chunks = arrays_.chunks(i);
    found.push_back({arrays_.name(i), chunks.shape(), chunks.chunk(), kind->second});
  }
  return found;
}

std::string OrbaxContainer::render(const Small& small) const {
  const Definition& definition = arrays_.definition();
  switch (small.kind) {
    case Kind::Tree:
      return orbax::render_metadata(arrays_.leaves(), storage_, tree_metadata());
    case Kind::Strings:
      return orbax::render_strings(strings());
    case Kind::Keys:
      return orbax::render_array_metadatas(key_arrays());
    case Kind::Commit: {
      std::string directory = definition.spec.canonical() + "/" + small.path;
      directory.resize(directory.rfind('/'));
      return orbax::render_commit_success(directory);
    }
  }
  return {};
}

std::string OrbaxContainer::path(std::size_t file) const {
  return file < stored() ? directory_ + stored_path(file) : small_[file - stored()].path;
}

FileFacts OrbaxContainer::facts(std::size_t file) const {
  if (file < stored()) return stored_facts(file);
  const Small& small = small_[file - stored()];
  FileFacts facts{small.size, 0, Exactness::BitExact};
  for (const std::uint32_t id : tensors(file)) {
    ++facts.tensors;
    facts.exactness = std::max(facts.exactness, arrays_.definition().tensors[id].exactness);
  }
  return facts;
}

std::vector<std::uint32_t> OrbaxContainer::tensors(std::size_t file) const {
  if (file < stored()) return stored_tensors(file);
  if (small_[file - stored()].kind != Kind::Tree) return {};
  return empty_tensors();
}

std::vector<std::uint32_t> OrbaxContainer::empty_tensors() const {
  std::vector<std::uint32_t> empty;
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    if (arrays_.chunks(i).count() == 0) empty.push_back(arrays_.tensor(i));
  }
  return empty;
}

FileLayout OrbaxContainer::lay_out(std::size_t file) const {
  if (file < stored()) return lay_out_stored(file);
  const Small& small = small_[file - stored()];
  return text_layout(small.size,
                     [self = std::static_pointer_cast<const OrbaxContainer>(shared_from_this()),
                      &small] { return self->render(small); });
}

FileLayout OrbaxContainer::text_layout(std::uint64_t size, std::function<std::string()> render) {
  FileLayout layout;
  layout.literals.push_back(size);
  layout.segments.push_back({0, 0, 0, Segment::Kind::Literal});
  layout.render = [render = std::move(render)](std::uint32_t /*literal*/) { return render(); };
  return layout;
}

}  // namespace ckfs
