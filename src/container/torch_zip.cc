// A torch file is pickle, storages, and around each storage a hundred bytes of zip. As a literal of
// its own each of those would cost more memory than its tensor does in the catalog; all of them as
// one literal would have to be rendered whole, megabytes, for the first of them. So a few hundred
// are one literal, whose parts lie between the storages.
#include "container/torch_zip.h"

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "container/literal_segments.h"
#include "container/sharded.h"
#include "format/torch_zip_writer.h"

namespace ckfs {
namespace {

// Texts of this many storages make one literal: 32 KB, which is less than most storages.
constexpr std::size_t kStoragesPerLiteral = 256;

// Literals before those.
constexpr std::uint32_t kHeadLiteral = 0;
constexpr std::uint32_t kPickleLiteral = 1;
constexpr std::uint32_t kTailLiteral = 2;
constexpr std::uint32_t kFirstLiteral = 3;

/// The file's name without its last extension: what torch calls the directory inside.
std::string root_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return std::string(name.substr(0, name.rfind('.')));
}

class TorchZipContainer final : public ShardedContainer {
 public:
  explicit TorchZipContainer(std::shared_ptr<const Definition> definition)
      : ShardedContainer(std::move(definition), kTorchNames, true) {}

  using ShardedContainer::build;

 private:
  Result<void> check(const ModelTensor& tensor) const override {
    if (!is_python_text(tensor.name)) {
      return fail(ErrorCode::Unsupported, "{}: a name that is not UTF-8", quote(tensor.name));
    }
    if (torch_zip::can_hold(tensor.expr.dtype())) return {};
    return fail(ErrorCode::Unsupported, "\"{}\": torch has no dtype {}", tensor.name,
                name(tensor.expr.dtype()));
  }

  void order(std::span<std::uint32_t> /*ids*/) const override {}  // the view's own

  Result<std::uint64_t> measure(std::size_t shard) const override {
    CKFS_TRY(const torch_zip::TorchArchive archive, plan(shard));
    return archive.size();
  }

  FileLayout lay_out_shard(std::size_t shard) const override;

  /// The archive is planned again for each layout: kept, it would cost 16 bytes a tensor, and 150
  /// for each file even if it is never opened.
  Result<torch_zip::TorchArchive> plan(std::size_t shard) const {
    std::vector<std::uint64_t> sizes;
    for (const std::uint32_t id : owners(shard)) sizes.push_back(tensor(id).expr.nbytes());
    return torch_zip::TorchArchive::plan(
        root_of(path(shard)), torch_zip::measure_pickle(heads_of(shard)), std::move(sizes));
  }

  /// The tensors that have a storage.
  std::vector<std::uint32_t> owners(std::size_t shard) const {
    std::vector<std::uint32_t> owners;
    for (const std::uint32_t id : ids(shard)) {
      if (tensor(id).same_as == ModelTensor::kNone) owners.push_back(id);
    }
    return owners;
  }

  std::vector<torch_zip::TensorHead> heads_of(std::size_t shard) const;
};

std::vector<torch_zip::TensorHead> TorchZipContainer::heads_of(std::size_t shard) const {
  std::unordered_map<std::uint32_t, std::uint32_t> shared;  // by number in the definition
  for (const std::uint32_t id : ids(shard)) {
    const std::uint32_t source = tensor(id).same_as;
    if (source != ModelTensor::kNone) shared.emplace(source, torch_zip::TensorHead::kOwnStorage);
  }
  std::vector<torch_zip::TensorHead> heads;
  heads.reserve(ids(shard).size());
  for (const std::uint32_t id : ids(shard)) {
    const auto place = static_cast<std::uint32_t>(heads.size());
    heads.push_back({tensor(id).name, tensor(id).expr.dtype(), tensor(id).expr.shape()});
    if (tensor(id).same_as != ModelTensor::kNone) {
      heads.back().same_as = shared.at(tensor(id).same_as);
    }
    const auto source = shared.find(id);
    if (source != shared.end()) source->second = place;
  }
  return heads;
}

FileLayout TorchZipContainer::lay_out_shard(std::size_t shard) const {
  Result<torch_zip::TorchArchive> planned = plan(shard);
  CKFS_CHECK(planned);  // as when it was measured
  const auto archive = std::make_shared<const torch_zip::TorchArchive>(*std::move(planned));
  const std::vector<std::uint32_t> owners = this->owners(shard);

  FileLayout layout;
  layout.literals = {archive->head().size(), archive->pickle().size(), archive->tail().size()};
  LiteralSegments segments(layout);
  segments.literal(kHeadLiteral, 0, archive->head());
  segments.literal(kPickleLiteral, 0, archive->pickle());
  for (std::size_t begin = 0; begin < owners.size(); begin += kStoragesPerLiteral) {
    const std::size_t end = std::min(begin + kStoragesPerLiteral, owners.size());
    const auto id = static_cast<std::uint32_t>(layout.literals.size());
    std::uint64_t inside = 0;
    for (std::size_t k = begin; k < end; ++k) {
      const ByteRange before = archive->before(k);
      segments.literal(id, inside, before);
      segments.tensor(owners[k], archive->storage(k));
      inside += before.size();
    }
    layout.literals.push_back(inside);
  }
  segments.literal(kTailLiteral, 0, archive->tail());

  layout.render_bytes = sizeof(*archive) + 2 * sizeof(std::uint64_t) * archive->storages();
  layout.render = [self = std::static_pointer_cast<const TorchZipContainer>(shared_from_this()),
                   shard, archive](std::uint32_t literal) {
    if (literal == kHeadLiteral) return archive->render_head();
    if (literal == kPickleLiteral) return torch_zip::render_pickle(self->heads_of(shard));
    if (literal == kTailLiteral) return archive->render_tail();
    const std::size_t begin = (literal - kFirstLiteral) * kStoragesPerLiteral;
    return archive->render_before(begin,
                                  std::min(begin + kStoragesPerLiteral, archive->storages()));
  };
  return layout;
}

}  // namespace

Result<std::shared_ptr<const Container>> make_torch_zip(
    std::shared_ptr<const Definition> definition) {
  auto container = std::make_shared<TorchZipContainer>(std::move(definition));
  CKFS_TRY_VOID(container->build());
  return container;
}

}  // namespace ckfs
