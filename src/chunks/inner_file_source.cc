#include "chunks/inner_file_source.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "base/units.h"
#include "format/dcp_item.h"

namespace ckfs {
namespace {

constexpr std::size_t kItemsAtOnce = 64;        // whose ends are read together,
constexpr std::uint64_t kEndsAtOnce = 256_KiB;  // and their bytes
constexpr std::size_t kRunsAtOnce = 4096;       // that are gathered by one batch
constexpr std::uint64_t kStrided = ~std::uint64_t{0};

/// The two ends of a torch file, read at once; the bytes between are read on request.
class Ends final : public ByteSource {
 public:
  /// `each`: bytes of an end.
  Ends(ByteSource& files, const FileRange& whole, std::uint64_t each)
      : files_(files), whole_(whole) {
    const bool meet = whole.size - each <= each;
    head_.resize(meet ? whole.size : each);
    tail_.resize(meet ? 0 : each);
  }

  void add_requests(std::vector<ReadRequest>& batch) {
    batch.push_back({whole_.file, whole_.offset, head_});
    if (!tail_.empty()) batch.push_back({whole_.file, tail_begin(), tail_});
  }

  Result<void> read(std::span<const ReadRequest> batch) override {
    for (const ReadRequest& request : batch) {
      if (!copy(request, whole_.offset, head_) && !copy(request, tail_begin(), tail_)) {
        CKFS_TRY_VOID(files_.read({&request, 1}));
      }
    }
    return {};
  }
  std::uint64_t size(FileId file) const override { return files_.size(file); }
  const std::string& name(FileId file) const override { return files_.name(file); }

 private:
  std::uint64_t tail_begin() const { return whole_.offset + whole_.size - tail_.size(); }

  static bool copy(const ReadRequest& request, std::uint64_t begin,
                   std::span<const std::byte> bytes) {
    if (request.offset < begin || request.offset - begin > bytes.size() ||
        request.out.size() > bytes.size() - (request.offset - begin)) {
      return false;
    }
    const auto from = bytes.subspan(static_cast<std::size_t>(request.offset - begin));
    std::ranges::copy(from.first(request.out.size()), request.out.begin());
    return true;
  }

  ByteSource& files_;
  const FileRange whole_;
  std::vector<std::byte> head_, tail_;
};

/// Elements in row-major order, and where each lies, in elements behind the first.
class ElementOffsets {
 public:
  ElementOffsets(std::span<const std::int64_t> shape, std::span<const std::int64_t> stride,
                 std::int64_t first)
      : shape_(shape), stride_(stride), at_(shape.size()) {
    for (std::size_t d = at_.size(); d-- > 0;) {
      at_[d] = first % shape[d];
      first /= shape[d];
      offset_ += at_[d] * stride[d];
    }
  }

  std::int64_t offset() const { return offset_; }

  /// Elements from here on that lie one behind the other: 1, or the rest of a row.
  std::int64_t run() const {
    return !at_.empty() && stride_.back() == 1 ? shape_.back() - at_.back() : 1;
  }

  /// Requires: no more than run().
  void advance(std::int64_t count) {
    for (std::size_t d = at_.size(); d-- > 0; count = 1) {
      offset_ += count * stride_[d];
      at_[d] += count;
      if (at_[d] < shape_[d]) return;
      offset_ -= at_[d] * stride_[d];
      at_[d] = 0;
    }
  }

 private:
  std::span<const std::int64_t> shape_, stride_;
  std::vector<std::int64_t> at_;
  std::int64_t offset_ = 0;
};

}  // namespace

class InnerFileSource::Impl {
 public:
  Impl(ByteSource& files, const InnerFiles& table)
      : files_(files), table_(table), found_(table.count()) {
    for (std::size_t i = 0; i < found_.size(); ++i) {
      found_[i].file = table.file(static_cast<FileId>(kFirstInnerFile + i)).stored.file;
    }
  }

  Result<void> read(std::span<const ReadRequest> batch, bool once);

  /// Where `range` of a file is; nullopt: in many places, or read() has yet to find out.
  std::optional<FileRange> placed(const FileRange& range);

  /// The ranges of real files that these will read.
  std::vector<FileRange> expected(std::span<const FileRange> ranges);

  std::uint64_t size(FileId file) const {
    return is_inner_file(file) ? table_.file(file).tensor->nbytes : files_.size(file);
  }

  /// Bytes of a torch file that are not the tensor's elements.
  std::uint64_t around(FileId file) const {
    const InnerFile inner = table_.file(file);
    return inner.stored.size - inner.tensor->nbytes;
  }

  /// Whether nothing is hinted of it: elements in many places.
  bool is_strided(FileId file) { return is_inner_file(file) && begin(file) == kStrided; }

