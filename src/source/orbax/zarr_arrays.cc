// A tensor could have a box for each chunk, as one has for each part of a DCP tensor. There are
// 46,000 chunks in a large item, a box costs 300 bytes in the catalog and 200 more in each view,
// and every read would look for its boxes among them. The loops of a box can walk a grid of chunks
// by themselves: two for a dimension.
#include "source/orbax/zarr_arrays.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/rounding.h"
#include "base/text.h"
#include "encoding/big_endian_encoding.h"
#include "format/crc32c.h"

namespace ckfs {
namespace {

using Indices = std::vector<std::int64_t>;

constexpr FileId kNotFound = ~FileId{0};
constexpr std::uint64_t kMostInShard = std::uint64_t{1} << 24;
constexpr std::size_t kMostPartial = 8;  // dimensions with whole chunks and one that is not

/// Row-major strides.
Indices strides_of(std::span<const std::int64_t> shape) {
  Indices strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::optional<Codec> codec_of(std::string_view codec) {
  for (const Codec known :
       {Codec::Zstd, Codec::Gzip, Codec::Zlib, Codec::Bz2, Codec::Blosc, Codec::Crc32c}) {
    if (codec == name(known)) return known;
  }
  return std::nullopt;
}

/// Counts through all indices below `extents`, the last dimension fastest.
bool next_index(Indices& index, std::span<const std::int64_t> extents) {
  for (std::size_t d = index.size(); d-- > 0;) {
    if (++index[d] < extents[d]) return true;
    index[d] = 0;
  }
  return false;
}

}  // namespace

Result<ZarrArray> ZarrArray::create(std::string name, zarr::Metadata metadata) {
  ZarrArray array(std::move(name), std::move(metadata));
  CKFS_TRY_VOID(array.make_grid());
  array.obstacle_ = array.find_obstacle();
  return array;
}

Result<void> ZarrArray::make_grid() {
  const zarr::Metadata& meta = metadata_;
  // Elements that no DType is are bytes: nothing here looks at them.
  const bool is_signed = meta.data_type == "int4" || meta.data_type == "int2";
  dtype_ = meta.dtype.value_or(is_signed ? DType::I8 : DType::U8);
  const auto width = static_cast<std::uint64_t>(std::max(1, meta.width));
  nbytes_ = static_cast<std::uint64_t>(meta.inner_numel()) * width;
  std::optional<std::int64_t> count = 1;
  bool empty = false;
  for (std::size_t d = 0; d < meta.shape.size(); ++d) {
    outer_.push_back(ceil_div(meta.shape[d], meta.chunk[d]));
    cells_.push_back(ceil_div(meta.shape[d], meta.inner[d]));
    empty = empty || meta.shape[d] == 0;
    const bool is_cut = meta.shape[d] > meta.inner[d] && meta.shape[d] % meta.inner[d] != 0;
    partial_ += is_cut ? 1 : 0;
    if (count) count = checked_mul(*count, cells_.back());
  }
  if (empty) {
    partial_ = 0;
    return {};
  }
  // The end of every chunk counts, too, even where the array does not reach it.
  const auto bytes =
      count ? checked_mul(static_cast<std::uint64_t>(*count), nbytes_) : std::nullopt;
  if (!bytes ||
      *bytes > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / 16) {
    return fail(ErrorCode::Unsupported, "{}: a grid of [{}] chunks of {} bytes (limit 2^59 in all)",
                quote(name_), fmt::join(cells_, ", "), nbytes_);
  }
  if (partial_ > kMostPartial) {
    return fail(ErrorCode::Unsupported,
                "{}: chunks of [{}] end beyond it along {} dimensions (limit {})", quote(name_),
                fmt::join(meta.inner, ", "), partial_, kMostPartial);
  }
  return {};
}

std::size_t ZarrArray::cells() const {
  std::size_t count = 1;
  for (const std::int64_t extent : cells_) count *= static_cast<std::size_t>(extent);
  return count;
}

std::string ZarrArray::find_obstacle() const {
  if (metadata_.width == 0) return fmt::format("elements of {}", quote(metadata_.data_type));
  std::vector<Codec> codecs;
  for (const std::string& name : metadata_.codecs.bytes_codecs) {
    const auto codec = codec_of(name);
    if (!codec) return fmt::format("codec {}", quote(name));
    codecs.push_back(*codec);
  }
  if (const auto why = undecodable(codecs); !why.empty()) return fmt::format("codec {}", why);
  if (!metadata_.sharding) return {};
  if (!metadata_.sharding->bytes_codecs.empty()) {
    return fmt::format("shards under codec {}", quote(metadata_.sharding->bytes_codecs.front()));
  }
  if (metadata_.sharding->index_big_endian) return "shards with an index in big-endian order";
  // Which chunks are absent in them is known when they are read.
  if (metadata_.unknown_fill) return unknown_fill();
  return {};
}

std::string ZarrArray::unknown_fill() const {
  return fmt::format("the fill value of its {} is not 0", metadata_.data_type);
}

std::string ZarrArray::chunk_text(std::span<const std::int64_t> index) const {
  return fmt::format("{}: chunk {}", quote(name_),
                     index.empty() ? "0" : fmt::format("{}", fmt::join(index, ".")));
}

ChunkArrayId ZarrArray::chunk_array(CatalogBuilder& builder) {
  if (array_) return *array_;
  ChunkArray array;
  array.name = name_;
  array.nbytes = nbytes_;
  std::vector<Codec> codecs;
  for (const std::string& codec : metadata_.codecs.bytes_codecs) {
    codecs.push_back(codec_of(codec).value());
  }
  array.codecs = std::make_shared<const CodecChain>(std::move(codecs));
  const auto fill = std::as_bytes(std::span(metadata_.fill));
  array.fill.assign(fill.begin(), fill.end());
  if (metadata_.codecs.big_endian) {
    const bool complex = dtype_ == DType::C64 || dtype_ == DType::C128;
    const std::size_t number = array.fill.size() / (complex ? 2 : 1);
    for (std::size_t at = 0; at < array.fill.size(); at += number) {
      std::ranges::reverse(std::span(array.fill).subspan(at, number));
    }
  }
  for (const std::int64_t extent : outer_) array.grid.push_back(static_cast<std::uint64_t>(extent));
  array_ = builder.chunks().add_array(std::move(array));
  return *array_;
}

Result<void> ZarrArray::add_chunk(CatalogBuilder& builder, std::span<const std::int64_t> index,
                                  const StoredValue& value) {
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (index[d] >= outer_[d]) return {};
  }
  ++found_;
  stored_ += value.size();
  if (!obstacle_.empty()) return {};
  if (extents_.empty()) extents_.assign(cells(), Extent{kNotFound, 0, nbytes_});
  if (metadata_.sharding) return add_shard(builder, index, value);
  const Indices strides = strides_of(cells_);
  std::int64_t cell = 0;
  for (std::size_t d = 0; d < index.size(); ++d) cell += index[d] * strides[d];
  Extent& extent = extents_[static_cast<std::size_t>(cell)];
  const bool plain = metadata_.codecs.bytes_codecs.empty();
  if (plain && value.size() != nbytes_) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes are stored, expected {}", chunk_text(index),
                value.size(), nbytes_);
  }
  const auto number = static_cast<std::uint64_t>(cell);
  if (value.bytes) {
    CKFS_TRY(extent.file, builder.chunks().add_inline(chunk_array(builder), number,
                                                      std::as_bytes(std::span(*value.bytes))));
  } else if (plain) {
    extent = {value.range.file, value.range.offset, nbytes_};
  } else {
    CKFS_TRY(extent.file, builder.chunks().add_stored(chunk_array(builder), number, value.range));
  }
  return {};
}

