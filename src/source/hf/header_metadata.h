// What the headers of safetensors files say beside their tensors: pairs of text, which writers use
// for the format, the way in which the codes are quantized, or anything else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catalog/catalog.h"
#include "format/safetensors.h"

namespace ckfs {

/// The metadata of a model's shards, as far as there is room for it. Not for concurrent use.
class ShardMetadata {
 public:
  /// `kept_bytes` counts what is kept of all models that share it, and must outlive this.
  explicit ShardMetadata(std::uint64_t& kept_bytes) : kept_bytes_(kept_bytes) {}

  /// Takes that of the next shard, without its format and what torch says there of slices.
  void add(const safetensors::Header& header);

  /// nullptr: it has none, or there was no room.
  const std::shared_ptr<const HeaderMetadata>& of(std::size_t shard) const { return all_[shard]; }

  /// Adds notes on what `shards`, which were added in this order, have. `joined`: views do not
  /// mirror the files, and drop it.
  void note(CatalogBuilder& builder, std::span<const std::string> shards, bool joined) const;

 private:
  std::uint64_t& kept_bytes_;
  std::vector<std::shared_ptr<const HeaderMetadata>> all_;  // by shard
  std::size_t lost_ = 0;                                    // entries
};

/// `metadata` without the entries that say how tensors are quantized; `metadata` itself where there
/// are none.
std::shared_ptr<const HeaderMetadata> without_quantization(
    const std::shared_ptr<const HeaderMetadata>& metadata);

/// Why the codes of a file with this header cannot be decoded, by what ComfyUI says there of each
/// layer ({"layers": {NAME: {"format": ...}}} in the place of tensors called `.comfy_quant`);
/// empty: they can be, or it says nothing.
std::string comfy_fault(const safetensors::Header& header);

}  // namespace ckfs
