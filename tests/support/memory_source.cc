// One mutex around everything: a test wants exact counts and an exact order of faults, not speed. A
// fault is looked for in all requests of a batch before a byte is copied, because a ByteSource that
// fails leaves nothing that may be used; to make sure that nobody does use it, a failing batch
// fills its buffers with 0xEE instead of leaving them as they were.
#include "support/memory_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ckfs {
namespace {

void insert_range(std::map<std::uint64_t, std::uint64_t>& ranges, ByteRange range) {
  if (range.empty()) return;
  auto next = ranges.upper_bound(range.begin);
  if (next != ranges.begin()) {
    const auto previous = std::prev(next);
    if (previous->second >= range.begin) {
      range.begin = previous->first;
      range.end = std::max(range.end, previous->second);
      next = ranges.erase(previous);
    }
  }
  while (next != ranges.end() && next->first <= range.end) {
    range.end = std::max(range.end, next->second);
    next = ranges.erase(next);
  }
  ranges.emplace(range.begin, range.end);
}

}  // namespace

MemorySource::MemorySource(const std::map<std::string, std::vector<std::byte>>& files) {
  for (const auto& [name, bytes] : files) add(name, bytes);
}

FileId MemorySource::add(std::string name, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  File& file = files_.emplace_back();
  file.name = std::move(name);
  file.bytes = std::move(bytes);
  return static_cast<FileId>(files_.size() - 1);
}

FileId MemorySource::add_text(std::string name, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return add(std::move(name), {bytes.begin(), bytes.end()});
}

std::optional<FileId> MemorySource::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(files_.begin(), files_.end(),
                                  [&](const File& file) { return file.name == name; });
  if (found == files_.end()) return std::nullopt;
  return static_cast<FileId>(found - files_.begin());
}

std::span<const std::byte> MemorySource::bytes(FileId file) const {
  const std::lock_guard lock(mutex_);
  return files_.at(file).bytes;
}

std::size_t MemorySource::count() const {
  const std::lock_guard lock(mutex_);
  return files_.size();
}

void MemorySource::fail(FileId file, ByteRange range, int error, std::uint64_t times) {
  const std::lock_guard lock(mutex_);
  files_.at(file).faults.push_back({Fault::Kind::Fail, range, error, times});
}

void MemorySource::poison(FileId file, ByteRange range) {
  const std::lock_guard lock(mutex_);
  files_.at(file).faults.push_back({Fault::Kind::Poison, range, EIO, ~std::uint64_t{0}});
}

void MemorySource::make_stale(FileId file) {
  const std::lock_guard lock(mutex_);
  files_.at(file).stale = true;
}

void MemorySource::clear_faults() {
  const std::lock_guard lock(mutex_);
  for (File& file : files_) {
    file.faults.clear();
    file.stale = false;
  }
  broken_ = false;
}

void MemorySource::allow_mapping() {
  const std::lock_guard lock(mutex_);
  mapping_ = true;
}

void MemorySource::break_mapped() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
}

void MemorySource::change(FileId file, std::vector<std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  CKFS_CHECK(bytes.size() == files_.at(file).bytes.size());
  files_[file].bytes = std::move(bytes);
  files_[file].copy.reset();
}

std::uint64_t MemorySource::bytes_read(FileId file) const {
  const std::lock_guard lock(mutex_);
  return files_.at(file).bytes_read;
}

std::uint64_t MemorySource::bytes_read() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const File& file : files_) sum += file.bytes_read;
  return sum;
}

std::uint64_t MemorySource::requests(FileId file) const {
  const std::lock_guard lock(mutex_);
  return files_.at(file).requests;
}

std::uint64_t MemorySource::requests() const {
  const std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const File& file : files_) sum += file.requests;
  return sum;
}

std::uint64_t MemorySource::batches() const {
  const std::lock_guard lock(mutex_);
  return batches_;
}

std::uint64_t MemorySource::mapped() const {
  const std::lock_guard lock(mutex_);
  return mapped_;
}

std::uint64_t MemorySource::poisoned_reads() const {
  const std::lock_guard lock(mutex_);
  return poisoned_reads_;
}

