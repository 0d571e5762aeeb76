// This machine's files as if they were far away: each operation takes a while, and is counted.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "io/reader.h"
#include "io/source_store.h"

namespace ckfs {

/// What the operations of a DelayingStore and its DelayingReader have in common.
struct FarAway {
  std::chrono::nanoseconds delay{0};
  /// False: the process has as many files open as it may.
  std::atomic<bool> has_descriptors = true;
  std::atomic<std::uint64_t> lists = 0, looks = 0, resolves = 0, opens = 0, reads = 0;

  /// Operations under way at once, at most. Not a time, which a busy machine stretches.
  std::atomic<std::uint64_t> most = 0;
  /// Reads that began when no other was under way: of one after the other all, of many at once few.
  std::atomic<std::uint64_t> lone_reads = 0;

  std::uint64_t operations() const { return lists + looks + resolves + opens + reads; }

  void pass(std::atomic<std::uint64_t>& counter) {
    ++counter;
    const std::uint64_t now = ++under_way_;
    std::uint64_t most_yet = most;
    while (now > most_yet && !most.compare_exchange_weak(most_yet, now)) {
    }
    std::this_thread::sleep_for(delay);
    --under_way_;
  }

 private:
  std::atomic<std::uint64_t> under_way_ = 0;
};

class DelayingStore final : public OpenStore {
 public:
  /// `far` must outlive it.
  explicit DelayingStore(FarAway& far) : far_(far) {}

  Tried<std::vector<StoreEntry>> list(const std::filesystem::path& directory) override {
    far_.pass(far_.lists);
    return here_->list(directory);
  }
  Tried<FileStatus> look(const std::filesystem::path& path) override {
    far_.pass(far_.looks);
    return here_->look(path);
  }
  Tried<std::filesystem::path> resolve(const std::filesystem::path& path) override {
    far_.pass(far_.resolves);
    return here_->resolve(path);
  }
  Tried<std::filesystem::path> link_target(const std::filesystem::path& path) override {
    far_.pass(far_.resolves);
    return here_->link_target(path);
  }
  Tried<UniqueFd> open(const std::filesystem::path& path) override {
    far_.pass(far_.opens);
    if (!far_.has_descriptors) return tl::unexpected(EMFILE);
    return here_->open(path);
  }
  Tried<FileStatus> look(int fd) override {
    far_.pass(far_.looks);
    return here_->look(fd);
  }

 private:
  FarAway& far_;
  std::unique_ptr<OpenStore> here_ = make_local_store();
};

class DelayingReader final : public Reader {
 public:
  /// `far` must outlive it.
  explicit DelayingReader(FarAway& far) : far_(far) {}

  tl::expected<void, AccessFailure> read(std::span<const Access> accesses) override {
    if (under_way_++ == 0) ++far_.lone_reads;
    for (std::size_t i = 0; i < accesses.size(); ++i) far_.pass(far_.reads);
    --under_way_;
    return here_->read(accesses);
  }

 private:
  FarAway& far_;
  std::atomic<std::uint64_t> under_way_ = 0;
  std::unique_ptr<Reader> here_ = make_pread_reader();
};

}  // namespace ckfs
