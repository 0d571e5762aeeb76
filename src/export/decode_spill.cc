#include "export/decode_spill.h"

#include <spdlog/spdlog.h>

#include "api/inside.h"
#include "chunks/chunk_source.h"
#include "chunks/decoded_chunks.h"
#include "export/export_record.h"

namespace ckfs {

void keep_decoded_chunks(const View& view, const OutDirectory& out, std::uint64_t spare) {
  ChunkSource* const chunks = chunk_source_of(view);
  if (chunks == nullptr || chunks->spill_limit() > 0) return;
  if (spare < DecodedChunks::kBlock) return;  // 0 would mean without a limit
  Result<UniqueFd> file = out.open_nameless(std::string(kRecordName));
  if (!file) {
    spdlog::info("{} (what --memory has no room for is decoded again)", file.error().message());
    return;
  }
  chunks->add_spill(
      std::make_shared<Spill>(SpillFile::adopt(out.name() + " (decoded chunks)", *std::move(file)),
                              DecodedChunks::kBlock, spare),
      true);
}

}  // namespace ckfs
