// What a tile holds, as caches and stores of tiles name it.
#pragma once

#include <compare>
#include <cstdint>

namespace ckfs {

struct TileKey {
  enum class Kind : std::uint8_t { Piece, Tile, Literal, Kept, Maximum, Scales };
  std::uint64_t file = 0;  // serial number of the layout; of Kept: the source file's; of Maximum
                           // and Scales: of the definition
  Kind kind = Kind::Piece;
  std::uint32_t part = 0;  // tensor, literal or set number; 0 for others
  std::uint64_t index =
      0;  // which tile; of Piece and Kept: the first byte; of Scales: see Evaluator

  auto operator<=>(const TileKey&) const = default;
};

}  // namespace ckfs
