// Fuzz target: stored chunks through chains of codecs. The first two bytes choose the chain and how
// it is read; the rest is what is stored. A stream that is read in pieces, or from the middle,
// gives the bytes of one that is read at once; memory is what it was given.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "chunks/decoder.h"

namespace {

using namespace ckfs;

constexpr std::size_t kMemory = std::size_t{8} << 20;
constexpr std::size_t kMost = std::size_t{1} << 20;  // bytes that are looked at

std::vector<Codec> chain(std::uint8_t choice) {
  constexpr Codec kCodecs[] = {Codec::Zstd, Codec::Gzip,  Codec::Zlib,
                               Codec::Bz2,  Codec::Blosc, Codec::Crc32c};
  std::vector<Codec> codecs;
  for (; choice > 0; choice = static_cast<std::uint8_t>(choice / 6)) {
    if (choice % 6 > 0) codecs.push_back(kCodecs[choice % 6 - 1]);
  }
  return codecs;
}

/// What comes out from `offset` on, in pieces of `piece` bytes; nullopt: an error.
std::optional<std::vector<std::byte>> decode(std::span<const std::byte> stored,
                                             const CodecChain& codecs, std::size_t offset,
                                             std::size_t piece) {
  std::vector<std::byte> memory(kMemory);
  WorkSpace space(memory);
  auto stream = open_stream({nullptr, {}, stored}, codecs, Stages::All, space);
  if (!stream || !(*stream)->seek(offset)) return std::nullopt;
  std::vector<std::byte> out;
  while (out.size() < kMost) {
    const std::size_t before = out.size();
    out.resize(before + piece);
    const auto read = (*stream)->read(std::span(out).subspan(before));
    if (!read) {
      CKFS_CHECK(read.error().message().find('\n') == std::string::npos);
      return std::nullopt;
    }
    CKFS_CHECK(*read <= piece);
    out.resize(before + *read);
    if (*read < piece) break;
  }
  out.resize(std::min(out.size(), kMost));
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const CodecChain codecs(chain(data[0]));
  const auto stored = std::as_bytes(std::span(data + 2, size - 2));
  const auto whole = decode(stored, codecs, 0, kMost);
  if (!whole || whole->size() == kMost) return 0;
  const std::size_t offset = data[1] * std::size_t{97} % (whole->size() + 1);
  const auto part = decode(stored, codecs, offset, 1000);
  CKFS_CHECK(part && std::ranges::equal(*part, std::span(*whole).subspan(offset)));
  return 0;
}
