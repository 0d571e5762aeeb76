// A ByteSource over bytes in memory, with faults by script and exact counts of what was read.
//
// Every folder's tests use it where the real files of src/io would only be in the way. Safe for
// concurrent use by several threads, the scripting functions included.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"

namespace ckfs {

class MemorySource final : public ByteSource {
 public:
  MemorySource() = default;
  /// FileIds follow the map's order (by name).
  explicit MemorySource(const std::map<std::string, std::vector<std::byte>>& files);

  FileId add(std::string name, std::vector<std::byte> bytes);
  /// The characters of `text` as bytes.
  FileId add_text(std::string name, std::string_view text);

  std::optional<FileId> find(std::string_view name) const;
  /// All bytes of `file`, uncounted; valid until change().
  std::span<const std::byte> bytes(FileId file) const;
  std::size_t count() const;

  // Faults: a batch with a request that touches one fails as a whole.

  /// Reads that touch `range` fail with Io and errno `error`, `times` times (default: always).
  void fail(FileId file, ByteRange range, int error, std::uint64_t times = ~std::uint64_t{0});
  /// Reads that touch `range` are forbidden: they fail and count in poisoned_reads().
  void poison(FileId file, ByteRange range);
  /// All reads of `file` fail with Stale from now on, until clear_faults().
  void make_stale(FileId file);
  void clear_faults();
  /// Bytes without a fault may be mapped from now on. They lie at odd addresses.
  void allow_mapping();
  /// What was mapped turns out to be broken, until clear_faults(): check_mapped() fails with Io.
  void break_mapped();
  /// Other content of the same size, as if a program wrote into the file unnoticed.
  void change(FileId file, std::vector<std::byte> bytes);

  // Counts of successful requests, since construction or reset_counts().

  std::uint64_t bytes_read(FileId file) const;
  std::uint64_t bytes_read() const;
  std::uint64_t requests(FileId file) const;
  std::uint64_t requests() const;
  std::uint64_t batches() const;
  std::uint64_t mapped() const;
  std::uint64_t poisoned_reads() const;
  /// What was read of `file` at least once: sorted, disjoint, touching ranges joined.
  std::vector<ByteRange> ranges_read(FileId file) const;
  void reset_counts();

  Result<void> read(std::span<const ReadRequest> batch) override;
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override;
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override;
  /// Stale where make_stale() said so.
  Result<void> verify(std::span<const FileId> files) override;
  std::uint64_t size(FileId file) const override;
  const std::string& name(FileId file) const override;

 private:
  struct Fault {
    enum class Kind : std::uint8_t { Fail, Poison };
    Kind kind = Kind::Fail;
    ByteRange range;
    int error = 0;
    std::uint64_t times = 0;
  };
  struct File {
    std::string name;
    std::vector<std::byte> bytes;
    std::vector<Fault> faults;
    bool stale = false;
    std::shared_ptr<std::vector<std::byte>> copy = {};  // what is mapped, from its byte 1 on
    std::uint64_t bytes_read = 0;
    std::uint64_t requests = 0;
    std::map<std::uint64_t, std::uint64_t> ranges;  // begin -> end, disjoint
  };

  Result<void> check(File& file, const ReadRequest& request);

  mutable std::mutex mutex_;  // guards everything below
  std::deque<File> files_;    // a deque, so that names stay where they are
  std::uint64_t batches_ = 0;
  std::uint64_t poisoned_reads_ = 0;
  std::uint64_t mapped_ = 0;
  bool mapping_ = false;
  bool broken_ = false;
};

}  // namespace ckfs
