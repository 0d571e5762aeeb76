// Most companions are not cached: the scales that belong to a run are read with it, in the same
// batch. A request of 1 MiB then reads at most one row of scales that its neighbour has read too
// (some hundred bytes in half a MiB), which is cheaper than a cache with its own place in the
// budget, and a read needs only its own staging. The others are those that even a few rows need as
// a whole (groups of columns in arbitrary order, and the scales that they choose from).
#include "engine/run_decoder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/rounding.h"
#include "engine/source_ranges.h"
#include "expr/steps.h"
#include "tensor/arithmetic.h"

namespace ckfs {
namespace {

/// Elements that are decoded and go through steps at once: they and their results stay in a CPU's
/// nearest cache.
constexpr std::int64_t kPiece = 2048;
constexpr std::size_t kMostWidth = 16;  // bytes of the widest element
constexpr std::size_t kMostFloat = 8;   // of the widest that takes steps
/// Shorter reads are not padded.
constexpr std::uint64_t kWorthPadding = std::uint64_t{128} << 10;

/// `elements`, from border to border of what decodes at once; the storage ends wherever it does.
ElementRange widened(ElementRange elements, std::int64_t unit, std::int64_t numel) {
  const std::int64_t first = elements.first / unit * unit;
  const std::int64_t end = std::min(numel, round_up(elements.end(), unit));
  return {first, end - first};
}

/// The most elements that widened() makes of `count`.
std::int64_t most_widened(std::int64_t count, std::int64_t unit) {
  return ((count + unit - 2) / unit + 1) * unit;
}

StorageId part_of(const Catalog& catalog, StorageId storage, std::uint32_t part) {
  return part == 0 ? storage : catalog.storage(storage).companions()[part - 1];
}

std::span<const Step> steps_of(const ElementRun& run) {
  return run.program == nullptr ? std::span<const Step>() : std::span<const Step>(*run.program);
}

}  // namespace

DType result_dtype(DType value, const Program* program) {
  return program == nullptr || program->empty() ? value : program->back().dtype;
}

bool is_move(const Storage& storage, const Program* program) {
  return storage.encoding->is_plain() && (program == nullptr || program->empty());
}

bool only_quiets_nans(DType value, std::span<const Step> steps) {
  return steps.size() == 2 && is_castable_float(value) && steps[0].kind == Step::Kind::Cast &&
         steps[1].kind == Step::Kind::Cast && steps[1].dtype == value &&
         bytes_of(steps[0].dtype, 1) > bytes_of(value, 1);
}

/// Gives the windows of a part their places behind `used` bytes. Returns the bytes used then.
std::size_t RunReads::place(std::size_t used, const StorageWindows& part, Padding padding) {
  const Storage& storage = catalog_->storage(part.storage);
  for (Window& window : std::span(windows_).subspan(part.begin, part.end - part.begin)) {
    window.at = used;
    used += window.range.size();
    if (padding == Padding::No || window.range.size() < kWorthPadding) continue;
    const auto extents = storage.extents_in(window.range);
    if (extents.size() != 1) continue;
    const std::uint64_t offset =
        extents.front().offset + (window.range.begin - extents.front().begin);
    window.padded = true;
    window.at = round_up<std::size_t>(window.at, kDiskBlock) + offset % kDiskBlock;
    used = round_up<std::size_t>(window.at + window.range.size(), kDiskBlock);
  }
  return used;
}

RunReads::RunReads(const Catalog& catalog, std::span<const ElementRun> runs, Padding padding)
    : catalog_(&catalog) {
  struct Need {
    StorageId storage;
    StorageId of;
    ByteRange range;
  };
  std::vector<Need> needs;
  needs.reserve(runs.size() * 2);
  std::vector<PartRange> parts, before;  // of this run, and of the one before
  StorageId before_of = kNone;
  std::size_t scratch = 0;
  for (const ElementRun& run : runs) {
    if (run.count == 0) continue;
    const Storage& storage = catalog.storage(run.storage);
    const ElementRange elements =
        widened({run.first, run.count}, storage.encoding->granule().unit(), storage.numel);
    parts.clear();
    storage.encoding->add_needs(elements, parts);
    // The rows of a narrow panel need the same of their companions: with hundreds of groups that
    // would be more to sort than there is to read.
    if (before_of != run.storage) before.clear();
    for (std::size_t k = 0; k < parts.size(); ++k) {
      const PartRange& part = parts[k];
      if (part.range.empty() || (k < before.size() && before[k] == part)) continue;
      needs.push_back({part_of(catalog, run.storage, part.part),
                       part.part == 0 ? kNone : run.storage, part.range});
    }
    std::swap(parts, before);
    before_of = run.storage;
    scratch = std::max(scratch, storage.encoding->scratch(elements.count));
  }
  const auto in_order = [](const Need& a, const Need& b) {
    return a.storage != b.storage ? a.storage < b.storage : a.range.begin < b.range.begin;
  };
  if (!std::ranges::is_sorted(needs, in_order)) std::ranges::sort(needs, in_order);
  for (const Need& need : needs) {
    if (parts_.empty() || parts_.back().storage != need.storage) {
      parts_.push_back({need.storage, need.of, windows_.size(), windows_.size()});
    }
    StorageWindows& part = parts_.back();
    ByteRange range = need.range;
    if (part.end > part.begin && range.begin <= windows_.back().range.end) {
      ByteRange& last = windows_.back().range;
      last.end = std::max(last.end, range.end);
    } else {
      windows_.push_back({range});
      ++part.end;
    }
  }
  std::size_t used = 0;
  for (const StorageWindows& part : parts_) used = place(used, part, padding);
  scratch_ = aligned(used);
  staging_ = scratch_ + aligned(scratch);
}

std::size_t RunReads::most_staging(const Catalog& catalog, StorageId id, std::int64_t elements,
                                   std::int64_t count) {
  const Storage& storage = catalog.storage(id);
  const Encoding& encoding = *storage.encoding;
  const std::int64_t most = most_widened(elements, encoding.granule().unit());
  std::uint64_t bytes = 0;
  for (std::uint32_t part = 0; part <= encoding.companions(); ++part) {
    const std::uint64_t all = catalog.storage(part_of(catalog, id, part)).nbytes();
    const std::uint64_t one = std::min(all, encoding.most_bytes(part, most));
    // Compared by division: the product of a hostile size may not be a number.
    const auto runs = static_cast<std::uint64_t>(count);
    bytes += one == 0 || runs > all / one ? all : one * runs;
  }
  return aligned(bytes) + aligned(encoding.scratch(most));
}

const RunReads::StorageWindows* RunReads::find(StorageId storage) const {
  const auto part = std::ranges::lower_bound(parts_, storage, {}, &StorageWindows::storage);
  return part == parts_.end() || part->storage != storage ? nullptr : &*part;
}

ByteRange RunReads::hull(const StorageWindows& part) const {
  return {windows_[part.begin].range.begin, windows_[part.end - 1].range.end};
}

/// All of a companion that reads of other elements will likely need again: most of it is needed,
/// for a far smaller part of the codes.
std::optional<FileRange> RunReads::kept(const StorageWindows& part) const {
  constexpr std::uint64_t kFarSmaller = 4;
  const StorageWindows* const codes = part.of == kNone ? nullptr : find(part.of);
  if (codes == nullptr) return std::nullopt;
  const Storage& storage = catalog_->storage(part.storage);
  const double share =
      static_cast<double>(hull(part).size()) / static_cast<double>(storage.nbytes());
  const double of_codes = static_cast<double>(hull(*codes).size()) /
                          static_cast<double>(catalog_->storage(part.of).nbytes());
  if (share < 0.5 || share < kFarSmaller * of_codes || storage.extents.size() != 1) {
    return std::nullopt;
  }
  const Extent& all = storage.extents.front();
  return FileRange{all.file, all.offset, all.nbytes};
}

void RunReads::add_ranges(std::vector<FileRange>& ranges) const {
  for (const StorageWindows& part : parts_) {
    const Storage& storage = catalog_->storage(part.storage);
    for (const Window& window : std::span(windows_).subspan(part.begin, part.end - part.begin)) {
      for_each_extent(storage, window.range,
                      [&](FileId file, std::uint64_t offset, ByteRange inside) {
                        ranges.push_back({file, offset, inside.size()});
                      });
    }
  }
}

RunDecoder::RunDecoder(const RunReads& reads, SourceBytes& bytes, std::span<std::byte> staging,
                       KernelSet kernels)
    : reads_(reads),
      scratch_(staging.subspan(reads.scratch_, reads.staging_ - reads.scratch_)),
      kernels_(kernels) {
  windows_.reserve(reads.windows_.size());
  for (const RunReads::StorageWindows& part : reads.parts_) {
    const Storage& storage = reads.catalog_->storage(part.storage);
    const auto wanted = std::span(reads.windows_).subspan(part.begin, part.end - part.begin);
    // All windows by one look at the source, where one extent holds them.
    const std::byte* mapped = nullptr;
    const ByteRange all{wanted.front().range.begin, wanted.back().range.end};
    if (const auto extents = storage.extents_in(all); extents.size() == 1) {
      std::uint64_t used = 0;
      for (const RunReads::Window& window : wanted) used += window.range.size();
      const Extent& extent = extents.front();
      mapped =
          bytes.map({extent.file, extent.offset + (all.begin - extent.begin), all.size()}, used);
    }
    if (const auto kept = mapped == nullptr ? reads.kept(part) : std::nullopt) {
      mapped = bytes.keep(*kept);
      if (mapped != nullptr) mapped += all.begin;
    }
    for (const RunReads::Window& window : wanted) {
      if (mapped != nullptr) {
        windows_.push_back({window.range, mapped + (window.range.begin - all.begin)});
        continue;
      }
      windows_.push_back({window.range, staging.data() + window.at});
      for_each_extent(
          storage, window.range, [&](FileId file, std::uint64_t offset, ByteRange inside) {
            const auto out = staging.subspan(window.at + inside.begin, inside.size());
            // Staging of less than a page is not where a page begins.
            const bool padded =
                window.padded &&
                reinterpret_cast<std::uintptr_t>(out.data()) % kDiskBlock == offset % kDiskBlock;
            bytes.add(file, offset, out, padded);
          });
    }
  }
}

std::span<const PartBytes::Window> RunDecoder::windows(StorageId storage) const {
  const RunReads::StorageWindows* const part = reads_.find(storage);
  if (part == nullptr) return {};
  return std::span(windows_).subspan(part->begin, part->end - part->begin);
}

Result<void> RunDecoder::decode(const ElementRun& run, std::uint64_t skip,
                                std::span<std::byte> out) {
  if (out.empty()) return {};
  if (run.storage != storage_) {
    const Storage& storage = reads_.catalog_->storage(run.storage);
    storage_ = run.storage;
    again_ = false;
    encoding_ = storage.encoding;
    numel_ = storage.numel;
    parts_.assign(1, windows(run.storage));
    for (const StorageId part : storage.companions()) parts_.push_back(windows(part));
  }
  const std::size_t width = bytes_of(result_dtype(encoding_->dtype(), run.program), 1);
  CKFS_CHECK(width > 0);  // F4 and F6 are moved, not decoded
  // Elements that the request cuts are decoded apart, the others straight to their places.
  ElementRun rest{run.storage, run.first + static_cast<std::int64_t>(skip / width), 0, run.program};
  const auto cut = [&](std::size_t from, std::size_t size) -> Result<void> {
    alignas(kBufferAlignment) std::array<std::byte, kMostWidth> element;
    CKFS_TRY_VOID(
        whole({run.storage, rest.first, 1, run.program}, std::span(element).first(width)));
    std::memcpy(out.data(), element.data() + from, size);
    out = out.subspan(size);
    ++rest.first;
    return {};
  };
  if (skip % width != 0) {
    CKFS_TRY_VOID(cut(skip % width, std::min(out.size(), width - skip % width)));
  }
  rest.count = static_cast<std::int64_t>(out.size() / width);
  const std::size_t size = static_cast<std::size_t>(rest.count) * width;
  if (size > 0) CKFS_TRY_VOID(whole(rest, out.first(size)));
  rest.first += rest.count;
  out = out.subspan(size);
  return out.empty() ? Result<void>() : cut(0, out.size());
}

/// All of the run, through its steps.
Result<void> RunDecoder::whole(const ElementRun& run, std::span<std::byte> out) {
  const std::span<const Step> steps = steps_of(run);
  const DType value = encoding_->dtype();
  if (steps.empty()) return values({run.first, run.count}, value, out);
  const bool one_cast = steps.size() == 1 && steps[0].kind == Step::Kind::Cast;
  if (one_cast && encoding_->decodes_to(steps[0].dtype)) {
    return values({run.first, run.count}, steps[0].dtype, out);
  }
  const bool in_place = kernels_ == KernelSet::Fast && only_quiets_nans(value, steps);
  alignas(kBufferAlignment) std::array<std::byte, kPiece * kMostFloat> buffer;
  const std::size_t width = out.size() / static_cast<std::size_t>(run.count);
  for (std::int64_t done = 0; done < run.count;) {
    // Up to a border of granules, where one is near enough: none is then decoded twice.
    const std::int64_t unit = encoding_->granule().unit();
    const std::int64_t at = run.first + done;
    const std::int64_t border = (at + kPiece) / unit * unit;
    const std::int64_t piece =
        std::min(run.count - done, border > at ? std::min(kPiece, border - at) : kPiece);
    std::byte* const target = out.data() + static_cast<std::size_t>(done) * width;
    std::byte* const decoded = in_place ? target : buffer.data();
    CKFS_TRY_VOID(values({at, piece}, value, {decoded, bytes_of(value, piece)}));
    if (in_place) {
      quiet_nans(value, target, static_cast<std::size_t>(piece));
    } else {
      run_steps(value, steps, decoded, target, static_cast<std::size_t>(piece), kernels_);
    }
    done += piece;
  }
  return {};
}

/// Takes any elements: granules that the run cuts are decoded whole.
Result<void> RunDecoder::values(ElementRange elements, DType to, std::span<std::byte> out) {
  const std::int64_t unit = encoding_->granule().unit();
  if (unit == 1 || widened(elements, unit, numel_).count == elements.count) {
    return units(elements, to, out);
  }
  const auto cut = [&](std::int64_t count) -> Result<void> {
    alignas(kBufferAlignment) std::array<std::byte, kMaxUnit * kMostWidth> buffer;
    const ElementRange whole = widened({elements.first, count}, unit, numel_);
    const std::span<std::byte> decoded = std::span(buffer).first(bytes_of(to, whole.count));
    CKFS_TRY_VOID(units(whole, to, decoded));
    const std::size_t size = bytes_of(to, count);
    std::memcpy(out.data(), decoded.data() + bytes_of(to, elements.first - whole.first), size);
    out = out.subspan(size);
    elements = {elements.first + count, elements.count - count};
    return {};
  };
  if (elements.first % unit != 0) {
    CKFS_TRY_VOID(cut(std::min(elements.count, unit - elements.first % unit)));
  }
  const std::int64_t middle =
      elements.end() == numel_ ? elements.count : elements.count / unit * unit;
  if (middle > 0) {
    const std::size_t size = bytes_of(to, middle);
    CKFS_TRY_VOID(units({elements.first, middle}, to, out.first(size)));
    out = out.subspan(size);
    elements = {elements.first + middle, elements.count - middle};
  }
  return elements.count == 0 ? Result<void>() : cut(elements.count);
}

Result<void> RunDecoder::units(ElementRange elements, DType to, std::span<std::byte> out) {
  auto decoded =
      encoding_->decode(elements, PartBytes(parts_), {to, out, scratch_, kernels_, again_});
  again_ = decoded.has_value();
  return decoded;
}

}  // namespace ckfs
