// A ByteSource that takes its time: the bytes of another one, when a slow source would have them.
//
// The delays are real, for the code under test waits on real threads; a test chooses them small.
// Safe for concurrent use by several threads, as far as the source below is.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <thread>

#include "base/byte_source.h"
#include "support/slow_source.h"

namespace ckfs {

class DelayedSource final : public ByteSource {
 public:
  /// `source` must live longer.
  DelayedSource(ByteSource& source, const SlowSource::Speed& speed) : source_(source) {
    slow_.set(speed);
  }

  /// The requests of a batch are all in flight at once.
  Result<void> read(std::span<const ReadRequest> batch) override {
    const auto now = SlowSource::Clock::now();
    auto end = now;
    for (const ReadRequest& request : batch) {
      end = std::max(end, slow_.answered(now, request.file, request.offset, request.out.size()));
      requests_.fetch_add(1, std::memory_order_relaxed);
    }
    auto done = source_.read(batch);
    std::this_thread::sleep_until(end);
    return done;
  }

  Result<void> verify(std::span<const FileId> files) override { return source_.verify(files); }
  SourceTraits traits(FileId file) const override {
    return {.streams = source_.traits(file).streams};
  }
  std::uint64_t size(FileId file) const override { return source_.size(file); }
  const std::string& name(FileId file) const override { return source_.name(file); }

  std::uint64_t requests() const { return requests_.load(std::memory_order_relaxed); }

 private:
  ByteSource& source_;
  SlowSource slow_;
  std::atomic<std::uint64_t> requests_{0};
};

}  // namespace ckfs
