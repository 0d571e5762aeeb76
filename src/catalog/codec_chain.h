// How the bytes of a stored chunk become those of its elements: the bytes-to-bytes codecs of an
// array's metadata, and nothing of arrays. Earlier codecs (byte order, the order of dimensions) are
// an encoding, or strides of boxes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckfs {

enum class Codec : std::uint8_t { Zstd, Gzip, Zlib, Bz2, Blosc, Crc32c };

std::string_view name(Codec codec);

/// Why known codecs are not decoded in this order; empty: they are. With blosc twice, the blocks of
/// one lie in any order in those of the other, which would be decoded for each. Blosc between two
/// checksums reads only the bytes that it needs, so the outer sum is never read to its end.
inline std::string_view undecodable(std::span<const Codec> codecs) {
  if (std::ranges::count(codecs, Codec::Blosc) > 1) return "blosc twice";
  const auto blosc = std::ranges::find(codecs, Codec::Blosc);
  const bool inside = std::find(codecs.begin(), blosc, Codec::Crc32c) != blosc;
  const bool outside = std::find(blosc, codecs.end(), Codec::Crc32c) != codecs.end();
  return inside && outside ? "blosc between two checksums" : "";
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
