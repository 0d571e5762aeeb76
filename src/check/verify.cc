// A directory is compared in units: a file, or a part of a large one. Several are compared at once,
// so that all CPUs work on a copy of one file, too. The copy is read and not mapped: a file that
// shrinks during the comparison must not end the process.
#include "check/verify.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <sys/stat.h>
#include <tuple>
#include <unistd.h>

#include "api/inside.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/rounding.h"
#include "base/size_text.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "check/digest.h"
#include "check/resume_file.h"
#include "container/file_layout.h"
#include "container/view_files.h"
#include "source/source_tree.h"

namespace ckfs {

namespace {

constexpr std::uint64_t kUnit = 256_MiB;
/// So many bytes are shown of an element that differs.
constexpr std::uint64_t kShownBytes = 16;

class Differences {
 public:
  /// Notes a file that differs. Of several differences of one path the one with the least `place`
  /// counts.
  void add(const std::string& path, std::uint64_t place, std::string text) {
    const MutexLock lock(mutex_);
    const auto [at, is_new] = found_.emplace(path, std::pair(place, text));
    if (!is_new && place < at->second.first) at->second = {place, std::move(text)};
  }
  /// Whether the file differs at or before `place`.
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
      result.differences.push_back({path, what.second});
    }
  }
  std::size_t count() const {
    const MutexLock lock(mutex_);
    return found_.size();
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

/// A range of a file of the copy that was compared and is equal, and the state of that file.
struct EqualRange {
  std::uint64_t file = 0;  // index in View::files()
  ByteRange range{};
  std::uint64_t size = 0, inode = 0;
  std::int64_t mtime_ns = 0, ctime_ns = 0;

  auto fields() const {
    return std::tuple(file, range.begin, range.end, size, inode, mtime_ns, ctime_ns);
  }
  bool operator<(const EqualRange& other) const { return fields() < other.fields(); }
  bool operator==(const EqualRange& other) const { return fields() == other.fields(); }
};

std::int64_t nanoseconds(const timespec& time) {
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// The entry for a range of an open file of the copy.
Result<EqualRange> range_now(const Unit& unit, const UniqueFd& copy, const std::string& path) {
  struct stat status{};
  if (::fstat(copy.get(), &status) != 0) return system_failure(errno, path, "look");
  return EqualRange{.file = unit.file,
                    .range = unit.range,
                    .size = static_cast<std::uint64_t>(status.st_size),
                    .inode = status.st_ino,
                    .mtime_ns = nanoseconds(status.st_mtim),
                    .ctime_ns = nanoseconds(status.st_ctim)};
}

std::string line_of(const EqualRange& equal) {
  return fmt::format("[{},{},{},{},{},{},{}]\n", equal.file, equal.range.begin, equal.range.end,
                     equal.size, equal.inode, equal.mtime_ns, equal.ctime_ns);
}

std::optional<EqualRange> parse_range(std::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_array() || json.size() != 7) return std::nullopt;
  for (std::size_t i = 0; i < 7; ++i) {
    if (i < 5 ? !json[i].is_number_unsigned() : !json[i].is_number_integer()) return std::nullopt;
  }
  return EqualRange{.file = json[0].get<std::uint64_t>(),
                    .range = {json[1].get<std::uint64_t>(), json[2].get<std::uint64_t>()},
                    .size = json[3].get<std::uint64_t>(),
                    .inode = json[4].get<std::uint64_t>(),
                    .mtime_ns = json[5].get<std::int64_t>(),
                    .ctime_ns = json[6].get<std::int64_t>()};
}

/// The error of a comparison that was stopped.
Failure interrupted_after(const std::string& name, std::uint64_t bytes, std::uint64_t total,
                          std::size_t differing, bool goes_on) {
  return fail(
      ErrorCode::Stopped, "{}: interrupted after {} of {}; {} so far ({})", name, human_size(bytes),
      human_size(total),
      differing == 0 ? "no difference" : fmt::format("{} files differ", differing),
      goes_on ? "the same command continues from there" : "--resume FILE keeps what was compared");
}

/// One comparison of a view with a directory.
class Comparison {
 public:
  Comparison(const View& view, const std::filesystem::path& copy, const VerifyOptions& options)
      : view_(view),
        files_(view.files()),
        copy_(copy),
        options_(options),
        seed_(options.seed ? *options.seed : std::random_device()()) {}

  Result<VerifyResult> run();

 private:
  /// The size of a file of the copy; nullopt: it was noted as a difference.
  Result<std::optional<std::uint64_t>> look(const FileInfo& info);
  Result<void> find_extra_files();
  Result<void> open_resume_file();
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
  const std::uint64_t seed_;
  Differences differences_;
  VerifyResult result_;  // without the members that mutex_ guards
  std::uint64_t total_ = 0;
  std::set<EqualRange> known_equal_;  // by an earlier run
  std::optional<ResumeFile> resume_;
  Mutex mutex_;
  std::uint64_t bytes_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t bytes_kept_ CKFS_GUARDED_BY(mutex_) = 0;
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
    differences_.add(path, 0, "is not a regular file in the copy");
    return std::nullopt;
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size == info.size) return size;
  differences_.add(path, 0, fmt::format("has {} bytes in the copy, not {}", size, info.size));
  return std::nullopt;
}

Result<void> Comparison::find_extra_files() {
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
    const bool is_record = is_directory && !directories.contains(path) &&
                           (path == kExportFolder || path == kDownloadFolder);
    if (is_record || (is_link && !is_directory)) at.disable_recursion_pending();
    if (!is_directory && !files_.find(path)) {
      differences_.add(path, 0, "extra file, not in the view");
    }
    at.increment(error);
    if (error) return system_failure(error.value(), copy_.native(), "list");
  }
  return {};
}

