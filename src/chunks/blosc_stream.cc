// A blosc chunk: a header of 16 bytes, the place of each block, and the blocks, each compressed by
// itself; blocks written by several threads lie in any order. libblosc decodes whole chunks, and
// runs of elements of a chunk that lies in memory as a whole. So each block is shown to it as a
// chunk of one block, with a header made for it: one block is in memory at a time, and only wanted
// blocks are decoded. (The format is that of README_CHUNK_FORMAT.rst of C-Blosc 1.21.)
#include <algorithm>
#include <array>
#include <blosc.h>
#include <optional>

#include "base/load_le.h"
#include "chunks/stages.h"

namespace ckfs {
namespace {

constexpr std::size_t kHeader = 16;
constexpr std::size_t kMiniHeader = kHeader + 4;  // and the place of its one block
constexpr std::uint8_t kCopied = 2;               // flag: not compressed
/// Writers make blocks of 32 KiB to 8 MiB; this bounds the table of a chunk.
constexpr std::uint64_t kMostBlocks = std::uint64_t{1} << 20;
/// A block that compression would enlarge is stored as it is, behind the sizes of its parts.
constexpr std::uint64_t kMostAround = 1024;  // 256 parts

class BloscStream final : public ByteStream {
 public:
  BloscStream(std::unique_ptr<ByteStream> from, WorkSpace& space)
      : from_(std::move(from)), space_(space) {}

  Result<void> begin(std::optional<std::uint64_t> nbytes, std::optional<std::uint64_t> most,
                     std::optional<std::uint64_t> most_made);
  Result<std::size_t> read(std::span<std::byte> out) override;
  Result<void> seek(std::uint64_t offset) override;

 private:
  Result<void> read_table(std::uint64_t blocks);
  std::uint64_t start_of(std::uint64_t block) const;
  std::uint64_t end_of(std::uint64_t start) const;
  Result<void> check_order(std::uint64_t most_made) const;
  Result<void> decode(std::uint64_t block, std::span<std::byte> out);
  Result<void> fetch(std::span<std::byte> out);
  std::uint64_t size_of(std::uint64_t block) const {
    return std::min(blocksize_, nbytes_ - block * blocksize_);
  }

