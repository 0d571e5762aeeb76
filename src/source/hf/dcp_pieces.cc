// A header says where a slice begins, and nothing says how large the whole is: it ends where the
// last slice does. So a hole within a tensor is seen, and a rank whose file is missing, too, unless
// its slices were the last of every tensor. (torch's own reader knows no more.) A slice is never
// shown as the whole: also not where it begins at 0 and is alone in a file that was opened by
// itself, which is the opener's to refuse.
#include "source/hf/dcp_pieces.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "format/dcp_sharding.h"
#include "source/box_overlap.h"

namespace ckfs {
namespace {

/// Whether the slices are whole in all dimensions but the first.
template <typename Slices>
bool is_cut_in_rows(std::span<const std::int64_t> shape, const Slices& pieces) {
  if (shape.empty()) return true;
  return std::ranges::all_of(pieces, [&](const auto& piece) {
    return std::ranges::equal(std::span(piece.count).subspan(1), shape.subspan(1));
  });
}

}  // namespace

bool TensorPieces::are_in(const safetensors::Header& header) {
  const auto kept = header.metadata();
  const auto others = header.metadata_not_kept();
  return std::ranges::find(kept, kDcpSharding, &safetensors::MetadataEntry::first) != kept.end() ||
         std::ranges::find(others, kDcpSharding) != others.end();
}

Result<void> TensorPieces::add(std::string_view path, FileId file,
                               const safetensors::Header& header) {
  const auto kept = header.metadata();
  const auto text = std::ranges::find(kept, kDcpSharding, &safetensors::MetadataEntry::first);
  if (text == kept.end()) {
    return fail(ErrorCode::Unsupported, "{}: {} has more than {} bytes with those before it", path,
                kDcpSharding, safetensors::kMaxKeptMetadata);
  }
  CKFS_TRY(const DcpOffsets offsets, parse_dcp_sharding(text->second, path));
  paths_.emplace_back(path);
  for (std::size_t i = 0; i < header.size(); ++i) {
    const safetensors::HeaderTensor tensor = header[i];
    const auto begin = offsets.find(tensor.name);
    if (begin == offsets.end() || begin->second.size() != tensor.shape.size()) {
      return fail(ErrorCode::Corrupt, "{}: tensor {}: {} does not say where in the whole it lies",
                  path, quote(tensor.name), kDcpSharding);
    }
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      if (checked_add(begin->second[d], tensor.shape[d])) continue;
      return fail(ErrorCode::Corrupt, "{}: tensor {}: a slice of {} that begins at {}", path,
                  quote(tensor.name), tensor.shape[d], begin->second[d]);
    }
    auto known = tensors_.find(tensor.name);
    if (known == tensors_.end()) known = tensors_.try_emplace(std::string(tensor.name)).first;
    known->second.push_back({static_cast<std::uint32_t>(paths_.size() - 1),
                             file,
                             tensor.dtype,
                             header.data_offset() + tensor.begin,
                             begin->second,
                             {tensor.shape.begin(), tensor.shape.end()}});
    ++size_;
  }
  return {};
}

Result<std::vector<std::int64_t>> TensorPieces::whole_shape(std::string_view name,
                                                            const Slices& pieces) const {
  const TensorSlice& first = pieces.front();
  std::vector<std::int64_t> shape(first.begin.size());
  for (const TensorSlice& piece : pieces) {
    if (piece.dtype != first.dtype || piece.begin.size() != first.begin.size()) {
      return fail(ErrorCode::Corrupt,
                  "{}: tensor {}: a slice of {} in {} dimensions, but in {} of {} in {}",
                  paths_[piece.path], quote(name), ckfs::name(piece.dtype), piece.begin.size(),
                  paths_[first.path], ckfs::name(first.dtype), first.begin.size());
    }
    for (std::size_t d = 0; d < shape.size(); ++d) {
      shape[d] = std::max(shape[d], piece.begin[d] + piece.count[d]);
    }
  }
  const auto numel = checked_numel(shape);
  if (!numel || !nbytes(DType::C128, *numel)) {
    return fail(ErrorCode::Corrupt, "{}: tensor {}: its slices make no possible shape",
                paths_[first.path], quote(name));
  }
  return shape;
}

