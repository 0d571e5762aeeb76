// The decoder's state lies in the work space (libzstd's static contexts), for its size follows from
// the frame's header: a window of 2 GiB is an error before anything is allocated. The alternative,
// an allocator of ours behind a dynamic context, would count as exactly, but fail in the middle of
// a frame. A later frame of the chunk may have a larger window than the first: then the caller
// begins again with more.
#define ZSTD_STATIC_LINKING_ONLY
#include <algorithm>
#include <optional>
#include <zstd.h>

#include "chunks/stages.h"

namespace ckfs {
namespace {

/// libzstd's own limit without --long, and ours.
constexpr int kWindowLog = 27;
constexpr std::uint64_t kWindow = std::uint64_t{1} << kWindowLog;

class ZstdStream final : public ByteStream {
 public:
  ZstdStream(std::unique_ptr<ByteStream> from, std::span<std::byte> input, WorkSpace& space,
             std::optional<std::uint64_t> most)
      : from_(std::move(from)), input_(input), space_(space), most_(most) {}

  /// The context for the frame at the front of the input.
  Result<void> begin();

  Result<std::size_t> read(std::span<std::byte> out) override;
  Result<void> seek(std::uint64_t offset) override;

 private:
  Result<void> refill();
  Result<void> begin_frame();

  const std::unique_ptr<ByteStream> from_;
  const std::span<std::byte> input_;
  WorkSpace& space_;
  const std::optional<std::uint64_t> most_;
  std::span<std::byte> memory_;  // of the context
  ZSTD_DStream* context_ = nullptr;
  ZSTD_inBuffer in_{};
  bool ended_ = false;     // nothing comes behind the input
  bool in_frame_ = false;  // a frame has begun and not ended
  std::uint64_t position_ = 0;
};

Result<void> ZstdStream::refill() {
  // Moves the rest to the front: a frame's header has to be in one piece.
  const std::size_t left = in_.size - in_.pos;
  std::copy_n(input_.begin() + static_cast<std::ptrdiff_t>(in_.pos), left, input_.begin());
  CKFS_TRY(const std::size_t more, from_->read(input_.subspan(left)));
  ended_ = more < input_.size() - left;
  in_ = {input_.data(), left + more, 0};
  return {};
}

Result<void> ZstdStream::begin() {
  CKFS_TRY_VOID(refill());
  return begin_frame();
}

/// Requires: the input is empty only if nothing comes any more.
Result<void> ZstdStream::begin_frame() {
  if (in_.size - in_.pos < ZSTD_FRAMEHEADERSIZE_MAX && !ended_) CKFS_TRY_VOID(refill());
  if (in_.pos == in_.size) return {};
  ZSTD_frameHeader header{};
  const std::size_t wanted = ZSTD_getFrameHeader(
      &header, static_cast<const std::byte*>(in_.src) + in_.pos, in_.size - in_.pos);
  if (ZSTD_isError(wanted) > 0) {
    return fail(ErrorCode::Corrupt, "zstd: {}", ZSTD_getErrorName(wanted));
  }
  if (wanted > 0) return fail(ErrorCode::Corrupt, "zstd: a frame's header ends early");
  const bool claims = header.frameType != ZSTD_skippableFrame &&
                      header.frameContentSize != ZSTD_CONTENTSIZE_UNKNOWN;
  if (most_ && claims && header.frameContentSize > *most_) {
    return fail(ErrorCode::Corrupt, "zstd: a frame of {} bytes (limit {})", header.frameContentSize,
                *most_);
  }
  std::uint64_t window = header.frameType == ZSTD_skippableFrame ? 0 : header.windowSize;
  // Some libzstd writers state windows below the format's least.
  window = std::max<std::uint64_t>(window, 1024);
  if (window > kWindow) {
    return fail(ErrorCode::Unsupported, "zstd: a frame's window of {} bytes (limit {})", window,
                kWindow);
  }
  const std::uint64_t needed = zstd_work_space(window);
  if (context_ == nullptr || needed > memory_.size()) {
    memory_ = space_.take(needed);
    if (memory_.empty()) return too_little_work_space();
    context_ = ZSTD_initStaticDStream(memory_.data(), memory_.size());
    CKFS_CHECK(context_ != nullptr);
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, kWindowLog);
  }
  ZSTD_DCtx_reset(context_, ZSTD_reset_session_only);
  in_frame_ = true;
  return {};
}

Result<std::size_t> ZstdStream::read(std::span<std::byte> out) {
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  while (to.pos < to.size) {
    if (!in_frame_) {
      CKFS_TRY_VOID(begin_frame());
      if (!in_frame_) break;
    }
    if (in_.pos == in_.size && !ended_) CKFS_TRY_VOID(refill());
    const std::size_t before_in = in_.pos;
    const std::size_t before_out = to.pos;
    const std::size_t left = ZSTD_decompressStream(context_, &to, &in_);
    if (ZSTD_isError(left) > 0) {
      return fail(ErrorCode::Corrupt, "zstd: {}", ZSTD_getErrorName(left));
    }
    if (left == 0) {
      in_frame_ = false;
    } else if (in_.pos == before_in && to.pos == before_out && in_.pos == in_.size && ended_) {
      return fail(ErrorCode::Corrupt, "zstd: the frame ends early");
    }
  }
  position_ += to.pos;
  return to.pos;
}

Result<void> ZstdStream::seek(std::uint64_t offset) {
  if (offset < position_) {
    CKFS_TRY_VOID(from_->seek(0));
    in_ = {input_.data(), 0, 0};
    ended_ = false;
    in_frame_ = false;
    position_ = 0;
  }
  return read_away(*this, offset - position_);
}

}  // namespace

std::uint64_t zstd_work_space(std::uint64_t window) {
  return ZSTD_estimateDStreamSize(static_cast<std::size_t>(window));
}

StreamResult open_zstd_stream(std::unique_ptr<ByteStream> from, WorkSpace& space,
                              std::optional<std::uint64_t> most) {
  const std::span<std::byte> input = space.take(kStageInput);
  auto stream = std::make_unique<ZstdStream>(std::move(from), input, space, most);
  if (input.empty()) return too_little_work_space();
  CKFS_TRY_VOID(stream->begin());
  return stream;
}

}  // namespace ckfs
