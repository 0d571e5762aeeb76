#include <algorithm>
#include <array>

#include "base/load_le.h"
#include "chunks/stages.h"
#include "format/crc32c.h"

namespace ckfs {
namespace {

constexpr std::size_t kSum = 4;  // bytes

/// Always four bytes behind the stream before it: those may be the sum.
class Crc32cStream final : public ByteStream {
 public:
  explicit Crc32cStream(std::unique_ptr<ByteStream> from) : from_(std::move(from)) {}

  Result<std::size_t> read(std::span<std::byte> out) override;
  Result<void> seek(std::uint64_t offset) override;

 private:
  /// The first bytes of all, which are held back.
  Result<void> begin();

  const std::unique_ptr<ByteStream> from_;
  std::array<std::byte, kSum> held_{};
  std::uint32_t sum_ = 0;
  bool begun_ = false;
  bool ended_ = false;
  bool whole_ = true;  // no byte was left out
  std::uint64_t position_ = 0;
};

Result<void> Crc32cStream::begin() {
  begun_ = true;
  CKFS_TRY(const std::size_t read, from_->read(held_));
  if (read < kSum) return fail(ErrorCode::Corrupt, "crc32c: {} bytes hold no checksum", read);
  return {};
}

Result<std::size_t> Crc32cStream::read(std::span<std::byte> out) {
  if (!begun_) CKFS_TRY_VOID(begin());
  if (ended_ || out.empty()) return std::size_t{0};
  // Gives the held bytes, then the new ones; holds back the last four of all.
  CKFS_TRY(const std::size_t read, from_->read(out));
  ended_ = read < out.size();
  std::array<std::byte, kSum + kSum> edge{};  // the held bytes, and the last new ones
  const std::size_t last = std::min(read, kSum);
  std::copy_n(held_.begin(), kSum, edge.begin());
  std::copy_n(out.begin() + static_cast<std::ptrdiff_t>(read - last), last, edge.begin() + kSum);
  if (read > kSum) {
    std::copy_backward(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(read - kSum),
                       out.begin() + static_cast<std::ptrdiff_t>(read));
    std::copy_n(edge.begin(), kSum, out.begin());
  } else {
    std::copy_n(edge.begin(), read, out.begin());
  }
  std::copy_n(edge.begin() + static_cast<std::ptrdiff_t>(last), kSum, held_.begin());
  sum_ = crc32c({reinterpret_cast<const char*>(out.data()), read}, sum_);
  position_ += read;
  if (ended_ && whole_) {
    const auto stored = load_le<std::uint32_t>(held_);
    if (stored != sum_) {
      return fail(ErrorCode::Corrupt, "crc32c: {:08x} is stored, the bytes have {:08x}", stored,
                  sum_);
    }
  }
  return read;
}

Result<void> Crc32cStream::seek(std::uint64_t offset) {
  if (offset == position_) return {};
  CKFS_TRY_VOID(from_->seek(offset));
  begun_ = ended_ = false;
  whole_ = offset == 0;
  sum_ = 0;
  position_ = offset;
  return {};
}

}  // namespace

StreamResult open_crc32c_stream(std::unique_ptr<ByteStream> from, WorkSpace& /*space*/) {
  return std::make_unique<Crc32cStream>(std::move(from));
}

}  // namespace ckfs
