// libbz2 asks for its memory through a hook: 64 KB for its state, and 4 bytes for each byte of the
// largest block that the stream may have (900 kB). It has no way to begin anew with the same state,
// so each stream of a row, and each step back, gives all of it back and asks again.
#include <algorithm>
#include <bzlib.h>

#include "chunks/stages.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kBz2Memory = std::uint64_t{4} << 20;

class Bz2Stream final : public ByteStream {
 public:
  Bz2Stream(std::unique_ptr<ByteStream> from, std::span<std::byte> input,
            std::span<std::byte> memory)
      : from_(std::move(from)), input_(input), memory_(memory), own_(memory) {}
  Bz2Stream(const Bz2Stream&) = delete;
  Bz2Stream& operator=(const Bz2Stream&) = delete;
  ~Bz2Stream() override { end_stream(); }

  Result<std::size_t> read(std::span<std::byte> out) override;
  Result<void> seek(std::uint64_t offset) override;

 private:
  Result<void> begin_stream();
  void end_stream() {
    if (in_stream_) BZ2_bzDecompressEnd(&state_);
    in_stream_ = false;
  }
  static Failure corrupt(std::string_view what) {
    return fail(ErrorCode::Corrupt, "bz2: {}", what);
  }

  const std::unique_ptr<ByteStream> from_;
  const std::span<std::byte> input_;
  const std::span<std::byte> memory_;
  WorkSpace own_;  // over memory_
  bz_stream state_{};
  bool ended_ = false;      // no more input follows
  bool in_stream_ = false;  // a stream of the row has begun and not ended
  bool any_ = false;        // one has ended
  std::uint64_t position_ = 0;
};

void* take_for_bz2(void* space, int items, int size) {
  const auto bytes = static_cast<std::uint64_t>(items) * static_cast<std::uint64_t>(size);
  return static_cast<WorkSpace*>(space)->take(bytes).data();
}

void leave_of_bz2(void* /*space*/, void* /*memory*/) {}

Result<void> Bz2Stream::begin_stream() {
  own_ = WorkSpace(memory_);
  state_.bzalloc = take_for_bz2;
  state_.bzfree = leave_of_bz2;
  state_.opaque = &own_;
  if (BZ2_bzDecompressInit(&state_, 0, 0) != BZ_OK) return too_little_work_space();
  in_stream_ = true;
  return {};
}

Result<std::size_t> Bz2Stream::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    if (state_.avail_in == 0 && !ended_) {
      CKFS_TRY(const std::size_t more, from_->read(input_));
      ended_ = more < input_.size();
      state_.next_in = reinterpret_cast<char*>(input_.data());
      state_.avail_in = static_cast<unsigned>(more);
    }
    if (!in_stream_) {
      if (state_.avail_in == 0) {
        if (!any_) return corrupt("no data");
        break;
      }
      CKFS_TRY_VOID(begin_stream());
    }
    const std::size_t room = std::min(out.size() - done, std::size_t{1} << 30);
    state_.next_out = reinterpret_cast<char*>(out.data() + done);
    state_.avail_out = static_cast<unsigned>(room);
    const unsigned before = state_.avail_in;
    const int result = BZ2_bzDecompress(&state_);
    const std::size_t made = room - state_.avail_out;
    done += made;
    if (result == BZ_STREAM_END) {
      end_stream();
      any_ = true;
    } else if (result == BZ_MEM_ERROR) {
      return too_little_work_space();
    } else if (result != BZ_OK) {
      return corrupt(result == BZ_DATA_ERROR_MAGIC ? "not a bz2 stream" : "a broken stream");
    } else if (made == 0 && state_.avail_in == before && before == 0 && ended_) {
      return corrupt("the stream ends early");
    }
  }
  position_ += done;
  return done;
}

Result<void> Bz2Stream::seek(std::uint64_t offset) {
  if (offset < position_) {
    CKFS_TRY_VOID(from_->seek(0));
    end_stream();
    state_.avail_in = 0;
    ended_ = any_ = false;
    position_ = 0;
  }
  return read_away(*this, offset - position_);
}

}  // namespace

StreamResult open_bz2_stream(std::unique_ptr<ByteStream> from, WorkSpace& space) {
  const std::span<std::byte> input = space.take(kStageInput);
  const std::span<std::byte> memory = space.take(kBz2Memory);
  if (input.empty() || memory.empty()) return too_little_work_space();
  return std::make_unique<Bz2Stream>(std::move(from), input, memory);
}

}  // namespace ckfs
