#include "export/decode_spill.h"

#include <spdlog/spdlog.h>

#include "api/decode_cost.h"
#include "api/report.h"
#include "chunks/decoded_chunks.h"
#include "export/export_record.h"

namespace ckfs {

void keep_decoded_chunks(const View& view, const OutDirectory& out, std::uint64_t spare) {
  const Checkpoint::Impl& source = *view.impl().checkpoint;
  if (source.chunks == nullptr || source.chunks->spill_limit() > 0) return;
  const DecodeCost cost = decode_cost(view.impl(), source.memory, 0);
  if (!cost.is_dear()) {
    spdlog::info("{}: files in order decode {} of chunks for {}", view.name(),
                 human_size(cost.decoded), human_size(cost.needed));
    return;
  }
  if (spare < DecodedChunks::kBlock) return;  // 0 would be no limit
  Result<UniqueFd> file = out.open_nameless(std::string(kRecordName));
  if (!file) {
    spdlog::info("{} (chunks are decoded again: {} for {})", file.error().message(),
                 human_size(cost.decoded), human_size(cost.needed));
    return;
  }
  spdlog::info("{}: each chunk is decoded once, {} of them kept in {} (files in order: {})",
               view.name(), human_size(cost.chunks), out.name(), human_size(cost.decoded));
  source.chunks->add_spill(
      std::make_shared<Spill>(SpillFile::adopt(out.name() + " (decoded chunks)", *std::move(file)),
                              DecodedChunks::kBlock, spare),
      true);
}

}  // namespace ckfs