bool Comparison::is_chosen(std::size_t file, std::uint64_t piece) const {
  if (options_.sample >= 1) return true;
  std::seed_seq seed{seed_, seed_ >> 32, std::uint64_t{file}, piece, piece >> 32};
  std::mt19937 random(seed);
  return std::uniform_real_distribution<double>()(random) < options_.sample;
}

std::string Comparison::describe(std::size_t file, std::uint64_t offset, std::uint64_t at,
                                 std::span<const std::byte> here,
                                 std::span<const std::byte> there) const {
  const auto layout = view_files_of(view_).layout(file);
  const ByteRange element = element_at(*layout, offset).intersect({at, at + here.size()});
  return fmt::format("{} (byte {}): {} in the copy, {} in the view",
                     place_in_view(view_, file, offset), offset,
                     hex(there.subspan(element.begin - at, element.size())),
                     hex(here.subspan(element.begin - at, element.size())));
}

Result<void> Comparison::compare_piece(ViewFile& file, const UniqueFd& copy, std::size_t number,
                                       std::uint64_t at, std::span<std::byte> buffer) {
  const FileInfo info = files_[number];
  CKFS_TRY(const Bytes here, lend(file, at, buffer.size()));
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
  std::optional<EqualRange> before;
  if (resume_) {
    CKFS_TRY(before, range_now(unit, copy, path_of(path)));
    if (known_equal_.contains(*before)) {
      const MutexLock lock(mutex_);
      bytes_ += unit.range.size();
      bytes_kept_ += unit.range.size();
      compared_ += ceil_div(unit.range.size(), kVerifyPiece);
      if (options_.progress) options_.progress(bytes_, total_);
      return {};
    }
  }
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
    if (options_.progress) options_.progress(bytes_, total_);
  }
  if (!resume_ || differences_.has(path, unit.range.end)) return {};
  CKFS_TRY(const EqualRange after, range_now(unit, copy, path_of(path)));
  return after == *before ? resume_->add(line_of(after)) : Result<void>();
}