  /// The real file that it is, or is in.
  FileId real(FileId file) const {
    return is_inner_file(file) ? found_[file - kFirstInnerFile].file : file;
  }

  ByteSource& files_;

 private:
  /// The facts that a read needs of an inner file, in one place: a random reader waits for them.
  struct Found {
    std::atomic<std::uint64_t> begin = 0;
    FileId file = 0;  // the real one
  };

  /// Where elements begin, in the real file; 0: not known yet, for a torch file begins otherwise.
  std::atomic<std::uint64_t>& begin(FileId file) { return found_[file - kFirstInnerFile].begin; }

  Result<void> read_files(std::span<const ReadRequest> batch, bool once) {
    return once ? files_.read_once(batch) : files_.read(batch);
  }

  /// Finds where all of these begin.
  Result<void> place(std::span<const FileId> unknown);
  Result<void> place_some(std::span<const FileId> unknown);
  Result<void> read_strided(const ReadRequest& request);

  /// Elements that do not lie in row-major order: as a tensor's, behind `begin` in the real file.
  struct Strided {
    std::vector<std::int64_t> stride;
    std::uint64_t begin = 0;
  };

  const InnerFiles& table_;
  std::vector<Found> found_;
  Mutex mutex_;
  std::map<FileId, Strided> strided_ CKFS_GUARDED_BY(mutex_);  // entries stay
};

Result<void> InnerFileSource::Impl::place(std::span<const FileId> unknown) {
  while (!unknown.empty()) {
    std::size_t count = 0;
    for (std::uint64_t bytes = 0; count < unknown.size() && count < kItemsAtOnce; ++count) {
      bytes += 2 * around(unknown[count]);
      if (count > 0 && bytes > kEndsAtOnce) break;
    }
    CKFS_TRY_VOID(place_some(unknown.first(count)));
    unknown = unknown.subspan(count);
  }
  return {};
}

Result<void> InnerFileSource::Impl::place_some(std::span<const FileId> unknown) {
  std::vector<Ends> ends;
  std::vector<ReadRequest> batch;
  ends.reserve(unknown.size());
  for (const FileId file : unknown) {
    const InnerFile inner = table_.file(file);
    ends.emplace_back(files_, inner.stored, around(file));
    ends.back().add_requests(batch);
  }
  CKFS_TRY_VOID(files_.read(batch));
  for (std::size_t i = 0; i < unknown.size(); ++i) {
    const InnerFile inner = table_.file(unknown[i]);
    const FileRange& stored = inner.stored;
    CKFS_TRY(DcpItem item,
             open_dcp_item(ends[i], stored.file, {stored.offset, stored.offset + stored.size},
                           inner.tensor->name, inner.tensor->dtype, inner.tensor->shape,
                           kMostAroundElements));
    const std::uint64_t begins = item.run().begin;
    if (is_contiguous(item.tensor)) {
      begin(unknown[i]) = begins;
      continue;
    }
    const MutexLock lock(mutex_);
    strided_.try_emplace(unknown[i], Strided{std::move(item.tensor.stride), begins});
    begin(unknown[i]) = kStrided;
  }
  return {};
}

Result<void> InnerFileSource::Impl::read(std::span<const ReadRequest> batch, bool once) {
  if (batch.size() == 1) {  // a reader in no order: without memory of its own
    const ReadRequest& request = batch.front();
    const auto place = placed({request.file, request.offset, request.out.size()});
    if (place) {
      const bool padded = request.padded && !is_inner_file(request.file);
      const ReadRequest one{place->file, place->offset, request.out, padded};
      return read_files({&one, 1}, once);
    }
  }
  std::vector<FileId> unknown;
  for (const ReadRequest& request : batch) {
    if (is_inner_file(request.file) && begin(request.file) == 0) unknown.push_back(request.file);
  }
  if (!unknown.empty()) {
    std::ranges::sort(unknown);  // as they lie in their files
    const auto same = std::ranges::unique(unknown);
    unknown.erase(same.begin(), same.end());
    CKFS_TRY_VOID(place(unknown));
  }
  std::vector<ReadRequest> plain;
  plain.reserve(batch.size());
  for (const ReadRequest& request : batch) {
    if (!is_inner_file(request.file)) {
      plain.push_back(request);
    } else if (const std::uint64_t begins = begin(request.file); begins != kStrided) {
      plain.push_back({real(request.file), begins + request.offset, request.out});
    } else {
      CKFS_TRY_VOID(read_strided(request));
    }
  }
  return plain.empty() ? Result<void>() : read_files(plain, once);
}

Result<void> InnerFileSource::Impl::read_strided(const ReadRequest& request) {
  const Strided* known = nullptr;
  {
    const MutexLock lock(mutex_);
    known = &strided_.at(request.file);
  }
  const InnerTensor& tensor = *table_.file(request.file).tensor;
  const auto width = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;
  ElementOffsets walk(tensor.shape, known->stride,
                      static_cast<std::int64_t>(request.offset / width));
  std::uint64_t within = request.offset % width;  // of the first element
  std::span<std::byte> out = request.out;
  std::vector<ReadRequest> batch;
  while (!out.empty()) {
    batch.clear();
    while (!out.empty() && batch.size() < kRunsAtOnce) {
      const std::int64_t run = walk.run();
      const std::size_t size =
          std::min<std::size_t>(out.size(), static_cast<std::uint64_t>(run) * width - within);
      const std::uint64_t at =
          known->begin + static_cast<std::uint64_t>(walk.offset()) * width + within;
      batch.push_back({real(request.file), at, out.first(size)});
      out = out.subspan(size);
      within = 0;
      walk.advance(run);
    }
    // Not with read_once(): their pages also hold bytes of the next rows.
    CKFS_TRY_VOID(files_.read(batch));
  }
  return {};
}

std::optional<FileRange> InnerFileSource::Impl::placed(const FileRange& range) {
  if (!is_inner_file(range.file)) return range;
  const std::uint64_t begins = begin(range.file);
  if (begins == 0 || begins == kStrided) return std::nullopt;
  return FileRange{real(range.file), begins + range.offset, range.size};
}

std::vector<FileRange> InnerFileSource::Impl::expected(std::span<const FileRange> ranges) {
  std::vector<FileRange> real;
  real.reserve(ranges.size());
  for (const FileRange& range : ranges) {
    if (!is_inner_file(range.file)) {
      real.push_back(range);
      continue;
    }
    const FileRange stored = table_.file(range.file).stored;
    const std::uint64_t begins = begin(range.file);
    if (begins == 0) {  // elements begin behind no more than the head
      const std::uint64_t each = around(range.file);
      if (range.offset > 0) real.push_back({stored.file, stored.offset, each});
      real.push_back({stored.file, stored.offset + range.offset, range.size + each});
      real.push_back({stored.file, stored.offset + stored.size - each, each});
    } else if (begins != kStrided) {
      real.push_back({stored.file, begins + range.offset, range.size});
    }
  }
  return real;
}

InnerFileSource::InnerFileSource(ByteSource& files, const InnerFiles& table)
    : impl_(std::make_unique<Impl>(files, table)) {}

InnerFileSource::~InnerFileSource() = default;

Result<void> InnerFileSource::read(std::span<const ReadRequest> batch) {
  return impl_->read(batch, false);
}

Result<void> InnerFileSource::read_once(std::span<const ReadRequest> batch) {
  return impl_->read(batch, true);
}

std::optional<MappedBytes> InnerFileSource::map(const FileRange& range, std::uint64_t used) {
  const auto place = impl_->placed(range);
  return place ? impl_->files_.map(*place, used) : std::nullopt;
}

std::optional<MappedBytes> InnerFileSource::map_once(const FileRange& range, std::uint64_t used) {
  const auto place = impl_->placed(range);
  return place ? impl_->files_.map_once(*place, used) : std::nullopt;
}

Result<void> InnerFileSource::check_mapped(std::span<const MappedBytes> mapped) {
  return impl_->files_.check_mapped(mapped);
}

void InnerFileSource::rest(const std::function<bool()>& still) {
  impl_->files_.rest(still);
}

void InnerFileSource::will_need(std::span<const FileRange> ranges) {
  const std::vector<FileRange> real = impl_->expected(ranges);
  if (!real.empty()) impl_->files_.will_need(real);
}

SourceTraits InnerFileSource::traits(FileId file) const {
  SourceTraits traits = impl_->files_.traits(impl_->real(file));
  traits.heeds_hints = traits.heeds_hints && !impl_->is_strided(file);
  traits.reads_past_cache = traits.reads_past_cache && !is_inner_file(file);
  return traits;
}

Result<void> InnerFileSource::verify(std::span<const FileId> files) {
  if (files.size() == 1) {
    const FileId one = impl_->real(files.front());
    return impl_->files_.verify({&one, 1});
  }
  std::vector<FileId> real;
  for (const FileId file : files) {  // inner ones come in the order of their files
    const FileId one = impl_->real(file);
    if (real.empty() || real.back() != one) real.push_back(one);
  }
  std::ranges::sort(real);
  const auto same = std::ranges::unique(real);
  real.erase(same.begin(), same.end());
  return impl_->files_.verify(real);
}

std::uint64_t InnerFileSource::size(FileId file) const {
  return impl_->size(file);
}

const std::string& InnerFileSource::name(FileId file) const {
  return impl_->files_.name(impl_->real(file));
}

}  // namespace ckfs
