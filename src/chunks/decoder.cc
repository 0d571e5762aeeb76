#include "chunks/decoder.h"

#include <algorithm>
#include <optional>

#include "base/stop.h"
#include "base/units.h"
#include "chunks/stages.h"

namespace ckfs {
namespace {

/// Whether a stage that moves from `before` to `after` asks whether to stop. Rarely: a block that
/// is stopped halfway is lost. Ordinary blocks are far shorter than this; only stages that read
/// much and give little come so far.
bool is_stopped(std::uint64_t before, std::uint64_t after) {
  constexpr std::uint64_t kOften = 16_MiB;
  return before / kOften != after / kOften && stop_asked();
}

/// The stored bytes themselves; any byte of them at any time.
class StoredStream final : public ByteStream {
 public:
  explicit StoredStream(const StoredBytes& stored) : stored_(stored) {}

  Result<std::size_t> read(std::span<std::byte> out) override {
    const std::uint64_t size =
        stored_.source == nullptr ? stored_.bytes.size() : stored_.range.size;
    const auto part =
        out.first(static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), size - position_)));
    if (stored_.source == nullptr) {
      std::copy_n(stored_.bytes.begin() + static_cast<std::ptrdiff_t>(position_), part.size(),
                  part.begin());
    } else if (!part.empty()) {
      const ReadRequest request{stored_.range.file, stored_.range.offset + position_, part};
      CKFS_TRY_VOID(stored_.once ? stored_.source->read_once({&request, 1})
                                 : stored_.source->read({&request, 1}));
    }
    if (is_stopped(position_, position_ + part.size())) return stopped("decoding a chunk");
    position_ += part.size();
    if (stored_.source != nullptr && !part.empty()) hint();
    return part.size();
  }

  Result<void> seek(std::uint64_t offset) override {
    const std::uint64_t size =
        stored_.source == nullptr ? stored_.bytes.size() : stored_.range.size;
    position_ = std::min(offset, size);
    return {};
  }

 private:
  /// Asks for the next bytes while these are decoded: a source that answers late is asked early.
  void hint() {
    constexpr std::uint64_t kAhead = 4_MiB;
    const std::uint64_t until = std::min(position_ + kAhead, stored_.range.size);
    hinted_ = std::max(hinted_, position_);
    if (until < hinted_ + kAhead / 2 && until < stored_.range.size) return;
    if (until <= hinted_) return;
    const FileRange range{stored_.range.file, stored_.range.offset + hinted_, until - hinted_};
    stored_.source->will_need({&range, 1});
    hinted_ = until;
  }

  const StoredBytes stored_;
  std::uint64_t position_ = 0;
  std::uint64_t hinted_ = 0;
};

/// The output of one stage for the next, at most `most` bytes: a few KB can stand for petabytes of
/// empty frames, which would keep the next stage busy without any output.
class BoundedStream final : public ByteStream {
 public:
  BoundedStream(std::unique_ptr<ByteStream> from, std::uint64_t most)
      : from_(std::move(from)), most_(most) {}

  Result<std::size_t> read(std::span<std::byte> out) override {
    CKFS_TRY(const std::size_t size, from_->read(out));
    if (is_stopped(position_, position_ + size)) return stopped("decoding a chunk");
    position_ += size;
    if (size > 0 && position_ > most_) {
      return fail(ErrorCode::Corrupt, "more than {} bytes between two codecs", most_);
    }
    return size;
  }

  Result<void> seek(std::uint64_t offset) override {
    position_ = offset;
    return from_->seek(offset);
  }

 private:
  const std::unique_ptr<ByteStream> from_;
  const std::uint64_t most_;
  std::uint64_t position_ = 0;
};

/// Whether a stage goes back by beginning anew.
bool is_sequential(Codec codec) {
  return codec == Codec::Zstd || codec == Codec::Gzip || codec == Codec::Zlib ||
         codec == Codec::Bz2;
}

