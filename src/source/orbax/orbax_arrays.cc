// Two passes over the keys: the first finds the arrays, by the names of their metadata, the second
// gives each its chunks. Which array a chunk is of follows from its key alone once all arrays are
// known; a name may have dots and slashes of its own, and look like any other key.
#include "source/orbax/orbax_arrays.h"

#include <algorithm>

#include "base/parallel.h"
#include "base/text.h"

namespace ckfs {
namespace {

// Chunks of all arrays together, beside two for each key: the others are fill values, or those of
// shards, whose index has so many bytes for each.
constexpr std::uint64_t kAbsentBase = std::uint64_t{1} << 18;
constexpr std::uint64_t kMostAbsentChunks = std::uint64_t{1} << 20;
constexpr std::uint64_t kBytesInIndex = 16;
// Bytes of the names of all arrays of a database, and more for each byte of its nodes: keys that
// share most of their bytes are stored in twenty.
constexpr std::uint64_t kNamesBase = std::uint64_t{4} << 20;
constexpr std::uint64_t kNamesFactor = 16;
// Bytes of names by which the arrays of chunks are looked for, and more for each key.
constexpr std::uint64_t kSoughtBase = std::uint64_t{1} << 28;
constexpr std::uint64_t kSoughtOfKey = std::uint64_t{1} << 12;
// Boxes of all arrays together, and 8 more for each: as many as one has that is cut along three
// dimensions.
constexpr std::uint64_t kMostBoxes = std::uint64_t{1} << 15;

/// The array whose metadata has this key.
std::optional<std::string_view> array_of_metadata(std::string_view key, zarr::Version version) {
  const std::string_view metadata = zarr::metadata_name(version);
  if (!key.ends_with(metadata)) return std::nullopt;
  key.remove_suffix(metadata.size());
  if (key.empty()) return key;  // the tree is one leaf
  if (!key.ends_with('/')) return std::nullopt;
  return key.substr(0, key.size() - 1);
}

}  // namespace

Result<void> OrbaxArrays::open_database(const orbax::ItemFlags* flags) {
  const bool manifest = table_.find(item_ + std::string(ocdbt::kManifestName)).has_value();
  if (!(flags == nullptr ? manifest : flags->use_ocdbt.value_or(manifest))) return {};
  if (!manifest) {
    return fail(ErrorCode::NotFound, "{}: missing, and {} says that the arrays are in it",
                item_ + std::string(ocdbt::kManifestName), "_METADATA");
  }
  auto opened = OcdbtDatabase::open(tree_, files_, table_, item_);
  if (!opened) return Failure(std::move(opened).error());
  database_.emplace(*std::move(opened));
  return {};
}

// All keys: those of the database, or the files of the arrays' directories.
Result<void> OrbaxArrays::for_each_key(const TakeEntry& take) const {
  if (database_) return database_->for_each(take);
  for (const TreeFile& file : tree_.files) {
    if (!file.path.starts_with(item_)) continue;
    const std::string_view key = std::string_view(file.path).substr(item_.size());
    const FileId number = table_.find(file.path).value();
    CKFS_TRY_VOID(take(key, {{number, 0, files_.size(number)}, {}}));
  }
  return {};
}

Result<void> OrbaxArrays::find(const orbax::ItemFlags* flags, std::uint64_t item_bytes) {
  CKFS_TRY_VOID(open_database(flags));
  std::vector<Found> found;
  std::vector<zarr::Version> versions;
  if (flags == nullptr || flags->use_zarr3) versions.push_back(zarr::Version::V3);
  if (flags == nullptr || !flags->use_zarr3) versions.push_back(zarr::Version::V2);
  const auto look = [&](std::string_view key, const StoredValue& value) -> Result<void> {
    ++keys_;
    for (const zarr::Version version : versions) {
      const auto name = array_of_metadata(key, version);
      if (!name) continue;
      if (!is_utf8(*name)) {
        return fail(ErrorCode::Unsupported, "{}: an array whose name is not UTF-8: {}", tree_.name,
                    quote(*name));
      }
      CKFS_TRY_VOID(take_name(*name));
      found.push_back({std::string(*name), version, value});
    }
    return {};
  };
  CKFS_TRY_VOID(for_each_key(look));
  if (found.empty()) {
    return fail(ErrorCode::Unsupported, "{}{}: no array in it ({} keys)", tree_.name + "/", item_,
                keys_);
  }
  CKFS_TRY_VOID(check_apart(found));
  std::vector<std::optional<ZarrArray>> made(found.size());
  const auto make = [&](std::size_t i) -> Result<void> {
    CKFS_TRY(made[i], read_array(found[i]));
    return {};
  };
  CKFS_TRY_VOID(run_parallel(found.size(), make, files_.parallel()));
  const std::uint64_t most_cells =
      2 * keys_ + std::min(kMostAbsentChunks, kAbsentBase + item_bytes / kBytesInIndex);
  std::uint64_t cells = 0;
  std::uint64_t boxes = 0;
  arrays_.reserve(made.size());  // by_name_ refers to them
  for (std::optional<ZarrArray>& array : made) {
    cells += std::min<std::uint64_t>(array->cells(), std::uint64_t{1} << 40);
    if (cells > most_cells) {
      return fail(
          ErrorCode::Unsupported,
          "{}: {} chunks with those of the arrays before it, and {} keys are stored (limit {})",
          quote(array->name()), cells, keys_, most_cells);
    }
    boxes += array->boxes();
    const std::uint64_t most_boxes = kMostBoxes + 8 * made.size();
    if (boxes > most_boxes) {
      return fail(ErrorCode::Unsupported,
                  "{}: chunks of it and the arrays before it end beyond them: {} boxes (limit {})",
                  quote(array->name()), boxes, most_boxes);
    }
    arrays_.push_back(*std::move(array));
    const std::string_view name = arrays_.back().name();
    if (!by_name_.emplace(name, arrays_.size() - 1).second) {
      return fail(ErrorCode::Corrupt, "{}: has both .zarray and zarr.json", quote(name));
    }
    longest_name_ = std::max(longest_name_, name.size());
  }
  return {};
}

// Each name is copied several times. Those of files are paid for by the directory.
Result<void> OrbaxArrays::take_name(std::string_view name) {
  if (!database_) return {};
  name_bytes_ += name.size();
  const std::uint64_t most = kNamesBase + kNamesFactor * database_->stored_bytes();
  if (name_bytes_ <= most) return {};
  return fail(ErrorCode::Corrupt, "{}{}: names of arrays of {} bytes, in nodes of {} (limit {})",
              item_, ocdbt::kManifestName, name_bytes_, database_->stored_bytes(), most);
}

ZarrArray* OrbaxArrays::of_name(std::string_view name) {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &arrays_[found->second];
}

bool OrbaxArrays::are_in(std::string_view key) const {
  if (database_) return false;
  if (array_of_metadata(key, zarr::Version::V3) || array_of_metadata(key, zarr::Version::V2)) {
    return true;
  }
  while (true) {
    const std::size_t slash = key.rfind('/');
    key = key.substr(0, slash == std::string_view::npos ? 0 : slash);
    if (by_name_.contains(key)) return true;
    if (key.empty()) return false;
  }
}

// A value may be that of many keys, and each would be read and parsed by itself.
Result<void> OrbaxArrays::check_apart(std::span<const Found> found) const {
  std::vector<const Found*> stored;
  for (const Found& array : found) {
    if (!array.value.bytes && array.value.range.size != 0) stored.push_back(&array);
  }
  std::ranges::sort(stored, {}, [](const Found* array) {
    return std::pair(array->value.range.file, array->value.range.offset);
  });
  for (std::size_t i = 1; i < stored.size(); ++i) {
    const FileRange& before = stored[i - 1]->value.range;
    const FileRange& range = stored[i]->value.range;
    if (before.file != range.file || range.offset - before.offset >= before.size) continue;
    return fail(ErrorCode::Corrupt, "{}: the metadata of {} at {} are within those of {}",
                files_.name(range.file), quote(stored[i]->name), range.offset,
                quote(stored[i - 1]->name));
  }
  return {};
}

Result<std::optional<ZarrArray>> OrbaxArrays::read_array(const Found& found) {
  const std::string shown = fmt::format("{}/{}", found.name.empty() ? "." : found.name,
                                        zarr::metadata_name(found.version));
  if (found.value.size() > zarr::kMaxMetadata) {
    return fail(ErrorCode::Unsupported, "{}: {} bytes (limit {})", shown, found.value.size(),
                zarr::kMaxMetadata);
  }
  std::string text;
  if (found.value.bytes) {
    text = *found.value.bytes;
  } else {
    text.resize(found.value.size());
    CKFS_TRY_VOID(repeated_.add(found.value.range.file, text.size()));
    CKFS_TRY_VOID(files_.read_at(found.value.range.file, found.value.range.offset,
                                 std::as_writable_bytes(std::span(text))));
  }
  CKFS_TRY(zarr::Metadata metadata, zarr::parse_metadata(found.version, text, shown));
  CKFS_TRY(ZarrArray array, ZarrArray::create(found.name, std::move(metadata)));
  return std::optional(std::move(array));
}

Result<ZarrArray*> OrbaxArrays::array_of_chunk(std::string_view key,
                                               std::vector<std::int64_t>& index) {
  const auto is_chunk_of = [&](ZarrArray& array, std::string_view rest) {
    auto found =
        zarr::parse_chunk_name(array.metadata().names, array.metadata().shape.size(), rest);
    if (!found) return false;
    index = *std::move(found);
    return true;
  };
  // Keys are sorted, so most are of the array that the one before was of.
  if (last_ != nullptr && key.starts_with(last_->name())) {
    const std::string_view rest = key.substr(last_->name().size());
    if (last_->name().empty() ? is_chunk_of(*last_, rest)
                              : rest.starts_with('/') && is_chunk_of(*last_, rest.substr(1))) {
      return last_;
    }
  }
  // The longest name first; a chunk's own has no more parts than there may be dimensions, and
  // "c".
  std::size_t parts = 0;
  for (std::size_t slash = key.rfind('/');; slash = key.rfind('/', slash - 1)) {
    if (++parts > zarr::kMaxRank + 1) return nullptr;
    const bool top = slash == std::string_view::npos;
    const std::string_view name = top ? "" : key.substr(0, slash);
    if (name.size() <= longest_name_) {
      sought_ += name.size();
      if (sought_ > kSoughtBase + kSoughtOfKey * keys_) {
        return fail(ErrorCode::Corrupt,
                    "{}: {} bytes of names, with those before, may be of its array, and {} keys "
                    "are stored",
                    quote(key), sought_, keys_);
      }
      const auto found = by_name_.find(name);
      if (found != by_name_.end() &&
          is_chunk_of(arrays_[found->second], top ? key : key.substr(slash + 1))) {
        last_ = &arrays_[found->second];
        return last_;
      }
    }
    if (top || slash == 0) return nullptr;
  }
}

Result<void> OrbaxArrays::find_chunks(CatalogBuilder& builder) {
  std::vector<std::int64_t> index;
  return for_each_key([&](std::string_view key, const StoredValue& value) -> Result<void> {
    CKFS_TRY(ZarrArray* const array, array_of_chunk(key, index));
    if (array == nullptr) return {};
    return array->add_chunk(builder, index, value);
  });
}

}  // namespace ckfs