Result<void> TensorPieces::check_disjoint(std::string_view name, const Slices& pieces) const {
  if (pieces.empty()) return {};
  const auto box = [&](std::uint32_t i) { return BoxView{pieces[i].begin, pieces[i].count}; };
  const auto [found, irregular] = find_overlap(pieces.size(), pieces.front().begin.size(), box,
                                               [](std::uint64_t) { return true; });
  if (irregular > 0) {
    return fail(ErrorCode::Unsupported, "{}: tensor {}: {} slices that form no grid (limit {})",
                paths_[pieces.front().path], quote(name), irregular, kMaxIrregular);
  }
  if (!found) return {};
  const TensorSlice& earlier = pieces[found->first];
  const TensorSlice& later = pieces[found->second];
  return fail(ErrorCode::Corrupt, "{}: tensor {}: its slice at [{}] overlaps that at [{}] in {}",
              paths_[later.path], quote(name), fmt::join(later.begin, ", "),
              fmt::join(earlier.begin, ", "), paths_[earlier.path]);
}

/// The first number of shard-NNNNN-* below the largest that no file has; empty: there is none.
std::string TensorPieces::missing_rank() const {
  constexpr std::string_view kShard = "shard-";
  std::set<std::uint32_t> ranks;
  for (const std::string_view path : paths_) {
    const std::string_view name = path.substr(path.rfind('/') + 1);
    std::uint32_t rank = 0;
    if (!name.starts_with(kShard)) return {};
    const std::string_view digits = name.substr(kShard.size());
    if (std::from_chars(digits.data(), digits.data() + digits.size(), rank).ec != std::errc()) {
      return {};
    }
    ranks.insert(rank);
  }
  std::uint32_t next = 1;
  for (const std::uint32_t rank : ranks) {
    if (rank != next) return fmt::format(" (shard-{:05}-* is not here)", next);
    ++next;
  }
  return " (is the file of a rank missing?)";
}

Failure TensorPieces::missing(std::string_view name, std::span<const std::int64_t> shape,
                              const Slices& pieces, std::int64_t elements) const {
  std::string where;
  if (is_cut_in_rows(shape, pieces)) {
    std::int64_t end = 0;
    for (const TensorSlice& piece : pieces) {
      if (piece.begin[0] > end) {
        where = fmt::format(", from row {} to {}", end, piece.begin[0] - 1);
        break;
      }
      end = piece.begin[0] + piece.count[0];
    }
  }
  return fail(ErrorCode::Corrupt,
              "tensor {}: {} of its {} elements are in none of the {} files{}{}", quote(name),
              *checked_numel(shape) - elements, *checked_numel(shape), paths_.size(), where,
              missing_rank());
}

Result<std::vector<TensorId>> TensorPieces::join(CatalogBuilder& builder) {
  std::vector<TensorId> ids;
  for (auto& [name, all] : tensors_) {
    CKFS_TRY(const std::vector<std::int64_t> shape, whole_shape(name, all));
    const DType dtype = all.front().dtype;
    Slices pieces = std::exchange(all, {});
    std::erase_if(pieces, [](const TensorSlice& piece) { return checked_numel(piece.count) == 0; });
    std::ranges::sort(pieces, {}, [](const TensorSlice& piece) {
      return std::tie(piece.begin, piece.path, piece.offset);
    });
    CKFS_TRY_VOID(check_disjoint(name, pieces));
    std::int64_t elements = 0;  // those of slices that do not overlap: no more than the whole has
    for (const TensorSlice& piece : pieces) elements += *checked_numel(piece.count);
    if (elements != *checked_numel(shape)) return missing(name, shape, pieces, elements);

    const auto extent_of = [&](const TensorSlice& piece) {
      return Extent{piece.file, piece.offset, *nbytes(dtype, *checked_numel(piece.count))};
    };
    if (is_cut_in_rows(shape, pieces)) {
      std::vector<Extent> extents;
      for (const TensorSlice& piece : pieces) extents.push_back(extent_of(piece));
      ids.push_back(builder.add_tensor(name, shape, builder.add_storage(dtype, elements, extents)));
      continue;
    }
    std::vector<StorageBox> boxes;
    for (const TensorSlice& piece : pieces) {
      const Extent extent = extent_of(piece);
      StorageBox box{0, 0, piece.begin, piece.count, {}};
      box.stride.resize(box.count.size());
      std::int64_t stride = 1;
      for (std::size_t d = box.stride.size(); d-- > 0;) {
        box.stride[d] = stride;
        stride *= box.count[d];
      }
      box.storage = builder.add_storage(dtype, stride, std::span(&extent, 1));
      boxes.push_back(std::move(box));
    }
    const StorageId first = boxes.front().storage;
    ids.push_back(builder.add_tensor(name, shape, first, std::move(boxes)));
  }
  return ids;
}

}  // namespace ckfs
