// Tensors without the files that a view packs them in. A tensor alone is a file of one segment: the
// engine needs nothing else. Many tensors are read through the files of the view, because there
// everything that helps a copy helps them, too: the order of the source, and work ahead of readers
// past the end of a tensor.
#include <algorithm>
#include <numeric>
#include <thread>
#include <unordered_map>

#include <ckfs/checkpoint.h>

#include "api/checkpoint_impl.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/units.h"

namespace ckfs {

class Tensor::Impl {
 public:
  std::shared_ptr<const View::Impl> view;
  std::size_t index = 0;  // in view->tensors()
  std::shared_ptr<ViewFile::Impl> bytes;

  const TensorTable& table() const { return view->tensors(); }
};

namespace {

/// A range of rows, in bytes of the tensor.
Result<ByteRange> range_of_rows(const TensorTable& table, std::size_t index, std::int64_t first,
                                std::int64_t rows) {
  const TensorExpr& expr = table.tensor(index).expr;
  const std::uint64_t all = expr.nbytes();
  const std::int64_t count = expr.shape().empty() ? 1 : expr.shape()[0];
  if (rows == TensorRead::kAllRows && first >= 0 && first <= count) rows = count - first;
  if (first < 0 || rows < 0 || first > count || rows > count - first) {
    return fail(ErrorCode::InvalidArgument, "{}: {} rows from row {} (the tensor has {})",
                one_line(table.full_name(index)), rows, first, count);
  }
  if (rows == count) return ByteRange{0, all};
  const auto whole = static_cast<std::uint64_t>(count);
  if (all % whole != 0) {
    return fail(ErrorCode::InvalidArgument, "{}: a row ends within a byte (read the whole tensor)",
                one_line(table.full_name(index)));
  }
  const std::uint64_t row = all / whole;
  const auto begin = static_cast<std::uint64_t>(first);
  return ByteRange{begin * row, (begin + static_cast<std::uint64_t>(rows)) * row};
}

Result<void> check_size(const TensorTable& table, std::size_t index, ByteRange range,
                        std::size_t size) {
  if (size == range.size()) return {};
  return fail(ErrorCode::InvalidArgument, "{}: {} bytes do not go into {} bytes",
              one_line(table.full_name(index)), range.size(), size);
}

/// The part of a tensor that is wanted, and its place: in a file of the view, or (Share::kAlone) in
/// the tensor by itself.
struct Located {
  const TensorRead* read = nullptr;
  ByteRange bytes;  // of the tensor
  std::uint64_t begin = 0;
};

/// What one thread reads, in this order.
struct Share {
  static constexpr std::size_t kAlone = ~std::size_t{0};
  std::size_t file = kAlone;
  bool whole = false;
  std::span<const Located> reads;
};

/// Below this a file is not worth a second reader.
constexpr std::uint64_t kLeastShare = 64_MiB;

std::uint64_t sum_of(std::span<const Located> reads) {
  return std::transform_reduce(reads.begin(), reads.end(), std::uint64_t{0}, std::plus<>(),
                               [](const Located& one) { return one.bytes.size(); });
}

/// Cuts `reads` into about `count` runs of as many bytes each.
void cut_into_shares(std::size_t file, bool whole, std::span<const Located> reads,
                     std::uint64_t each, std::vector<Share>& shares) {
  std::size_t begin = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    bytes += reads[i].bytes.size();
    if (bytes < each && i + 1 < reads.size()) continue;
    shares.push_back({file, whole, reads.subspan(begin, i + 1 - begin)});
    begin = i + 1;
    bytes = 0;
  }
}

}  // namespace

TensorInfo Tensor::info() const {
  return impl_->table().info(impl_->index);
}

Result<std::uint64_t> Tensor::size_of_rows(std::int64_t first, std::int64_t rows) const {
  CKFS_TRY(const ByteRange range, range_of_rows(impl_->table(), impl_->index, first, rows));
  return range.size();
}

Result<void> Tensor::read(std::span<std::byte> out) const {
  return read_rows(0, TensorRead::kAllRows, out);
}

Result<void> Tensor::read_rows(std::int64_t first, std::int64_t rows,
                               std::span<std::byte> out) const {
  CKFS_TRY(const ByteRange range, range_of_rows(impl_->table(), impl_->index, first, rows));
  CKFS_TRY_VOID(check_size(impl_->table(), impl_->index, range, out.size()));
  CKFS_TRY(const std::size_t got, ViewFile(impl_->bytes).read(range.begin, out));
  CKFS_CHECK(got == out.size());
  return {};
}

std::size_t ViewTensors::size() const {
  return table_ == nullptr ? 0 : table_->size();
}

TensorInfo ViewTensors::operator[](std::size_t index) const {
  return table_->info(index);
}

std::optional<std::size_t> ViewTensors::find(std::string_view name) const {
  return table_ == nullptr ? std::nullopt : table_->find(name);
}

ViewTensors View::tensors() const {
  if (!impl_->checkpoint->owner.is_here()) return ViewTensors(nullptr);
  // Of the view, which it keeps alive.
  return ViewTensors(std::shared_ptr<const TensorTable>(impl_, &impl_->tensors()));
}

