// An index of a large model is megabytes of text, and so is the header of a shard. They are
// measured when the container is made and rendered from the definition when they are read; kept as
// text they would cost more than the whole catalog.
#include "container/sharded.h"

#include <algorithm>
#include <limits>

#include "format/hf_index.h"

namespace ckfs {
namespace {

constexpr std::size_t kMaxShards = 100'000;

}  // namespace

ShardedContainer::ShardedContainer(std::shared_ptr<const Definition> definition,
                                   const FileNames& names, bool shares)
    : definition_(std::move(definition)), names_(names), shares_(shares) {}

Result<void> ShardedContainer::build() {
  const std::string view = definition_->spec.canonical();
  for (const ModelTensor& tensor : definition_->tensors) {
    if (auto fits = check(tensor); !fits) return Failure(fits.error().within(view));
  }

  const Packaging& packaging = definition_->packaging;
  const bool mirrored = packaging.placement == Placement::Mirrored;
  const TensorGroups groups =
      mirrored ? mirror_shards(definition_->tensors)
      : packaging.placement == Placement::ByLayer
          ? split_by_layer(definition_->tensors)
          : split_by_size(definition_->tensors, packaging.max_shard, shares_);
  if (groups.size() > kMaxShards) {
    return fail(ErrorCode::InvalidArgument, "{}: {} shards ({})", view, groups.size(), kMaxShards);
  }
  ids_.reserve(definition_->tensors.size());
  begins_.reserve(groups.size() + 1);
  for (const std::vector<std::uint32_t>& group : groups) {
    ids_.insert(ids_.end(), group.begin(), group.end());
    begins_.push_back(static_cast<std::uint32_t>(ids_.size()));
    order(std::span(ids_).subspan(begins_.end()[-2], group.size()));
  }
  if (mirrored) {
    keeps_paths_ = true;
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < shards(); ++i) paths.push_back(path(i));
    keeps_paths_ = !must_rename(std::vector<std::string_view>(paths.begin(), paths.end()));
  }

  sizes_.reserve(size());
  exactness_.reserve(shards());
  for (std::size_t i = 0; i < shards(); ++i) {
    auto bytes = measure(i);
    if (!bytes) return Failure(bytes.error().within(fmt::format("{}/{}", view, path(i))));
    sizes_.push_back(*bytes);
    Exactness least = Exactness::BitExact;
    for (const std::uint32_t id : ids(i)) least = std::max(least, tensor(id).exactness);
    exactness_.push_back(least);
  }
  if (has_index()) {
    HfIndexMeasure measure;
    const std::uint64_t total_size =
        for_each_in_index([&](const IndexName& entry) { measure.add(entry); });
    sizes_.push_back(measure.nbytes(total_size));
  }
  return {};
}

std::span<const std::uint32_t> ShardedContainer::ids(std::size_t shard) const {
  return std::span(ids_).subspan(begins_[shard], begins_[shard + 1] - begins_[shard]);
}

bool ShardedContainer::has_index() const {
  if (shards() != 1 || path(0) == names_.single()) return shards() > 1;
  // No loader looks for a layer's name.
  if (definition_->packaging.placement == Placement::ByLayer) return true;
  // A lone file of a name of its own is loaded by that name, unless the source's was found through
  // an index, or was not alone.
  const Catalog& catalog = *definition_->catalog;
  return catalog.shards().size() > 1 || !catalog.model().index.empty();
}

std::string ShardedContainer::path(std::size_t file) const {
  if (file == shards()) {
    const std::string& index = definition_->packaging.index;
    return index.empty() ? names_.index() : index;
  }
  if (keeps_paths_) return definition_->catalog->shards()[tensor(ids(file)[0]).shard].path;
  if (definition_->packaging.placement == Placement::ByLayer) {
    return names_.of_layer(layer_of(tensor(ids(file)[0]).name));
  }
  return shards() == 1 ? names_.single() : names_.numbered(file + 1, shards());
}

FileFacts ShardedContainer::facts(std::size_t file) const {
  if (file == shards()) return {sizes_[file], 0, Exactness::BitExact};
  return {sizes_[file], static_cast<std::uint32_t>(ids(file).size()), exactness_[file]};
}

std::vector<std::uint32_t> ShardedContainer::tensors(std::size_t file) const {
  if (file == shards()) return {};
  return {ids(file).begin(), ids(file).end()};
}

template <typename Visit>
std::uint64_t ShardedContainer::for_each_in_index(const Visit& visit) const {
  std::uint64_t total_size = 0;
  for (std::size_t i = 0; i < shards(); ++i) {
    const std::string file = path(i);
    for (const std::uint32_t id : ids(i)) {
      visit(IndexName{tensor(id).name, file});
      // What shares its bytes is there once in files that can say so.
      const bool shared = shares_ && tensor(id).same_as != ModelTensor::kNone;
      if (!shared) total_size += tensor(id).expr.nbytes();
    }
  }
  return total_size;
}

std::string ShardedContainer::render_index() const {
  std::vector<std::string> paths;
  paths.reserve(shards());
  std::vector<IndexName> names;
  names.reserve(ids_.size());
  const std::uint64_t total_size = for_each_in_index([&](const IndexName& entry) {
    if (paths.empty() || paths.back() != entry.file) paths.emplace_back(entry.file);
    names.push_back({entry.name, paths.back()});
  });
  std::ranges::sort(names, {}, &IndexName::name);
  return render_hf_index(names, total_size);
}

FileLayout ShardedContainer::lay_out(std::size_t file) const {
  if (file < shards()) return lay_out_shard(file);
  FileLayout layout;
  layout.literals.push_back(sizes_[file]);
  layout.segments.push_back({0, 0, 0, Segment::Kind::Literal});
  layout.render = [self = std::static_pointer_cast<const ShardedContainer>(shared_from_this())](
                      std::uint32_t) { return self->render_index(); };
  return layout;
}

}  // namespace ckfs