  const std::unique_ptr<ByteStream> from_;
  WorkSpace& space_;
  std::array<std::byte, kHeader> header_{};
  std::uint64_t nbytes_ = 0, blocksize_ = 0, stored_ = 0;
  bool copied_ = false;
  std::span<std::byte> starts_, sorted_;  // u32 each: by block, and in the order they lie in
  std::span<std::byte> input_;            // a block with its header
  std::span<std::byte> output_;           // the block that `decoded_` says
  std::uint64_t decoded_ = ~std::uint64_t{0};
  std::uint64_t position_ = 0;
};

Result<void> BloscStream::fetch(std::span<std::byte> out) {
  CKFS_TRY(const std::size_t read, from_->read(out));
  if (read < out.size()) return fail(ErrorCode::Corrupt, "blosc: the data ends early");
  return {};
}

Result<void> BloscStream::begin(std::optional<std::uint64_t> nbytes,
                                std::optional<std::uint64_t> most,
                                std::optional<std::uint64_t> most_made) {
  CKFS_TRY_VOID(fetch(header_));
  const auto field = [&](std::size_t at) {
    return load_le<std::uint32_t>(std::span(header_).subspan(at));
  };
  const auto version = static_cast<unsigned>(header_[0]);
  if (version != BLOSC_VERSION_FORMAT) {
    return fail(ErrorCode::Unsupported, "blosc: version {} of the format (only {})", version,
                BLOSC_VERSION_FORMAT);
  }
  nbytes_ = field(4);
  blocksize_ = field(8);
  stored_ = field(12);
  copied_ = (static_cast<std::uint8_t>(header_[2]) & kCopied) != 0;
  if (stored_ < kHeader) return fail(ErrorCode::Corrupt, "blosc: {} bytes of data", stored_);
  if (copied_ || nbytes_ == 0) return {};
  if (blocksize_ == 0 || blocksize_ > nbytes_) {
    return fail(ErrorCode::Corrupt, "blosc: blocks of {} bytes in a chunk of {}", blocksize_,
                nbytes_);
  }
  const std::uint64_t blocks = (nbytes_ + blocksize_ - 1) / blocksize_;
  if (blocks > kMostBlocks) {
    return fail(ErrorCode::Unsupported, "blosc: {} blocks in a chunk (limit {})", blocks,
                kMostBlocks);
  }
  if (stored_ - kHeader < 4 * blocks) {
    return fail(ErrorCode::Corrupt, "blosc: {} bytes of data for {} blocks", stored_, blocks);
  }
  if (nbytes && nbytes_ != *nbytes) {
    return fail(ErrorCode::Corrupt, "blosc: a chunk of {} bytes (not {})", nbytes_, *nbytes);
  }
  if (most && nbytes_ > *most) {
    return fail(ErrorCode::Corrupt, "blosc: a chunk of {} bytes (limit {})", nbytes_, *most);
  }
  CKFS_TRY_VOID(read_table(blocks));
  return most_made ? check_order(*most_made) : Result<void>();
}

Result<void> BloscStream::read_table(std::uint64_t blocks) {
  starts_ = space_.take(4 * blocks);
  sorted_ = space_.take(4 * blocks);
  input_ = space_.take(kMiniHeader + blocksize_ + kMostAround);
  output_ = space_.take(blocksize_);
  // libblosc's own: three blocks and the tables of its codec.
  constexpr std::uint64_t kCodecMemory = std::uint64_t{1} << 20;
  if (!space_.count(3 * (blocksize_ + kMostAround) + kCodecMemory)) return too_little_work_space();
  CKFS_TRY_VOID(fetch(starts_));
  std::copy(starts_.begin(), starts_.end(), sorted_.begin());
  auto* const first =
      reinterpret_cast<std::uint32_t*>(sorted_.data());  // the work space is aligned
  std::sort(first, first + blocks);
  if (*first < kHeader + 4 * blocks || first[blocks - 1] >= stored_) {
    return fail(ErrorCode::Corrupt, "blosc: a block begins at byte {} or {} of {}", *first,
                first[blocks - 1], stored_);
  }
  return {};
}

std::uint64_t BloscStream::start_of(std::uint64_t block) const {
  return load_le<std::uint32_t>(starts_.subspan(static_cast<std::size_t>(4 * block)));
}

/// The table has no sizes: a block ends where the next one begins.
std::uint64_t BloscStream::end_of(std::uint64_t start) const {
  const auto* const first = reinterpret_cast<const std::uint32_t*>(sorted_.data());
  const auto* const last = first + sorted_.size() / 4;
  const auto* const next = std::upper_bound(first, last, start);
  return next == last ? stored_ : *next;
}

/// Several threads write blocks nearly in order. Each step back (also to a block that was read
/// before) costs a pass up to there, and so does a step that is shorter than a checksum, which is
/// read ahead.
Result<void> BloscStream::check_order(std::uint64_t most_made) const {
  constexpr std::uint64_t kAhead = 4;
  std::uint64_t made = 0;
  std::uint64_t position = 0;
  for (std::uint64_t block = 0; block < starts_.size() / 4; ++block) {
    const std::uint64_t start = start_of(block);
    if (start != position) made += start < position + kAhead ? start : start - position;
    position = end_of(start);
  }
  if (made <= most_made) return {};
  return fail(ErrorCode::Unsupported,
              "blosc: out-of-order blocks would decode to {} bytes (limit {})", made, most_made);
}

/// Requires: `out` has room for a block, also for the last.
Result<void> BloscStream::decode(std::uint64_t block, std::span<std::byte> out) {
  const std::uint64_t start = start_of(block);
  const std::uint64_t nbytes = end_of(start) - start;
  if (nbytes > input_.size() - kMiniHeader) {
    return fail(ErrorCode::Corrupt, "blosc: block {} has {} bytes, decoded at most {}", block,
                nbytes, blocksize_);
  }
  CKFS_TRY_VOID(from_->seek(start));
  const auto data = input_.first(static_cast<std::size_t>(kMiniHeader + nbytes));
  CKFS_TRY_VOID(fetch(data.subspan(kMiniHeader)));
  std::copy(header_.begin(), header_.end(), data.begin());
  store_le(data.subspan(4), static_cast<std::uint32_t>(size_of(block)));
  store_le(data.subspan(12), static_cast<std::uint32_t>(data.size()));
  store_le(data.subspan(kHeader), static_cast<std::uint32_t>(kMiniHeader));
  const int made =
      blosc_decompress_ctx(data.data(), out.data(), static_cast<std::size_t>(blocksize_), 1);
  if (made < 0 || static_cast<std::uint64_t>(made) != size_of(block)) {
    return fail(ErrorCode::Corrupt, "blosc: block {} cannot be decoded", block);
  }
  return {};
}

Result<std::size_t> BloscStream::read(std::span<std::byte> out) {
  const auto wanted =
      static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), nbytes_ - position_));
  if (copied_) {
    CKFS_TRY_VOID(fetch(out.first(wanted)));
    position_ += wanted;
    return wanted;
  }
  for (std::size_t done = 0; done < wanted;) {
    const std::uint64_t block = position_ / blocksize_;
    const std::uint64_t inside = position_ % blocksize_;
    const std::span<std::byte> rest = out.subspan(done);
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(wanted - done, size_of(block) - inside));
    if (inside == 0 && rest.size() >= blocksize_) {
      CKFS_TRY_VOID(decode(block, rest));
    } else {
      if (decoded_ != block) {
        decoded_ = ~std::uint64_t{0};
        CKFS_TRY_VOID(decode(block, output_));
        decoded_ = block;
      }
      std::copy_n(output_.begin() + static_cast<std::ptrdiff_t>(inside), size, rest.begin());
    }
    done += size;
    position_ += size;
  }
  return wanted;
}

Result<void> BloscStream::seek(std::uint64_t offset) {
  position_ = std::min(offset, nbytes_);
  if (copied_) return from_->seek(kHeader + position_);
  return {};
}

}  // namespace

StreamResult open_blosc_stream(std::unique_ptr<ByteStream> from, WorkSpace& space,
                               std::optional<std::uint64_t> nbytes,
                               std::optional<std::uint64_t> most,
                               std::optional<std::uint64_t> most_made) {
  auto stream = std::make_unique<BloscStream>(std::move(from), space);
  CKFS_TRY_VOID(stream->begin(nbytes, most, most_made));
  return stream;
}

}  // namespace ckfs