template <typename Take>
Result<void> ZarrArray::for_each_inner(std::span<const std::int64_t> index, Take take) const {
  const std::size_t rank = index.size();
  const Indices& order = metadata_.sharding->order;
  Indices begin(rank), count(rank), number_stride(rank);
  std::int64_t step = 1;
  for (std::size_t d = rank; d-- > 0;) {
    const std::size_t dim = order.empty() ? d : static_cast<std::size_t>(order[d]);
    const std::int64_t sub = metadata_.chunk[dim] / metadata_.inner[dim];
    number_stride[dim] = step;
    step *= sub;
    begin[dim] = index[dim] * sub;
    count[dim] = std::min(sub, cells_[dim] - begin[dim]);
  }
  const Indices strides = strides_of(cells_);
  Indices at(rank, 0);
  do {
    std::int64_t cell = 0;
    std::int64_t number = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      cell += (begin[d] + at[d]) * strides[d];
      number += at[d] * number_stride[d];
    }
    CKFS_TRY_VOID(take(static_cast<std::uint64_t>(number), static_cast<std::size_t>(cell)));
  } while (next_index(at, count));
  return {};
}

Result<void> ZarrArray::add_shard(CatalogBuilder& builder, std::span<const std::int64_t> index,
                                  const StoredValue& value) {
  const zarr::Sharding& sharding = *metadata_.sharding;
  ShardIndex where{1, sharding.index_at_end, sharding.index_crc32c};
  for (std::size_t d = 0; d < index.size(); ++d) {
    where.count *= static_cast<std::uint64_t>(metadata_.chunk[d] / metadata_.inner[d]);
    if (where.count > kMostInShard) {
      return fail(ErrorCode::Unsupported, "{}: shards of more than {} chunks", quote(name_),
                  kMostInShard);
    }
  }
  if (value.size() < where.nbytes()) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes are stored, and its index has {}",
                chunk_text(index), value.size(), where.nbytes());
  }
  std::uint64_t shard = 0;
  const Indices strides = strides_of(outer_);
  for (std::size_t d = 0; d < index.size(); ++d) {
    shard += static_cast<std::uint64_t>(index[d] * strides[d]);
  }
  if (!value.bytes) {
    CKFS_TRY(const FileId first,
             builder.chunks().add_shard(chunk_array(builder), shard, value.range, where));
    return for_each_inner(index, [&](std::uint64_t number, std::size_t cell) -> Result<void> {
      extents_[cell].file = first + static_cast<FileId>(number);
      return {};
    });
  }
  const auto bytes = std::as_bytes(std::span(*value.bytes));
  const std::uint64_t begin = where.at_end ? bytes.size() - where.nbytes() : 0;
  const auto pairs = bytes.subspan(begin, 16 * where.count);
  if (where.crc32c) {
    const auto recorded = load_le<std::uint32_t>(bytes.subspan(begin + pairs.size()));
    const std::uint32_t real = crc32c(value.bytes->substr(begin, pairs.size()));
    if (real != recorded) {
      return fail(ErrorCode::Corrupt, "{}: the CRC-32C of its index is {:08x}, recorded is {:08x}",
                  chunk_text(index), real, recorded);
    }
  }
  const bool plain = metadata_.codecs.bytes_codecs.empty();
  std::uint64_t taken = 0;
  return for_each_inner(index, [&](std::uint64_t number, std::size_t cell) -> Result<void> {
    const auto offset = load_le<std::uint64_t>(pairs.subspan(16 * number));
    const auto size = load_le<std::uint64_t>(pairs.subspan(16 * number + 8));
    if (offset == ~std::uint64_t{0} && size == ~std::uint64_t{0}) return {};
    if (offset > bytes.size() || size > bytes.size() - offset) {
      return fail(ErrorCode::Corrupt, "{}: inner chunk {}: {} bytes at {} of a shard of {}",
                  chunk_text(index), number, size, offset, bytes.size());
    }
    if (plain && size != nbytes_) {
      return fail(ErrorCode::Corrupt, "{}: inner chunk {}: {} bytes are stored, expected {}",
                  chunk_text(index), number, size, nbytes_);
    }
    // Each is copied, and an index may name the same bytes any number of times.
    taken += size;
    if (taken > bytes.size()) {
      return fail(ErrorCode::Corrupt,
                  "{}: inner chunk {}: {} bytes with those before it, of a shard of {}",
                  chunk_text(index), number, taken, bytes.size());
    }
    CKFS_TRY(extents_[cell].file,
             builder.chunks().add_inline(chunk_array(builder), shard, bytes.subspan(offset, size)));
    return {};
  });
}

