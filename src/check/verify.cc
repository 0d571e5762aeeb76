// A directory is compared in units of one file or a part of a large one, several at once: so a copy
// of one file is compared by all CPUs, too. The copy is read and not mapped: a file that shrinks
// meanwhile must not be the end of the process.
#include "check/verify.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include "api/checkpoint_impl.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "container/file_layout.h"
#include "source/source_tree.h"

namespace ckfs {

namespace {

constexpr std::uint64_t kUnit = 256_MiB;
/// Of an element that differs, so many bytes are shown.
constexpr std::uint64_t kShownBytes = 16;

class Differences {
 public:
  /// A file that differs; `place` orders those of one path.
  void add(const std::string& path, std::uint64_t place, std::string text) {
    const MutexLock lock(mutex_);
    const auto [at, is_new] = found_.emplace(path, std::pair(place, text));
    if (!is_new && place < at->second.first) at->second = {place, std::move(text)};
  }
  /// Whether it differs before `place`.
  bool has(const std::string& path, std::uint64_t place) const {
    const MutexLock lock(mutex_);
    const auto at = found_.find(path);
    return at != found_.end() && at->second.first <= place;
  }
  void give(VerifyResult& result) const {
    const MutexLock lock(mutex_);
    result.differing = found_.size();
    for (const auto& [path, what] : found_) {
      if (result.differences.size() == kMostDifferences) return;
      result.differences.push_back(one_line(fmt::format("{}: {}", path, what.second)));
    }
  }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::pair<std::uint64_t, std::string>> found_ CKFS_GUARDED_BY(mutex_);
};

struct Unit {
  std::size_t file = 0;
  ByteRange range;
};

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes.first(std::min<std::size_t>(bytes.size(), kShownBytes))) {
    text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  }
  return text;
}

/// The element that holds byte `offset` of a file, or the byte.
ByteRange element_at(const FileLayout& layout, std::uint64_t offset) {
  const std::size_t index = layout.find(offset);
  const Segment& segment = layout.segments[index];
  if (segment.kind != Segment::Kind::Tensor) return {offset, offset + 1};
  const auto width = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(bits(layout.expr(segment.id).dtype())) / 8);
  const std::uint64_t begin = segment.begin + (offset - segment.begin) / width * width;
  return {begin, begin + width};
}

/// One comparison of a view with a directory.
class Comparison {
 public:
  Comparison(const View& view, const std::filesystem::path& copy, const VerifyOptions& options)
      : view_(view), files_(view.files()), copy_(copy), options_(options) {}

  Result<VerifyResult> run();

 private:
  /// The size of a file of the copy; nullopt: it was noted as a difference.
  Result<std::optional<std::uint64_t>> look(const FileInfo& info);
  Result<void> find_too_much();
  bool is_chosen(std::size_t file, std::uint64_t piece) const;
  Result<void> compare(const Unit& unit);
  Result<void> compare_piece(ViewFile& file, const UniqueFd& copy, std::size_t number,
                             std::uint64_t at, std::span<std::byte> buffer);
  std::string describe(std::size_t file, std::uint64_t offset, std::uint64_t at,
                       std::span<const std::byte> here, std::span<const std::byte> there) const;
  std::string path_of(std::string_view path) const {
    return (copy_ / std::filesystem::path(path)).native();
  }

  const View& view_;
  const FileList files_;
  const std::filesystem::path& copy_;
  const VerifyOptions& options_;
  Differences differences_;
  VerifyResult result_;  // but for what mutex_ guards
  std::uint64_t total_ = 0;
  Mutex mutex_;
  std::uint64_t bytes_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t compared_ CKFS_GUARDED_BY(mutex_) = 0;
};

Result<std::optional<std::uint64_t>> Comparison::look(const FileInfo& info) {
  const std::string path(info.path);
  struct stat status{};
  if (::stat(path_of(path).c_str(), &status) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return system_failure(errno, path_of(path), "look");
    differences_.add(path, 0, "is missing");
    return std::nullopt;
  }
  if (!S_ISREG(status.st_mode)) {
    differences_.add(path, 0, "is no file in the copy");
    return std::nullopt;
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == info.size) return size;
  differences_.add(path, 0, fmt::format("has {} bytes in the copy, not {}", size, info.size));
  return std::nullopt;
}