Result<Tensor> View::tensor(std::string_view name, ReadOptions options) const {
  CKFS_TRY_VOID(impl_->checkpoint->check_process());
  const std::optional<std::size_t> index = impl_->tensors().find(name);
  if (!index) {
    return fail(ErrorCode::NotFound, "{}: no tensor {}{}", impl_->name, quote(name),
                impl_->tensors().meant(name));
  }
  return tensor(*index, std::move(options));
}

Result<Tensor> View::tensor(std::size_t index, ReadOptions options) const {
  CKFS_TRY_VOID(impl_->checkpoint->check_process());
  const TensorTable& table = impl_->tensors();
  if (index >= table.size()) {
    return fail(ErrorCode::NotFound, "{}: no tensor {} (there are {})", impl_->name, index,
                table.size());
  }
  const std::stop_token stop = options.stop;
  auto bytes = make_owned_here<ViewFile::Impl>(
      impl_, table.info(index).file,
      impl_->checkpoint->engine->open_stream(table.layout(index), stream_options(options)), stop);
  return Tensor(make_owned_here<Tensor::Impl>(impl_, index, std::move(bytes)));
}

Result<void> View::read(std::span<const TensorRead> reads, const ReadManyOptions& options) const {
  CKFS_TRY_VOID(impl_->checkpoint->check_process());
  const TensorTable& table = impl_->tensors();
  std::uint64_t total = 0;
  std::unordered_map<std::size_t, std::vector<const TensorRead*>> by_file;
  for (const TensorRead& read : reads) {
    if (read.tensor >= table.size()) {
      return fail(ErrorCode::NotFound, "{}: no tensor {} (there are {})", impl_->name, read.tensor,
                  table.size());
    }
    CKFS_TRY(const ByteRange range, range_of_rows(table, read.tensor, read.first_row, read.rows));
    CKFS_TRY_VOID(check_size(table, read.tensor, range, read.out.size()));
    total += range.size();
    by_file[table.info(read.tensor).file].push_back(&read);
  }

  const std::size_t cpus = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t jobs = options.jobs == 0 ? cpus : options.jobs;
  const std::uint64_t each = std::max<std::uint64_t>(kLeastShare, total / jobs);
  std::vector<std::size_t> files;
  for (const auto& [file, wanted] : by_file) files.push_back(file);
  std::ranges::sort(files);
  std::vector<std::vector<Located>> located;  // what the shares' spans are of
  located.reserve(2 * files.size());
  std::vector<Share> shares;
  for (const std::size_t file : files) {
    const std::shared_ptr<const FileLayout> layout = impl_->files->layout(file);
    std::unordered_map<std::uint32_t, std::uint64_t> begins;  // by number in the definition
    if (layout->chunks.empty()) {
      for (const Segment& segment : layout->segments) {
        if (segment.kind == Segment::Kind::Tensor) begins.emplace(segment.id, segment.begin);
      }
    }
    std::vector<Located> inside, alone;
    for (const TensorRead* read : by_file[file]) {
      CKFS_TRY(const ByteRange range,
               range_of_rows(table, read->tensor, read->first_row, read->rows));
      if (range.empty()) continue;
      const auto begin = begins.find(table.id(read->tensor));
      if (begin == begins.end()) {
        alone.push_back({read, range, range.begin});
      } else {
        inside.push_back({read, range, begin->second + range.begin});
      }
    }
    std::ranges::stable_sort(inside, {}, &Located::begin);
    // Hints for all of a file help a reader that takes nearly all of it.
    const bool whole = sum_of(inside) > layout->size / 10 * 9;
    cut_into_shares(file, whole, located.emplace_back(std::move(inside)), each, shares);
    cut_into_shares(Share::kAlone, false, located.emplace_back(std::move(alone)), each, shares);
  }

  Mutex mutex;
  std::uint64_t done = 0;  // under mutex
  const StopScope scope(options.stop);
  return run_parallel(
      shares.size(),
      [&](std::size_t number) -> Result<void> {
        const Share& share = shares[number];
        std::optional<ViewFile> file;
        if (share.file != Share::kAlone) {
          CKFS_TRY(file, open(impl_->files->path(share.file), {.whole = share.whole}));
        }
        for (const Located& one : share.reads) {
          const TensorRead& read = *one.read;
          if (share.file == Share::kAlone) {
            CKFS_TRY(const Tensor tensor, this->tensor(read.tensor));
            file = ViewFile(tensor.impl_->bytes);
          }
          // In pieces, so that progress moves and a stop is heard.
          for (std::size_t at = 0; at < read.out.size(); at += kLeastShare) {
            if (stop_asked()) return stopped(impl_->name);
            const auto out =
                read.out.subspan(at, std::min<std::size_t>(read.out.size() - at, kLeastShare));
            const auto result = file->read(one.begin + at, out);
            if (!result) {
              return Failure(result.error().code() == ErrorCode::Stopped
                                 ? result.error()
                                 : result.error().within(one_line(table.full_name(read.tensor))));
            }
            CKFS_CHECK(*result == out.size());
            const MutexLock lock(mutex);
            done += out.size();
            if (options.progress) options.progress(done, total);
          }
        }
        return {};
      },
      {.few = jobs, .most = jobs});
}

}  // namespace ckfs