std::vector<StorageBox> ZarrArray::make_boxes(StorageId storage) const {
  const std::size_t rank = metadata_.shape.size();
  const Indices& order = metadata_.codecs.order;
  Indices stride(rank, 1);  // within a chunk
  std::int64_t step = 1;
  for (std::size_t d = rank; d-- > 0;) {
    const std::size_t dim = order.empty() ? d : static_cast<std::size_t>(order[d]);
    stride[dim] = step;
    step *= metadata_.inner[dim];
  }
  Indices cell_stride = strides_of(cells_);
  for (std::int64_t& each : cell_stride) each *= step;
  // Along each dimension: the whole chunks, and the one that is not.
  std::vector<StorageBox> all{{storage, 0, {}, {}, stride, metadata_.inner, cell_stride}};
  for (std::size_t d = 0; d < rank; ++d) {
    const std::int64_t rest = metadata_.shape[d] % metadata_.inner[d];
    const std::int64_t whole = metadata_.shape[d] - rest;
    std::vector<StorageBox> cut;
    for (StorageBox& box : all) {
      if (rest > 0) {
        StorageBox& last = cut.emplace_back(box);
        last.begin.push_back(whole);
        last.count.push_back(rest);
        last.offset += whole / metadata_.inner[d] * cell_stride[d];
      }
      if (whole == 0 && rest > 0) continue;
      box.begin.push_back(0);
      box.count.push_back(whole);
      cut.push_back(std::move(box));
    }
    all = std::move(cut);
  }
  return all;
}