std::vector<ByteRange> MemorySource::ranges_read(FileId file) const {
  const std::lock_guard lock(mutex_);
  std::vector<ByteRange> ranges;
  for (const auto& [begin, end] : files_.at(file).ranges) ranges.push_back({begin, end});
  return ranges;
}

void MemorySource::reset_counts() {
  const std::lock_guard lock(mutex_);
  for (File& file : files_) {
    file.bytes_read = 0;
    file.requests = 0;
    file.ranges.clear();
  }
  batches_ = 0;
  poisoned_reads_ = 0;
}

Result<void> MemorySource::check(File& file, const ReadRequest& request) {
  // A caller that asks beyond the end has a bug, and hides it if the test source is lenient.
  CKFS_CHECK(request.out.size() <= file.bytes.size() &&
             request.offset <= file.bytes.size() - request.out.size());
  if (file.stale) return ckfs::fail(ErrorCode::Stale, "{}: changed since it was opened", file.name);
  const ByteRange range{request.offset, request.offset + request.out.size()};
  for (Fault& fault : file.faults) {
    if (fault.range.intersect(range).empty() || fault.times == 0) continue;
    --fault.times;
    if (fault.kind == Fault::Kind::Poison) ++poisoned_reads_;
    return Failure(Error(
        ErrorCode::Io,
        fmt::format("{}: offset {}: {}", file.name, request.offset, std::strerror(fault.error)),
        fault.error));
  }
  return {};
}

Result<void> MemorySource::read(std::span<const ReadRequest> batch) {
  const std::lock_guard lock(mutex_);
  for (const ReadRequest& request : batch) {
    if (auto checked = check(files_.at(request.file), request); !checked) {
      for (const ReadRequest& other : batch) {
        std::fill(other.out.begin(), other.out.end(), std::byte{0xEE});
      }
      return checked;
    }
  }
  ++batches_;
  for (const ReadRequest& request : batch) {
    File& file = files_.at(request.file);
    if (!request.out.empty()) {
      std::memcpy(request.out.data(), file.bytes.data() + request.offset, request.out.size());
    }
    file.bytes_read += request.out.size();
    ++file.requests;
    insert_range(file.ranges, {request.offset, request.offset + request.out.size()});
  }
  return {};
}

std::optional<MappedBytes> MemorySource::map(const FileRange& range, std::uint64_t used) {
  const std::lock_guard lock(mutex_);
  File& file = files_.at(range.file);
  CKFS_CHECK(range.size <= file.bytes.size() && range.offset <= file.bytes.size() - range.size);
  CKFS_CHECK(used <= range.size);
  if (!mapping_ || file.stale || !file.faults.empty()) return std::nullopt;
  if (!file.copy) {
    file.copy = std::make_shared<std::vector<std::byte>>(file.bytes.size() + 1);
    std::ranges::copy(file.bytes, file.copy->begin() + 1);
  }
  ++mapped_;
  file.bytes_read += used;
  return MappedBytes{range.file, file.copy->data() + 1 + range.offset, file.copy};
}

Result<void> MemorySource::check_mapped(std::span<const MappedBytes> mapped) {
  for (const MappedBytes& each : mapped) CKFS_TRY_VOID(verify(std::span(&each.file, 1)));
  const std::lock_guard lock(mutex_);
  if (!broken_) return {};
  return Failure(Error(ErrorCode::Io, "a page cannot be read", EIO));
}

Result<void> MemorySource::verify(std::span<const FileId> files) {
  const std::lock_guard lock(mutex_);
  for (const FileId id : files) {
    const File& file = files_.at(id);
    if (file.stale) {
      return ckfs::fail(ErrorCode::Stale, "{}: changed since it was opened", file.name);
    }
  }
  return {};
}

std::uint64_t MemorySource::size(FileId file) const {
  const std::lock_guard lock(mutex_);
  return files_.at(file).bytes.size();
}

const std::string& MemorySource::name(FileId file) const {
  const std::lock_guard lock(mutex_);
  return files_.at(file).name;
}

}  // namespace ckfs