/// More than a codec makes of `nbytes`: incompressible bytes grow by less than a hundredth, but a
/// writer may have flushed after every byte (deflate: 7 bytes for each).
std::uint64_t most_coded(std::uint64_t nbytes) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  return 8 * std::min(nbytes, kMost) + 1_MiB;
}

/// A thousand blocks of a chunk that is not compressed may change places with their neighbours.
constexpr std::uint64_t kMostPasses = 64;
constexpr std::uint64_t kMostPassed = std::uint64_t{1} << 50;

/// `nbytes`: the bytes that it must make, if known; `most`: the most that it may make.
StreamResult open_stage(Codec codec, std::unique_ptr<ByteStream> from, WorkSpace& space,
                        std::optional<std::uint64_t> nbytes, std::optional<std::uint64_t> most,
                        std::optional<std::uint64_t> most_made) {
  switch (codec) {
    case Codec::Zstd:
      return open_zstd_stream(std::move(from), space, most);
    case Codec::Gzip:
      return open_inflate_stream(std::move(from), DeflateForm::Gzip, space);
    case Codec::Zlib:
      return open_inflate_stream(std::move(from), DeflateForm::Zlib, space);
    case Codec::Bz2:
      return open_bz2_stream(std::move(from), space);
    case Codec::Blosc:
      return open_blosc_stream(std::move(from), space, nbytes, most, most_made);
    case Codec::Crc32c:
      return open_crc32c_stream(std::move(from), space);
  }
  return fail(ErrorCode::Internal, "codec {}", static_cast<unsigned>(codec));
}

}  // namespace

bool has_sums(const CodecChain& codecs) {
  return std::ranges::find(codecs.codecs(), Codec::Crc32c) != codecs.codecs().end();
}

Result<std::unique_ptr<ByteStream>> open_stream(const StoredBytes& stored, const CodecChain& codecs,
                                                Stages stages, WorkSpace& space,
                                                std::optional<std::uint64_t> nbytes) {
  std::unique_ptr<ByteStream> stream = std::make_unique<StoredStream>(stored);
  // A reader begins with the codec that was applied last.
  const auto first = stages == Stages::All ? codecs.codecs().begin()
                                           : std::ranges::find(codecs.codecs(), Codec::Crc32c);
  if (const std::string_view why = undecodable(codecs.codecs()); !why.empty()) {
    return fail(ErrorCode::Unsupported, "{}", why);
  }
  std::optional<std::uint64_t> most_made;  // of a stage that goes back by beginning anew
  for (auto codec = codecs.codecs().end(); codec != first;) {
    --codec;
    const auto before = codec - codecs.codecs().begin();
    // The bytes between two stages have a size of their own.
    std::optional<std::uint64_t> most = nbytes;
    for (auto k = before; most && k > 0; --k) most = most_coded(*most);
    CKFS_TRY(stream, open_stage(*codec, std::move(stream), space,
                                before == 0 ? nbytes : std::nullopt, most, most_made));
    if (before == 0 || !most) continue;
    if (is_sequential(*codec)) most_made = kMostPasses * std::min(*most, kMostPassed);
    stream = std::make_unique<BoundedStream>(std::move(stream), *most);
  }
  return stream;
}

std::uint64_t usual_work_space(const CodecChain& codecs, std::uint64_t stored_bytes) {
  // The window of TensorStore's usual level; other levels have up to 8 MiB.
  constexpr std::uint64_t kUsualWindow = 512_KiB;
  std::uint64_t sum = 0;
  for (const Codec codec : codecs.codecs()) {
    switch (codec) {
      case Codec::Zstd:
        sum += kStageInput + zstd_work_space(stored_bytes < 64_KiB ? 1_KiB : kUsualWindow);
        break;
      case Codec::Gzip:
      case Codec::Zlib:
        sum += kStageInput + 64_KiB;
        break;
      case Codec::Bz2:
        sum += kStageInput + 4_MiB;
        break;
      case Codec::Blosc:
        sum += 2_MiB;
        break;
      case Codec::Crc32c:
        break;
    }
  }
  return sum;
}

}  // namespace ckfs
