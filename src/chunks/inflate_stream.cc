// zlib asks for its memory (7 KB, and a window of 32 KB when it first needs one) through a hook: it
// comes out of the work space.
#include <algorithm>
#include <zlib.h>

#include "chunks/stages.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kInflateMemory = std::uint64_t{64} << 10;

class InflateStream final : public ByteStream {
 public:
  InflateStream(std::unique_ptr<ByteStream> from, DeflateForm form, std::span<std::byte> input,
                std::span<std::byte> memory)
      : from_(std::move(from)), form_(form), input_(input), own_(memory) {}
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;
  ~InflateStream() override {
    if (begun_) inflateEnd(&state_);
  }

  Result<void> begin();
  Result<std::size_t> read(std::span<std::byte> out) override;
  Result<void> seek(std::uint64_t offset) override;

 private:
  Result<void> refill();
  bool gzip() const { return form_ == DeflateForm::Gzip; }
  Failure corrupt(std::string_view what) const {
    return fail(ErrorCode::Corrupt, "{}: {}", gzip() ? "gzip" : "zlib", what);
  }

  const std::unique_ptr<ByteStream> from_;
  const DeflateForm form_;
  const std::span<std::byte> input_;
  WorkSpace own_;
  z_stream state_{};
  bool begun_ = false;
  bool ended_ = false;      // nothing comes behind the input
  bool in_member_ = false;  // a member has begun and not ended
  bool any_ = false;        // one has ended
  std::uint64_t position_ = 0;
};

voidpf take(voidpf space, uInt items, uInt size) {
  return static_cast<WorkSpace*>(space)->take(std::uint64_t{items} * size).data();
}

void leave(voidpf /*space*/, voidpf /*memory*/) {}

Result<void> InflateStream::begin() {
  state_.zalloc = take;
  state_.zfree = leave;
  state_.opaque = &own_;
  constexpr int kWindowBits = 15;
  constexpr int kGzipHeader = 16;
  const int initialized = inflateInit2(&state_, kWindowBits + (gzip() ? kGzipHeader : 0));
  if (initialized != Z_OK) return too_little_work_space();
  begun_ = true;
  return {};
}

Result<void> InflateStream::refill() {
  CKFS_TRY(const std::size_t more, from_->read(input_));
  ended_ = more < input_.size();
  state_.next_in = reinterpret_cast<Bytef*>(input_.data());
  state_.avail_in = static_cast<uInt>(more);
  return {};
}

Result<std::size_t> InflateStream::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    if (state_.avail_in == 0 && !ended_) CKFS_TRY_VOID(refill());
    if (!in_member_) {
      if (state_.avail_in == 0) {
        if (!any_) return corrupt("no data");
        break;
      }
      if (any_ && !gzip()) return corrupt("bytes behind the end of the stream");
      if (any_) inflateReset(&state_);
      in_member_ = true;
    }
    const std::size_t room = std::min(out.size() - done, std::size_t{1} << 30);
    state_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    state_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&state_, Z_NO_FLUSH);
    done += room - state_.avail_out;
    if (result == Z_STREAM_END) {
      in_member_ = false;
      any_ = true;
    } else if (result == Z_BUF_ERROR && state_.avail_in == 0 && ended_) {
      return corrupt("the stream ends early");
    } else if (result == Z_MEM_ERROR) {
      return too_little_work_space();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return corrupt(state_.msg != nullptr ? state_.msg : "a broken stream");
    }
  }
  position_ += done;
  return done;
}

Result<void> InflateStream::seek(std::uint64_t offset) {
  if (offset < position_) {
    CKFS_TRY_VOID(from_->seek(0));
    inflateReset(&state_);
    state_.avail_in = 0;
    ended_ = in_member_ = any_ = false;
    position_ = 0;
  }
  return read_away(*this, offset - position_);
}

}  // namespace

StreamResult open_inflate_stream(std::unique_ptr<ByteStream> from, DeflateForm form,
                                 WorkSpace& space) {
  const std::span<std::byte> input = space.take(kStageInput);
  const std::span<std::byte> memory = space.take(kInflateMemory);
  if (input.empty() || memory.empty()) return too_little_work_space();
  auto stream = std::make_unique<InflateStream>(std::move(from), form, input, memory);
  CKFS_TRY_VOID(stream->begin());
  return stream;
}

}  // namespace ckfs