Result<void> Comparison::open_resume_file() {
  if (options_.resume.empty()) return {};
  std::error_code error;
  const nlohmann::ordered_json made_from{
      {"version", 1},
      {"fingerprint", fmt::format("{:016x}", view_.checkpoint().fingerprint())},
      {"view", view_.name()},
      {"layout_version", kLayoutVersion},
      {"copy", std::filesystem::weakly_canonical(copy_, error).native()}};
  const std::string header =
      fmt::format("{}verify {}", ResumeFile::kBegin,
                  made_from.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace));
  CKFS_TRY(resume_, ResumeFile::open(options_.resume.native(), header, [&](std::string_view line) {
             const std::optional<EqualRange> equal = parse_range(line);
             if (equal) known_equal_.insert(*equal);
             return equal.has_value();
           }));
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
  CKFS_TRY_VOID(find_extra_files());
  CKFS_TRY_VOID(open_resume_file());
  const StopScope scope(options_.stop);
  const std::size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t jobs = options_.jobs == 0 ? cpus : options_.jobs;
  const Result<void> compared = run_parallel(
      units.size(), [&](std::size_t i) { return compare(units[i]); }, {.few = jobs, .most = jobs});
  if (!compared && compared.error().code() == ErrorCode::Stopped) {
    const MutexLock lock(mutex_);
    return interrupted_after(copy_.native(), bytes_, total_, differences_.count(),
                             resume_.has_value());
  }
  CKFS_TRY_VOID(compared);
  differences_.give(result_);
  if (resume_ && result_.differing == 0) CKFS_TRY_VOID(resume_->remove());
  const MutexLock lock(mutex_);
  result_.bytes = bytes_;
  result_.bytes_kept = bytes_kept_;
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
  const auto layout = view_files_of(view).layout(file);
  const std::size_t index = layout->find(offset);
  const Segment& segment = layout->segments[index];
  switch (segment.kind) {
    case Segment::Kind::Literal:
      // A file that has only text has no header.
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

Result<VerifyResult> verify_copy(const View& view, const std::filesystem::path& copy,
                                 const VerifyOptions& options) {
  CKFS_TRY_VOID(check_process(view));
  if (!(options.sample > 0) || options.sample > 1) {
    return fail(ErrorCode::InvalidArgument, "sample: {} is not a share (more than 0, at most 1)",
                options.sample);
  }
  if (options.sample < 1 && !options.resume.empty()) {
    return fail(ErrorCode::InvalidArgument, "resume: not with a sample");
  }
  return Comparison(view, copy, options).run();
}

Result<VerifyResult> verify_digests(const View& view, const std::vector<FileDigest>& digests,
                                    const std::string& name, const VerifyOptions& options) {
  CKFS_TRY_VOID(check_process(view));
  if (options.sample != 1) {
    return fail(ErrorCode::InvalidArgument,
                "sample: {}: a list of digests is compared file by file, not in samples", name);
  }
  const FileList files = view.files();
  Differences differences;
  VerifyResult result;
  std::vector<std::size_t> numbers;
  std::map<std::string_view, std::map<Algorithm, std::string>> wanted;
  std::set<Algorithm> algorithms;
  for (const FileDigest& digest : digests) {
    if (digest.sums.empty()) {
      return fail(ErrorCode::InvalidArgument, "{}: {}: no sum that can be checked", name,
                  digest.path);
    }
    const auto file = files.find(digest.path);
    if (!file) {
      differences.add(digest.path, 0, "extra file, not in the view");
      continue;
    }
    const auto [sums, is_first] = wanted.try_emplace(digest.path);
    if (is_first) numbers.push_back(*file);
    for (const auto& [algorithm, sum] : digest.sums) {
      if (sums->second.try_emplace(algorithm, sum).first->second != sum) {
        return fail(ErrorCode::InvalidArgument, "{}: {}: two different sums {}", name, digest.path,
                    ckfs::name(algorithm));
      }
      algorithms.insert(algorithm);
    }
  }
  for (const FileInfo& info : files) {
    if (!wanted.contains(info.path)) differences.add(std::string(info.path), 0, "is missing");
  }
  std::ranges::sort(numbers);
  const std::vector<Algorithm> kinds(algorithms.begin(), algorithms.end());
  std::optional<DigestJournal> journal;
  if (!options.resume.empty()) {
    CKFS_TRY(journal, DigestJournal::open(options.resume.native(), view, kinds));
  }
  DigestOptions digest{.algorithms = kinds, .jobs = options.jobs, .stop = options.stop};
  std::uint64_t done = 0, total = 0;  // one thread at a time
  digest.progress = [&](std::uint64_t now_done, std::uint64_t now_total) {
    done = now_done;
    total = now_total;
    if (options.progress) options.progress(done, total);
  };
  digest.each = [&](const FileDigest& made) -> Result<void> {
    ++result.files;
    const std::uint64_t size = files[*files.find(made.path)].size;
    result.bytes += size;
    if (journal && journal->find(made.path)) result.bytes_kept += size;
    for (const auto& [algorithm, sum] : wanted.at(made.path)) {
      const std::string& here = made.sums.at(algorithm);
      if (here == sum) continue;
      differences.add(
          made.path, 0,
          fmt::format("{} is {} in the view, not {}", ckfs::name(algorithm), here, sum));
    }
    return {};
  };
  const Result<void> compared = digest_files(view, numbers, digest, journal ? &*journal : nullptr);
  if (!compared && compared.error().code() == ErrorCode::Stopped) {
    return interrupted_after(name, done, total, differences.count(), journal.has_value());
  }
  CKFS_TRY_VOID(compared);
  differences.give(result);
  if (journal && result.differing == 0) CKFS_TRY_VOID(journal->remove());
  return result;
}

nlohmann::ordered_json json_members(const VerifyResult& result, double sample) {
  nlohmann::ordered_json json{{"equal", result.differing == 0},
                              {"sample", sample},
                              {"files", result.files},
                              {"bytes", result.bytes},
                              {"bytes_kept", result.bytes_kept},
                              {"pieces", result.pieces},
                              {"pieces_compared", result.compared},
                              {"differing", result.differing},
                              {"differences", nlohmann::ordered_json::array()}};
  for (const Difference& difference : result.differences) {
    json["differences"].push_back({{"path", difference.path}, {"text", difference.text}});
  }
  return json;
}

}  // namespace ckfs