Result<void> Comparison::find_too_much() {
  std::set<std::string> directories;  // of the view
  for (const FileInfo file : files_) {
    std::filesystem::path at(file.path);
    while (at.has_parent_path() && directories.insert((at = at.parent_path()).native()).second) {
    }
  }
  std::error_code error;
  // A link in a directory's place is followed, as the files below it are; no other link is.
  std::filesystem::recursive_directory_iterator at(
      copy_, std::filesystem::directory_options::follow_directory_symlink, error),
      end;
  if (error) return system_failure(error.value(), copy_.native(), "list");
  while (at != end) {
    const std::string path = at->path().lexically_relative(copy_).native();
    const bool is_link = at->is_symlink(error);
    const bool is_directory = at->is_directory(error) && (!is_link || directories.contains(path));
    if (path == kExportFolder || (is_link && !is_directory)) at.disable_recursion_pending();
    if (path == kExportFolder) {
      // the export's own
    } else if (!is_directory && !files_.find(path)) {
      differences_.add(path, 0, "is too much: the view has no such file");
    }
    at.increment(error);
    if (error) return system_failure(error.value(), copy_.native(), "list");
  }
  return {};
}

bool Comparison::is_chosen(std::size_t file, std::uint64_t piece) const {
  if (options_.sample >= 1) return true;
  std::seed_seq seed{options_.seed, options_.seed >> 32, std::uint64_t{file}, piece, piece >> 32};
  std::mt19937 random(seed);
  return std::uniform_real_distribution<double>()(random) < options_.sample;
}

std::string Comparison::describe(std::size_t file, std::uint64_t offset, std::uint64_t at,
                                 std::span<const std::byte> here,
                                 std::span<const std::byte> there) const {
  const auto layout = view_.impl().files->layout(file);
  const ByteRange element = element_at(*layout, offset).intersect({at, at + here.size()});
  return fmt::format("{} (byte {}): {} in the copy, {} in the view",
                     place_in_view(view_, file, offset), offset,
                     hex(there.subspan(element.begin - at, element.size())),
                     hex(here.subspan(element.begin - at, element.size())));
}