bool ZarrArray::is_row_major(std::span<const StorageBox> boxes) const {
  if (boxes.size() != 1) return false;
  std::int64_t expected = 1;
  for (std::size_t d = metadata_.shape.size(); d-- > 0;) {
    const std::int64_t inner = metadata_.inner[d];
    if (metadata_.shape[d] != inner * cells_[d]) return false;
    if (inner > 1 && boxes[0].stride[d] != expected) return false;
    expected *= inner;
    if (cells_[d] > 1 && boxes[0].cell_stride[d] != expected) return false;
    expected *= cells_[d];
  }
  return true;
}

Result<TensorId> ZarrArray::finish(CatalogBuilder& builder, std::string_view name,
                                   std::string_view why_whole) {
  const bool empty = std::ranges::find(metadata_.shape, 0) != metadata_.shape.end();
  if (!obstacle_.empty()) builder.add_obstacle(name, obstacle_);
  if (empty || !obstacle_.empty()) {
    const StorageId none = builder.add_storage(dtype_, 0, {});
    if (empty) return builder.add_tensor(name, metadata_.shape, none);
    // An array that cannot be shown gets no elements, but keeps its shape.
    StorageBox nothing;
    nothing.storage = none;
    nothing.begin.assign(metadata_.shape.size(), 0);
    nothing.count.assign(metadata_.shape.size(), 0);
    nothing.stride.assign(metadata_.shape.size(), 0);
    return builder.add_tensor(name, metadata_.shape, none, {nothing});
  }
  if (extents_.empty()) extents_.assign(cells(), Extent{kNotFound, 0, nbytes_});
  std::size_t missing = 0;
  std::optional<FileId> absent;
  // Joined where they are: of a million chunks they are the most that is held here.
  std::size_t joined = 0;
  for (Extent extent : extents_) {
    if (extent.file == kNotFound) {
      ++missing;
      if (!absent) {
        CKFS_TRY(absent, builder.chunks().add_absent(chunk_array(builder)));
      }
      extent.file = *absent;
    }
    Extent* const last = joined == 0 ? nullptr : &extents_[joined - 1];
    if (last != nullptr && !is_chunk(extent.file) && last->file == extent.file &&
        last->offset + last->nbytes == extent.offset) {
      last->nbytes += extent.nbytes;
    } else {
      extents_[joined++] = extent;
    }
  }
  if (array_ && metadata_.sharding) builder.chunks().require_all(*array_, why_whole);
  if (missing > 0 && (!why_whole.empty() || metadata_.unknown_fill)) {
    builder.add_obstacle(name,
                         fmt::format("{} of its chunks are missing, and {}", missing,
                                     why_whole.empty() ? unknown_fill() : std::string(why_whole)));
  } else {
    filled_ = missing;
  }
  const auto numel = static_cast<std::int64_t>(cells()) * metadata_.inner_numel();
  const StorageId storage = builder.add_storage(dtype_, numel, std::span(extents_).first(joined));
  extents_ = {};
  if (metadata_.codecs.big_endian && bits(dtype_) > 8) {
    builder.set_encoding(storage, big_endian_encoding(dtype_), {}, numel);
  }
  std::vector<StorageBox> all = make_boxes(storage);
  if (is_row_major(all)) all.clear();
  return builder.add_tensor(name, metadata_.shape, storage, std::move(all));
}

}  // namespace ckfs
