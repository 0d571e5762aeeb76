// Files and inner files (catalog/inner_files.h) as one ByteSource. The first read of an inner file
// finds where its elements begin, from the two ends of its torch file (for up to 64 files of a
// batch together). The result is kept: 16 bytes for each, and the strides of gathered ones. Finding
// takes some 300 KiB for each thread that does it, outside the memory budget.
//
// Elements that do not lie in row-major order are gathered, row by row at best: right, and slow.
// That is for a part that is unlike the others of its tensor; a checkpoint with all parts in that
// order is recognised when it is opened.
//
// Safe for concurrent use by several threads.
#pragma once

#include <cstdint>
#include <memory>

#include "base/byte_source.h"
#include "catalog/inner_files.h"

namespace ckfs {

class InnerFileSource final : public ByteSource {
 public:
  /// `files` and `table` must outlive it.
  InnerFileSource(ByteSource& files, const InnerFiles& table);
  ~InnerFileSource() override;

  /// Requests of both kinds. Errors: those of the files; those of open_dcp_item().
  Result<void> read(std::span<const ReadRequest> batch) override;
  Result<void> read_once(std::span<const ReadRequest> batch) override;
  /// For inner files that were read before and have their elements in row-major order.
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override;
  std::optional<MappedBytes> map_once(const FileRange& range, std::uint64_t used) override;
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override;
  void rest(const std::function<bool()>& still) override;
  /// For an inner file that was never asked for, also hints its ends.
  void will_need(std::span<const FileRange> ranges) override;
  SourceTraits traits(FileId file) const override;
  Result<void> verify(std::span<const FileId> files) override;
  std::uint64_t size(FileId file) const override;
  /// For an inner file: the file that it is in.
  const std::string& name(FileId file) const override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
