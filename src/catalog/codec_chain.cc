#include "catalog/codec_chain.h"

#include <string_view>

namespace ckfs {

std::string_view name(Codec codec) {
  switch (codec) {
    case Codec::Zstd:
      return "zstd";
    case Codec::Gzip:
      return "gzip";
    case Codec::Zlib:
      return "zlib";
    case Codec::Bz2:
      return "bz2";
    case Codec::Blosc:
      return "blosc";
    case Codec::Crc32c:
      return "crc32c";
  }
  return "";
}

}  // namespace ckfs