Result<void> Comparison::compare_piece(ViewFile& file, const UniqueFd& copy, std::size_t number,
                                       std::uint64_t at, std::span<std::byte> buffer) {
  const FileInfo info = files_[number];
  CKFS_TRY(const Bytes here, file.read(at, buffer.size()));
  CKFS_CHECK(here.size() == buffer.size());
  for (std::size_t done = 0; done < buffer.size();) {
    const ssize_t got = ::pread(copy.get(), buffer.data() + done, buffer.size() - done,
                                static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(errno, path_of(info.path), "read");
    if (got == 0) {
      return fail(ErrorCode::Io, "{}: became shorter while it was read", path_of(info.path));
    }
    done += static_cast<std::size_t>(got);
  }
  if (std::memcmp(here.data(), buffer.data(), buffer.size()) == 0) return {};
  const auto first = std::ranges::mismatch(here.span(), buffer).in1 - here.span().begin();
  const std::uint64_t offset = at + static_cast<std::uint64_t>(first);
  differences_.add(std::string(info.path), offset,
                   describe(number, offset, at, here.span(), buffer));
  return {};
}

Result<void> Comparison::compare(const Unit& unit) {
  const std::string path(files_[unit.file].path);
  const bool all = options_.sample >= 1;
  CKFS_TRY(ViewFile file, view_.open(path, {.whole = all, .once = all}));
  const UniqueFd copy(::open(path_of(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!copy) return system_failure(errno, path_of(path), "open");
  std::vector<std::byte> buffer(std::min(kVerifyPiece, unit.range.size()));
  for (std::uint64_t at = unit.range.begin; at < unit.range.end; at += kVerifyPiece) {
    if (stop_asked()) return stopped(path);
    if (differences_.has(path, at)) return {};
    if (!is_chosen(unit.file, at / kVerifyPiece)) continue;
    const std::uint64_t size = std::min(kVerifyPiece, unit.range.end - at);
    CKFS_TRY_VOID(compare_piece(file, copy, unit.file, at, std::span(buffer).first(size)));
    const MutexLock lock(mutex_);
    bytes_ += size;
    ++compared_;
    if (options_.common.progress) options_.common.progress(bytes_, total_);
  }
  return {};
}

Result<VerifyResult> Comparison::run() {
  std::vector<Unit> units;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    CKFS_TRY(const auto size, look(files_[file]));
    if (!size) continue;
    ++result_.files;
    for (std::uint64_t begin = 0; begin < *size; begin += kUnit) {
      const std::uint64_t end = std::min(begin + kUnit, *size);
      units.push_back({file, {begin, end}});
      const std::uint64_t pieces = (end - begin + kVerifyPiece - 1) / kVerifyPiece;
      result_.pieces += pieces;
    }
    total_ += *size;
  }
  total_ = static_cast<std::uint64_t>(static_cast<double>(total_) * options_.sample);
  CKFS_TRY_VOID(find_too_much());
  const StopScope scope(options_.common.stop);
  const std::size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t jobs = options_.common.jobs == 0 ? cpus : options_.common.jobs;
  CKFS_TRY_VOID(run_parallel(units.size(), [&](std::size_t i) { return compare(units[i]); },
                             {.few = jobs, .most = jobs}));
  differences_.give(result_);
  const MutexLock lock(mutex_);
  result_.bytes = bytes_;
  result_.compared = compared_;
  return result_;
}

}  // namespace

namespace {

bool is_text(const std::vector<Segment>& segments) {
  return std::ranges::all_of(
      segments, [](const Segment& segment) { return segment.kind == Segment::Kind::Literal; });
}

}  // namespace

std::string place_in_view(const View& view, std::size_t file, std::uint64_t offset) {
  const auto layout = view.impl().files->layout(file);
  const std::size_t index = layout->find(offset);
  const Segment& segment = layout->segments[index];
  switch (segment.kind) {
    case Segment::Kind::Literal:
      // A file of nothing but text has no header.
      return layout->chunks.empty() && index == 0 && !is_text(layout->segments) ? "the header"
                                                                                : "text";
    case Segment::Kind::File:
      return "bytes of a source file";
    case Segment::Kind::Zero:
      return "padding";
    case Segment::Kind::Tensor:
      break;
  }
  const TensorExpr& expr = layout->expr(segment.id);
  const auto width = static_cast<std::uint64_t>(bits(expr.dtype()));
  auto element = static_cast<std::int64_t>((offset - segment.begin) * 8 / width);
  std::vector<std::int64_t> at(expr.shape().size());
  for (std::size_t d = at.size(); d-- > 0;) {
    at[d] = element % expr.shape()[d];
    element /= expr.shape()[d];
  }
  return fmt::format("tensor {}, element [{}]{}",
                     layout->definition->tensors[layout->tensor(segment.id)].name,
                     fmt::join(at, ", "), layout->chunks.empty() ? "" : " of a chunk");
}

Result<VerifyResult> verify_directory(const View& view, const std::filesystem::path& copy,
                                      const VerifyOptions& options) {
  return Comparison(view, copy, options).run();
}

Result<VerifyResult> verify_digests(const View& view, const std::vector<FileDigest>& digests,
                                    const CheckOptions& options) {
  const FileList files = view.files();
  Differences differences;
  VerifyResult result;
  std::vector<std::size_t> numbers;
  std::map<std::string_view, const FileDigest*> wanted;
  std::set<Algorithm> algorithms;
  for (const FileDigest& digest : digests) {
    const auto file = files.find(digest.path);
    if (!file) {
      differences.add(digest.path, 0, "is too much: the view has no such file");
      continue;
    }
    numbers.push_back(*file);
    wanted[digest.path] = &digest;
    for (const auto& [algorithm, sum] : digest.sums) algorithms.insert(algorithm);
  }
  for (const FileInfo& info : files) {
    if (!wanted.contains(info.path)) differences.add(std::string(info.path), 0, "is missing");
  }
  std::ranges::sort(numbers);
  CKFS_TRY_VOID(digest_files(view, numbers, {algorithms.begin(), algorithms.end()}, options,
                             [&](const FileDigest& digest) -> Result<void> {
                               ++result.files;
                               result.bytes += files[*files.find(digest.path)].size;
                               for (const auto& [algorithm, sum] : wanted.at(digest.path)->sums) {
                                 const std::string& here = digest.sums.at(algorithm);
                                 if (here == sum) continue;
                                 differences.add(digest.path, 0,
                                                 fmt::format("{} is {} in the view, not {}",
                                                             name(algorithm), here, sum));
                               }
                               return {};
                             }));
  differences.give(result);
  return result;
}

}  // namespace ckfs
