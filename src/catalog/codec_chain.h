// How the bytes of a stored chunk become those of its elements: the bytes-to-bytes codecs of an
// array's metadata, and nothing of arrays. What comes before them (byte order, the order of
// dimensions) is an encoding, or strides of boxes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ckfs {

enum class Codec : std::uint8_t { Zstd, Gzip, Zlib, Blosc, Crc32c };

std::string_view name(Codec codec);

/// Whether blosc lies between two checksums: as it reads what it needs, it would read no outer sum
/// to its end.
inline bool is_summed_around_blosc(std::span<const Codec> codecs) {
  const auto blosc = std::ranges::find(codecs, Codec::Blosc);
  return std::find(codecs.begin(), blosc, Codec::Crc32c) != blosc &&
         std::find(blosc, codecs.end(), Codec::Crc32c) != codecs.end();
}

/// Immutable; shared by the chunks of many arrays.
class CodecChain {
 public:
  /// In the order of the metadata, which is that in which a writer applies them.
  explicit CodecChain(std::vector<Codec> codecs = {}) : codecs_(std::move(codecs)) {}

  /// Stored bytes are the elements' bytes: they are best read where they lie, as extents of their
  /// file, and no chunk is needed.
  bool identity() const { return codecs_.empty(); }

  std::span<const Codec> codecs() const { return codecs_; }

  bool operator==(const CodecChain&) const = default;

 private:
  std::vector<Codec> codecs_;
};

}  // namespace ckfs
