// Memory that several checkpoints share.
//
//   auto budget = ckfs::Budget::create(std::uint64_t{4} << 30);
//   auto one = ckfs::Checkpoint::open("DeepSeek-V3", {.use = {.budget = *budget}});
//   auto other = ckfs::Checkpoint::open("Qwen3-8B", {.use = {.budget = *budget}});
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ckfs/error.h>

namespace ckfs {

/// A value: copies are the same budget, which lives as long as one of them or a checkpoint that was
/// opened with it. Its checkpoints hold no more together than one alone would: a reader of one that
/// needs memory gets that which another keeps for reuse, and waits for what another is using. Safe
/// for concurrent use.
class Budget {
 public:
  /// `memory`: bytes for all of its checkpoints, without their catalogs. `for_servers` of them are
  /// set apart for sources that are on other machines, which cannot give theirs back while they are
  /// open: each takes a quarter of `memory`, but between 16 and 256 MiB, or what others have left.
  /// 0: such a source is not opened. Errors: InvalidArgument (less than 64 MiB are left for the
  /// rest; `for_servers` is less than one source takes).
  static Result<Budget> create(std::uint64_t memory, std::uint64_t for_servers = 0);

  /// As create() got it.
  std::uint64_t memory() const;
  /// Bytes in use now, or kept for reuse, except those that servers have; and the most that ever
  /// were.
  std::uint64_t held() const;
  std::uint64_t peak() const;

  class Impl;

 private:
  friend class Inside;
  explicit Budget(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

  std::shared_ptr<Impl> impl_;
};

}  // namespace ckfs
