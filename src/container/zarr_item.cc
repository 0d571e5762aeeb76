#include "container/zarr_item.h"

#include <algorithm>
#include <array>
#include <ranges>

#include "base/text.h"
#include "container/orbax_files.h"

namespace ckfs {
namespace {

constexpr std::size_t kLongestName = 255;  // of a directory on Linux

/// Names that Orbax looks for in an item: it would take an array of that name for its own file.
constexpr std::array<std::string_view, 10> kReserved{"_METADATA",       "_CHECKPOINT_METADATA",
                                                     "_sharding",       "_strings.json",
                                                     "checkpoint",      "commit_success.txt",
                                                     "manifest.ocdbt",  "orbax.checkpoint",
                                                     "array_metadatas", "descriptor"};

Failure reserved(std::string_view name) {
  return fail(ErrorCode::Unsupported, "{}: a name that Orbax or TensorStore uses for a file",
              quote(name));
}

/// Chunks, in the order of the source, and the metadata of each array behind them.
class ZarrItem final : public OrbaxContainer {
 public:
  ZarrItem(ItemArrays arrays, zarr::Version version)
      : OrbaxContainer(std::move(arrays), {false, version == zarr::Version::V3}) {}

  Result<void> check() const {
    for (std::size_t i = 0; i < arrays().size(); ++i) {
      const std::string_view name = arrays().name(i);
      if (std::ranges::find(kReserved, name.substr(0, name.find('/'))) != kReserved.end()) {
        return reserved(name);
      }
      for (const auto range : std::views::split(name, '/')) {
        const std::string_view part(range.begin(), range.end());
        if (part.ends_with(".__lock")) return reserved(name);
        if (part.size() <= kLongestName) continue;
        return fail(ErrorCode::Unsupported, "{}: {} bytes (limit {})", quote(part), part.size(),
                    kLongestName);
      }
    }
    if (stored() > kMostFiles) {
      return fail(ErrorCode::Unsupported, "{} files (limit {}; storage=ocdbt has few)", stored(),
                  kMostFiles);
    }
    return {};
  }

 private:
  std::size_t stored() const override { return arrays().chunk_count() + arrays().size(); }

  bool is_chunk(std::size_t file) const { return file < arrays().chunk_count(); }
  std::size_t array_of(std::size_t file) const {
    return is_chunk(file) ? arrays().array_of(file) : file - arrays().chunk_count();
  }

  std::string stored_path(std::size_t file) const override {
    const std::size_t array = array_of(file);
    if (!is_chunk(file)) return arrays().metadata_path(array);
    return arrays().chunk_path(array, file - arrays().first_chunk(array));
  }

  FileFacts stored_facts(std::size_t file) const override {
    const std::size_t array = array_of(file);
    if (!is_chunk(file)) return {arrays().metadata(array).size(), 0, Exactness::BitExact};
    FileFacts facts{arrays().chunks(array).bytes(), 0, Exactness::BitExact};
    for (const std::uint32_t id : stored_tensors(file)) {
      facts.tensors = 1;
      facts.exactness = arrays().definition().tensors[id].exactness;
    }
    return facts;
  }

  std::vector<std::uint32_t> stored_tensors(std::size_t file) const override {
    const std::size_t array = array_of(file);
    if (!is_chunk(file) || arrays().tensor(array) == ModelTensor::kNone) return {};
    return {arrays().tensor(array)};
  }

  FileLayout lay_out_stored(std::size_t file) const override {
    const std::size_t array = array_of(file);
    if (!is_chunk(file)) {
      const auto self = std::static_pointer_cast<const ZarrItem>(shared_from_this());
      return text_layout(stored_facts(file).size,
                         [self, array] { return self->arrays().metadata(array); });
    }
    FileLayout layout;
    const std::uint64_t number = file - arrays().first_chunk(array);
    arrays().add_to(layout, array, number, number + 1, 0);
    return layout;
  }
};

}  // namespace

Result<std::shared_ptr<const Container>> make_zarr_item(ItemArrays arrays) {
  const zarr::Version version = arrays.version();
  auto item = std::make_shared<ZarrItem>(std::move(arrays), version);
  CKFS_TRY_VOID(item->check());
  return item;
}

}  // namespace ckfs
